/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of gpunvme_io.h share. A file calls those above it only: io_fork.c, io_cuda.c,
 * io_file.c, io_local.c, regions.c and io_threads.c, io_transfer.c, io_async.c, io_list.c,
 * io_lease.c, io.c.
 */
#ifndef CLIENT_LIB_IO_H
#define CLIENT_LIB_IO_H

#include "client/lib/regions.h"
#include "client/lib/client_internal.h"
#include "gpunvme/gpunvme_io.h"

/* A mount in use, or (g->fd < 0, the first of the list) all other files. */
struct io_mount {
    struct io_mount *next;
    dev_t dev;
    struct gpunvme *g;
    struct io_queues *queues; /* leased from it (io_lease.c), or NULL: gpunvme_io's lock */
};

struct io_async;

struct gpunvme_io {
    struct gpunvme_options options;
    unsigned forks;       /* io_forks() of the process that opened it */
    pthread_mutex_t lock; /* protects mounts, the order of files, and cuda (set once) */
    struct io_mount *local;
    struct io_mount *mounts;
    struct gpunvme_io_file *files;
    struct cuda_driver *_Atomic cuda;
    unsigned long long loads; /* of libraries, when the driver was last looked for */
    struct regions *regions;
    struct io_async *async;
};

struct gpunvme_io_file {
    struct gpunvme_io *io;
    struct gpunvme_io_file *next, **link;
    struct io_mount *mount;
    _Atomic unsigned users; /* transfers, and the open handle; the last one frees the file */
    int fd;                 /* a duplicate of the caller's, so that it stays this file's */
    _Atomic int cached_fd;  /* the file without O_DIRECT; -1 until io_file_cached() */
    bool direct;            /* fd was open with O_DIRECT */
    bool regular;
    char why[160]; /* no mount serves it; "": one does */
};

/* io_cuda.c */
/* The driver, where this process uses CUDA at all; NULL: no address can be a GPU's. */
struct cuda_driver *io_cuda(struct gpunvme_io *io);
/* Called around fork(2), so that no thread holds a lock of the loader meanwhile. */
void io_cuda_lock_loads(void);
void io_cuda_unlock_loads(void);

/* io_fork.c */
/* Counts the forks between the first process that used the library and this one. */
unsigned io_forks(void);
/*
 * Returns 0 in the process that opened io, else -EPERM with a sentence. Its child has neither the
 * threads nor the mappings of the parent, and locks may be held there for ever.
 */
int io_check_process(const struct gpunvme_io *io);

/* io_file.c */
/* Counts a transfer as a user of the file. The caller's handle is open. */
void io_file_get(struct gpunvme_io_file *f);
/* The last user closes the descriptors and frees the file. */
void io_file_put(struct gpunvme_io_file *f);
/*
 * Returns a descriptor of the file, with the access mode of f->fd, that goes through the page
 * cache; or -errno where the file cannot be opened again. It belongs to the file. The flags of the
 * description that the caller shares are never written: other threads and processes use it.
 */
int io_file_cached(struct gpunvme_io_file *f);

/* io_local.c */
/* Reads and writes for which no mount is asked: the pipeline, around what O_DIRECT cannot do. */
size_t io_move_local(struct gpunvme_io_file *f, struct gpunvme_buffer *b, const struct range *r,
                     struct gpunvme_result *result, int *err);

/* io_transfer.c */
/*
 * Memory's buffer at the file's mount, else (unless only the GPU path will do) at none, until
 * regions_release().
 */
int io_use(struct gpunvme_io_file *f, void *addr, size_t len, struct region_use *out);

/* io_async.c */
/* Transfers in stream order; freeing waits for them. */
int io_async_new(struct io_async **out);
void io_async_free(struct io_async *a);
/* Work for one of its threads, as io_threads_give(). */
struct work;
int io_async_give(struct io_async *a, struct work *work);

#endif
