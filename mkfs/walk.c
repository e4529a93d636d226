/* SPDX-License-Identifier: BSD-2-Clause */
/* Walks the trees and chains of an inode. */
#include "mkfs/walk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct walk {
    struct image *img;
    const struct walk_ops *ops;
    void *arg;
    uint64_t ino;
    uint32_t magic;
    uint64_t left; /* nodes that may still be read; ends a walk in a loop */
    struct walk_totals totals;
    union lay_block *nodes; /* one per level */
};

static bool may_read(struct walk *w)
{
    if (w->left > 0) {
        w->left--;
        return true;
    }
    w->totals.whole = false;
    return false;
}

/* Asks whether the walk continues through a block that passed its checks. */
static bool enter(struct walk *w, uint64_t block)
{
    if (!w->ops->sound || w->ops->sound(w->arg, block))
        return true;
    w->totals.whole = false;
    return false;
}

static void damaged(struct walk *w, uint64_t block, const char *why)
{
    w->totals.whole = false;
    if (w->ops->damaged)
        w->ops->damaged(w->arg, block, why);
}

static void walk_leaf(struct walk *w, const struct lay_node *leaf)
{
    w->totals.entries += lay_get16(leaf->count);
    if (w->magic == LAY_MAGIC_EXTENTS) {
        for (unsigned i = 0; w->ops->extent && i < lay_get16(leaf->count); i++)
            w->ops->extent(w->arg, &leaf->u.extents[i]);
        return;
    }
    const struct lay_dirent *d = NULL;
    while (w->ops->name && (d = lay_dirent_next(leaf, d)))
        w->ops->name(w->arg, d);
}

/*
 * Returns true if image_read() has found an older version of a block. Sets *why
 * then; it may be NULL.
 */
static bool walk_stale(const struct image *img, const char **why)
{
    bool stale = img->age == IMAGE_AGE_STALE;

    if (stale && why)
        *why = IMAGE_STALE_WHY;
    return stale;
}

/* Recursion is as deep as the tree is high: at most LAY_MAX_HEIGHT. */
static int walk_node(struct walk *w, uint64_t block, unsigned level, uint64_t lo, uint64_t hi)
{
    const char *why = NULL;
    struct lay_node *node = &w->nodes[level].node;

    if (!may_read(w))
        return 0;
    int err = image_read(w->img, block, &w->nodes[level]);
    if (err)
        return err;
    if (walk_stale(w->img, &why) ||
        lay_check_node(&w->img->geo, node, w->magic, block, w->ino, level, lo, hi, &why) != 0) {
        damaged(w, block, why);
        return 0;
    }
    if (!enter(w, block))
        return 0;
    w->totals.nodes++;
    if (level == 0) {
        walk_leaf(w, node);
        return 0;
    }
    unsigned count = lay_get16(node->count);
    for (unsigned i = 0; i < count && !err; i++) {
        const struct lay_branch *b = &node->u.branches[i];
        uint64_t last = i + 1 < count ? lay_get64(b[1].key) - 1 : hi;
        err = walk_node(w, lay_get64(b->child), level - 1, lay_get64(b->key), last);
    }
    return err;
}

static int walk_tree(struct walk *w, const struct lay_inode *inode)
{
    unsigned height = lay_get16(inode->map_height);

    assert(height >= 1 && height <= LAY_MAX_HEIGHT);
    w->nodes = malloc(height * sizeof(*w->nodes));
    if (!w->nodes)
        return -ENOMEM;
    int err = walk_node(w, lay_get64(inode->map.tree.root), height - 1, 0, UINT64_MAX);
    free(w->nodes);
    return err;
}

static struct walk new_walk(struct image *img, uint64_t ino, const struct walk_ops *ops, void *arg)
{
    struct walk w = {
        .img = img,
        .ops = ops,
        .arg = arg,
        .ino = ino,
        .left = img->geo.blocks,
        .totals = {.whole = true},
    };

    return w;
}

static int walk_finish(const struct walk *w, int err, struct walk_totals *totals)
{
    if (totals)
        *totals = w->totals;
    return err || w->totals.whole ? err : -EUCLEAN;
}

int walk_extents(struct image *img, uint64_t ino, const struct lay_inode *inode,
                 const struct walk_ops *ops, void *arg, struct walk_totals *totals)
{
    struct walk w = new_walk(img, ino, ops, arg);
    int err = 0;

    w.magic = LAY_MAGIC_EXTENTS;
    if (lay_get16(inode->map_kind) == LAY_MAP_TREE) {
        err = walk_tree(&w, inode);
    } else if (lay_get16(inode->map_kind) == LAY_MAP_INLINE) {
        w.totals.entries = lay_get16(inode->map_count);
        for (unsigned i = 0; ops->extent && i < w.totals.entries; i++)
            ops->extent(arg, &inode->map.extents[i]);
    }
    return walk_finish(&w, err, totals);
}

int walk_names(struct image *img, uint64_t ino, const struct lay_inode *inode,
               const struct walk_ops *ops, void *arg, struct walk_totals *totals)
{
    struct walk w = new_walk(img, ino, ops, arg);

    w.magic = LAY_MAGIC_DIR;
    int err = lay_get16(inode->map_kind) == LAY_MAP_DIR ? walk_tree(&w, inode) : -ENOTDIR;
    return walk_finish(&w, err, totals);
}

int walk_xattrs(struct image *img, uint64_t ino, const struct lay_inode *inode,
                const struct walk_ops *ops, void *arg, struct walk_totals *totals)
{
    struct walk w = new_walk(img, ino, ops, arg);
    union lay_block b;
    int err = 0;

    w.left = LAY_XATTR_BLOCKS_MAX;
    for (uint64_t block = lay_get64(inode->xattr); block != 0; block = lay_get64(b.xattr.next)) {
        const char *why = NULL;
        if (!may_read(&w))
            break;
        err = image_read(img, block, &b);
        if (err)
            break;
        if (walk_stale(img, &why) ||
            lay_check_xattr_block(&img->geo, &b.xattr, block, ino, &why) != 0) {
            damaged(&w, block, why);
            break;
        }
        if (!enter(&w, block))
            break;
        w.totals.nodes++;
        w.totals.entries += lay_get16(b.xattr.count);
        const struct lay_xattr *x = NULL;
        while (ops->xattr && (x = lay_xattr_next(&b.xattr, x)))
            ops->xattr(arg, x);
    }
    return walk_finish(&w, err, totals);
}

/* Searches the extents of a file for one block. */
struct find_block {
    uint64_t file_block;
    uint64_t found; /* 0: not found */
};

static void match_extent(void *arg, const struct lay_extent *e)
{
    struct find_block *f = arg;
    uint64_t first = lay_get64(e->file_block);

    if (!(lay_get16(e->flags) & LAY_EXTENT_DAMAGED) && f->file_block >= first &&
        f->file_block - first < lay_get32(e->len))
        f->found = lay_get64(e->block) + (f->file_block - first);
}

int walk_read_inode(struct image *img, const struct lay_super *sb, uint64_t ino,
                    struct lay_inode *out, const char **why)
{
    static const struct walk_ops ops = {.extent = match_extent};
    struct find_block f = {.file_block = ino / LAY_INODES_PER_BLOCK};
    union lay_block b;

    int err = walk_extents(img, 0, &sb->inode_file, &ops, &f, NULL);
    if (err)
        return err;
    if (f.found == 0)
        return -ENOENT;
    err = image_read(img, f.found, &b);
    if (!err && walk_stale(img, why))
        err = -EUCLEAN;
    if (!err)
        err = lay_check_inode_block(&img->geo, &b.inodes, f.file_block, f.found, why);
    if (!err)
        *out = b.inodes.inodes[ino % LAY_INODES_PER_BLOCK];
    return err;
}
