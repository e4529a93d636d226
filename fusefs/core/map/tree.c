/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * B+trees: insertion.
 */
#include "fusefs/core/map/tree.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

void ffs_node_count(struct lay_node *node, int records, int bytes)
{
    node->count = lay_put16((uint16_t)(lay_get16(node->count) + records));
    node->used = lay_put32((uint32_t)((int64_t)lay_get32(node->used) + bytes));
}

int ffs_tree_charge(struct ffs_inode *inode, int n)
{
    struct lay_map_tree *tree = &inode->d.map.tree;
    uint64_t nodes = lay_get64(tree->blocks);
    uint64_t blocks = lay_get64(inode->d.blocks);

    if (n < 0 && (nodes < (uint64_t)-n || blocks < (uint64_t)-n))
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "map.tree.blocks");
    nodes += (uint64_t)n;
    tree->blocks = lay_put64(nodes);
    inode->d.blocks = lay_put64(blocks + (uint64_t)n);
    if (lay_get16(inode->d.map_kind) == LAY_MAP_DIR)
        inode->d.size = lay_put64(nodes << LAY_BLOCK_SHIFT);
    return 0;
}

/* A node beside `near`, empty and dirty. */
static int tree_new_node(struct ffs_tx *tx, struct ffs_inode *inode, uint64_t near, unsigned level,
                         struct ffs_buf **out)
{
    uint64_t block;
    int err = ffs_alloc_meta(tx, near, &block);

    if (!err)
        err = ffs_tx_new(tx, block, ffs_tree_magic(inode), inode->ino, out);
    if (err)
        return err;
    struct lay_node *node = (*out)->data;
    node->level = lay_put16((uint16_t)level);
    err = ffs_tree_charge(inode, 1);
    if (err)
        ffs_buf_put(*out);
    return err;
}

int ffs_tree_create(struct ffs_tx *tx, struct ffs_inode *inode, unsigned map_kind)
{
    struct ffs_buf *root;
    int err = ffs_inode_dirty(tx, inode);

    if (err)
        return err;
    inode->d.map_kind = lay_put16((uint16_t)map_kind);
    inode->d.map_count = lay_put16(0);
    inode->d.map_height = lay_put16(1);
    memset(&inode->d.map, 0, sizeof(inode->d.map));
    err = tree_new_node(tx, inode, 0, 0, &root);
    if (err)
        return err;
    inode->d.map.tree.root = lay_put64(root->block);
    ffs_buf_put(root);
    return 0;
}

int ffs_tree_free_root(struct ffs_tx *tx, struct ffs_inode *inode)
{
    int err = ffs_inode_dirty(tx, inode);

    if (!err)
        err = ffs_tree_charge(inode, -1);
    return err ? err : ffs_free_meta(tx, lay_get64(inode->d.map.tree.root));
}

int ffs_tree_dirty(struct ffs_tx *tx, struct ffs_cursor *c)
{
    return ffs_tx_dirty(tx, c->step[0].buf);
}

static void tree_insert_bytes(struct lay_node *node, uint32_t at, const void *record, size_t len)
{
    uint32_t used = lay_get32(node->used);

    assert(at <= used && used + len <= LAY_PAYLOAD);
    memmove(node->u.bytes + at + len, node->u.bytes + at, used - at);
    memcpy(node->u.bytes + at, record, len);
    ffs_node_count(node, 1, (int)len);
}

/* Moves the records from `cut` on to the empty node `right`. */
static void tree_move_tail(struct lay_node *left, struct lay_node *right, uint32_t cut)
{
    uint32_t used = lay_get32(left->used);
    int records = 0;

    for (uint32_t at = cut, len; at < used && (len = ffs_node_len(left, at)) != 0; at += len)
        records++;
    memcpy(right->u.bytes, left->u.bytes + cut, used - cut);
    ffs_node_count(right, records, (int)(used - cut));
    memset(left->u.bytes + cut, 0, used - cut);
    ffs_node_count(left, -records, -(int)(used - cut));
}

/* Where to cut a full node: in the middle, or at its end when records come in ascending order. */
static uint32_t tree_split_point(const struct lay_node *node, const struct ffs_tree_step *step)
{
    uint32_t used = lay_get32(node->used);
    uint32_t cut = 0;

    if (step->at == used && step->hi == UINT64_MAX)
        return used;
    while (cut < used / 2) {
        uint32_t len = ffs_node_len(node, cut);
        if (len == 0)
            return 0;
        cut += len;
    }
    return cut;
}

/* Splits the node at `level` and puts the record into the right half of the two. */
static int tree_split_insert(struct ffs_tx *tx, struct ffs_cursor *c, unsigned level,
                             const void *record, size_t len, struct lay_branch *up)
{
    struct ffs_tree_step *step = &c->step[level];
    struct lay_node *left = step->buf->data;
    uint32_t cut = tree_split_point(left, step);

    if (cut == 0)
        return ffs_tree_corrupt(c, level, "record length");
    bool append = cut == lay_get32(left->used);

    struct ffs_buf *buf;
    int err = tree_new_node(tx, c->inode, step->buf->block, level, &buf);
    if (err)
        return err;
    struct lay_node *right = buf->data;
    if (right == left || lay_get32(left->used) < cut || step->at > lay_get32(left->used)) {
        ffs_buf_put(buf);
        return ffs_tree_corrupt(c, level, "node in use was marked free");
    }
    tree_move_tail(left, right, cut);
    if (append || step->at > cut)
        tree_insert_bytes(right, step->at - cut, record, len);
    else
        tree_insert_bytes(left, step->at, record, len);
    up->key = lay_put64(ffs_node_key(right, 0));
    up->child = lay_put64(buf->block);
    ffs_buf_put(buf);
    return 0;
}

/* A new root above the old one and the sibling `up`. */
static int tree_grow(struct ffs_tx *tx, struct ffs_cursor *c, const struct lay_branch *up)
{
    struct lay_map_tree *tree = &c->inode->d.map.tree;
    struct lay_branch old = {lay_put64(0), tree->root};
    struct ffs_buf *buf;

    if (c->height == LAY_MAX_HEIGHT)
        return -EFBIG;
    int err = tree_new_node(tx, c->inode, lay_get64(tree->root), c->height, &buf);
    if (err)
        return err;
    tree_insert_bytes(buf->data, 0, &old, sizeof(old));
    tree_insert_bytes(buf->data, sizeof(old), up, sizeof(*up));
    tree->root = lay_put64(buf->block);
    c->inode->d.map_height = lay_put16((uint16_t)(c->height + 1));
    ffs_buf_put(buf);
    return 0;
}

static int tree_insert_at(struct ffs_tx *tx, struct ffs_cursor *c, const void *record, size_t len)
{
    struct lay_branch branch, up;

    for (unsigned level = 0; level < c->height; level++) {
        struct ffs_tree_step *step = &c->step[level];
        struct lay_node *node = step->buf->data;
        int err = ffs_tx_dirty(tx, step->buf);
        if (err)
            return err;
        uint32_t used = lay_get32(node->used);
        if (step->at > used || used > LAY_PAYLOAD)
            return ffs_tree_corrupt(c, level, "used");
        if (used + len <= LAY_PAYLOAD) {
            tree_insert_bytes(node, step->at, record, len);
            return 0;
        }
        err = tree_split_insert(tx, c, level, record, len, &up);
        if (err)
            return err;
        branch = up;
        record = &branch;
        len = sizeof(branch);
        if (level + 1 < c->height)
            c->step[level + 1].at += sizeof(branch);
    }
    return tree_grow(tx, c, &branch);
}

int ffs_tree_insert(struct ffs_tx *tx, struct ffs_cursor *c, const void *record, size_t len)
{
    assert(len <= LAY_PAYLOAD / 4);
    int err = ffs_inode_dirty(tx, c->inode);
    if (!err)
        err = tree_insert_at(tx, c, record, len);
    if (!err) {
        struct lay_map_tree *tree = &c->inode->d.map.tree;
        tree->entries = lay_put64(lay_get64(tree->entries) + 1);
    }
    ffs_cursor_drop(c);
    return err;
}
