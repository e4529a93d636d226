/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Data and its checksums (FORMAT.md 5.4): what reads compare and what writes enter.
 */
#ifndef FUSEFS_CORE_DATA_VERIFY_H
#define FUSEFS_CORE_DATA_VERIFY_H

#include "fusefs/core/storage.h"

/* Checksums of data that is on the device; blocks around it that were unwritten are zeros there. */
struct ffs_fresh {
    uint64_t first, end; /* file blocks */
    const uint32_t *sums;
    /* File blocks written in part, of which more is likely to follow: their checksums wait. */
    const uint64_t *partial;
    unsigned npartial;
};
/*
 * In a handle that will mark [first, *end) written: enters the checksums, as far as its credits go.
 * *end comes down to that.
 */
int ffs_fresh_put(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t first, uint64_t *end,
                  const struct ffs_fresh *fresh);
/* Before [first, end) (blocks) is overwritten in place: durably takes the checksums away. */
int ffs_drop_sums(struct ffs_inode *inode, uint64_t first, uint64_t end);
/*
 * The checksums of n blocks of a file from block `first` on. LAY_NO_SUM for a block that is a hole,
 * is unwritten, or is not mapped to device block `expected` + its distance from `first` (LAY_NONE:
 * any). The caller holds inode->data; takes ffs.meta.
 */
int ffs_mapped_sums(struct ffs_inode *inode, uint64_t first, uint64_t n, uint64_t expected,
                    uint32_t *sums);
/*
 * Compares n blocks, read from device block `block` on, with their checksums; a block that differs
 * is read once more. -EBADMSG: it still differs; *bad is its place in the range.
 */
int ffs_verify(struct ffs *fs, uint64_t block, uint64_t n, void *data, uint64_t *bad);
/* Reads a block. -EBADMSG as above, with the block in `data` all the same. */
int ffs_read_block(struct ffs *fs, uint64_t block, void *data);
/* Overwrites a block of a written extent. */
int ffs_overwrite_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block,
                        const void *data);
/* Zeros n blocks of a written extent. */
int ffs_overwrite_zeroes(struct ffs_inode *inode, uint64_t file_block, uint64_t block, uint64_t n);
/* Logs that a block of a file does not match its checksum. Returns -EIO. */
int ffs_bad_block(struct ffs_inode *inode, uint64_t file_block, uint64_t block);

#endif
