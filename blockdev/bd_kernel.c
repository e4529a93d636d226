/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads what the kernel says about its block devices: the name of the file behind
 * a loop device in sysfs, that file's inode by ioctl, and the transports of NVMe
 * controllers in sysfs.
 */
#include "blockdev/bd_kernel.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"
#include "support/mount_find.h"

/* Reads the backing file's name from a file of sysfs. */
static bool read_name(const char *path, char *name, size_t len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    ssize_t n = read(fd, name, len - 1);
    close(fd);
    name[n > 0 ? n : 0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    return name[0] == '/';
}

/* Reads the backing file's name, in a folder of the device in sysfs. */
static bool read_name_of(const struct stat *device, const char *folder, char *name, size_t len)
{
    char path[128];

    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/backing_file", major(device->st_rdev),
             minor(device->st_rdev), folder);
    return read_name(path, name, len);
}

int bd_loop_file(int fd)
{
    struct stat device, file;
    struct loop_info64 info;
    char name[PATH_MAX + 1];

    if (fstat(fd, &device) != 0 || ioctl(fd, LOOP_GET_STATUS64, &info) != 0)
        return -1;
    if (!read_name_of(&device, "loop", name, sizeof(name)) &&
        !read_name_of(&device, "../loop", name, sizeof(name)))
        return -1;
    int out = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out < 0)
        return -1;
    if (fstat(out, &file) == 0 && file.st_ino == info.lo_inode)
        return out;
    close(out); /* another file has this name now */
    return -1;
}

/* O_EXCL fails while the device, or a partition of it, is mounted or held. */
static bool is_held(const char *loop)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "/dev/%s", loop);
    int fd = open(path, O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static bool loop_is_over(const char *loop, const char *file)
{
    char path[PATH_MAX], name[PATH_MAX + 1];

    snprintf(path, sizeof(path), "/sys/block/%s/loop/backing_file", loop);
    return read_name(path, name, sizeof(name)) && mount_same_file(file, name);
}

bool bd_loop_in_use(const char *path)
{
    char *file = realpath(path, NULL);
    DIR *d = file ? opendir("/sys/block") : NULL;
    bool used = false;

    for (const struct dirent *e; d && !used && (e = readdir(d)) != NULL;)
        used = strncmp(e->d_name, "loop", 4) == 0 && loop_is_over(e->d_name, file) &&
               is_held(e->d_name);
    if (d)
        closedir(d);
    free(file);
    return used;
}

/* --- Networks -------------------------------------------------------------------------------- */

static bool fabric_names_network(const char *controller)
{
    char text[32];

    return pci_sysfs_text(text, sizeof(text), "%s/transport", controller) == 0 && text[0] &&
           strcmp(text, "pcie") != 0;
}

static bool fabric_in_subsystem(const char *subsystem)
{
    char path[PATH_MAX];
    DIR *dir = opendir(subsystem);
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (strncmp(e->d_name, "nvme", 4) == 0 &&
            snprintf(path, sizeof(path), "%s/%s", subsystem, e->d_name) < (int)sizeof(path))
            found = fabric_names_network(path);
    }
    if (dir)
        closedir(dir);
    return found;
}

/*
 * The folder `device` of a disk is that of its controller or, with the kernel's
 * multipath, that of a subsystem, which has a link to each controller.
 */
bool bd_on_fabric(const char *folder)
{
    static const char *const disks[] = {"device", "../device"};
    char path[PATH_MAX];

    for (unsigned i = 0; i < sizeof(disks) / sizeof(disks[0]); i++) {
        if (snprintf(path, sizeof(path), "%s/%s", folder, disks[i]) < (int)sizeof(path) &&
            (fabric_names_network(path) || fabric_in_subsystem(path)))
            return true;
    }
    return false;
}
