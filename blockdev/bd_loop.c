/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the file behind a loop device. The kernel gives its name in sysfs and
 * its inode by ioctl.
 */
#include "blockdev/bd_loop.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/*
 * Reads the backing file's name. folder is relative to the device's folder in
 * sysfs.
 */
static bool read_name(const struct stat *device, const char *folder, char *name, size_t len)
{
    char path[128];

    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/backing_file", major(device->st_rdev),
             minor(device->st_rdev), folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, name, len - 1);
    close(fd);
    name[n > 0 ? n : 0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    return name[0] == '/';
}

int bd_loop_file(int fd)
{
    struct stat device, file;
    struct loop_info64 info;
    char name[PATH_MAX + 1];

    if (fstat(fd, &device) != 0 || ioctl(fd, LOOP_GET_STATUS64, &info) != 0)
        return -1;
    if (!read_name(&device, "loop", name, sizeof(name)) &&
        !read_name(&device, "../loop", name, sizeof(name)))
        return -1;
    int out = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out < 0)
        return -1;
    if (fstat(out, &file) == 0 && file.st_ino == info.lo_inode)
        return out;
    close(out); /* another file has this name now */
    return -1;
}
