/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Walks through the B+tree of FORMAT.md 6, which extents and names share. A record begins with its
 * 64-bit key; leaves hold records in key order, and every key and everything a record covers lies
 * in the range that the parents give its leaf.
 */
#ifndef FUSEFS_CORE_BASE_TREE_SEEK_H
#define FUSEFS_CORE_BASE_TREE_SEEK_H

#include <assert.h>

#include "fusefs/core/storage.h"

struct ffs_tree_step {
    struct ffs_buf *buf;
    uint64_t lo, hi; /* range of keys that belong to the node */
    uint32_t at;     /* byte of the payload at which the record or branch begins */
};

/*
 * Describes a path from the root to a record, which is valid until the tree
 * changes or ffs.meta is released.
 */
struct ffs_cursor {
    struct ffs_inode *inode;
    unsigned height;
    struct ffs_tree_step step[LAY_MAX_HEIGHT]; /* step[0] is the leaf. */
};

static inline struct lay_node *ffs_cursor_node(const struct ffs_cursor *c, unsigned level)
{
    assert(c->step[level].buf); /* The descent has reached this level. */
    return c->step[level].buf->data;
}

/*
 * Moves the cursor to the leaf that key belongs to, and to the first record there that is not below
 * key, or to the end of the leaf. On success the caller drops the cursor.
 */
int ffs_cursor_seek(struct ffs_inode *inode, uint64_t key, struct ffs_cursor *c);
void ffs_cursor_drop(struct ffs_cursor *c);
/*
 * Sets *out to the record of a directory under the cursor. Moves to the next leaf at the end of a
 * leaf. Returns -ENOENT if there is no further record.
 */
int ffs_cursor_dirent(struct ffs_cursor *c, const struct lay_dirent **out);
void ffs_cursor_skip(struct ffs_cursor *c, size_t len);

/* --- Nodes: for the files that read or change trees ------------------------------------------- */

uint64_t ffs_node_key(const struct lay_node *node, uint32_t at);
/*
 * Returns the length of the record at `at`, or 0 if it does not end within the
 * used bytes.
 */
uint32_t ffs_node_len(const struct lay_node *node, uint32_t at);
int ffs_tree_node(struct ffs_inode *inode, uint64_t block, unsigned level, uint64_t lo, uint64_t hi,
                  struct ffs_buf **out);
uint32_t ffs_tree_magic(const struct ffs_inode *inode);
int ffs_tree_corrupt(const struct ffs_cursor *c, unsigned level, const char *why);
uint64_t ffs_branch_child(const struct lay_node *node, uint32_t at);

#endif
