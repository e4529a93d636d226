/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds inodes in memory by number, for the storage half only.
 *
 * Lookups find an inode from the end of the handle that created it until its eviction. Unreferenced
 * inodes stay for a while, in order of last use. Unlinked inodes are evicted at once.
 */
#ifndef FUSEFS_CORE_INODE_ITABLE_H
#define FUSEFS_CORE_INODE_ITABLE_H

#include "fusefs/core/base/cache.h"
#include "fusefs/core/storage.h"

#define FFS_INODE_BUCKETS_MIN 1024u
#define FFS_INODE_BUCKETS_MAX (1u << 24)
/* Spreads inodes whose numbers differ by a constant. */
#define FFS_INODE_FACTOR      0x9e3779b97f4a7c15u
#define FFS_INODES_UNUSED_MAX 8192u

TAILQ_HEAD(ffs_inodes, ffs_inode);

struct ffs_itable {
    pthread_mutex_t lock;     /* protects all below, and refs, links and flags of the inodes */
    struct ffs_table inodes;  /* by number */
    struct ffs_slabs slabs;   /* of inodes; have a lock of their own */
    struct ffs_inodes unused; /* least recently used first */
    size_t unused_count;
    struct ffs_inodes doomed; /* to be evicted when the handle ends */
    bool evicting;            /* a thread is evicting all doomed inodes */
};

int ffs_itable_init(struct ffs_itable *table);
/* Evicts unlinked inodes as far as possible, and drops all others. */
void ffs_itable_drain(struct ffs *fs);
void ffs_itable_destroy(struct ffs_itable *table);

/* Returns a new inode with one reference, which lookups do not find yet, or NULL. */
struct ffs_inode *ffs_inode_alloc(struct ffs *fs, uint64_t ino);
void ffs_itable_publish(struct ffs *fs, struct ffs_inode *inode);
/* Removes an inode whose slot was freed, so that another inode may have its number. */
void ffs_itable_retire(struct ffs *fs, struct ffs_inode *inode);
/* Removes an inode whose handle was aborted. */
void ffs_itable_discard(struct ffs *fs, struct ffs_inode *inode);
/*
 * Like ffs_iget_meta(). With `evicting`, also returns inodes that are being evicted, which the
 * orphan list may contain.
 */
int ffs_inode_load(struct ffs *fs, uint64_t ino, bool evicting, struct ffs_inode **out);

/*
 * Evicts the inodes that ffs_inode_put_meta() could not evict. Called at the end of a handle,
 * without ffs.meta.
 */
void ffs_evict_doomed(struct ffs *fs);

/* --- Places on disk (itable.c) ---------------------------------------------------------------- */

/*
 * Sets *out to the block that holds the inode: a block of the inode file, or the superblock for the
 * inode file itself.
 */
int ffs_inode_block(struct ffs *fs, uint64_t ino, struct ffs_buf **out);
/* Returns the place of the inode in that block. */
struct lay_inode *ffs_inode_slot(struct ffs_buf *buf, uint64_t ino);
uint64_t ffs_inode_file_blocks(const struct ffs *fs);
/* Sets *out to the block `index` of the inode file. Returns -ESTALE if it lies past the end. */
int ffs_inode_file_block(struct ffs *fs, uint64_t index, struct ffs_buf **out);

/* --- The orphan list at mount ----------------------------------------------------------------- */

/* Evicts or truncates every inode on the list. */
int ffs_orphans_finish(struct ffs *fs);

#endif
