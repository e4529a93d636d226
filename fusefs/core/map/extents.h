/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes of the extents of a file: inline extents, then a B+tree (FORMAT.md 3 and 6).
 */
#ifndef FUSEFS_CORE_MAP_EXTENTS_H
#define FUSEFS_CORE_MAP_EXTENTS_H

#include "fusefs/core/base/extent_find.h"

/*
 * Adds an extent in a hole, merges it with its neighbours, and, unless the inode is the inode file,
 * adds its blocks to inode->d.blocks.
 */
int ffs_extent_add(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *extent);
/*
 * Returns the credits for one step of the functions below: two changes of a tree, which may have
 * been inline before, and the bitmap of one group.
 */
unsigned ffs_extent_credits(const struct ffs_inode *inode);
/*
 * Removes the mappings in [file_block, file_block + len) and frees their blocks, as far as the
 * credits of the handle allow. Sets *next to the file block at which another handle has to
 * continue, or to file_block + len when all are removed.
 */
int ffs_extent_remove(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                      uint64_t *next);
/*
 * Maps [to->file_block, to->file_block + to->len), which lies in one extent, to other blocks in the
 * same state. The caller frees the old blocks. Needs ffs_extent_credits().
 */
int ffs_extent_move(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *to);
/*
 * Gives blocks to [to->file_block, to->file_block + to->len), which lies in one damaged extent
 * without blocks and stays damaged, and adds them to inode->d.blocks. Needs ffs_extent_credits().
 */
int ffs_extent_fill(struct ffs_tx *tx, struct ffs_inode *inode, const struct ffs_extent *to);
/*
 * Makes the extents of a range unwritten, or written, which also ends their damage. Damaged extents
 * without blocks stay as they are. *next is as above.
 */
int ffs_extent_mark(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t file_block, uint64_t len,
                    bool unwritten, uint64_t *next);

#endif
