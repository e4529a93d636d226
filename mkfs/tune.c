/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * tune.gpunvme changes the label, the UUID or the size of a file system that is
 * not mounted.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "mkfs/tool.h"
#include "support/bytes_text.h"
#include "support/number.h"

#define EXIT_USAGE 2

struct options {
    struct tool_device device;
    const char *label; /* NULL: unchanged */
    bool has_uuid;
    uint8_t uuid[16];
    uint64_t bytes; /* 0: unchanged */
    bool max;       /* use the whole device */
};

static const char usage_text[] =
    "usage: tune.gpunvme [OPTION]... DEVICE\n"
    "Changes the gpunvmefs file system on DEVICE, which must not be mounted. DEVICE is an\n"
    "image file, a block device, vfio:ADDRESS[/NSID] or vfio-user:SOCKET.\n"
    "\n"
    "  -L, --label=LABEL      the label: at most 63 bytes; '' for none\n"
    "  -U, --uuid=UUID|random\n"
    "                         the UUID; a copy of an image needs another one\n"
    "  -s, --size=SIZE|max    grow or shrink to SIZE bytes (suffixes K, M, G, T), or grow to\n"
    "                         the whole device; an image file gets that length\n" TOOL_USAGE
        TOOL_USAGE_END;

static int tune_set_size(void *options, char *text)
{
    struct options *o = options;

    o->max = strcmp(text, "max") == 0;
    if (o->max || (number_parse_size(text, UINT64_MAX, &o->bytes) && o->bytes > 0))
        return 0;
    return tool_error("--size", "'%s' is no size, give bytes, or a number with K, M, G or T", text);
}

static int tune_set_uuid(void *options, char *text)
{
    struct options *o = options;

    o->has_uuid = true;
    if (strcmp(text, "random") == 0)
        uuid_generate(o->uuid);
    else if (uuid_parse(text, o->uuid) != 0 || uuid_is_null(o->uuid))
        return tool_error("--uuid", "'%s' is not a UUID, give 32 digits with hyphens, or random",
                          text);
    return 0;
}

static const struct tool_option tune_options[] = {
    {'L', "label", .at = offsetof(struct options, label), .take = tool_take_text},
    {'U', "uuid", .take = tune_set_uuid, .values = "random"},
    {'s', "size", .take = tune_set_size, .values = "max"},
    {0},
};
static const struct tool_syntax syntax = {usage_text, tune_options, EXIT_USAGE};

/* Returns -1 to continue, or the exit status. */
static int tune_parse_arguments(int argc, char **argv, struct options *o)
{
    int status = tool_parse(&syntax, argc, argv, o, &o->device);

    if (status >= 0 || o->label || o->has_uuid || o->bytes || o->max)
        return status;
    tool_error("arguments", "nothing to change, give --label, --uuid or --size");
    return EXIT_USAGE;
}

static int tune_set_names(const struct options *o, struct ffs *fs)
{
    int err = o->label ? ffs_set_label(fs, o->label) : 0;

    return err || !o->has_uuid ? err : ffs_set_uuid(fs, o->uuid);
}

/* Mounts the file system. Returns NULL after a message if that fails. */
static struct ffs *tune_mount(const struct options *o, struct bd_dev *dev)
{
    const struct ffs_mount_opts opts = {.no_thread = true, .tool = true, .log = tool_log};
    struct reason why = {0};
    struct ffs *fs = NULL;
    int err = ffs_ours(dev, false, &why);

    if (!err)
        err = ffs_mount(dev, &opts, &fs, &why);
    if (!err)
        return fs;
    tool_error(o->device.text, "%s", why.text[0] ? why.text : tool_strerror(err));
    return NULL;
}

/*
 * Mounts and unmounts the file system, which leaves it clean or reports why
 * not. Sets the label and the UUID in between.
 */
static int tune_settle(const struct options *o, struct bd_dev *dev, struct ffs_statfs *s)
{
    struct ffs *fs = tune_mount(o, dev);

    if (!fs)
        return -1;
    int label_err = tune_set_names(o, fs);
    ffs_statfs(fs, s);
    int err = ffs_unmount(fs);
    if (label_err == -EINVAL)
        return tool_error("--label",
                          "must be UTF-8 of at most 63 bytes without control characters");
    if (!err)
        err = label_err;
    return err ? tool_error(o->device.text, "not changed: %s", tool_strerror(err)) : 0;
}

/*
 * Sets the length of a file like truncate(2), which names a file and which the
 * sandbox therefore refuses.
 */
static int tune_truncate(const char *path, uint64_t bytes)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int err = fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ? -errno : 0;

    if (fd >= 0)
        close(fd);
    return err;
}

/*
 * Extends a file that is too short for the requested size, if the bitmaps fit.
 * The device is open and locked.
 */
static int tune_extend_file(const struct options *o, struct bd_opened *opened)
{
    struct stat st;
    struct statvfs fs;
    const char *path = o->device.name.path;

    if (bd_name_is_ctrlr(&o->device.name) || o->bytes <= opened->dev->info.bytes ||
        stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    uint64_t need = lay_groups_of(o->bytes >> LAY_BLOCK_SHIFT) << LAY_BLOCK_SHIFT;
    if (statvfs(path, &fs) == 0 && need / fs.f_frsize > fs.f_bavail)
        return tool_error(o->device.text,
                          "not resized: no space under it for the new bitmaps, %" PRIu64 " bytes",
                          need);
    int err = tune_truncate(path, o->bytes);
    if (err)
        return tool_error(o->device.text, "cannot extend: %s", strerror(-err));
    bd_opened_close(opened);
    return tool_open(&o->device, BD_OPEN_EXCLUSIVE, opened);
}

static int tune_explain(const struct options *o, uint64_t least, int err)
{
    const char *device = o->device.text;

    switch (err) {
    case -ENOSPC:
        return least ? tool_error(
                           device,
                           "not resized: too little room there for what it holds, give %" PRIu64
                           " bytes or more",
                           least << LAY_BLOCK_SHIFT)
                     : tool_error(device, "not resized: no space under it for the new bitmaps");
    case -ERANGE:
        return tool_error(
            device, "so small a growth has no room for bitmaps, give %" PRIu64 " bytes or more",
            least << LAY_BLOCK_SHIFT);
    case -EUCLEAN:
        return tool_error(device, "not resized: its contents are damaged, run fsck.gpunvme");
    default:
        return tool_error(device, "not resized: %s", tool_strerror(err));
    }
}

/*
 * Grows or shrinks the file system. If the size is too small, *least is a size
 * that is large enough, else 0.
 */
static int change_size(struct ffs *fs, const struct ffs_statfs *s, uint64_t blocks, uint64_t *least)
{
    *least = 0;
    if (blocks >= s->blocks) {
        int err = ffs_grow(fs, blocks);
        if (err == -ERANGE)
            *least = ffs_grow_least(fs);
        return err;
    }
    int err = ffs_shrink(fs, blocks);
    if (err == -ENOSPC)
        *least = ffs_shrink_least(fs);
    /*
     * The contents would fit, but not as they are laid out; a size half-way is more
     * likely to work.
     */
    if (*least && *least <= blocks)
        *least = blocks + (s->blocks - blocks) / 2;
    return err;
}

static int resize_mounted(const struct options *o, struct bd_dev *dev, struct ffs_statfs *s)
{
    uint64_t bytes = o->max ? dev->info.bytes : o->bytes, least = 0;
    struct ffs *fs = tune_mount(o, dev);

    if (!fs)
        return -1;
    if (bytes > dev->info.bytes) {
        ffs_unmount(fs);
        return tool_error(o->device.text, "the device is smaller than that, use --size=max");
    }
    int err = change_size(fs, s, bytes >> LAY_BLOCK_SHIFT, &least);
    ffs_statfs(fs, s);
    int unmount_err = ffs_unmount(fs);
    if (!err)
        err = unmount_err;
    return err ? tune_explain(o, least, err) : 0;
}

/* Truncates the file, since its part past the end of the file system is useless. */
static int cut_file(const struct options *o, struct bd_opened *opened, uint64_t bytes)
{
    const char *path = o->device.name.path;
    struct stat st;

    if (bd_name_is_ctrlr(&o->device.name) || bytes >= opened->dev->info.bytes ||
        stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    int err = tune_truncate(path, bytes);
    return err ? tool_error(o->device.text, "cannot shorten the file: %s", strerror(-err)) : 0;
}

static int tune_resize(const struct options *o, struct bd_opened *opened, struct ffs_statfs *s)
{
    const uint64_t before = s->blocks, length = opened->dev->info.bytes;

    if (!o->bytes && !o->max)
        return 0;
    if (tune_extend_file(o, opened) != 0)
        return -1;
    int err = resize_mounted(o, opened->dev, s);
    /* After a failed write the label may already have the new size. */
    if (err && s->blocks == before && !s->failed)
        cut_file(o, opened, length);
    if (err)
        return err;
    return s->blocks < before ? cut_file(o, opened, s->blocks << LAY_BLOCK_SHIFT) : 0;
}

static void tune_print(const struct ffs_statfs *s)
{
    char size[BYTES_TEXT];

    printf("Label: %s\n", s->label);
    tool_print_uuid(stdout, "UUID", s->uuid);
    printf("Size: %s\n", bytes_text(s->blocks << LAY_BLOCK_SHIFT, size));
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct bd_opened opened = {0};
    struct ffs_statfs s = {0};
    int status = tune_parse_arguments(argc, argv, &o);

    if (status >= 0)
        return status;
    int err = tool_open(&o.device, BD_OPEN_EXCLUSIVE, &opened);
    if (!err)
        err = tune_settle(&o, opened.dev, &s);
    if (!err)
        err = tune_resize(&o, &opened, &s);
    if (!err)
        tune_print(&s);
    bd_opened_close(&opened);
    return err ? EXIT_FAILURE : EXIT_SUCCESS;
}
