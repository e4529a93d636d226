/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme label` shows or changes the label of a mounted file system. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme_ioctl.h"

/* Other file systems have the same label ioctls. */
static int label_check_mount(int fd, const char *path)
{
    struct gpunvme_ioc_info info = {.abi = {sizeof(info), GPUNVME_ABI_VERSION}};

    if (ioctl(fd, GPUNVME_IOC_INFO, &info) == 0)
        return 0;
    return cli_error(path, "not on a gpunvmefs mount");
}

static int label_set_label(int fd, const char *path, const char *wanted)
{
    char label[FSLABEL_MAX] = "";

    if (strlen(wanted) >= sizeof(label))
        return cli_error(wanted, "too long for a label, give at most 63 bytes");
    memcpy(label, wanted, strlen(wanted));
    if (ioctl(fd, FS_IOC_SETFSLABEL, label) == 0)
        return 0;
    if (errno == EINVAL)
        return cli_error(wanted, "no label: give at most 63 bytes of UTF-8 without control "
                                 "characters");
    return cli_error(path, "label not changed: %s", strerror(errno));
}

static int show_label(int fd, const char *path, bool json)
{
    char label[FSLABEL_MAX] = "";

    if (ioctl(fd, FS_IOC_GETFSLABEL, label) != 0)
        return cli_error(path, "has no label to show: %s", strerror(errno));
    if (json) {
        struct json_object *root = cli_json_new();
        json_object_object_add(root, "label", json_object_new_string(label));
        cli_json_print(root, stdout);
    } else {
        puts(label);
    }
    return 0;
}

static int set_or_show(int fd, const char *path, const char *wanted, bool json)
{
    if (label_check_mount(fd, path) || (wanted && label_set_label(fd, path, wanted)))
        return 1;
    return !wanted || json ? show_label(fd, path, json) : 0;
}

int cli_label(const struct cli_options *options, char **operands, int n)
{
    const char *path = operands[0];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return cli_error(path, "%s", strerror(errno));
    int failed = set_or_show(fd, path, n == 2 ? operands[1] : NULL, options->json);
    close(fd);
    return failed;
}
