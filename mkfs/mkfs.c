/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mkfs.gpunvme creates an empty file system on an image file, a block device or
 * an NVMe drive.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "blockdev/bd_signature.h"
#include "layout/layout.h"
#include "mkfs/mkfs_core.h"
#include "mkfs/tool.h"
#include "support/bytes_text.h"
#include "support/number.h"

struct target {
    struct tool_device *device;
    struct bd_opened opened; /* dev holds the lock; NULL in a dry run on a missing file */
    int fd;                  /* the file or block device; for a controller a copy of its ends */
    bool created;            /* this process created the file and removes it on failure */
};

static bool is_regular(const struct target *t, struct stat *st)
{
    return !t->opened.ctrlr && t->fd >= 0 && fstat(t->fd, st) == 0 && S_ISREG(st->st_mode);
}

/* Opens the file. A missing file is created here; anything else must exist. */
static int target_open_file(struct target *t, uint64_t bytes, bool dry_run)
{
    const char *path = t->device->name.path;
    int mode = O_CLOEXEC | O_NONBLOCK | (dry_run ? O_RDONLY : O_RDWR);

    t->fd = open(path, mode);
    if (t->fd >= 0)
        return 0;
    if (errno != ENOENT)
        return tool_error(t->device->text, "cannot open: %s", strerror(errno));
    if (bytes == 0)
        return tool_error(t->device->text, "does not exist, --size creates it");
    if (dry_run)
        return 0;
    /* Readers of the image pass the permissions of files inside. */
    t->fd = open(path, mode | O_CREAT | O_EXCL, 0600);
    if (t->fd < 0)
        return tool_error(t->device->text, "cannot create: %s", strerror(errno));
    t->created = t->device->removes = true;
    return 0;
}

static int open_controller(struct target *t, uint32_t flags)
{
    if (tool_open(t->device, flags, &t->opened) != 0)
        return -1;
    if (t->opened.dev->info.read_only && !(flags & BD_OPEN_READ_ONLY))
        return tool_error(t->device->text, "write protected, nothing can be made on it");
    int err = bd_signature_copy_ends(t->opened.dev, &t->fd);
    return err ? tool_error(t->device->text, "cannot read: %s", tool_strerror(err)) : 0;
}

/* Opens the device; creates a missing file of `bytes`, unless 0 or dry. */
static int target_open(struct target *t, struct tool_device *device, uint64_t bytes, bool dry_run)
{
    uint32_t flags = BD_OPEN_EXCLUSIVE | (dry_run ? BD_OPEN_READ_ONLY : 0);

    *t = (struct target){.device = device, .fd = -1};
    if (bd_name_is_ctrlr(&device->name))
        return open_controller(t, flags);
    if (target_open_file(t, bytes, dry_run) != 0)
        return -1;
    return t->fd >= 0 ? tool_open(device, flags, &t->opened) : 0;
}

/* May follow a failed target_open(). Removes a file that was created in vain. */
static void target_close(struct target *t, bool failed)
{
    bd_opened_close(&t->opened);
    if (t->fd >= 0)
        close(t->fd);
    if (failed && t->created)
        unlink(t->device->name.path);
}

/*
 * Looks for the signature of gpunvmefs, which libblkid does not know. Returns 1
 * if the signature is found, 0 if not, or -errno.
 */
static int find_own(int fd, struct bd_signature *s)
{
    le32 magic;
    ssize_t n = pread(fd, &magic, sizeof(magic), 0);

    if (n < 0)
        return -errno;
    if (n != (ssize_t)sizeof(magic) || lay_get32(magic) != LAY_MAGIC_LABEL)
        return 0;
    snprintf(s->name, sizeof(s->name), "a gpunvmefs file system");
    return 1;
}

/* Refuses a device with a signature unless `force` is set. */
static int target_refuse_signature(const struct target *t, bool force)
{
    struct bd_signature s;

    if (t->fd < 0)
        return 0;
    int found = find_own(t->fd, &s);
    if (!found)
        found = bd_signature_find(t->fd, 0, t->opened.dev->info.lba_size, NULL, NULL, &s);
    if (found < 0)
        return tool_error(t->device->text, "cannot look for signatures: %s", tool_strerror(found));
    if (found && !force)
        return tool_error(t->device->text, "holds %s, -f overwrites it", s.name);
    return 0;
}

/* Returns the size after target_prepare() for `wanted` bytes (0: as is). */
static uint64_t target_bytes(const struct target *t, uint64_t wanted)
{
    struct stat st;
    uint64_t bytes = t->opened.dev ? t->opened.dev->info.bytes : 0;
    bool grows = !t->opened.dev || is_regular(t, &st);

    return grows && bytes < wanted ? wanted : bytes;
}

/* Refuses a file whose file system has no room for `bytes`. */
static int target_check_room(const struct target *t, uint64_t bytes)
{
    struct statvfs vfs;
    struct stat st;

    if (!is_regular(t, &st) || fstatvfs(t->fd, &vfs) != 0)
        return 0;
    uint64_t room = (uint64_t)vfs.f_bavail * vfs.f_frsize + (uint64_t)st.st_blocks * 512;
    if (bytes <= room)
        return 0;
    return tool_error(t->device->text,
                      "needs %" PRIu64 " MiB for its bitmaps, %" PRIu64
                      " MiB are free where it lies: give a smaller --size",
                      bytes >> 20, room >> 20);
}

/* Extends a regular file, and opens the device again for its new size. */
static int target_extend_file(struct target *t, uint64_t wanted)
{
    struct stat st;

    if (!is_regular(t, &st) || (uint64_t)st.st_size >= wanted)
        return 0;
    if (ftruncate(t->fd, (off_t)wanted) != 0)
        return tool_error(t->device->text, "cannot extend: %s", strerror(errno));
    bd_opened_close(&t->opened);
    return tool_open(t->device, BD_OPEN_EXCLUSIVE, &t->opened);
}

/* Removes old signatures and extends a file that is too short. */
static int target_prepare(struct target *t, uint64_t wanted)
{
    assert(t->opened.dev && "only a dry run opens no device");
    int err = bd_signature_wipe(t->fd, t->opened.dev->info.lba_size);

    if (!err && t->opened.ctrlr)
        err = bd_signature_write_ends(t->opened.dev, t->fd);
    if (err)
        return tool_error(t->device->text, "cannot wipe old signatures: %s", tool_strerror(err));
    return target_extend_file(t, wanted);
}

#define EXIT_USAGE        2
#define MKFS_COPIES_BYTES ((uint64_t)1 << 30) /* file systems from this size on have copies */

struct options {
    struct mkfs_params params;
    struct tool_device device;
    bool dry_run, force, quiet, verbose;
    bool has_uuid, has_copies; /* has_copies: an option says whether there are copies */
};

static const char usage_text[] =
    "usage: mkfs.gpunvme [OPTION]... DEVICE\n"
    "Makes an empty gpunvmefs file system on DEVICE: an image file, a block device,\n"
    "vfio:ADDRESS[/NSID] or vfio-user:SOCKET.\n"
    "\n"
    "  -L, --label=TEXT       label, at most 63 bytes of UTF-8\n"
    "  -U, --uuid=UUID        UUID (default: random)\n"
    "  -b, --block-size=4096  block size; 4096 is the only one\n"
    "  -s, --size=SIZE        size of the file system (suffixes K, M, G, T); a file is\n"
    "                         created or extended (default: all of DEVICE)\n"
    "  -E, --extended=LIST    comma-separated: root_owner=UID:GID (default: the user),\n"
    "                         hash_seed=UUID of directories (default: random)\n"
    "  -O, --features=LIST    comma-separated: data_csum, checksums of data; meta_copies,\n"
    "                         two places of metadata (default: this one from 1 GiB on)\n"
    "  -n, --dry-run          show what would be made, write nothing\n"
    "  -f, --force            overwrite another file system or a partition table\n" TOOL_USAGE
    "  -q, --quiet            print errors only\n"
    "  -v, --verbose          print where everything is\n" TOOL_USAGE_END "\n"
    "SOURCE_DATE_EPOCH, when set, is the time of creation in seconds since 1970.\n";

static int mkfs_set_label(void *options, char *text)
{
    struct options *o = options;

    if (strlen(text) > LAY_LABEL_MAX)
        return tool_error("--label", "%zu bytes, at most %u fit", strlen(text), LAY_LABEL_MAX);
    if (!lay_label_ok(text, strlen(text)))
        return tool_error("--label", "not UTF-8, or with control characters");
    o->params.label = text;
    return 0;
}

static int set_uuid(void *options, char *text)
{
    struct options *o = options;

    if (uuid_parse(text, o->params.uuid) != 0)
        return tool_error("--uuid", "'%s' is not a UUID, uuidgen(1) makes one", text);
    if (uuid_is_null(o->params.uuid))
        return tool_error("--uuid", "the null UUID names no file system, uuidgen(1) makes one");
    o->has_uuid = true;
    return 0;
}

static int set_block_size(void *options, char *text)
{
    uint64_t bytes;

    (void)options;
    if (!number_parse_size(text, UINT64_MAX, &bytes) || bytes != LAY_BLOCK_SIZE)
        return tool_error("--block-size", "'%s': blocks are 4096 bytes, no other size is possible",
                          text);
    return 0;
}

static int mkfs_set_size(void *options, char *text)
{
    struct options *o = options;
    uint64_t bytes;

    if (!number_parse_size(text, UINT64_MAX, &bytes))
        return tool_error("--size", "'%s' is not a size, give digits and K, M, G or T", text);
    if (bytes < MKFS_MIN_BYTES)
        return tool_error("--size", "%s is too small, at least 16M is needed", text);
    if (bytes > INT64_MAX || bytes >> LAY_BLOCK_SHIFT > LAY_MAX_BLOCKS)
        return tool_error("--size", "%s is more than the format can hold", text);
    o->params.bytes = bytes & ~(uint64_t)(LAY_BLOCK_SIZE - 1);
    return 0;
}

/* Parses digits that fit in 32 bits. UINT32_MAX means "no owner" in chown(2). */
static int parse_id(const char *text, uint32_t *id)
{
    uint64_t value;

    if (!number_parse(text, 10, UINT32_MAX - 1, &value))
        return -EINVAL;
    *id = (uint32_t)value;
    return 0;
}

static int set_root_owner(struct options *o, char *text)
{
    char *colon = text ? strchr(text, ':') : NULL;

    if (!colon)
        return tool_error("--extended", "root_owner needs UID:GID, such as 1000:1000");
    *colon = 0;
    if (parse_id(text, &o->params.root_uid) != 0 || parse_id(colon + 1, &o->params.root_gid) != 0)
        return tool_error("--extended", "root_owner: '%s:%s' is not UID:GID", text, colon + 1);
    return 0;
}

static int set_hash_seed(struct options *o, const char *text)
{
    if (!text || uuid_parse(text, o->params.hash_seed) != 0)
        return tool_error("--extended", "hash_seed needs a UUID, uuidgen(1) makes one");
    return 0;
}

static int set_extended(void *options, char *list)
{
    struct options *o = options;

    enum { ROOT_OWNER, HASH_SEED };
    char *const keys[] = {[ROOT_OWNER] = "root_owner", [HASH_SEED] = "hash_seed", NULL};
    int err = 0;
    while (*list && !err) {
        char *item = list, *value;
        switch (getsubopt(&list, keys, &value)) {
        case ROOT_OWNER:
            err = set_root_owner(o, value);
            break;
        case HASH_SEED:
            err = set_hash_seed(o, value);
            break;
        default:
            err = tool_error("--extended", "'%s' is not an option, see --help", item);
        }
    }
    return err;
}

static int mkfs_set_features(void *options, char *list)
{
    struct options *o = options;

    enum { DATA_CSUM, NO_DATA_CSUM, META_COPIES, NO_META_COPIES };
    char *const keys[] = {[DATA_CSUM] = "data_csum",
                          [NO_DATA_CSUM] = "^data_csum",
                          [META_COPIES] = "meta_copies",
                          [NO_META_COPIES] = "^meta_copies",
                          NULL};

    while (*list) {
        char *item = list, *value;
        int key = getsubopt(&list, keys, &value);
        if (key < 0 || value)
            return tool_error("--features", "'%s' is not a feature, see --help", item);
        if (key == DATA_CSUM || key == NO_DATA_CSUM) {
            o->params.data_csum = key == DATA_CSUM;
        } else {
            o->params.meta_copies = key == META_COPIES;
            o->has_copies = true;
        }
    }
    return 0;
}

static const struct tool_option mkfs_options[] = {
    {'L', "label", .take = mkfs_set_label},
    {'U', "uuid", .take = set_uuid},
    {'b', "block-size", .take = set_block_size, .values = "4096"},
    {'s', "size", .take = mkfs_set_size},
    {'E', "extended", .take = set_extended, .values = "root_owner= hash_seed=", .list = true},
    {'O', "features", .take = mkfs_set_features,
     .values = "data_csum ^data_csum meta_copies ^meta_copies", .list = true},
    {'n', "dry-run", .at = offsetof(struct options, dry_run)},
    {'f', "force", .at = offsetof(struct options, force)},
    {'q', "quiet", .at = offsetof(struct options, quiet)},
    {'v', "verbose", .at = offsetof(struct options, verbose)},
    {0},
};
static const struct tool_syntax syntax = {usage_text, mkfs_options, EXIT_USAGE};

static int set_time(struct mkfs_params *params)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    struct timespec now;
    uint64_t sec;

    if (epoch) {
        if (!number_parse(epoch, 10, INT64_MAX, &sec))
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

/* Reports an error of mkfs_lay_out(). */
static int explain_plan(const struct options *o, int err)
{
    switch (err) {
    case 0:
        return 0;
    case -ENOSPC:
        return tool_error(o->device.text, "is smaller than --size, give less");
    case -EFBIG:
        return tool_error(o->device.text, "larger than the format can hold, give a --size");
    default:
        return tool_error(o->device.text, "too small, at least 16M is needed");
    }
}

/* Reports an error of mkfs_format(), which may be the device's. */
static int mkfs_explain(const struct options *o, const struct bd_opened *opened, int err)
{
    struct reason why;

    if (err == -ENOMEM && opened->ctrlr && bd_lacks_regions(opened->ctrlr, &why))
        return tool_error(o->device.text, "cannot write the file system: %s", why.text);
    switch (err) {
    case 0:
        return 0;
    case -EINTR:
        return tool_error(o->device.text, "interrupted, no file system was made");
    case -EUCLEAN:
        return tool_error(o->device.text, "does not give back what was written, do not use it");
    case -EINVAL:
        return tool_error(o->device.text,
                          "cannot write the file system: the device refuses a command, see %s",
                          bd_name_is_ctrlr(&o->device.name) ? "'gpunvme check --data'" : "dmesg");
    default:
        return tool_error(o->device.text, "cannot write the file system: %s", tool_strerror(err));
    }
}

static void print_where(const struct options *o, const struct mkfs_plan *plan)
{
    const struct lay_geometry *geo = &plan->geo;

    printf("Bitmap blocks: %" PRIu64 " at %" PRIu64 "\n", geo->bitmap_len, geo->bitmap_start);
    printf("Log start: %" PRIu64 "\n", geo->log_start);
    if (geo->log_copy)
        printf("Second log start: %" PRIu64 "\n", geo->log_copy);
    if (geo->sums_blocks)
        printf("Checksums start: %" PRIu64 "\n", geo->sums_start);
    printf("Map blocks: %" PRIu64 " at %" PRIu64 "\n", geo->map_len, geo->map_start);
    printf("Chunks: %" PRIu32 " of %u MiB, the first at %" PRIu64 "\n", plan->chunks,
           2u << geo->chunk_shift, plan->chunk_starts[0]);
    printf("Superblocks: %" PRIu64 " %" PRIu64 "\n", geo->supers[0], geo->supers[1]);
    printf("Labels: 0 %u\n", LAY_LABEL_SECOND);
    printf("Created: %" PRId64 ".%09" PRIu32 "\n", o->params.time_sec, o->params.time_nsec);
}

static void mkfs_print_result(const struct options *o, const struct mkfs_plan *plan)
{
    const struct lay_geometry *geo = &plan->geo;
    char size[BYTES_TEXT];

    printf("Device: %s\n", o->device.text);
    if (o->dry_run)
        printf("Dry run: nothing was written\n");
    printf("Format version: %u.%u\n", LAY_VERSION_MAJOR, LAY_VERSION_MINOR);
    tool_print_uuid(stdout, "UUID", o->params.uuid);
    printf("Label: %s\n", o->params.label ? o->params.label : "");
    printf("Size: %s\n", bytes_text(geo->blocks << LAY_BLOCK_SHIFT, size));
    printf("Block size: %u\n", LAY_BLOCK_SIZE);
    printf("Blocks: %" PRIu64 "\n", geo->blocks);
    printf("Free blocks: %" PRIu64 "\n", plan->free_blocks);
    printf("Log blocks: %" PRIu64 "\n", geo->log_blocks);
    if (geo->sums_blocks)
        printf("Checksum blocks: %" PRIu64 "\n", geo->sums_len);
    if (lay_has_copies(geo))
        printf("Copies of metadata: yes\n");
    if (o->verbose)
        print_where(o, plan);
}

/* Prints the identity of the drive before anything is written to it. */
static void print_drive(const struct options *o, const struct target *t)
{
    char size[BYTES_TEXT];

    if (!t->opened.ctrlr || o->quiet)
        return;
    const struct nvme_ctrlr_info *info = nvme_ctrlr_info(t->opened.ctrlr);
    printf("Model: %s\n", info->model);
    printf("Serial: %s\n", info->serial);
    printf("Namespace: %" PRIu32 "\n", o->device.name.nsid);
    printf("Drive size: %s\n", bytes_text(t->opened.dev->info.bytes, size));
    fflush(stdout);
}

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static bool mkfs_interrupted(void)
{
    return stop;
}

/*
 * Refuses a device that another host uses. The block that says so stays as it
 * is: the labels, without which nobody mounts, are erased well within the time
 * for which it counts.
 */
static int target_claim(const struct target *t)
{
    struct ffs_mmp *m;

    if (tool_hold(t->device, t->opened.dev, mkfs_interrupted, &m) != 0)
        return -1;
    ffs_mmp_drop(m, false);
    return 0;
}

/*
 * Without an option, a file system has copies of metadata if they take only a
 * small part of its space.
 */
static void mkfs_choose_copies(struct options *o, uint64_t device_bytes)
{
    uint64_t bytes = o->params.bytes ? o->params.bytes : device_bytes;

    if (!o->has_copies)
        o->params.meta_copies = bytes >= MKFS_COPIES_BYTES;
}

/* Plans the places of all areas and chunks. */
static int mkfs_make_plan(struct options *o, const struct target *t, struct mkfs_plan *plan)
{
    uint64_t bytes = target_bytes(t, o->params.bytes);

    mkfs_choose_copies(o, bytes);
    return explain_plan(o, mkfs_lay_out(&o->params, bytes, plan));
}

static int format_target(struct options *o, struct target *t, struct mkfs_plan *plan)
{
    int err = target_open(t, &o->device, o->params.bytes, o->dry_run);

    if (!err)
        print_drive(o, t);
    if (!err)
        err = target_refuse_signature(t, o->force);
    if (!err)
        err = mkfs_make_plan(o, t, plan);
    if (err || o->dry_run)
        return err;
    unsigned places = o->params.meta_copies ? 2 : 1;
    if (target_check_room(t, places * plan->geo.bitmap_blocks << LAY_BLOCK_SHIFT) != 0)
        return -1;
    err = target_claim(t);
    if (!err)
        err = target_prepare(t, o->params.bytes);
    return err ? err : mkfs_explain(o, &t->opened, mkfs_format(t->opened.dev, &o->params, plan));
}

/* A signal then removes the unfinished file that this run created. */
static void mkfs_catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = on_signal};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

/*
 * Makes the user of this run the owner of the root, and draws a random hash
 * seed, so that hashes of names cannot be predicted.
 */
static int mkfs_set_defaults(struct options *o)
{
    o->params.root_uid = geteuid();
    o->params.root_gid = o->params.root_uid ? getegid() : 0;
    o->params.interrupted = mkfs_interrupted;
    size_t len = sizeof(o->params.hash_seed);
    if (getrandom(o->params.hash_seed, len, 0) != (ssize_t)len)
        return tool_error("hash_seed", "no random bytes: %s", strerror(errno));
    return 0;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct mkfs_plan plan;

    if (mkfs_set_defaults(&o) != 0)
        return EXIT_FAILURE;
    int status = tool_parse(&syntax, argc, argv, &o, &o.device);
    if (status >= 0)
        return status;
    if (set_time(&o.params) != 0)
        return EXIT_FAILURE;
    if (!o.has_uuid)
        uuid_generate(o.params.uuid);

    struct target t;
    mkfs_catch_signals();
    int err = format_target(&o, &t, &plan);
    target_close(&t, err != 0);
    if (err)
        return EXIT_FAILURE;
    if (!o.quiet)
        mkfs_print_result(&o, &plan);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
