/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme` selects the subcommand. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/common/cli.h"
#include "support/option_words.h"
#include "support/std_files.h"

static const struct cli_command commands[] = {
    {"read", "oqcbp", "FILE...", "read files into GPU memory", cli_read, 1, INT_MAX, "files are"},
    {"write", "oqcbp", "SOURCE FILE", "write a file from GPU memory", cli_write, 2, 2,
     "a source and a file are"},
    {"cp", "oqcbp", "SOURCE... TARGET", "copy files to, from and within mounts", cli_cp, 2, INT_MAX,
     "a source and a target are"},
    {"verify", "oqb", "FILE...", "read files by every path and compare their checksums", cli_verify,
     1, INT_MAX, "files are"},
    {"bench", "oqbRS", "FILE...", "rates of files by every path, beside the limit", cli_bench, 1,
     INT_MAX, "files are"},
    {"extents", "o", "FILE", "show where a file lies on the drive", cli_extents, 1, 1,
     "one file is"},
    {"label", "o", "PATH [LABEL]", "show or change the label of a mount", cli_label, 1, 2,
     "a path, and perhaps a label, are"},
    {"resize", "o", "PATH [SIZE]", "make a mounted file system larger", cli_resize, 1, 2,
     "a path, and perhaps a size, are"},
    {"info", "o", "PATH", "show what serves a mount, and its counters", cli_info, 1, 1,
     "one path is"},
    {"stats", "ow", "[PATH...]", "show the counters of mounts (all of them)", cli_stats, 0, INT_MAX,
     NULL},
    {"top", "oiC", "[PATH...]", "show what mounts do now (all of them)", cli_top, 0, INT_MAX, NULL},
    {"trace", "oiC", "PATH", "show what a mount did, event by event", cli_trace, 1, 1,
     "one path of a mount is"},
    {"cache", "olniC", "DIRECTORY", "keep a directory below a size, by removing old files",
     cli_cache, 1, 1, "one directory is"},
    {"scrub", "oqarm", "PATH...", "compare data and metadata on the drive with their checksums",
     cli_scrub, 1, INT_MAX, "files or directories are"},
    {"list", "o", "[DEVICE...]", "list NVMe drives, mounts and file systems", cli_list, 0, INT_MAX,
     NULL},
    {"check", "oNtdsu", "[DEVICE]", "say what this machine or a drive lacks", cli_check, 0, 1,
     "one device at most is"},
    {"identify", "oNt", "DEVICE", "show what a controller says of itself", cli_identify, 1, 1,
     "one device is"},
    {"regs", "oNt", "DEVICE", "show a controller's registers", cli_regs, 1, 1, "one device is"},
    {"bind", "fn", "ADDRESS", "hand a drive from the kernel to VFIO", cli_bind, 1, 1,
     "one PCI address is"},
    {"unbind", "n", "ADDRESS", "give a drive back to the kernel", cli_unbind, 1, 1,
     "one PCI address is"},
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

static int cli_main_run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_options options;
    int first, status = cli_parse(command, argc, argv, &options, &first);

    return status ? status : command->run(&options, argv + first, argc - first);
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
        return cli_finish(argc, argv, cli_main_run(command, argc - 1, argv + 1));
    cli_error(argv[1], "no such command, see gpunvme --help");
    return cli_finish(argc, argv, 2);
}
