/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Metadata blocks in memory: a hash by address, and the unreferenced ones in order of last use.
 * A block that the running or the committing transaction changed is referenced by it, and so
 * stays; only clean blocks are dropped.
 */
#ifndef FUSEFS_CORE_BASE_CACHE_H
#define FUSEFS_CORE_BASE_CACHE_H

#include <sys/queue.h>

#include "fusefs/core/base/hash.h"
#include "fusefs/core/base/slab.h"
#include "fusefs/core/storage.h"

enum ffs_load { FFS_LOADING, FFS_LOADED, FFS_LOAD_FAILED };

struct ffs_cbuf {
    struct ffs_buf pub;
    struct ffs *fs;
    /* Protected by cache.lock: */
    struct ffs_cbuf *hash_next;
    TAILQ_ENTRY(ffs_cbuf) unused; /* while unreferenced */
    uint64_t refs;
    bool hashed; /* false: forgotten, freed by the last put */
    enum ffs_load load;
    int error;
    /* Protected by ffs.meta: */
    struct ffs_tx *tx; /* handle that keeps the old contents */
    size_t running_at; /* place in the running transaction + 1; 0: not in it */
};

TAILQ_HEAD(ffs_cbufs, ffs_cbuf);

struct ffs_cache {
    pthread_mutex_t lock; /* protects all below, and the fields above that say so */
    pthread_cond_t loaded;
    struct ffs_cbuf **buckets;
    size_t bucket_count;
    struct ffs_hash hash;
    struct ffs_cbufs unused; /* the oldest first */
    size_t unused_count, unused_max;
    struct ffs_slabs contents; /* of blocks; have a lock of their own */
};

int ffs_cache_init(struct ffs_cache *cache, size_t bytes);
/* Nothing may be referenced any more but by the caller's mistake; frees it all the same. */
void ffs_cache_destroy(struct ffs_cache *cache);

static inline struct ffs_cbuf *ffs_cbuf(struct ffs_buf *buf)
{
    return (struct ffs_cbuf *)buf; /* pub is the first member */
}
void ffs_cache_ref(struct ffs_cbuf *cb);
/* A zeroed block at an address that is not cached; -EEXIST when it is. */
int ffs_cache_create(struct ffs *fs, uint64_t block, struct ffs_cbuf **out);
/* The cached block, referenced, or NULL. */
struct ffs_cbuf *ffs_cache_find(struct ffs *fs, uint64_t block);
/* Lookups no longer find it; the contents live until the last reference goes. */
void ffs_cache_forget(struct ffs_cbuf *cb);

#endif
