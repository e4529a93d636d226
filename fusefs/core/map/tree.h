/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes the B+tree of FORMAT.md 6, which extents and names share.
 *
 * A function with a handle may leave the tree half changed when it fails. The caller then aborts
 * the handle.
 */
#ifndef FUSEFS_CORE_MAP_TREE_H
#define FUSEFS_CORE_MAP_TREE_H

#include "fusefs/core/base/tree_seek.h"

/* Makes an empty tree of the inode's map, which must hold none. */
int ffs_tree_create(struct ffs_tx *tx, struct ffs_inode *inode, unsigned map_kind);
/*
 * Frees the only node of a tree that has no records, or whose records have been copied elsewhere.
 */
int ffs_tree_free_root(struct ffs_tx *tx, struct ffs_inode *inode);
/* Makes the leaf dirty. Called before its records are changed in place. */
int ffs_tree_dirty(struct ffs_tx *tx, struct ffs_cursor *c);
/* Both functions drop the cursor, also on failure. */
int ffs_tree_insert(struct ffs_tx *tx, struct ffs_cursor *c, const void *record, size_t len);
int ffs_tree_remove(struct ffs_tx *tx, struct ffs_cursor *c);

/* Returns the maximum credits of one insertion or removal: path, siblings or new nodes, entries. */
static inline unsigned ffs_tree_credits(const struct ffs_inode *inode)
{
    return 4 + 4 * (unsigned)lay_get16(inode->d.map_height);
}

#endif
