/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Host memory of small buffers: pieces of files (memfd) of some MiB. A server of vfio-user that
 * keeps few DMA regions maps a file once for all buffers in it (blockdev/nvme/nvme_map.c).
 */
#ifndef CLIENT_LIB_BUFFER_SLAB_H
#define CLIENT_LIB_BUFFER_SLAB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct slab;

/* Of one handle. */
struct slabs {
    pthread_mutex_t lock; /* protects the list and the contents of slabs, not of pieces */
    struct slab *first;
};

struct slab_piece {
    struct slab *slab; /* NULL: none */
    void *addr;        /* whole pages */
    int fd;            /* the slab's, until the piece is freed */
    uint64_t offset;   /* of addr in fd, bytes */
};

void slabs_init(struct slabs *s);
/* Slabs of which a piece was not freed stay mapped. */
void slabs_destroy(struct slabs *s);

/*
 * Is a buffer of so many bytes a piece? None is where RLIMIT_FSIZE is below the size of a slab,
 * which would end in SIGXFSZ.
 */
bool slab_takes(size_t len);
/*
 * Zeros; a free page follows every piece. len > 0, as slab_takes() has it. -ENOMEM, errors of
 * memfd_create(2).
 */
int slab_alloc(struct slabs *s, size_t len, struct slab_piece *out);
/*
 * dirty: a command of the drive may still write to the piece. It is not handed out again, and the
 * last piece of the slab ends both.
 */
void slab_free(struct slabs *s, const struct slab_piece *piece, size_t len, bool dirty);

#endif
