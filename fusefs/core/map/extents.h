/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes of the extents of a file: inline extents, then a B+tree (FORMAT.md 3 and 6).
 */
#ifndef FUSEFS_CORE_MAP_EXTENTS_H
#define FUSEFS_CORE_MAP_EXTENTS_H

#include "fusefs/core/base/extent_find.h"

/* Adds an extent where there was a hole; merges with neighbours; charges inode->d.blocks. */
int ffs_extent_add(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *extent);
/*
 * Credits for one step of the two functions below: two changes of a tree that may have been inline
 * before, and the bitmap of one group.
 */
unsigned ffs_extent_credits(const struct ffs_inode *inode);
/*
 * Removes mappings in [file_block, file_block + len) and frees their blocks, until done or the
 * handle's credits run low: then *next is where to go on in another handle (else file_block +
 * len).
 */
int ffs_extent_remove(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                      uint64_t *next);
/*
 * Maps [to->file_block, + to->len), which lies in one extent, to other blocks, in the same state.
 * Those that it was mapped to are the caller's to free. ffs_extent_credits().
 */
int ffs_extent_move(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *to);
/* Sets or clears `unwritten` over a range; *next as above. */
int ffs_extent_mark(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                    bool unwritten, uint64_t *next);

#endif
