/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The lock of a drive that is a file or a block device of the kernel: flock(2) of the whole of it.
 */
#ifndef SUPPORT_FILE_LOCK_H
#define SUPPORT_FILE_LOCK_H

#include <errno.h>
#include <sys/file.h>
#include <time.h>

/*
 * A reader of /proc/PID/maps keeps the mappings of a killed process, and with them its lock, for
 * some milliseconds after the process was reaped. The next owner waits that long.
 */
#define FILE_LOCK_POLLS   200
#define FILE_LOCK_POLL_NS 1000000

/* kind: LOCK_SH or LOCK_EX. 0; -EBUSY: another process has held it for longer than that; -errno. */
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

#endif
