/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements fsck.gpunvme, which finds and repairs every violation of FORMAT.md. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "mkfs/fsck/fsck.h"
#include "mkfs/tool.h"

#define EXIT_CLEAN       0
#define EXIT_REPAIRED    1
#define EXIT_PROBLEMS    4
#define EXIT_OPERATIONAL 8
#define EXIT_USAGE       16

static const char usage_text[] =
    "usage: fsck.gpunvme [-n | -p | -y] [-f] [--reclaim] [OPTION]... DEVICE\n"
    "Checks the gpunvmefs file system on DEVICE: an image file, a block device,\n"
    "vfio:ADDRESS[/NSID] or vfio-user:SOCKET, and asks before each repair.\n"
    "\n"
    "  -n                     change nothing\n"
    "  -p, -a                 repair what is safe without a question; look no further\n"
    "                         when the file system was unmounted in order\n"
    "  -y                     repair everything\n"
    "  -f                     with -p: check in any case\n"
    "      --reclaim          use the second label even if block 0 is none\n"
    "      --replay=FILE      with -y: first apply the log that a repair has kept, FILE\n"
    "                         is a copy of lost+found/journal-N\n"
    "      --report=FILE      write what is lost to FILE, as JSON\n" TOOL_USAGE
    "  -v, --verbose          print what was counted\n" TOOL_USAGE_END "\n"
    "Exit status: 0 clean, 1 problems were repaired, 4 problems are left, 8 the check\n"
    "could not be done, 16 wrong usage.\n";

/* Holds the arguments of the command line and the run that the arguments request. */
struct arguments {
    struct fsck fsck;
    struct tool_device device;
    struct ffs_mmp *hold;   /* NULL without multi-mount protection */
    bool check, preen, yes; /* -n, -p and -y */
    bool force;
    const char *report; /* NULL: none */
    int report_fd;      /* opened before the sandbox */
};

static const struct tool_option main_options[] = {
    {.letter = 'n', .at = offsetof(struct arguments, check)},
    {.letter = 'p', .at = offsetof(struct arguments, preen)},
    {.letter = 'a', .at = offsetof(struct arguments, preen)},
    {.letter = 'y', .at = offsetof(struct arguments, yes)},
    {.letter = 'f', .at = offsetof(struct arguments, force)},
    {.name = "reclaim", .at = offsetof(struct arguments, fsck.reclaim)},
    {.name = "replay", .at = offsetof(struct arguments, fsck.replay), .take = tool_take_text},
    {.name = "report", .at = offsetof(struct arguments, report), .take = tool_take_text},
    {'v', "verbose", .at = offsetof(struct arguments, fsck.verbose)},
    {0},
};
static const struct tool_syntax syntax = {usage_text, main_options, EXIT_USAGE};

static enum fsck_mode main_mode(const struct arguments *args)
{
    if (args->check)
        return FSCK_CHECK;
    if (args->preen)
        return FSCK_PREEN;
    return args->yes ? FSCK_YES : FSCK_ASK;
}

/* Returns -1 to continue, or the exit status. */
static int main_parse_arguments(int argc, char **argv, struct arguments *args)
{
    struct fsck *f = &args->fsck;
    int status = tool_parse(&syntax, argc, argv, args, &args->device);

    if (status >= 0)
        return status;
    f->mode = main_mode(args);
    f->path = args->device.text;
    args->device.reads = f->replay;
    if (args->check + args->preen + args->yes > 1) {
        tool_error("options", "-n, -p and -y exclude each other, give one of them");
        return EXIT_USAGE;
    }
    if (f->replay && f->mode != FSCK_YES) {
        tool_error("options", "--replay changes the file system, give -y, too");
        return EXIT_USAGE;
    }
    if (f->mode == FSCK_ASK && !(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))) {
        tool_error("options", "there is no terminal to ask on, give -n, -p or -y");
        return EXIT_USAGE;
    }
    return -1;
}

/*
 * Asks the user, who may answer y (yes), n (no) or a (yes to all). The end of
 * input means no.
 */
static bool ask_terminal(struct fsck *f)
{
    char line[64];

    while (fgets(line, sizeof(line), stdin)) {
        if (line[0] == 'a' || line[0] == 'A')
            f->mode = FSCK_YES;
        if (strchr("yYaA", line[0]))
            return true;
        if (line[0] == 'n' || line[0] == 'N')
            return false;
        printf("y, n or a (yes to all)? ");
        fflush(stdout);
    }
    return false;
}

static void main_print_result(const struct fsck *f)
{
    uint64_t problems = fsck_problems(f);

    if (f->verbose) {
        printf("Inodes: %" PRIu64 "\n", f->inodes_used);
        printf("Blocks: %" PRIu64 "\n", f->img.geo.blocks);
        printf("Free blocks: %" PRIu64 "\n", lay_get64(f->sb.area.free_blocks));
    }
    if (problems && f->repaired && fsck_all_repaired(f))
        printf("%s: %" PRIu64 " problems, all repaired\n", f->path, problems);
    else if (problems && f->repaired)
        printf("%s: %" PRIu64 " problems, not all repaired\n", f->path, problems);
    else if (problems)
        printf("%s: %" PRIu64 " problems\n", f->path, problems);
    else
        printf("%s: clean\n", f->path);
    if (f->unsafe)
        printf("%s: run fsck.gpunvme without -p\n", f->path);
}

static int status_of(const struct fsck *f)
{
    if (fsck_problems(f) == 0)
        return EXIT_CLEAN;
    return fsck_all_repaired(f) ? EXIT_REPAIRED : EXIT_PROBLEMS;
}

/* Nobody writes to a file system that has an unknown read-only feature. */
static void check_features(struct fsck *f)
{
    uint64_t unknown = f->img.geo.ro_compat & ~LAY_FEATURE_RO_COMPAT;

    if (!unknown || f->mode == FSCK_CHECK)
        return;
    tool_error(f->path,
               "has unknown read-only features 0x%" PRIx64 ", nothing is written; use a "
               "newer version to repair it",
               unknown);
    f->mode = FSCK_CHECK;
}

static int main_fail(const struct fsck *f, int err)
{
    if (err == -EUCLEAN && f->why) {
        if (f->log_read)
            tool_error(f->path, "%s", f->why);
        else
            tool_error(f->path, "superblock: %s, and no usable copy was found", f->why);
        return EXIT_PROBLEMS;
    }
    tool_error(f->path, "the check ended early: %s", tool_strerror(err));
    return EXIT_OPERATIONAL;
}

static int main_report_failed(const char *file, int err)
{
    tool_error(file, "the report could not be written: %s", tool_strerror(err));
    return err;
}

static int main_open_report(struct arguments *args)
{
    if (!args->report)
        return 0;
    args->report_fd = open(args->report, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return args->report_fd < 0 ? main_report_failed(args->report, -errno) : 0;
}

static struct json_object *main_json_loss(const struct fsck_loss *l)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "inode", json_object_new_uint64(l->ino));
    json_object_object_add(o, "path", l->path ? json_object_new_string(l->path) : NULL);
    json_object_object_add(o, "kind", json_object_new_string(fsck_loss_id(l->kind)));
    if (fsck_loss_is_range(l->kind)) {
        json_object_object_add(o, "first", json_object_new_uint64(l->first));
        json_object_object_add(o, "last", json_object_new_uint64(l->end - 1));
    }
    return o;
}

/* Replaces the contents of the file with the report. Returns 0 or -errno. */
static int main_write_json(const struct fsck *f, int fd)
{
    const struct fsck_loss *l = f->report.items;
    struct json_object *o = json_object_new_object(), *losses = json_object_new_array();

    json_object_object_add(o, "device", json_object_new_string(f->path));
    json_object_object_add(o, "repaired", json_object_new_boolean(fsck_all_repaired(f)));
    json_object_object_add(o, "losses", losses);
    for (size_t i = 0; i < f->report.count; i++)
        json_object_array_add(losses, main_json_loss(&l[i]));
    errno = 0;
    int err = ftruncate(fd, 0);
    if (!err || errno == EINVAL) /* EINVAL: a pipe */
        err = json_object_to_fd(fd, o, JSON_C_TO_STRING_PRETTY);
    json_object_put(o);
    return err ? -(errno ? errno : EIO) : 0;
}

static int main_write_report(const struct fsck *f, const struct arguments *args)
{
    int err = args->report ? main_write_json(f, args->report_fd) : 0;

    return err ? main_report_failed(args->report, err) : 0;
}

static int main_check(struct fsck *f, struct bd_dev *dev, struct arguments *args)
{
    bool clean = false;
    struct reason why;

    if (ffs_ours(dev, f->reclaim, &why) != 0) {
        tool_error(f->path, "%s", why.text);
        return EXIT_OPERATIONAL;
    }
    if (tool_hold(&args->device, dev, NULL, &args->hold) != 0)
        return EXIT_OPERATIONAL;
    int err = image_start(&f->img, dev, f->reclaim, &f->labels);
    if (err) {
        tool_no_file_system(f->path, &f->labels, err);
        return err == -EUCLEAN || err == -ERANGE ? EXIT_PROBLEMS : EXIT_OPERATIONAL;
    }
    check_features(f);
    if (f->mode == FSCK_PREEN && !args->force)
        err = fsck_says_clean(f, &clean);
    if (!err && clean) {
        printf("%s: clean, unmounted in order\n", f->path);
        return EXIT_CLEAN;
    }
    if (!err)
        err = fsck_run(f);
    if (err)
        return main_fail(f, err);
    err = main_write_report(f, args);
    main_print_result(f);
    return err ? EXIT_OPERATIONAL : status_of(f);
}

int main(int argc, char **argv)
{
    struct arguments *args = calloc(1, sizeof(*args));
    struct bd_opened opened;

    if (!args)
        return EXIT_OPERATIONAL;
    struct fsck *f = &args->fsck;
    f->ask = ask_terminal;
    f->progress = isatty(STDERR_FILENO);
    int status = main_parse_arguments(argc, argv, args);
    if (status >= 0)
        goto free_args;
    /*
     * The device is opened exclusively, because a mounted file system changes
     * during the check and would look damaged.
     */
    uint32_t access = f->mode == FSCK_CHECK ? BD_OPEN_READ_ONLY : 0;
    status = EXIT_OPERATIONAL;
    if (main_open_report(args) != 0 ||
        tool_open(&args->device, access | BD_OPEN_EXCLUSIVE, &opened) != 0)
        goto free_args;
    status = main_check(f, opened.dev, args);
    fsck_end(f);
    ffs_mmp_drop(args->hold, true);
    bd_opened_close(&opened);
free_args:
    free(args);
    return fflush(stdout) == 0 ? status : EXIT_OPERATIONAL;
}
