/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates objects of one size in separate mappings. A mapping returns to the
 * system when its objects are freed, independently of malloc(). Private to the
 * storage half.
 */
#ifndef FUSEFS_CORE_BASE_SLAB_H
#define FUSEFS_CORE_BASE_SLAB_H

#include <pthread.h>
#include <stddef.h>

struct ffs_slab;

struct ffs_slabs {
    size_t bytes, align;      /* size and alignment of an object; constant */
    pthread_mutex_t lock;     /* protects all below; taken also under itable.lock and cache.lock */
    struct ffs_slab *partial; /* slabs with room */
    size_t count;             /* number of all slabs */
};

/*
 * `bytes` is a multiple of align, which is a power of two from the size of a
 * pointer to LAY_BLOCK_SIZE.
 */
void ffs_slabs_init(struct ffs_slabs *slabs, size_t bytes, size_t align);
/* The objects must have been freed. */
void ffs_slabs_destroy(struct ffs_slabs *slabs);
/* Returns an object with undefined contents, or NULL if memory is exhausted. */
void *ffs_slab_take(struct ffs_slabs *slabs);
void ffs_slab_give(struct ffs_slabs *slabs, void *object);

#endif
