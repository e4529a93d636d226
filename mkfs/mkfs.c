/*
 * mkfs.gpunvme: makes an empty file system on an image file or a block device.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "mkfs/mkfs_core.h"
#include "mkfs/signature.h"
#include "mkfs/tool.h"

#define EXIT_USAGE 2

struct options {
    struct mkfs_params params;
    const char *path;
    bool dry_run, force, quiet, verbose;
    bool has_uuid;
};

/* The device on its way to a file system. */
struct target {
    const char *path;
    int fd;             /* for stat, probing and extending */
    struct bd_dev *dev; /* holds the lock */
    bool created;       /* by us: goes away if we fail */
};

static const char usage_text[] =
    "usage: mkfs.gpunvme [OPTION]... DEVICE\n"
    "Makes an empty gpunvmefs file system on DEVICE, an image file or a block device.\n"
    "\n"
    "  -L, --label=TEXT       label, at most 63 bytes of UTF-8\n"
    "  -U, --uuid=UUID        UUID (default: random)\n"
    "  -b, --block-size=4096  block size; 4096 is the only one\n"
    "  -s, --size=SIZE        size of the file system (suffixes K, M, G, T); a file is\n"
    "                         created or extended (default: all of DEVICE)\n"
    "  -n, --dry-run          show what would be made, write nothing\n"
    "  -f, --force            overwrite another file system or a partition table\n"
    "  -q, --quiet            print errors only\n"
    "  -v, --verbose          print where everything is\n"
    "  -V, --version          print the version and exit\n"
    "      --help             print this and exit\n"
    "\n"
    "SOURCE_DATE_EPOCH, when set, is the time of creation in seconds since 1970.\n";

static const struct option long_options[] = {
    {"label", required_argument, NULL, 'L'},
    {"uuid", required_argument, NULL, 'U'},
    {"block-size", required_argument, NULL, 'b'},
    {"size", required_argument, NULL, 's'},
    {"dry-run", no_argument, NULL, 'n'},
    {"force", no_argument, NULL, 'f'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int set_label(struct options *o, const char *text)
{
    if (strlen(text) > LAY_LABEL_MAX)
        return tool_error("--label", "%zu bytes, at most %u fit", strlen(text), LAY_LABEL_MAX);
    if (!lay_label_ok(text, strlen(text)))
        return tool_error("--label", "not UTF-8, or with control characters");
    o->params.label = text;
    return 0;
}

static int set_uuid(struct options *o, const char *text)
{
    if (uuid_parse(text, o->params.uuid) != 0)
        return tool_error("--uuid", "'%s' is not a UUID, uuidgen(1) makes one", text);
    if (uuid_is_null(o->params.uuid))
        return tool_error("--uuid", "the null UUID names no file system, uuidgen(1) makes one");
    o->has_uuid = true;
    return 0;
}

static int set_block_size(const char *text)
{
    uint64_t bytes;
    if (tool_parse_size(text, &bytes) != 0 || bytes != LAY_BLOCK_SIZE)
        return tool_error("--block-size", "'%s': blocks are 4096 bytes, no other size is possible",
                          text);
    return 0;
}

static int set_size(struct options *o, const char *text)
{
    uint64_t bytes;
    if (tool_parse_size(text, &bytes) != 0)
        return tool_error("--size", "'%s' is not a size, give digits and K, M, G or T", text);
    if (bytes < MKFS_MIN_BYTES)
        return tool_error("--size", "%s is too small, at least 16M is needed", text);
    if (bytes > INT64_MAX || bytes >> LAY_BLOCK_SHIFT > LAY_MAX_BLOCKS)
        return tool_error("--size", "%s is more than the format can hold", text);
    o->params.bytes = bytes & ~(uint64_t)(LAY_BLOCK_SIZE - 1);
    return 0;
}

/* 0, or -1 after an error line. `c` is what getopt_long() returned. */
static int set_option(struct options *o, int c)
{
    switch (c) {
    case 'L':
        return set_label(o, optarg);
    case 'U':
        return set_uuid(o, optarg);
    case 'b':
        return set_block_size(optarg);
    case 's':
        return set_size(o, optarg);
    case 'n':
        o->dry_run = true;
        return 0;
    case 'f':
        o->force = true;
        return 0;
    case 'q':
        o->quiet = true;
        return 0;
    case 'v':
        o->verbose = true;
        return 0;
    default: /* getopt_long() has named the option */
        return -1;
    }
}

/* 0: go on; otherwise the process ends with *status. */
static int parse_arguments(int argc, char **argv, struct options *o, int *status)
{
    int c;
    *status = EXIT_SUCCESS;
    while ((c = getopt_long(argc, argv, "L:U:b:s:nfqvV", long_options, NULL)) != -1) {
        if (c == 'V') {
            tool_version();
            return 1;
        }
        if (c == 'h') {
            fputs(usage_text, stdout);
            return 1;
        }
        if (set_option(o, c) != 0) {
            *status = EXIT_USAGE;
            return 1;
        }
    }
    if (argc - optind != 1) {
        tool_error("arguments", "one DEVICE is needed, see --help");
        *status = EXIT_USAGE;
        return 1;
    }
    o->path = argv[optind];
    return 0;
}

static int set_time(struct mkfs_params *params)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    struct timespec now;
    uint64_t sec;

    if (epoch) {
        if (tool_parse_number(epoch, &sec) != 0 || sec > INT64_MAX)
            return tool_error("SOURCE_DATE_EPOCH", "'%s' is not a count of seconds, unset it",
                              epoch);
        params->time_sec = (int64_t)sec;
        return 0;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    params->time_sec = now.tv_sec;
    params->time_nsec = (uint32_t)now.tv_nsec;
    return 0;
}

static int refuse_signature(const struct options *o, int fd)
{
    char name[64];
    int found = signature_find(fd, name, sizeof(name));
    if (found < 0)
        return tool_error(o->path, "cannot look for signatures: %s", tool_strerror(found));
    if (found && !o->force)
        return tool_error(o->path, "holds %s, -f overwrites it", name);
    return 0;
}

/* A file that is missing is made here; everything else must exist. */
static int open_file(const struct options *o, struct target *t)
{
    int mode = O_CLOEXEC | O_NONBLOCK | (o->dry_run ? O_RDONLY : O_RDWR);
    t->fd = open(o->path, mode);
    if (t->fd >= 0)
        return 0;
    if (errno != ENOENT)
        return tool_error(o->path, "cannot open: %s", strerror(errno));
    if (o->params.bytes == 0)
        return tool_error(o->path, "does not exist, --size creates it");
    if (o->dry_run)
        return 0;
    t->fd = open(o->path, mode | O_CREAT | O_EXCL, 0666);
    if (t->fd < 0)
        return tool_error(o->path, "cannot create: %s", strerror(errno));
    t->created = true;
    return 0;
}

/* Makes a regular file as long as the file system; the device must be opened again to see it. */
static int extend_file(const struct options *o, struct target *t)
{
    struct stat st;
    if (fstat(t->fd, &st) != 0)
        return tool_error(o->path, "cannot stat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size >= o->params.bytes)
        return 0;
    if (ftruncate(t->fd, (off_t)o->params.bytes) != 0)
        return tool_error(o->path, "cannot extend: %s", strerror(errno));
    bd_close(t->dev);
    t->dev = NULL;
    return tool_open(o->path, BD_OPEN_EXCLUSIVE, &t->dev);
}

/* What mkfs_lay_out() and mkfs_format() can answer. */
static int explain(const struct options *o, int err)
{
    switch (err) {
    case 0:
        return 0;
    case -ENOSPC:
        return tool_error(o->path, "is smaller than --size, give less");
    case -EINVAL:
        return tool_error(o->path, "too small, at least 16M is needed");
    case -EFBIG:
        return tool_error(o->path, "larger than the format can hold, give a --size");
    case -EUCLEAN:
        return tool_error(o->path, "does not give back what was written, do not use it");
    default:
        return tool_error(o->path, "cannot write the file system: %s", tool_strerror(err));
    }
}

static void print_where(const struct options *o, const struct mkfs_plan *plan)
{
    const struct lay_geometry *geo = &plan->geo;
    printf("Bitmap blocks: %" PRIu64 " at %" PRIu64 "\n", geo->bitmap_blocks, geo->bitmap_start);
    printf("Journal start: %" PRIu64 "\n", geo->journal_start);
    printf("Inode block: %" PRIu64 "\n", plan->inode_block);
    printf("Root directory block: %" PRIu64 "\n", plan->root_node);
    printf("Superblock copies: %" PRIu64 " %" PRIu64 "\n", geo->copies[0], geo->copies[1]);
    printf("Created: %" PRId64 ".%09" PRIu32 "\n", o->params.time_sec, o->params.time_nsec);
}

static void print_result(const struct options *o, const struct mkfs_plan *plan)
{
    const struct lay_geometry *geo = &plan->geo;
    printf("Device: %s\n", o->path);
    if (o->dry_run)
        printf("Dry run: nothing was written\n");
    printf("Format version: %u.%u\n", LAY_VERSION_MAJOR, LAY_VERSION_MINOR);
    tool_print_uuid(stdout, "UUID", geo->uuid);
    printf("Label: %s\n", geo->label);
    printf("Size: %" PRIu64 "\n", geo->blocks << LAY_BLOCK_SHIFT);
    printf("Block size: %u\n", LAY_BLOCK_SIZE);
    printf("Blocks: %" PRIu64 "\n", geo->blocks);
    printf("Free blocks: %" PRIu64 "\n", plan->free_blocks);
    printf("Journal blocks: %" PRIu64 "\n", geo->journal_blocks);
    if (o->verbose)
        print_where(o, plan);
}

/* The bytes the file system will find, were this not a dry run. */
static uint64_t future_bytes(const struct options *o, const struct target *t)
{
    struct stat st;
    uint64_t bytes = t->dev ? t->dev->info.bytes : 0;
    bool grows = !t->dev || (fstat(t->fd, &st) == 0 && S_ISREG(st.st_mode));
    return grows && bytes < o->params.bytes ? o->params.bytes : bytes;
}

static int format_target(const struct options *o, struct target *t, struct mkfs_plan *plan)
{
    uint32_t flags = BD_OPEN_EXCLUSIVE | (o->dry_run ? BD_OPEN_READ_ONLY : 0);
    int err = open_file(o, t);
    if (!err && t->fd >= 0)
        err = tool_open(o->path, flags, &t->dev);
    if (!err && t->fd >= 0)
        err = refuse_signature(o, t->fd);
    if (!err)
        err = explain(o, mkfs_lay_out(&o->params, future_bytes(o, t), plan));
    if (err || o->dry_run)
        return err;

    err = signature_wipe(t->fd);
    if (err)
        return tool_error(o->path, "cannot wipe old signatures: %s", tool_strerror(err));
    err = extend_file(o, t);
    return err ? err : explain(o, mkfs_format(t->dev, &o->params, plan));
}

static void close_target(struct target *t, int err)
{
    if (t->dev)
        bd_close(t->dev);
    if (t->fd >= 0)
        close(t->fd);
    if (err && t->created)
        unlink(t->path);
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct mkfs_plan plan;
    int status;
    if (parse_arguments(argc, argv, &o, &status) != 0)
        return status;
    if (set_time(&o.params) != 0)
        return EXIT_FAILURE;
    if (!o.has_uuid)
        uuid_generate(o.params.uuid);

    struct target t = {.path = o.path, .fd = -1};
    int err = format_target(&o, &t, &plan);
    close_target(&t, err);
    if (err)
        return EXIT_FAILURE;
    if (!o.quiet)
        print_result(&o, &plan);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
