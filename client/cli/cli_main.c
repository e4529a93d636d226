/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme`: selects the subcommand. */
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"

static const struct cli_command commands[] = {
    {"read", "[-o json] [-q] [-c] [-b SIZE] [-p PATH] FILE...", "read files into GPU memory",
     cli_read},
    {"write", "[-o json] [-q] [-c] [-b SIZE] [-p PATH] SOURCE FILE", "write a file from GPU memory",
     cli_write},
    {"extents", "[-o json] FILE", "show where a file lies on the drive", cli_extents},
    {"info", "[-o json] PATH", "show what serves a mount, and its counters", cli_info},
    {"list", "[-o json]", "list NVMe drives and mounts", cli_list},
    {"check", "[-o json] [-N] [DEVICE]", "say what this machine or a drive lacks", cli_check},
    {"identify", "[-o json] [-N] DEVICE", "show what a controller says of itself", cli_identify},
    {"regs", "[-o json] [-N] DEVICE", "show a controller's registers", cli_regs},
    {"bind", "[-f] [-n] ADDRESS", "hand a drive from the kernel to VFIO", cli_bind},
    {"unbind", "[-n] ADDRESS", "give a drive back to the kernel", cli_unbind},
};

static void usage(FILE *to)
{
    fputs("usage: gpunvme COMMAND [OPTION...] ARGUMENT...\n\n", to);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(to, "  gpunvme %-8s %-53s %s\n", commands[i].name, commands[i].arguments,
                commands[i].purpose);
    fputs("\n"
          "  -o, --output=FORMAT  text (default) or json\n"
          "  -q, --quiet          no progress\n"
          "  -c, --checksum       XXH3 of the bytes that reached the buffer\n"
          "  -b, --buffer=SIZE    size of the registered buffer, with K, M or G (default 256M)\n"
          "  -p, --path=PATH      auto (default), gpu or bounce\n"
          "  -f, --force          take a drive that bears somebody's data; never one in use\n"
          "  -n, --dry-run        check, say what would be done, and do nothing\n"
          "  -N, --noiommu        a drive that no IOMMU guards: it can then write to any memory\n"
          "  -h, --help           this text\n"
          "  -V, --version        version\n"
          "\n"
          "DEVICE is a PCI address, /dev/nvme0, /dev/nvme0n1, vfio:ADDRESS[/NSID] or\n"
          "vfio-user:SOCKET; ADDRESS is a PCI address such as 0000:c1:00.0.\n",
          to);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "--version") == 0) {
        puts("gpunvme " GPUNVME_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    }
    cli_error(argv[1], "no such command, see gpunvme --help");
    return 2;
}
