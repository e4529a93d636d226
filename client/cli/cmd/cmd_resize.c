/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme resize`: makes a mounted file system larger. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"
#include "gpunvme/gpunvme_ioctl.h"

static int explain(const char *path, int err)
{
    switch (err) {
    case EINVAL:
        return cli_error(path, "the file system is larger than that; to shrink it, unmount it and "
                               "use tune.gpunvme --size");
    case ENOSPC:
        return cli_error(path, "the drive is smaller than that; without SIZE the file system "
                               "takes all of it");
    case ERANGE:
        return cli_error(path, "so small a growth has no room for bitmaps, give more");
    case EPERM:
        return cli_error(path, "only root may change the size");
    case EROFS:
        return cli_error(path, "mounted read-only, or read-only after an error");
    case EUCLEAN:
        return cli_error(path, "not resized: its bitmaps are damaged, unmount it and run "
                               "fsck.gpunvme");
    case ENOTTY:
        return cli_error(path, "not on a gpunvmefs mount");
    default:
        return cli_error(path, "not resized: %s", strerror(err));
    }
}

/* Asks no mount: one whose daemon is stopped would not answer. */
static bool is_root_of(const char *point, dev_t dev)
{
    struct statx st;

    return statx(AT_FDCWD, point, AT_STATX_DONT_SYNC, STATX_TYPE, &st) == 0 &&
           makedev(st.stx_dev_major, st.stx_dev_minor) == dev;
}

/* An image file that is too short for the wanted size becomes longer. */
static int extend_image(const char *path, int fd, uint64_t bytes)
{
    struct cli_mounts mounts;
    struct stat at, st;
    int failed = 0;

    if (fstat(fd, &at) != 0 || cli_mounts_read(CLI_MOUNTS, &mounts) != 0)
        return 0;
    for (size_t i = 0; i < mounts.n && !failed; i++) {
        const char *device = mounts.all[i].device;
        if (device[0] != '/' || !is_root_of(mounts.all[i].point, at.st_dev) ||
            stat(device, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size >= bytes)
            continue;
        if (truncate(device, (off_t)bytes) != 0)
            failed = cli_error(path, "cannot extend %s: %s", device, strerror(errno));
    }
    cli_mounts_free(&mounts);
    return failed;
}

static int resize(const char *path, int fd, uint64_t bytes, bool json)
{
    struct gpunvme_ioc_resize arg = {.abi = {sizeof(arg), GPUNVME_ABI_VERSION}, .bytes = bytes};

    if (bytes && extend_image(path, fd, bytes))
        return 1;
    if (ioctl(fd, GPUNVME_IOC_RESIZE, &arg) != 0)
        return explain(path, errno);
    if (json) {
        struct json_object *root = cli_json_new();
        json_object_object_add(root, "bytes", json_object_new_uint64(arg.bytes));
        json_object_object_add(root, "drive_bytes", json_object_new_uint64(arg.device));
        cli_json_print(root);
    } else {
        printf("%s: %" PRIu64 " bytes\n", path, arg.bytes);
    }
    return 0;
}

int cli_resize(int argc, char **argv)
{
    struct cli_options options;
    uint64_t bytes = 0;
    int first;
    int stop = cli_parse(argc, argv, "o", &options, &first);

    if (stop)
        return stop - 1;
    if (argc - first < 1 || argc - first > 2) {
        cli_error("resize", "a path, and perhaps a size, are needed, see gpunvme --help");
        return 2;
    }
    if (argc - first == 2 && !(bytes = cli_parse_size(argv[first + 1], INT64_MAX))) {
        cli_error(argv[first + 1], "no size: give bytes, or a number with K, M, G or T");
        return 2;
    }
    int fd = open(argv[first], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return cli_error(argv[first], "%s", strerror(errno));
    int failed = resize(argv[first], fd, bytes, options.json);
    close(fd);
    return failed;
}
