/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The B+tree of FORMAT.md 6, shared by extents and names. A record begins with its 64-bit key;
 * leaves hold records in key order, and every key and everything a record covers lies in the range
 * that the parents give its leaf.
 *
 * Functions that take a handle may leave the tree half changed when they fail: the caller aborts.
 */
#ifndef FUSEFS_CORE_TREE_H
#define FUSEFS_CORE_TREE_H

#include <assert.h>

#include "fusefs/core/storage.h"

struct ffs_tree_step {
    struct ffs_buf *buf;
    uint64_t lo, hi; /* keys that belong here */
    uint32_t at;     /* of the record or branch, in bytes of payload */
};

/* A way from the root to a record. Valid until the tree changes or ffs.meta is dropped. */
struct ffs_cursor {
    struct ffs_inode *inode;
    unsigned height;
    struct ffs_tree_step step[LAY_MAX_HEIGHT]; /* 0: the leaf */
};

static inline struct lay_node *ffs_cursor_node(const struct ffs_cursor *c, unsigned level)
{
    assert(c->step[level].buf); /* the way has come this far down */
    return c->step[level].buf->data;
}

/*
 * Goes to the leaf that key belongs to, and in it to the first record that is not below key (or
 * to the leaf's end). On success the cursor is the caller's to drop.
 */
int ffs_cursor_seek(struct ffs_inode *inode, uint64_t key, struct ffs_cursor *c);
void ffs_cursor_drop(struct ffs_cursor *c);
/* The record under the cursor, going on to the next leaf at a leaf's end; -ENOENT: no more. */
int ffs_cursor_record(struct ffs_cursor *c, const void **record);
void ffs_cursor_skip(struct ffs_cursor *c, size_t len);

/* Makes an empty tree of the inode's map, which must hold none. */
int ffs_tree_create(struct ffs_tx *tx, struct ffs_inode *inode, unsigned map_kind);
/* Frees the one node of a tree without records, or whose records are kept elsewhere. */
int ffs_tree_free_root(struct ffs_tx *tx, struct ffs_inode *inode);
/* Before the leaf's records are changed in place. */
int ffs_tree_dirty(struct ffs_tx *tx, struct ffs_cursor *c);
/* Both drop the cursor, whatever they return. */
int ffs_tree_insert(struct ffs_tx *tx, struct ffs_cursor *c, const void *record, size_t len);
int ffs_tree_remove(struct ffs_tx *tx, struct ffs_cursor *c);

/*
 * Where the way to key has its highest node at or past block `limit`: the level, or -1 when it has
 * none; *hi: the last key of the leaf. Under ffs.meta.
 */
int ffs_tree_level_past(struct ffs_inode *inode, uint64_t key, uint64_t limit, int *level,
                        uint64_t *hi);
/* Gives that node another block. ffs_tree_credits(). */
int ffs_tree_move(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t key, unsigned level);

/* Credits that one insertion or removal takes at most: path, siblings or new nodes, bitmaps. */
static inline unsigned ffs_tree_credits(const struct ffs_inode *inode)
{
    return 4 + 4 * (unsigned)lay_get16(inode->d.map_height);
}

/* Between the files of the tree. */
uint64_t ffs_node_key(const struct lay_node *node, uint32_t at);
/* Of the record at `at`, or 0 when it does not end within the used bytes. */
uint32_t ffs_node_len(const struct lay_node *node, uint32_t at);
int ffs_tree_node(struct ffs_inode *inode, uint64_t block, unsigned level, uint64_t lo, uint64_t hi,
                  struct ffs_buf **out);
uint32_t ffs_tree_magic(const struct ffs_inode *inode);
int ffs_tree_corrupt(const struct ffs_cursor *c, unsigned level, const char *why);
/* Adds n to the counts of nodes: the tree's, the inode's and, in a directory, the size. */
int ffs_tree_charge(struct ffs_inode *inode, int n);
uint64_t ffs_branch_child(const struct lay_node *node, uint32_t at);
void ffs_node_count(struct lay_node *node, int records, int bytes);

#endif
