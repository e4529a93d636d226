/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates host memory for small buffers. The buffers are pieces of files
 * (memfd) of some MiB. A vfio-user server that supports few DMA regions maps
 * each file once for all buffers in it (blockdev/nvme/nvme_map.c).
 */
#ifndef CLIENT_LIB_BUFFER_SLAB_H
#define CLIENT_LIB_BUFFER_SLAB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct slab;

/* Stores the slabs of one handle. */
struct slabs {
    pthread_mutex_t lock; /* protects the list and the slabs' tables, not the contents of pieces */
    LIST_HEAD(, slab) all;
};

struct slab_piece {
    struct slab *slab; /* NULL if there is no piece */
    void *addr;        /* the piece consists of whole pages */
    int fd;            /* belongs to the slab; valid until the piece is freed */
    uint64_t offset;   /* offset of addr in fd, in bytes */
};

void slabs_init(struct slabs *s);
/* A slab stays mapped if one of its pieces was not freed. */
void slabs_destroy(struct slabs *s);

/*
 * Returns true if a buffer of that many bytes becomes a piece. None does if RLIMIT_FSIZE is below
 * the size of a slab, because creating the slab would raise SIGXFSZ.
 */
bool slab_takes(size_t len);
/*
 * Allocates a piece of zeros, followed by a free page. slab_takes(len) must be true, and len not 0.
 * Returns -ENOMEM or an error of memfd_create(2).
 */
int slab_alloc(struct slabs *s, size_t len, struct slab_piece *out);
/*
 * Frees a piece. `dirty` means that a command of the drive may still write to the piece: it is not
 * allocated again, and is unmapped with the last piece of its slab.
 */
void slab_free(struct slabs *s, const struct slab_piece *piece, size_t len, bool dirty);

#endif
