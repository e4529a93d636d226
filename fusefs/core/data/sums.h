/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums of data (FORMAT.md 5.4). All functions may be called on a file
 * system without them; nothing is then verified or written.
 *
 * The checksum of data that is overwritten in place is durably removed before
 * the first byte is written. A crash in between leaves data that cannot be
 * verified, but never valid data with a wrong checksum. The new checksum is
 * kept in memory until the block has not been written for a while, so that a
 * block that is overwritten often costs one commit.
 */
#ifndef FUSEFS_CORE_DATA_SUMS_H
#define FUSEFS_CORE_DATA_SUMS_H

#include "fusefs/core/storage.h"

struct ffs_waiting;

struct ffs_sums {
    bool stale; /* the log is damaged: entries may be older than the data; read-only mounts only */
    pthread_mutex_t lock; /* protects the fields below; a leaf lock */
    struct ffs_waiting *waiting;
    uint16_t *in_group; /* number of used slots in each group */
    size_t count;
    uint32_t round; /* counts the calls of ffs_sums_settle() */
};

static inline bool ffs_has_sums(const struct lay_geometry *geo)
{
    /*
     * Relaxed is enough: a resize changes the number, but never to or from 0.
     */
    return __atomic_load_n(&geo->sums_blocks, __ATOMIC_RELAXED) != 0;
}

void ffs_sums_destroy(struct ffs_sums *sums);

/*
 * Compares n blocks of data, read from device block `block` on, with their
 * checksums. Blocks without a checksum pass. *bad is the index of the first
 * block that differs, or n. Takes ffs.meta. The caller holds the data lock of
 * the inode that owns the blocks, at least shared.
 */
int ffs_sums_verify(struct ffs *fs, uint64_t block, uint64_t n, const void *data, uint64_t *bad);

/*
 * Gets the checksums of n blocks, including pending ones; LAY_NO_SUM for blocks
 * without one. Takes ffs.meta. The caller holds the data lock as above.
 */
int ffs_sums_get(struct ffs *fs, uint64_t block, uint64_t n, uint32_t *sums);

/*
 * Removes the checksums of n blocks of a written extent, before they are
 * overwritten. The caller holds the inode's data lock exclusively. *tid becomes
 * the transaction that must be committed before the first write; it does not
 * change if the blocks have no checksums. Takes ffs.meta.
 */
int ffs_sums_drop(struct ffs *fs, uint64_t block, uint64_t n, uint64_t *tid);

/*
 * Stores the checksums of n blocks, or with NULL removes them. Called in a
 * handle after the data has been written to the device. Makes one block dirty
 * for each LAY_SUMS_ENTRIES that the range touches.
 */
int ffs_sums_put(struct ffs_tx *tx, uint64_t block, uint64_t n, const uint32_t *sums);

/*
 * Called after ffs_sums_drop() and the write. Adds pending checksums, which
 * ffs_sums_settle() stores unless the blocks are overwritten before. The caller
 * holds the inode's data lock exclusively.
 */
void ffs_sums_wait(struct ffs *fs, uint64_t block, uint64_t n, const uint32_t *sums);

/*
 * Stores the checksums that were pending at the last call, or all of them. An
 * error leaves blocks without checksums and is not reported. Takes ffs.meta.
 */
void ffs_sums_settle(struct ffs *fs, bool all);

/* --- Data of files and its checksums: what reads compare and what writes enter --------------- */

/*
 * Holds checksums of data on the device. Blocks around the data that were
 * unwritten are zeros there.
 */
struct ffs_fresh {
    uint64_t first, end; /* file blocks */
    const uint32_t *sums;
    /*
     * Partially written file blocks. Their checksums stay pending, because
     * these blocks are likely to be written again.
     */
    const uint64_t *partial;
    unsigned npartial;
};
/*
 * Stores the checksums of [first, *end), as far as the credits allow, and
 * lowers *end to that. Called in a handle that will mark the range as written.
 */
int ffs_fresh_put(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t first, uint64_t *end,
                  const struct ffs_fresh *fresh);
/*
 * Durably removes the checksums of [first, end) (blocks), before the range is
 * overwritten in place.
 */
int ffs_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end);
/*
 * Compares n blocks, read from device block `block` on, with their checksums,
 * and reads a block that differs again. Returns -EBADMSG if it still differs;
 * *bad is its index.
 */
int ffs_verify(struct ffs *fs, uint64_t block, uint64_t n, void *data, uint64_t *bad);
/* Reads a block. On -EBADMSG, as above, `data` holds the block nevertheless. */
int ffs_read_block(struct ffs *fs, uint64_t block, void *data);
/* Overwrites a block of a written extent. */
int ffs_overwrite_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block,
                        const void *data);
/* Zeros n blocks of a written extent. */
int ffs_overwrite_zeroes(struct ffs_inode *inode, uint64_t file_block, uint64_t block, uint64_t n);
/* Logs that a block of a file does not match its checksum. Returns -EIO. */
int ffs_bad_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block);

#endif
