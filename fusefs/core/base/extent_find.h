/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the device blocks of file blocks: inline extents, then a B+tree (FORMAT.md 3 and 6).
 */
#ifndef FUSEFS_CORE_BASE_EXTENT_FIND_H
#define FUSEFS_CORE_BASE_EXTENT_FIND_H

#include "fusefs/core/base/tree_seek.h"

/* Describes an extent of file blocks: mapped, unwritten, damaged, or a hole. */
struct ffs_extent {
    uint64_t file_block;
    uint64_t block; /* on the device; LAY_NONE: a hole, or damaged without blocks */
    uint64_t len;   /* blocks; a hole after the last extent reaches to UINT64_MAX - file_block */
    bool unwritten;
    bool damaged; /* reads fail */
};

/* Returns true if the extent has the content of its blocks. */
static inline bool ffs_extent_is_data(const struct ffs_extent *e)
{
    return e->block != LAY_NONE && !e->unwritten && !e->damaged;
}

/* Returns the block at a distance from the start of an extent, or LAY_NONE. */
static inline uint64_t ffs_block_after(uint64_t block, uint64_t distance)
{
    return block == LAY_NONE ? LAY_NONE : block + distance;
}

/*
 * Sets *out to the extent that holds file_block, cut so that it starts there. The caller holds
 * ffs.meta, shared or exclusively.
 */
int ffs_extent_find(struct ffs_inode *inode, uint64_t file_block, struct ffs_extent *out);
/*
 * Stores up to max extents of [first, end) in order, holes included, the last one cut at end, and
 * returns their number. Each leaf is visited once. The caller holds ffs.meta.
 */
ssize_t ffs_extent_list(struct ffs_inode *inode, uint64_t first, uint64_t end,
                        struct ffs_extent *extents, size_t max);

/*
 * Shows the extents of an inode for a range of file blocks as an array, sorted
 * by file block. The array is in the inode or in a leaf of a tree. No extent
 * crosses the range of its leaf. Only extent_find.c and extents.c use this
 * struct.
 */
struct ffs_leaf {
    struct ffs_inode *inode;
    bool tree;
    struct ffs_cursor c;
    struct lay_extent *e;
    unsigned count;
    uint64_t hi; /* last file block that belongs to the leaf */
};

/*
 * Opens the leaf that file_block belongs to. On success the caller closes it. Under ffs.meta.
 */
int ffs_leaf_open(struct ffs_inode *inode, uint64_t file_block, struct ffs_leaf *l);
void ffs_leaf_close(struct ffs_leaf *l);
/* Returns the index of the first extent that ends past file_block. */
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

static inline bool ffs_record_damaged(const struct lay_extent *e)
{
    return lay_get16(e->flags) & LAY_EXTENT_DAMAGED;
}

#endif
