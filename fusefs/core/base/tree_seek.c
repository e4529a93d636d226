/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads nodes of B+trees, descends from the root, and walks from leaf to leaf.
 */
#include <errno.h>
#include <string.h>

#include "fusefs/core/base/tree_seek.h"

uint32_t ffs_tree_magic(const struct ffs_inode *inode)
{
    return lay_get16(inode->d.map_kind) == LAY_MAP_DIR ? LAY_MAGIC_DIR : LAY_MAGIC_EXTENTS;
}

int ffs_tree_corrupt(const struct ffs_cursor *c, unsigned level, const char *why)
{
    return ffs_corrupt(c->inode->fs, c->step[level].buf->block, c->inode->ino, why);
}

uint64_t ffs_node_key(const struct lay_node *node, uint32_t at)
{
    le64 key;

    memcpy(&key, node->u.bytes + at, sizeof(key));
    return lay_get64(key);
}

uint32_t ffs_node_len(const struct lay_node *node, uint32_t at)
{
    uint32_t used = lay_get32(node->used);
    uint32_t len = sizeof(struct lay_extent);

    if (lay_get16(node->level) > 0) {
        len = sizeof(struct lay_branch);
    } else if (lay_get32(node->head.magic) == LAY_MAGIC_DIR) {
        if (at + sizeof(struct lay_dirent) > used)
            return 0;
        len = lay_get16(((const struct lay_dirent *)(node->u.bytes + at))->len);
    }
    return len && len <= used && at <= used - len ? len : 0;
}

uint64_t ffs_branch_child(const struct lay_node *node, uint32_t at)
{
    return lay_get64(((const struct lay_branch *)(node->u.bytes + at))->child);
}

int ffs_tree_node(struct ffs_inode *inode, uint64_t block, unsigned level, uint64_t lo, uint64_t hi,
                  struct ffs_buf **out)
{
    struct lay_expect expect = {
        .magic = ffs_tree_magic(inode), .owner = inode->ino, .level = level, .lo = lo, .hi = hi};

    return ffs_buf_get(inode->fs, block, &expect, out);
}

void ffs_cursor_drop(struct ffs_cursor *c)
{
    for (unsigned level = 0; level < c->height; level++) {
        if (c->step[level].buf)
            ffs_buf_put(c->step[level].buf);
        c->step[level].buf = NULL;
    }
}

/*
 * Returns the offset of the first record whose key is not below `key`. Records have `size` bytes.
 */
static uint32_t seek_lower_bound_fixed(const struct lay_node *node, uint64_t key, uint32_t size)
{
    uint32_t lo = 0, hi = lay_get32(node->used) / size;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (ffs_node_key(node, mid * size) < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo * size;
}

static uint32_t seek_lower_bound(const struct lay_node *node, uint64_t key)
{
    if (lay_get16(node->level) > 0)
        return seek_lower_bound_fixed(node, key, sizeof(struct lay_branch));
    if (lay_get32(node->head.magic) == LAY_MAGIC_EXTENTS)
        return seek_lower_bound_fixed(node, key, sizeof(struct lay_extent));
    uint32_t used = lay_get32(node->used);
    uint32_t at = 0;
    for (uint32_t len; at < used && ffs_node_key(node, at) < key; at += len) {
        len = ffs_node_len(node, at);
        if (len == 0)
            break;
    }
    return at;
}

/*
 * Chooses the branch of an inner node that covers key, and stores the range of its child in
 * `below`.
 */
static int seek_choose_branch(struct ffs_cursor *c, unsigned level, uint64_t key,
                              struct ffs_tree_step *below)
{
    struct ffs_tree_step *step = &c->step[level];
    const struct lay_node *node = ffs_cursor_node(c, level);
    uint32_t used = lay_get32(node->used);
    uint32_t at = seek_lower_bound(node, key);

    if (at >= used || ffs_node_key(node, at) != key) {
        if (at == 0)
            return ffs_tree_corrupt(c, level, "branch keys");
        at -= sizeof(struct lay_branch);
    }
    uint32_t next = at + sizeof(struct lay_branch);
    step->at = at;
    below->lo = ffs_node_key(node, at);
    below->hi = next < used ? ffs_node_key(node, next) - 1 : step->hi;
    return 0;
}

int ffs_cursor_seek(struct ffs_inode *inode, uint64_t key, struct ffs_cursor *c)
{
    *c = (struct ffs_cursor){.inode = inode, .height = lay_get16(inode->d.map_height)};
    if (c->height == 0 || c->height > LAY_MAX_HEIGHT)
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "inode.map_height");

    uint64_t block = lay_get64(inode->d.map.tree.root);
    unsigned level = c->height - 1;
    c->step[level].hi = UINT64_MAX;
    for (;; level--) {
        struct ffs_tree_step *step = &c->step[level];
        int err = ffs_tree_node(inode, block, level, step->lo, step->hi, &step->buf);
        if (!err && level > 0)
            err = seek_choose_branch(c, level, key, &c->step[level - 1]);
        if (err) {
            ffs_cursor_drop(c);
            return err;
        }
        if (level == 0)
            break;
        block = ffs_branch_child(step->buf->data, step->at);
    }
    c->step[0].at = seek_lower_bound(ffs_cursor_node(c, 0), key);
    return 0;
}

int ffs_cursor_dirent(struct ffs_cursor *c, const struct lay_dirent **out)
{
    const struct lay_node *leaf = ffs_cursor_node(c, 0);

    if (c->step[0].at >= lay_get32(leaf->used)) {
        uint64_t hi = c->step[0].hi;
        if (hi == UINT64_MAX)
            return -ENOENT;
        /* Only a root may be empty, so the next leaf is not. */
        ffs_cursor_drop(c);
        int err = ffs_cursor_seek(c->inode, hi + 1, c);
        if (err) {
            c->height = 0;
            return err;
        }
        leaf = ffs_cursor_node(c, 0);
    }
    if (ffs_node_len(leaf, c->step[0].at) == 0)
        return ffs_tree_corrupt(c, 0, "record length");
    *out = (const struct lay_dirent *)(leaf->u.bytes + c->step[0].at);
    return 0;
}

void ffs_cursor_skip(struct ffs_cursor *c, size_t len)
{
    c->step[0].at += (uint32_t)len;
}
