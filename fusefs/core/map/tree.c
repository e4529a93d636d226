/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Changes B+trees. A removal frees empty nodes and merges thin ones with a
 * neighbour under the same parent. The only child of a root replaces it.
 */
#include "fusefs/core/map/tree.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* --- Insertion -------------------------------------------------------------------------------- */

/* Adds to the number of records and of bytes used. */
static void tree_count(struct lay_node *node, int records, int bytes)
{
    node->count = lay_put16((uint16_t)(lay_get16(node->count) + records));
    node->used = lay_put32((uint32_t)((int64_t)lay_get32(node->used) + bytes));
}

/* Adds n to the number of nodes in the tree and, in a directory, to the size. */
static int tree_charge(struct ffs_inode *inode, int n)
{
    struct lay_map_tree *tree = &inode->d.map.tree;
    uint64_t nodes = lay_get64(tree->blocks);

    if (n < 0 && nodes < (uint64_t)-n)
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "map.tree.blocks");
    nodes += (uint64_t)n;
    tree->blocks = lay_put64(nodes);
    if (lay_get16(inode->d.map_kind) == LAY_MAP_DIR)
        inode->d.size = lay_put64(nodes << LAY_BLOCK_SHIFT);
    return 0;
}

/* Allocates an empty node near block `near`. The node is dirty. */
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
    err = tree_charge(inode, 1);
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
        err = tree_charge(inode, -1);
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
    tree_count(node, 1, (int)len);
}

/* Moves the records from byte `cut` on to the empty node `right`. */
static void tree_move_tail(struct lay_node *left, struct lay_node *right, uint32_t cut)
{
    uint32_t used = lay_get32(left->used);
    int records = 0;

    for (uint32_t at = cut, len; at < used && (len = ffs_node_len(left, at)) != 0; at += len)
        records++;
    memcpy(right->u.bytes, left->u.bytes + cut, used - cut);
    tree_count(right, records, (int)(used - cut));
    memset(left->u.bytes + cut, 0, used - cut);
    tree_count(left, -records, -(int)(used - cut));
}

/*
 * Returns the byte at which a full node is split: its middle, or its end if records are added in
 * ascending order.
 */
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

/*
 * Splits the node at `level` and inserts the record into the half that it belongs to. Sets *up to
 * the branch of the new node.
 */
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

/* Adds a root above the old root and its new sibling `up`. */
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

/* --- Removal ---------------------------------------------------------------------------------- */

/* A node with fewer used bytes is merged with a neighbour if both fit into one node. */
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

/* Removes the record or branch under the cursor from its node, which is dirty. */
static int tree_cut_record(struct ffs_cursor *c, unsigned level)
{
    struct lay_node *node = ffs_cursor_node(c, level);
    uint32_t used = lay_get32(node->used);
    uint32_t at = c->step[level].at;
    uint32_t len = used <= LAY_PAYLOAD ? ffs_node_len(node, at) : 0;

    if (len == 0)
        return ffs_tree_corrupt(c, level, "record length");
    memmove(node->u.bytes + at, node->u.bytes + at + len, used - at - len);
    memset(node->u.bytes + used - len, 0, len);
    tree_count(node, -1, -(int)len);
    return 0;
}

/*
 * Called when the first branch of a node was removed. The node's next child now begins where the
 * node begins. The first branch of that child repeats the key, and so on down to the leaves, which
 * have no such key.
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
    int err = tree_charge(inode, -1);
    return err ? err : ffs_free_meta(tx, block);
}

/*
 * Appends the records of `from` to the dirty node `to`, drops the caller's reference to `from`, and
 * frees it.
 */
static int tree_join(struct ffs_tx *tx, struct ffs_inode *inode, struct lay_node *to,
                     struct ffs_buf *from)
{
    const struct lay_node *src = from->data;
    uint32_t used = lay_get32(to->used);
    uint32_t more = lay_get32(src->used);

    memcpy(to->u.bytes + used, src->u.bytes, more);
    tree_count(to, lay_get16(src->count), (int)more);
    return tree_free_node(tx, inode, from);
}

/*
 * Sets *out to the neighbour whose branch is at byte `at` of the parent if both nodes fit into one,
 * else to NULL.
 */
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
 * Merges a thin node with a neighbour if both fit into one node. If *joined is true, the cursor one
 * level up is on the branch to remove. That branch is never the first one of its node, so no left
 * edge changes.
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

/*
 * Removes the record or branch under the cursor at one level. If *more is true, the branch under
 * the cursor one level up has to be removed, too.
 */
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

/* Makes a root without branches an empty leaf. */
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
