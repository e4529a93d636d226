/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme` selects the subcommand. */
#include <stdio.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "support/option_words.h"
#include "support/std_files.h"

static const struct cli_command commands[] = {
    {"read", "oqcbp", "FILE...", "read files into GPU memory", cli_read},
    {"write", "oqcbp", "SOURCE FILE", "write a file from GPU memory", cli_write},
    {"cp", "oqcbp", "SOURCE... TARGET", "copy files to, from and within mounts", cli_cp},
    {"verify", "oqb", "FILE...", "read files by every path and compare their checksums",
     cli_verify},
    {"bench", "oqbRS", "FILE...", "rates of files by every path, beside the limit", cli_bench},
    {"extents", "o", "FILE", "show where a file lies on the drive", cli_extents},
    {"label", "o", "PATH [LABEL]", "show or change the label of a mount", cli_label},
    {"resize", "o", "PATH [SIZE]", "make a mounted file system larger", cli_resize},
    {"info", "o", "PATH", "show what serves a mount, and its counters", cli_info},
    {"stats", "ow", "[PATH...]", "show the counters of mounts (all of them)", cli_stats},
    {"top", "oiC", "[PATH...]", "show what mounts do now (all of them)", cli_top},
    {"trace", "oiC", "PATH", "show what a mount did, event by event", cli_trace},
    {"cache", "olniC", "DIRECTORY", "keep a directory below a size, by removing old files",
     cli_cache},
    {"scrub", "oqarm", "PATH...", "compare data and metadata on the drive with their checksums",
     cli_scrub},
    {"list", "o", "[DEVICE...]", "list NVMe drives, mounts and file systems", cli_list},
    {"check", "oNtdsu", "[DEVICE]", "say what this machine or a drive lacks", cli_check},
    {"identify", "oNt", "DEVICE", "show what a controller says of itself", cli_identify},
    {"regs", "oNt", "DEVICE", "show a controller's registers", cli_regs},
    {"bind", "fn", "ADDRESS", "hand a drive from the kernel to VFIO", cli_bind},
    {"unbind", "n", "ADDRESS", "give a drive back to the kernel", cli_unbind},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    }
    return NULL;
}

static void usage(FILE *to)
{
    fputs("usage: gpunvme COMMAND [OPTION...] ARGUMENT...\n\n", to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  gpunvme %-8s %-12s %s\n", commands[i].name, commands[i].operands,
                commands[i].purpose);
    fputs("\nOptions; gpunvme COMMAND --help says which ones a command has:\n", to);
    cli_print_options(to);
    fputs("  -V, --version          version\n"
          "\n"
          "DEVICE is a PCI address, /dev/nvme0, /dev/nvme0n1, vfio:ADDRESS[/NSID] or\n"
          "vfio-user:SOCKET; ADDRESS is a PCI address such as 0000:c1:00.0.\n",
          to);
}

static bool wants_help(int n, char **arguments)
{
    for (int i = 0; i < n && strcmp(arguments[i], "--") != 0; i++) {
        if (strcmp(arguments[i], "-h") == 0 || strcmp(arguments[i], "--help") == 0)
            return true;
    }
    return false;
}

static int cli_main_help(const char *name)
{
    const struct cli_command *command = name ? find_command(name) : NULL;

    if (command)
        cli_print_help(command, stdout);
    else if (!name)
        usage(stdout);
    else
        return 1 + cli_error(name, "no such command, see gpunvme --help");
    return 0;
}

int main(int argc, char **argv)
{
    if (std_files_fill() != 0)
        return 1;
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    if (option_words_requested(argc, argv)) {
        cli_complete(commands, N_COMMANDS, argc - 2, argv + 2);
        return 0;
    }
    if (strcmp(argv[1], "help") == 0)
        return cli_main_help(argc > 2 ? argv[2] : NULL);
    if (strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "--version") == 0) {
        puts("gpunvme " GPUNVME_VERSION);
        return 0;
    }
    const struct cli_command *command = find_command(argv[1]);
    if (command && wants_help(argc - 2, argv + 2)) {
        cli_print_help(command, stdout);
        return 0;
    }
    if (command)
        return cli_finish(argc, argv, command->run(argc - 1, argv + 1));
    cli_error(argv[1], "no such command, see gpunvme --help");
    return cli_finish(argc, argv, 2);
}
