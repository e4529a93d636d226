/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of gpunvme_io.h share. A file calls those above it only: io_cuda.c, io_cached.c,
 * io_local.c, regions.c and io_threads.c, io_transfer.c, io_async.c, io_list.c, io.c.
 */
#ifndef CLIENT_IO_IO_H
#define CLIENT_IO_IO_H

#include "client/io/regions.h"
#include "client/lib/client_internal.h"
#include "gpunvme/gpunvme_io.h"

/* A mount in use, or (g->fd < 0, the first of the list) all other files. */
struct io_mount {
    struct io_mount *next;
    dev_t dev;
    struct gpunvme *g;
};

struct io_async;
struct io_direct;

struct gpunvme_io {
    struct gpunvme_options options;
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
    int fd; /* the caller's */
    dev_t dev;
    ino_t ino;
    struct io_direct *direct; /* of a file open with O_DIRECT (io_cached.c), else NULL */
    bool regular;
    char why[160]; /* no mount serves it; "": one does */
};

/* io_cuda.c */
/* The driver, where this process uses CUDA at all; NULL: no address can be a GPU's. */
struct cuda_driver *io_cuda(struct gpunvme_io *io);

/* io_cached.c */
/*
 * A file that is open with O_DIRECT is read and written through the page cache in sections during
 * which the flag is off: a second descriptor could never be closed, for close(2) of any descriptor
 * of a file drops the POSIX locks of the process on it. Other I/O by the description goes
 * through the page cache meanwhile, which is slower, but right. A change of its flags (F_SETFL) at
 * the begin or the end of a section may be lost.
 */
int io_cached_open(struct gpunvme_io_file *f);   /* under the lock, before f is in the list */
void io_cached_close(struct gpunvme_io_file *f); /* under the lock, after it has left the list */
/* Of a file with ->direct. Sections of several threads overlap. */
void io_cached_begin(struct gpunvme_io_file *f);
void io_cached_end(struct gpunvme_io_file *f);

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
