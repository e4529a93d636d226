/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Locks a drive that is a file or a kernel block device, by flock(2) of the
 * whole file.
 */
#ifndef SUPPORT_FILE_LOCK_H
#define SUPPORT_FILE_LOCK_H

#include <errno.h>
#include <sys/file.h>

#include "support/wait.h"

/*
 * Maximum wait for a lock. A reader of /proc/PID/maps keeps the mappings of a
 * killed process, and thus its lock, for some milliseconds after the process
 * was reaped.
 */
#define FILE_LOCK_POLLS 200

/*
 * Takes a lock; kind is LOCK_SH or LOCK_EX. Returns 0, -EBUSY if another
 * process held it for the whole wait, or another -errno.
 */
static inline int file_lock(int fd, int kind)
{
    for (unsigned i = 0; flock(fd, kind | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return -errno;
        if (i == FILE_LOCK_POLLS)
            return -EBUSY;
        wait_ms(1);
    }
    return 0;
}

#endif
