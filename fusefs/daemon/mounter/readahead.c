/* SPDX-License-Identifier: BSD-2-Clause */
/* Sets the read-ahead window of the mount in sysfs. */
#include "fusefs/daemon/mounter/readahead.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Opens the setting of the mount's backing device. Its name in sysfs is the
 * device number in statx(2), with a suffix for a fuseblk mount, whose block
 * device has an entry of its own.
 */
static int open_setting(const char *mountpoint)
{
    struct statx st;
    char name[64];
    int fd = -1;

    if (statx(AT_FDCWD, mountpoint, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, 0, &st) != 0)
        return -1;
    for (unsigned i = 0; i < 2 && fd < 0; i++) {
        snprintf(name, sizeof(name), "/sys/class/bdi/%u:%u%s/read_ahead_kb", st.stx_dev_major,
                 st.stx_dev_minor, i == 0 ? "-fuseblk" : "");
        fd = open(name, O_WRONLY | O_CLOEXEC);
    }
    return fd;
}

uint32_t readahead_raise(const char *mountpoint, uint32_t bytes)
{
    char text[16];
    int fd = open_setting(mountpoint);

    if (fd < 0)
        return 0;
    int len = snprintf(text, sizeof(text), "%u", bytes / 1024);
    ssize_t n = write(fd, text, (size_t)len);
    close(fd);
    return n == len ? bytes : 0;
}
