/* The lock of a drive that is a file or a device of the kernel: flock() of the whole of it. */
#ifndef SUPPORT_FILE_LOCK_H
#define SUPPORT_FILE_LOCK_H

#include <errno.h>
#include <sys/file.h>
#include <time.h>

/*
 * A killed process can be reaped while somebody who looks at it in /proc keeps what it had mapped,
 * and a lock with that, for milliseconds. Whoever takes its place at once is not to be refused.
 */
#define BD_FILE_LOCK_POLLS   200
#define BD_FILE_LOCK_POLL_NS 1000000

/* kind: LOCK_SH or LOCK_EX. 0; -EBUSY when another has it for longer than that; -errno. */
static inline int bd_file_lock(int fd, int kind)
{
    struct timespec ts = {.tv_sec = 0, .tv_nsec = BD_FILE_LOCK_POLL_NS};

    for (unsigned i = 0; flock(fd, kind | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return -errno;
        if (i == BD_FILE_LOCK_POLLS)
            return -EBUSY;
        nanosleep(&ts, NULL);
    }
    return 0;
}

#endif
