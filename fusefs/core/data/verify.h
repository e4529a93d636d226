/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Data and its checksums (FORMAT.md 5.4): what reads compare and what writes enter.
 */
#ifndef FUSEFS_CORE_DATA_VERIFY_H
#define FUSEFS_CORE_DATA_VERIFY_H

#include "fusefs/core/storage.h"

/*
 * Checksums of data on the device. Blocks around the data that were unwritten
 * are zeros there.
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
