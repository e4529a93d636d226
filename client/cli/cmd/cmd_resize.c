/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme resize` grows a mounted file system. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "layout/layout.h"
#include "support/bytes_text.h"
#include "support/mount_find.h"
#include "support/number.h"

/* Describes the image file of the mount that is resized. */
struct image {
    char path[PATH_MAX]; /* "": the device is no image, or is unknown */
    uint64_t bytes;      /* size before the command */
};

static int resize_explain(const char *path, int err)
{
    switch (err) {
    case EINVAL:
        return cli_error(path, "the file system is larger than that; to shrink it, unmount it and "
                               "use tune.gpunvme --size");
    case ENOSPC:
        return cli_error(path, "the drive is smaller than that, or its image cannot grow so far "
                               "while it is mounted; without SIZE the file system takes all of the "
                               "drive");
    case ERANGE:
        return cli_error(path, "so small a growth has no room for bitmaps, give more");
    case EPERM:
        return cli_error(path, "only root may change the size");
    case EROFS:
        return cli_error(path, "mounted read-only, or read-only after an error");
    case EUCLEAN:
        return cli_error(path, "not resized: its bitmaps are damaged, unmount it and run "
                               "fsck.gpunvme");
    case EEXIST:
        return cli_error(path,
                         "not resized: the drive has the signature of another user, which the "
                         "daemon's log names");
    case ENOTTY:
        return cli_error(path, "not on a gpunvmefs mount");
    default:
        return cli_error(path, "not resized: %s", strerror(err));
    }
}

/*
 * Finds the image file of the mount that has the path. The search touches no
 * other mount, since a daemon or server that has stopped would not answer.
 */
static void find_image(const char *path, struct image *image)
{
    char *full = realpath(path, NULL);
    struct mount_found m;
    struct stat st;

    *image = (struct image){.bytes = 0};
    if (full && mount_find("/proc/self/mountinfo", full, &m) &&
        cli_mount_is_ours(m.entry.mnt_type) && m.entry.mnt_fsname[0] == '/' &&
        strlen(m.entry.mnt_fsname) < sizeof(image->path) && stat(m.entry.mnt_fsname, &st) == 0 &&
        S_ISREG(st.st_mode)) {
        snprintf(image->path, sizeof(image->path), "%s", m.entry.mnt_fsname);
        image->bytes = (uint64_t)st.st_size;
    }
    free(full);
}

/* Extends a short image file if there is room for its bitmaps. */
static int extend_image(const char *path, const struct image *image, uint64_t bytes)
{
    uint64_t need = lay_groups_of(bytes / LAY_BLOCK_SIZE) * LAY_BLOCK_SIZE;
    struct statvfs fs;

    if (!image->path[0] || image->bytes >= bytes)
        return 0;
    if (statvfs(image->path, &fs) == 0 && need / fs.f_frsize > fs.f_bavail)
        return cli_error(path,
                         "not resized: the new bitmaps take %" PRIu64 " bytes, and there is no "
                         "space for them under %s",
                         need, image->path);
    if (truncate(image->path, (off_t)bytes) != 0)
        return cli_error(path, "cannot extend %s: %s", image->path, strerror(errno));
    return 0;
}

/*
 * Restores the size of the image after a failure, unless the drive has noticed
 * the growth (`drive` bytes): truncating the file would then lose data of the
 * drive.
 */
static void restore_image(const char *path, const struct image *image, uint64_t bytes,
                          uint64_t drive)
{
    if (!image->path[0] || image->bytes >= bytes)
        return;
    if (drive > image->bytes)
        cli_error(path, "%s has %" PRIu64 " bytes now, which the drive knows", image->path, bytes);
    else if (truncate(image->path, (off_t)image->bytes) != 0)
        cli_error(path, "%s has %" PRIu64 " bytes now: %s", image->path, bytes, strerror(errno));
}

static void resize_report(const char *path, const struct gpunvme_ioc_resize *arg, bool json)
{
    char text[BYTES_TEXT];

    if (!json) {
        printf("%s: %s\n", path, bytes_text(arg->bytes, text));
        return;
    }
    struct json_object *root = cli_json_new();
    json_object_object_add(root, "bytes", json_object_new_uint64(arg->bytes));
    json_object_object_add(root, "drive_bytes", json_object_new_uint64(arg->device));
    cli_json_print(root, stdout);
}

static int cmd_resize_resize(const char *path, int fd, uint64_t bytes, bool json)
{
    struct gpunvme_ioc_resize arg = {.abi = {sizeof(arg), GPUNVME_ABI_VERSION}, .bytes = bytes};
    struct image image;

    find_image(path, &image);
    if (bytes && extend_image(path, &image, bytes))
        return 1;
    if (ioctl(fd, GPUNVME_IOC_RESIZE, &arg) != 0) {
        int failed = resize_explain(path, errno);
        restore_image(path, &image, bytes, arg.device);
        return failed;
    }
    if (!bytes && image.bytes / LAY_BLOCK_SIZE > arg.device / LAY_BLOCK_SIZE)
        return cli_error(path,
                         "%s has %" PRIu64 " bytes, of which its drive takes %" PRIu64
                         " before the next mount",
                         image.path, image.bytes, arg.device);
    resize_report(path, &arg, json);
    return 0;
}

int cli_resize(const struct cli_options *options, char **operands, int n)
{
    const char *path = operands[0];
    uint64_t bytes = 0;

    if (n == 2 && (!number_parse_size(operands[1], INT64_MAX, &bytes) || !bytes)) {
        cli_error(operands[1], "no size: give bytes, or a number with K, M, G or T");
        return 2;
    }
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return cli_error(path, "%s", strerror(errno));
    int failed = cmd_resize_resize(path, fd, bytes, options->json);
    close(fd);
    return failed;
}
