/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Locks a drive that is a file or a kernel block device, by flock(2) of the
 * whole file.
 */
#ifndef SUPPORT_FILE_LOCK_H
#define SUPPORT_FILE_LOCK_H

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "support/clock.h"

/*
 * Maximum wait for a lock. A reader of /proc/PID/maps keeps the mappings of a
 * killed process, and thus its lock, for some milliseconds after the process
 * was reaped.
 */
#define FILE_LOCK_POLLS   200
#define FILE_LOCK_POLL_NS 1000000

/*
 * Takes a lock; kind is LOCK_SH or LOCK_EX. Returns 0, -EBUSY if another
 * process held it for the whole wait, or another -errno.
 */
static inline int file_lock(int fd, int kind)
{
    struct timespec ts = {.tv_sec = 0, .tv_nsec = FILE_LOCK_POLL_NS};

    for (unsigned i = 0; flock(fd, kind | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return -errno;
        if (i == FILE_LOCK_POLLS)
            return -EBUSY;
        nanosleep(&ts, NULL);
    }
    return 0;
}

/* True if path is the source of a mount. */
static inline bool file_lock_is_mounted(const char *path)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    struct mntent entry;
    char text[4096];
    bool found = false;

    while (mounts && !found && getmntent_r(mounts, &entry, text, sizeof(text)))
        found = strcmp(entry.mnt_fsname, path) == 0;
    if (mounts)
        endmntent(mounts);
    return found;
}

/*
 * Waits until no other process locks the file. umount(8) of a FUSE mount
 * returns before the daemon has released its drive, which takes seconds on a
 * busy machine. The wait ends if the file is still mounted, and after
 * FILE_LOCK_AWAIT_MS. No lock is held on return; the following open takes one
 * or fails.
 */
#define FILE_LOCK_AWAIT_MS 5000
#define FILE_LOCK_AWAIT_NS 10000000

static inline void file_lock_await(const char *path, int kind)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = FILE_LOCK_AWAIT_NS};
    const uint64_t end = now_ms() + FILE_LOCK_AWAIT_MS;
    char *full = realpath(path, NULL);
    int fd = full ? open(full, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;

    while (fd >= 0 && flock(fd, kind | LOCK_NB) != 0 && errno == EWOULDBLOCK && now_ms() < end &&
           !file_lock_is_mounted(full))
        nanosleep(&pause, NULL);
    if (fd >= 0)
        close(fd);
    free(full);
}

#endif
