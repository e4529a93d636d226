/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * B+trees: removal. Empty nodes are freed, thin ones join a neighbour under the same parent, and a
 * root with one branch gives way to its child.
 */
#include "fusefs/core/map/tree.h"

#include <errno.h>
#include <string.h>

/* A node this thin joins a neighbour when both fit into one. */
#define THIN (LAY_PAYLOAD / 4)

#define BRANCH ((uint32_t)sizeof(struct lay_branch))

static uint32_t tree_used_at(const struct ffs_cursor *c, unsigned level)
{
    return lay_get32(ffs_cursor_node(c, level)->used);
}

static struct lay_branch *tree_branch_at(struct lay_node *node, uint32_t at)
{
    return (struct lay_branch *)(node->u.bytes + at);
}

/* Takes the record or branch under the cursor out of its node, which is dirty. */
static int tree_cut_record(struct ffs_cursor *c, unsigned level)
{
    struct lay_node *node = ffs_cursor_node(c, level);
    uint32_t used = lay_get32(node->used);
    uint32_t at = c->step[level].at;
    uint32_t len = BRANCH;

    if (level == 0)
        len = ffs_tree_magic(c->inode) == LAY_MAGIC_EXTENTS
                  ? (uint32_t)sizeof(struct lay_extent)
                  : lay_get16(((struct lay_dirent *)(node->u.bytes + at))->len);
    if (len == 0 || used > LAY_PAYLOAD || at > used || len > used - at)
        return ffs_tree_corrupt(c, level, "record length");
    memmove(node->u.bytes + at, node->u.bytes + at + len, used - at - len);
    memset(node->u.bytes + used - len, 0, len);
    ffs_node_count(node, -1, -(int)len);
    return 0;
}

/*
 * The first branch of a node went away, so its next child now begins where the node does; that
 * child's first branch repeats the key, and so on down to the leaves, which hold no such key.
 */
static int tree_lower_left_edge(struct ffs_tx *tx, struct ffs_cursor *c, unsigned level)
{
    struct lay_node *node = ffs_cursor_node(c, level);
    uint64_t lo = c->step[level].lo;
    uint64_t old = lay_get64(tree_branch_at(node, 0)->key);
    uint64_t hi = tree_used_at(c, level) > BRANCH ? lay_get64(tree_branch_at(node, BRANCH)->key) - 1
                                                  : c->step[level].hi;
    uint64_t child = ffs_branch_child(node, 0);

    tree_branch_at(node, 0)->key = lay_put64(lo);
    while (--level > 0) {
        struct ffs_buf *buf;
        int err = ffs_tree_node(c->inode, child, level, old, hi, &buf);
        if (err)
            return err;
        err = ffs_tx_dirty(tx, buf);
        if (!err) {
            node = buf->data;
            tree_branch_at(node, 0)->key = lay_put64(lo);
            child = ffs_branch_child(node, 0);
            if (lay_get32(node->used) > BRANCH)
                hi = lay_get64(tree_branch_at(node, BRANCH)->key) - 1;
        }
        ffs_buf_put(buf);
        if (err)
            return err;
    }
    return 0;
}

static int tree_free_node(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_buf *buf)
{
    uint64_t block = buf->block;

    ffs_buf_put(buf);
    int err = ffs_tree_charge(inode, -1);
    return err ? err : ffs_free_meta(tx, block);
}

/* Appends the records of `from` to `to` (dirty) and frees `from`, whose reference is taken. */
static int tree_join(struct ffs_tx *tx, struct ffs_inode *inode, struct lay_node *to,
                     struct ffs_buf *from)
{
    const struct lay_node *src = from->data;
    uint32_t used = lay_get32(to->used);
    uint32_t more = lay_get32(src->used);

    memcpy(to->u.bytes + used, src->u.bytes, more);
    ffs_node_count(to, lay_get16(src->count), (int)more);
    return tree_free_node(tx, inode, from);
}

/* The neighbour whose branch is at `at` in the parent, if the two fit into one; else NULL. */
static int tree_fitting_neighbour(struct ffs_cursor *c, unsigned level, uint32_t at,
                                  struct ffs_buf **out)
{
    struct lay_node *parent = ffs_cursor_node(c, level + 1);
    uint32_t used = lay_get32(parent->used);

    *out = NULL;
    if (at >= used || used > LAY_PAYLOAD)
        return 0;
    uint64_t lo = lay_get64(tree_branch_at(parent, at)->key);
    uint64_t hi = at + BRANCH < used ? lay_get64(tree_branch_at(parent, at + BRANCH)->key) - 1
                                     : c->step[level + 1].hi;
    int err = ffs_tree_node(c->inode, ffs_branch_child(parent, at), level, lo, hi, out);
    if (err)
        return err;
    const struct lay_node *node = (*out)->data;
    if (*out != c->step[level].buf && lay_get32(node->used) + tree_used_at(c, level) <= LAY_PAYLOAD)
        return 0;
    ffs_buf_put(*out);
    *out = NULL;
    return 0;
}

/*
 * Joins a thin node with a neighbour. If it did, *joined is true and the cursor one level up is on
 * the branch to remove. It is never a node's first one, so no left edge moves.
 */
static int tree_join_neighbour(struct ffs_tx *tx, struct ffs_cursor *c, unsigned level,
                               bool *joined)
{
    struct ffs_tree_step *up = &c->step[level + 1];
    struct ffs_buf *other;
    int err = tree_fitting_neighbour(c, level, up->at + BRANCH, &other);

    *joined = false;
    if (err)
        return err;
    if (other) {
        *joined = true;
        up->at += BRANCH;
        return tree_join(tx, c->inode, ffs_cursor_node(c, level), other);
    }
    if (up->at < BRANCH)
        return 0;
    err = tree_fitting_neighbour(c, level, up->at - BRANCH, &other);
    if (err || !other)
        return err;
    err = ffs_tx_dirty(tx, other);
    if (!err) {
        struct ffs_buf *self = c->step[level].buf;
        c->step[level].buf = NULL;
        *joined = true;
        err = tree_join(tx, c->inode, other->data, self);
    }
    ffs_buf_put(other);
    return err;
}

/* Removes at one level; *more: a branch one level up, under its cursor, has to go too. */
static int tree_remove_at(struct ffs_tx *tx, struct ffs_cursor *c, unsigned level, bool *more)
{
    struct ffs_tree_step *step = &c->step[level];
    int err = ffs_tx_dirty(tx, step->buf);

    if (!err)
        err = tree_cut_record(c, level);
    uint32_t left = err ? 0 : tree_used_at(c, level);
    if (!err && level > 0 && step->at == 0 && left > 0)
        err = tree_lower_left_edge(tx, c, level);

    *more = false;
    if (err || level + 1 == c->height || left >= THIN)
        return err;
    if (left > 0)
        return tree_join_neighbour(tx, c, level, more);
    struct ffs_buf *empty = step->buf;
    step->buf = NULL;
    *more = true;
    return tree_free_node(tx, c->inode, empty);
}

/* The root lost its last branch: it becomes an empty leaf. */
static void tree_reset_root(struct ffs_inode *inode, struct lay_node *root)
{
    root->level = lay_put16(0);
    inode->d.map_height = lay_put16(1);
}

static int tree_shrink(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct lay_map_tree *tree = &inode->d.map.tree;

    for (unsigned height = lay_get16(inode->d.map_height); height > 1; height--) {
        struct ffs_buf *root;
        int err = ffs_tree_node(inode, lay_get64(tree->root), height - 1, 0, UINT64_MAX, &root);
        if (err)
            return err;
        const struct lay_node *node = root->data;
        if (lay_get32(node->used) > BRANCH) {
            ffs_buf_put(root);
            return 0;
        }
        tree->root = lay_put64(ffs_branch_child(node, 0));
        inode->d.map_height = lay_put16((uint16_t)(height - 1));
        err = tree_free_node(tx, inode, root);
        if (err)
            return err;
    }
    return 0;
}

static int tree_remove_up(struct ffs_tx *tx, struct ffs_cursor *c)
{
    bool more = true;

    for (unsigned level = 0; more; level++) {
        int err = tree_remove_at(tx, c, level, &more);
        if (err)
            return err;
    }
    unsigned top = c->height - 1;
    if (top > 0 && c->step[top].buf && tree_used_at(c, top) == 0) {
        tree_reset_root(c->inode, ffs_cursor_node(c, top));
        return 0;
    }
    return tree_shrink(tx, c->inode);
}

int ffs_tree_remove(struct ffs_tx *tx, struct ffs_cursor *c)
{
    struct lay_map_tree *tree = &c->inode->d.map.tree;
    uint64_t entries = lay_get64(tree->entries);
    int err = entries ? ffs_inode_dirty(tx, c->inode)
                      : ffs_corrupt(c->inode->fs, LAY_NONE, c->inode->ino, "map.tree.entries");

    if (!err) {
        tree->entries = lay_put64(entries - 1);
        err = tree_remove_up(tx, c);
    }
    ffs_cursor_drop(c);
    return err;
}
