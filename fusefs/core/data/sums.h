/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data (FORMAT.md 5.4). All functions may be called on a file system without them:
 * nothing is then verified or written.
 *
 * Data that is overwritten in place has no checksum, durably, before the first byte of it is
 * written: a crash in between leaves data that cannot be verified, and never sound data with a
 * wrong checksum. The new checksum waits in memory until the block has been left alone for a
 * while, so that a block that is overwritten again and again costs one commit.
 */
#ifndef FUSEFS_CORE_DATA_SUMS_H
#define FUSEFS_CORE_DATA_SUMS_H

#include "fusefs/core/storage.h"

struct ffs_waiting;

struct ffs_sums {
    bool stale; /* the log is damaged: entries may be older than the data; read-only mounts only */
    pthread_mutex_t lock; /* protects what follows; a leaf lock */
    struct ffs_waiting *waiting;
    uint16_t *in_group; /* places that are taken, of each group of adjacent ones */
    size_t count;
    uint32_t round; /* of ffs_sums_settle() */
};

static inline bool ffs_has_sums(const struct lay_geometry *geo)
{
    /* Relaxed: a resize changes the number, never whether it is 0. */
    return __atomic_load_n(&geo->sums_blocks, __ATOMIC_RELAXED) != 0;
}

void ffs_sums_init(struct ffs_sums *sums);
void ffs_sums_destroy(struct ffs_sums *sums);

/*
 * Compares n blocks of data, read from the device from `block` on, with their checksums; blocks
 * without one pass. *bad: the first that differs, n when none does. Takes ffs.meta. The caller
 * holds the data lock of the inode that owns the blocks, at least shared.
 */
int ffs_sums_verify(struct ffs *fs, uint64_t block, uint64_t n, const void *data, uint64_t *bad);

/*
 * The checksums of n blocks, LAY_NO_SUM for those without; what waits counts. Takes ffs.meta. The
 * caller holds the data lock as above.
 */
int ffs_sums_get(struct ffs *fs, uint64_t block, uint64_t n, uint32_t *sums);

/*
 * Before n blocks of a written extent are overwritten, their inode's data lock held exclusively:
 * takes their checksums away. *tid becomes the transaction to commit before the first write, and
 * stays as it is when the blocks have none already. Takes ffs.meta.
 */
int ffs_sums_drop(struct ffs *fs, uint64_t block, uint64_t n, uint64_t *tid);

/*
 * In a handle, the data being on the device: enters the checksums of n blocks, or with NULL that
 * they have none. Dirties one block for each LAY_SUMS_ENTRIES that the range touches.
 */
int ffs_sums_put(struct ffs_tx *tx, uint64_t block, uint64_t n, const uint32_t *sums);

/*
 * After ffs_sums_drop() and the write: the checksums that ffs_sums_settle() will enter, unless the
 * blocks are overwritten before that. Under the inode's data lock, held exclusively.
 */
void ffs_sums_wait(struct ffs *fs, uint64_t block, uint64_t n, const uint32_t *sums);

/*
 * Enters what has waited since before the last call, or all of it. An error leaves blocks without
 * checksums and is no reason to fail. Takes ffs.meta.
 */
void ffs_sums_settle(struct ffs *fs, bool all);

#endif
