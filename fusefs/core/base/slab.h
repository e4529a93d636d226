/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory for objects of one size, in mappings of their own: it goes back to the system when the
 * objects of a mapping are gone, whatever malloc() has beside them. Private to the storage half.
 */
#ifndef FUSEFS_CORE_BASE_SLAB_H
#define FUSEFS_CORE_BASE_SLAB_H

#include <pthread.h>
#include <stddef.h>

struct ffs_slab;

struct ffs_slabs {
    size_t bytes, align;      /* of an object; constant */
    pthread_mutex_t lock;     /* protects all below; taken also under itable.lock and cache.lock */
    struct ffs_slab *partial; /* those with room */
    size_t count;             /* of all slabs */
};

/* bytes: a multiple of align, a power of two from a pointer's size to LAY_BLOCK_SIZE. */
void ffs_slabs_init(struct ffs_slabs *slabs, size_t bytes, size_t align);
/* Objects of the table are gone. */
void ffs_slabs_destroy(struct ffs_slabs *slabs);
/* Its contents are undefined. NULL: out of memory. */
void *ffs_slab_take(struct ffs_slabs *slabs);
void ffs_slab_give(struct ffs_slabs *slabs, void *object);

#endif
