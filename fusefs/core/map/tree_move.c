/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Nodes of a B+tree move to other blocks.
 */
#include "fusefs/core/map/tree.h"

int ffs_tree_level_past(struct ffs_inode *inode, uint64_t key, uint64_t limit, int *level,
                        uint64_t *hi)
{
    struct ffs_cursor c;
    int err = ffs_cursor_seek(inode, key, &c);

    if (err)
        return err;
    *level = (int)c.height - 1;
    while (*level >= 0 && c.step[*level].buf->block < limit)
        (*level)--;
    *hi = c.step[0].hi;
    ffs_cursor_drop(&c);
    return 0;
}

/* What named the node at `level` names another block. */
static int tree_rename_node(struct ffs_tx *tx, struct ffs_cursor *c, unsigned level, uint64_t block)
{
    int err = ffs_inode_dirty(tx, c->inode);

    if (!err && level + 1 == c->height)
        c->inode->d.map.tree.root = lay_put64(block);
    if (err || level + 1 == c->height)
        return err;
    struct ffs_tree_step *above = &c->step[level + 1];
    err = ffs_tx_dirty(tx, above->buf);
    if (err)
        return err;
    struct lay_node *node = above->buf->data;
    struct lay_branch *branch = (struct lay_branch *)(void *)(node->u.bytes + above->at);
    branch->child = lay_put64(block);
    return 0;
}

int ffs_tree_move(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t key, unsigned level)
{
    struct ffs_cursor c;
    uint64_t block;
    int err = ffs_cursor_seek(inode, key, &c);

    if (err)
        return err;
    uint64_t old = c.step[level].buf->block;
    err = ffs_alloc_meta(tx, 0, &block);
    if (!err)
        err = ffs_tx_copy(tx, c.step[level].buf, block);
    if (!err)
        err = tree_rename_node(tx, &c, level, block);
    ffs_cursor_drop(&c);
    return err ? err : ffs_free_meta(tx, old);
}
