/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fsck.gpunvme: finds every violation of FORMAT.md, and changes nothing.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mkfs/fsck.h"
#include "mkfs/tool.h"

#define EXIT_CLEAN       0
#define EXIT_PROBLEMS    4
#define EXIT_OPERATIONAL 8
#define EXIT_USAGE       16

static const char usage_text[] =
    "usage: fsck.gpunvme -n [OPTION]... DEVICE\n"
    "Checks the gpunvmefs file system on DEVICE: an image file, a block device,\n"
    "vfio:ADDRESS[/NSID] or vfio-user:SOCKET.\n"
    "\n"
    "  -n                     change nothing; required, since this version repairs "
    "nothing\n" TOOL_USAGE "  -v, --verbose          print what was counted\n"
    "  -V, --version          print the version and exit\n"
    "      --help             print this and exit\n"
    "\n"
    "Exit status: 0 clean, 4 problems were found, 8 the check could not be done,\n"
    "16 wrong usage.\n";

static const struct option long_options[] = {
    TOOL_LONG_OPTIONS,
    {"verbose", no_argument, NULL, 'v'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* -1: go on; otherwise the exit status. */
static int parse_arguments(int argc, char **argv, struct fsck *f, struct tool_device *device)
{
    bool no_change = false;
    int c;

    while ((c = getopt_long(argc, argv, "npyavV" TOOL_SHORT_OPTIONS, long_options, NULL)) != -1) {
        switch (c) {
        case 'n':
            no_change = true;
            break;
        case 'v':
            f->verbose = true;
            break;
        case 'V':
            tool_version();
            return EXIT_CLEAN;
        case 'h':
            fputs(usage_text, stdout);
            return EXIT_CLEAN;
        case 'p':
        case 'y':
        case 'a':
            tool_error("options", "-%c: this version cannot repair, use -n to check", c);
            return EXIT_USAGE;
        default: /* getopt_long() has reported an unknown option */
            if (tool_device_option(device, c, optarg) != 0)
                return EXIT_USAGE;
        }
    }
    if (!no_change || argc - optind != 1) {
        tool_error("arguments", "-n and one DEVICE are needed, see --help");
        return EXIT_USAGE;
    }
    f->path = argv[optind];
    return tool_device_name(device, f->path) == 0 ? -1 : EXIT_USAGE;
}

/* Why there is no file system to check: a line for the user. */
static int explain_start(const struct fsck *f, int err)
{
    switch (err) {
    case -EINVAL:
        return tool_error(f->path, "holds no gpunvmefs file system, check the name of the device");
    case -ENOTSUP:
        if (f->super.features)
            return tool_error(
                f->path, "has unknown incompatible features 0x%" PRIx64 ", use a newer version",
                f->super.features);
        return tool_error(f->path, "has another format version, use a newer version");
    case -EUCLEAN:
        return tool_error(f->path, "superblock: %s, and no usable copy was found", f->super.why);
    default:
        return tool_error(f->path, "cannot read: %s", tool_strerror(err));
    }
}

static void print_result(const struct fsck *f)
{
    uint64_t problems = fsck_problems(f);

    if (f->verbose) {
        printf("Inodes: %" PRIu64 "\n", f->inodes_used);
        printf("Blocks: %" PRIu64 "\n", f->img.geo.blocks);
        printf("Free blocks: %" PRIu64 "\n", lay_get64(f->sb.free_blocks));
    }
    if (problems)
        printf("%s: %" PRIu64 " problems\n", f->path, problems);
    else
        printf("%s: clean\n", f->path);
}

static int check(struct fsck *f, struct bd_dev *dev)
{
    int err = image_start(&f->img, dev, &f->super);

    if (err == -EUCLEAN && f->super.error == -EUCLEAN) {
        explain_start(f, err);
        return EXIT_PROBLEMS;
    }
    if (err) {
        explain_start(f, err);
        return EXIT_OPERATIONAL;
    }
    err = fsck_passes(f);
    if (err) {
        tool_error(f->path, "the check ended early: %s", tool_strerror(err));
        return EXIT_OPERATIONAL;
    }
    print_result(f);
    return fsck_problems(f) ? EXIT_PROBLEMS : EXIT_CLEAN;
}

int main(int argc, char **argv)
{
    struct fsck *f = calloc(1, sizeof(*f));
    struct tool_device device = {0};
    struct bd_opened opened;

    if (!f)
        return EXIT_OPERATIONAL;
    f->progress = isatty(STDERR_FILENO);
    int status = parse_arguments(argc, argv, f, &device);
    if (status >= 0)
        goto free_fsck;
    /* Exclusive: a mounted file system changes under the check and would look broken. */
    status = EXIT_OPERATIONAL;
    if (tool_open(&device, BD_OPEN_READ_ONLY | BD_OPEN_EXCLUSIVE, &opened) != 0)
        goto free_fsck;
    status = check(f, opened.dev);
    fsck_end(f);
    bd_opened_close(&opened);
free_fsck:
    free(f);
    return fflush(stdout) == 0 ? status : EXIT_OPERATIONAL;
}
