/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Metadata blocks in memory: a hash by address, and a list of the unreferenced
 * ones in order of last use. A block that was changed in the running or the
 * committing transaction is referenced by that transaction and therefore stays.
 * Only clean blocks are dropped.
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
    /* The following fields are protected by cache.lock. */
    struct ffs_cbuf *hash_next;
    TAILQ_ENTRY(ffs_cbuf) unused; /* listed while unreferenced */
    uint64_t refs;
    bool hashed; /* false if forgotten; the last put then frees it */
    enum ffs_load load;
    int error;
    /* The following fields are protected by ffs.meta. */
    struct ffs_tx *tx; /* handle that keeps the old contents */
    size_t running_at; /* index in the running transaction + 1; 0: not in it */
};

TAILQ_HEAD(ffs_cbufs, ffs_cbuf);

struct ffs_cache {
    pthread_mutex_t lock; /* protects the fields below and those marked above */
    pthread_cond_t loaded;
    struct ffs_cbuf **buckets;
    size_t bucket_count;
    struct ffs_hash hash;
    struct ffs_cbufs unused; /* least recently used first */
    size_t unused_count, unused_max;
    struct ffs_slabs contents; /* contents of blocks; has a lock of its own */
};

int ffs_cache_init(struct ffs_cache *cache, size_t bytes);
/*
 * Frees the cache. A block is still referenced only by a mistake of the caller,
 * and is freed as well.
 */
void ffs_cache_destroy(struct ffs_cache *cache);

static inline struct ffs_cbuf *ffs_cbuf(struct ffs_buf *buf)
{
    return (struct ffs_cbuf *)buf; /* pub is the first member */
}
void ffs_cache_ref(struct ffs_cbuf *cb);
/*
 * Creates a zeroed block at an address that is not cached. Returns -EEXIST if
 * it is.
 */
int ffs_cache_create(struct ffs *fs, uint64_t block, struct ffs_cbuf **out);
/* Returns the cached block with a reference, or NULL. */
struct ffs_cbuf *ffs_cache_find(struct ffs *fs, uint64_t block);
/*
 * Hides the block from lookups; its contents live until the last reference is
 * dropped.
 */
void ffs_cache_forget(struct ffs_cbuf *cb);

#endif
