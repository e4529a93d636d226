/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Extents of an inode, sorted by file block: an array in the inode, or the leaves of a tree. Both
 * are seen as an array for a range of file blocks; no extent crosses the range of its leaf. Private
 * to extent_find.c and extents.c.
 */
#ifndef FUSEFS_CORE_EXTENT_LEAF_H
#define FUSEFS_CORE_EXTENT_LEAF_H

#include "fusefs/core/tree.h"

struct ffs_leaf {
    struct ffs_inode *inode;
    bool tree;
    struct ffs_cursor c;
    struct lay_extent *e;
    unsigned count;
    uint64_t lo, hi; /* file blocks that belong here */
};

/* Opens the leaf that file_block belongs to; to be closed on success. Under ffs.meta. */
int ffs_leaf_open(struct ffs_inode *inode, uint64_t file_block, struct ffs_leaf *l);
void ffs_leaf_close(struct ffs_leaf *l);
/* The first extent that ends past file_block. */
unsigned ffs_leaf_index(const struct ffs_leaf *l, uint64_t file_block);

static inline uint64_t ffs_record_first(const struct lay_extent *e)
{
    return lay_get64(e->file_block);
}

static inline uint64_t ffs_record_end(const struct lay_extent *e)
{
    return lay_get64(e->file_block) + lay_get32(e->len);
}

static inline bool ffs_record_unwritten(const struct lay_extent *e)
{
    return lay_get16(e->flags) & LAY_EXTENT_UNWRITTEN;
}

#endif
