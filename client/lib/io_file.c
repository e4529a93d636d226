/* SPDX-License-Identifier: BSD-2-Clause */
/* The descriptors of an open file, and the count of its users. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/io.h"

void io_file_get(struct gpunvme_io_file *f)
{
    atomic_fetch_add_explicit(&f->users, 1, memory_order_relaxed);
}

/*
 * The decrement releases what this user did with the file to the one that frees it, which acquires
 * it.
 */
void io_file_put(struct gpunvme_io_file *f)
{
    if (atomic_fetch_sub_explicit(&f->users, 1, memory_order_acq_rel) != 1)
        return;
    if (f->cached_fd >= 0)
        close(f->cached_fd);
    close(f->fd);
    free(f);
}

/* Flags that a second description of the file takes from the first one. */
#define KEPT_FLAGS (O_ACCMODE | O_APPEND | O_DSYNC | O_SYNC | O_NOATIME)

static int file_open_cached(const struct gpunvme_io_file *f)
{
    char link[32];
    int flags = fcntl(f->fd, F_GETFL);

    snprintf(link, sizeof(link), "/proc/self/fd/%d", f->fd);
    int fd = flags < 0 ? -1 : open(link, (flags & KEPT_FLAGS) | O_CLOEXEC);
    if (fd < 0)
        return gpunvme_fail(-errno,
                            "the file is open with O_DIRECT, and cannot be opened again "
                            "without it: %s",
                            strerror(errno));
    return fd;
}

int io_file_cached(struct gpunvme_io_file *f)
{
    int fd = atomic_load(&f->cached_fd), none = -1;

    if (fd >= 0)
        return fd;
    fd = file_open_cached(f);
    if (fd < 0 || atomic_compare_exchange_strong(&f->cached_fd, &none, fd))
        return fd;
    close(fd); /* another thread was first */
    return none;
}
