/* SPDX-License-Identifier: BSD-2-Clause */
/* An open file: its descriptors, the count of its users, and memory for its transfers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/handle.h"

void file_get(struct gpunvme_file *f)
{
    atomic_fetch_add_explicit(&f->users, 1, memory_order_relaxed);
}

/*
 * The decrement releases what this user did with the file to the user that frees it, whose
 * decrement acquires it.
 */
void file_put(struct gpunvme_file *f)
{
    if (atomic_fetch_sub_explicit(&f->users, 1, memory_order_acq_rel) != 1)
        return;
    file_direct_end(f);
    if (f->cached_fd >= 0)
        close(f->cached_fd);
    close(f->fd);
    free(f);
}

/* Flags that a second open of the file takes from the first one. */
#define KEPT_FLAGS (O_ACCMODE | O_APPEND | O_DSYNC | O_SYNC | O_NOATIME)

static int file_open_cached(const struct gpunvme_file *f)
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

int file_cached(struct gpunvme_file *f)
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

int file_use(struct gpunvme_file *f, void *addr, size_t len, struct region_use *out)
{
    struct gpunvme *g = f->g;
    struct cuda_driver *cu = handle_cuda(g);
    int err = regions_use(g->regions, cu, f->mount, addr, len, out);

    if (err && f->mount != g->local && g->options.path != GPUNVME_PATH_GPU)
        err = regions_use(g->regions, cu, g->local, addr, len, out);
    return err;
}
