/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves blocks that only damaged trees refer to: no repair may write there
 * before their contents are taken.
 */
#include <errno.h>
#include <sys/stat.h>

#include "mkfs/fsck/salvage.h"

/* True if the block is marked as in use but belongs to no object that was found. */
static bool is_lost(const struct fsck *f, const struct lay_bitmap *bm, uint64_t block)
{
    uint64_t bit = block % LAY_GROUP_BLOCKS;

    return bm->bits[bit / 8] >> bit % 8 & 1 && !fsck_is_claimed(f, block);
}

/* True if a leaf may be there: not where a record that needs proof has data. */
static bool may_be_leaf(const struct fsck *f, const struct lay_bitmap *bm, uint64_t block)
{
    return is_lost(f, bm, block) && !fsck_is_nominated(f, block);
}

/*
 * True if all extents of a leaf lie on lost blocks. Data of a lost file may
 * imitate a leaf, so no extent may lie on blocks of another file.
 */
static bool extents_are_lost(struct fsck *f, const struct lay_node *leaf)
{
    union lay_block b;
    uint64_t loaded = UINT64_MAX;

    for (unsigned i = 0; i < lay_get16(leaf->count); i++) {
        uint64_t block = lay_get64(leaf->u.extents[i].block);
        uint64_t end = block + lay_get32(leaf->u.extents[i].len);
        if (!lay_extent_has_blocks(&leaf->u.extents[i]))
            continue;
        for (; block < end; block++) {
            uint64_t group = block / LAY_GROUP_BLOCKS;
            if (group != loaded && fsck_read_bitmap(f, group, &b) != 0)
                return false;
            loaded = group;
            if (!is_lost(f, &b.bitmap, block))
                return false;
        }
    }
    return true;
}

/* True for a valid leaf of an inode whose tree is to be rebuilt. */
static bool is_wanted(const struct fsck *f, const union lay_block *b, uint32_t magic,
                      uint64_t block)
{
    uint64_t ino = lay_get64(b->head.owner);

    return lay_get32(b->head.magic) == magic && ino > 0 && ino < fsck_inode_limit(f) &&
           f->inodes[ino].fix & FIX_MAP &&
           lay_check_node(&f->img.geo, &b->node, magic, block, ino, 0, 0, UINT64_MAX, NULL) == 0;
}

/* Keeps a leaf. Repairs do not touch it and its data until its records are taken. */
static int lost_leaves_keep(struct fsck *f, const struct lay_node *leaf, uint64_t block)
{
    struct fsck_lost_leaf *item = fsck_grow(&f->lost_leaves, sizeof(*item));

    if (!item)
        return -ENOMEM;
    item->ino = lay_get64(leaf->head.owner);
    item->block = block;
    item->magic = lay_get32(leaf->head.magic);
    fsck_claim_fixed(f, block, 1);
    for (unsigned i = 0; item->magic == LAY_MAGIC_EXTENTS && i < lay_get16(leaf->count); i++) {
        const struct lay_extent *e = &leaf->u.extents[i];
        if (lay_extent_has_blocks(e))
            fsck_claim_fixed(f, lay_get64(e->block), lay_get32(e->len));
    }
    return 0;
}

static int lost_leaves_search_group(struct fsck *f, uint32_t magic, uint64_t group)
{
    union lay_block bits, b;
    int err = fsck_read_bitmap(f, group, &bits);

    if (err || lay_check_bitmap(&f->img.geo, &bits.bitmap, group, NULL) != 0)
        return err;
    for (uint32_t bit = 0; bit < lay_group_blocks(&f->img.geo, group) && !err; bit++) {
        uint64_t block = group * LAY_GROUP_BLOCKS + bit;
        if (!may_be_leaf(f, &bits.bitmap, block))
            continue;
        err = image_read(&f->img, block, &b);
        if (!err && is_wanted(f, &b, magic, block) &&
            (magic == LAY_MAGIC_DIR || extents_are_lost(f, &b.node)))
            err = lost_leaves_keep(f, &b.node, block);
    }
    return err;
}

/*
 * Searches all unclaimed blocks for leaves that no node refers to, for trees to
 * be rebuilt, and claims them with their data. Called after everything else is
 * claimed.
 */
static int fsck_find_leaves(struct fsck *f)
{
    /* Files come first: this claims their data, so that no name is taken from it. */
    static const uint32_t kinds[] = {LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR};
    uint64_t groups = lay_groups(&f->img.geo);
    int err = 0;

    for (unsigned k = 0; k < 2 && !err; k++) {
        for (uint64_t group = 0; group < groups && !err; group++) {
            err = lost_leaves_search_group(f, kinds[k], group);
            fsck_progress(f, "search", k * groups + group + 1, 2 * groups);
        }
    }
    return err;
}

/* Claims nodes, and the extents of records that are believed; nominates those of others. */
static int reserve_salvaged(struct fsck *f, const struct salvaged *s)
{
    const uint64_t *nodes = s->nodes.items;
    int err = 0;

    for (size_t i = 0; i < s->nodes.count; i++)
        fsck_claim_fixed(f, nodes[i], 1);
    for (size_t i = 0; i < s->extents.count && !err; i++) {
        const struct lay_extent *e = (const struct lay_extent *)s->extents.items + i;
        if (!lay_extent_has_blocks(e))
            continue;
        if (lay_get16(e->flags) & SALVAGED_UNPROVEN)
            err = fsck_nominate(f, lay_get64(e->block), lay_get32(e->len));
        else
            fsck_claim_fixed(f, lay_get64(e->block), lay_get32(e->len));
    }
    return err;
}

static int reserve_map(struct fsck *f, uint64_t ino, const struct lay_inode *inode)
{
    bool is_dir = lay_get16(inode->map_kind) == LAY_MAP_DIR;
    struct salvaged s = {0};
    int err = is_dir ? salvage_tree(f, ino, LAY_MAGIC_DIR, lay_get64(inode->map.tree.root), &s)
                     : fsck_collect_extents(f, ino, inode, &s);

    if (!err)
        err = reserve_salvaged(f, &s);
    salvage_free(&s);
    return err;
}

static int reserve_xattrs(struct fsck *f, uint64_t block)
{
    union lay_block b;
    int err = 0;

    for (unsigned i = 0; i < LAY_XATTR_BLOCKS_MAX && lay_range_ok(&f->img.geo, block, 1) && !err;
         i++) {
        fsck_claim_fixed(f, block, 1);
        err = image_read(&f->img, block, &b);
        block = lay_get64(b.xattr.next);
    }
    return err;
}

static int reserve_inode(struct fsck *f, uint64_t ino, const struct lay_inode *inode)
{
    uint16_t fix = f->inodes[ino].fix;
    unsigned kind = lay_get16(inode->map_kind);
    int err = 0;

    if (fix & FIX_MAP && (kind == LAY_MAP_TREE || kind == LAY_MAP_DIR || kind == LAY_MAP_INLINE))
        err = reserve_map(f, ino, inode);
    if (fix & FIX_MAP && kind == LAY_MAP_LINK)
        fsck_claim_fixed(f, lay_get64(inode->map.link.block), 1);
    if (!err && fix & FIX_XATTR)
        err = reserve_xattrs(f, lay_get64(inode->xattr));
    return err;
}

int fsck_reserve(struct fsck *f)
{
    union lay_block b;
    uint16_t fixes = 0;
    int err = 0;

    for (uint64_t index = 0; index < f->inode_block_count && !err; index++) {
        uint16_t fix = 0;
        for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++)
            fix |= f->inodes[index * LAY_INODES_PER_BLOCK + slot].fix;
        fixes |= fix;
        if (!(fix & (FIX_MAP | FIX_XATTR)) || f->inode_blocks[index].damaged)
            continue;
        err = fsck_load_block(f, index, &b);
        for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK && !err; slot++)
            err = reserve_inode(f, index * LAY_INODES_PER_BLOCK + slot, &b.inodes.inodes[slot]);
    }
    /* Lost leaves of trees matter only if something was unreadable. */
    if (!err && fixes & FIX_MAP && f->incomplete)
        err = fsck_find_leaves(f);
    return err ? err : fsck_plan_maps(f);
}
