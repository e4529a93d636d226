/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps metadata blocks in memory. A hash finds them by logical address
 * (FORMAT.md 2), which checked.h translates to blocks of the device. Unreferenced
 * blocks are in a list, in the order of their last use. A transaction references
 * the blocks that it has changed until it is committed, so these blocks stay.
 * Only clean blocks are dropped.
 */
#ifndef FUSEFS_CORE_BASE_CACHE_H
#define FUSEFS_CORE_BASE_CACHE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fusefs/core/base/item_table.h"
#include "fusefs/core/storage.h"

/*
 * Allocates objects of one size in separate mappings. A mapping returns to the
 * system when its objects are freed, independently of malloc(). Private to the
 * storage half.
 */

struct ffs_slab;

struct ffs_slabs {
    size_t bytes, align;  /* size and alignment of an object; constant */
    pthread_mutex_t lock; /* protects all below; taken also under itable.lock and cache.lock */
    LIST_HEAD(, ffs_slab) partial; /* slabs with room */
    size_t count;                  /* number of all slabs */
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

enum ffs_load { FFS_LOADING, FFS_LOADED, FFS_LOAD_FAILED };

struct ffs_cbuf {
    struct ffs_buf pub;
    struct ffs *fs;
    /* The following fields are protected by cache.lock. */
    struct ffs_item item; /* not in the table if forgotten; the last put then frees the block */
    TAILQ_ENTRY(ffs_cbuf) unused; /* listed while unreferenced */
    uint64_t refs;
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
    struct ffs_table table;  /* by logical address */
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
 * Returns true if nobody uses the block and no transaction or image has it. Its
 * newest contents are then in place, and stay so while the caller holds
 * ffs.meta.
 */
bool ffs_cache_settled(struct ffs *fs, uint64_t block);
/*
 * Gets the block that names another one, and sets *index to the place of its age
 * there. *name is NULL if there is none. The errors are those of ffs_buf_get().
 * The caller holds ffs.meta.
 */
int ffs_cache_get_name(struct ffs *fs, uint64_t addr, struct ffs_buf **name, unsigned *index);
/*
 * Sets *age to the age that is named for a block: that of the block in place.
 * Returns -EUCLEAN if the block that names it is damaged. The caller holds
 * ffs.meta, and the block is not the superblock.
 */
int ffs_age_of(struct ffs *fs, uint64_t addr, uint32_t *age);
/*
 * Hides the block from lookups; its contents live until the last reference is
 * dropped.
 */
void ffs_cache_forget(struct ffs_cbuf *cb);

/*
 * Holds committed images of metadata blocks that are not in place yet. Commits
 * and recovery add images, the cache reads blocks from them, and a checkpoint
 * writes them in place.
 */

/*
 * Holds a sealed block as a transaction left it. The block does not change any
 * more once it is in ffs.home.
 */
struct ffs_image {
    struct ffs_item item; /* numbered by the logical address */
    uint8_t data[];       /* 4096 bytes */
};

/* The newest committed image of each block that is not in place yet. */
struct ffs_home {
    pthread_mutex_t lock; /* protects the table */
    struct ffs_table table;
};

int ffs_home_init(struct ffs_home *home, uint64_t log_blocks);
void ffs_home_destroy(struct ffs_home *home);
struct ffs_image *ffs_image_new(uint64_t block, const void *data);
/* Returns the image after `image`, or the first one if `image` is NULL. Returns NULL at the end. */
static inline struct ffs_image *ffs_home_next(const struct ffs_home *home,
                                              const struct ffs_image *image)
{
    return (struct ffs_image *)ffs_table_next(&home->table, image ? &image->item : NULL);
}
/* Adds an image, which replaces an older one of its block. The table owns it from now on. */
void ffs_home_put(struct ffs_home *home, struct ffs_image *image);
void ffs_home_drop(struct ffs_home *home, uint64_t block);
/* Drops the images for which `keep` returns false, or all if it is NULL. */
void ffs_home_filter(struct ffs_home *home, bool (*keep)(const struct ffs *fs, uint64_t block),
                     const struct ffs *fs);
bool ffs_home_has(struct ffs_home *home, uint64_t block);
/* Returns the age of the image, or 0 if there is none. */
uint32_t ffs_home_age(struct ffs_home *home, uint64_t block);
struct ffs_aged {
    uint64_t block; /* logical address */
    uint32_t age;   /* of its image */
};
/* Returns the ages of all images, which the caller frees, or NULL if memory is short. */
struct ffs_aged *ffs_home_ages(struct ffs_home *home, size_t *n);
/* Copies the image of the block to data. Returns false if there is none. */
bool ffs_home_read(struct ffs_home *home, uint64_t block, void *data);

#endif
