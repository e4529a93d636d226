/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Committed images of metadata blocks that are not in place yet. Commits and recovery add images,
 * the cache reads blocks from them, and a checkpoint writes them in place.
 */
#ifndef FUSEFS_CORE_BASE_HOME_H
#define FUSEFS_CORE_BASE_HOME_H

#include <pthread.h>

#include "fusefs/core/base/hash.h"
#include "fusefs/core/storage.h"

/* A sealed block as a transaction left it. It does not change any more once it is in ffs.home. */
struct ffs_image {
    struct ffs_image *next; /* in its bucket */
    uint64_t block;
    void *data; /* 4096 bytes */
};

/* The newest committed image of each block that is not in place yet. */
struct ffs_home {
    pthread_mutex_t lock; /* protects all below */
    struct ffs_image **buckets;
    size_t bucket_count, n;
    struct ffs_hash hash;
};

int ffs_home_init(struct ffs_home *home, uint64_t journal_blocks);
void ffs_home_destroy(struct ffs_home *home);
struct ffs_image *ffs_image_new(uint64_t block, const void *data);
void ffs_image_free(struct ffs_image *image);
/* Adds an image, which replaces an older one of its block. The table owns it from now on. */
void ffs_home_put(struct ffs_home *home, struct ffs_image *image);
void ffs_home_drop(struct ffs_home *home, uint64_t block);
bool ffs_home_has(struct ffs_home *home, uint64_t block);
/* Removes and frees all images. */
void ffs_home_clear(struct ffs_home *home);
/* Copies the image of the block to data. Returns false if there is none. */
bool ffs_home_read(struct ffs_home *home, uint64_t block, void *data);

#endif
