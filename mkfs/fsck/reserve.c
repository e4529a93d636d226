/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves blocks that only damaged trees refer to: no repair may write there
 * before their contents are taken.
 */
#include <errno.h>
#include <sys/stat.h>

#include "mkfs/fsck/salvage.h"

/*
 * Returns true if all extents of a leaf lie on blocks that are marked as in use
 * but belong to no object that was found. A leaf that was freed has extents
 * that may belong to another file by now.
 */
static bool extents_are_lost(struct fsck *f, const struct lay_node *leaf)
{
    for (unsigned i = 0; i < lay_get16(leaf->count); i++) {
        const struct lay_extent *e = &leaf->u.extents[i];
        uint64_t block = lay_get64(e->block), len = lay_get32(e->len);
        if (lay_extent_has_blocks(e) &&
            (!fsck_in_use(f, block, len) || fsck_any_claimed(f, block, len)))
            return false;
    }
    return true;
}

/* Returns true if the block is a valid leaf of an inode whose tree is to be rebuilt. */
static bool is_wanted(const struct fsck *f, const union lay_block *b, uint32_t magic, uint64_t addr)
{
    uint64_t ino = lay_get64(b->head.owner);

    return lay_get32(b->head.magic) == magic && ino > 0 && ino < fsck_inode_limit(f) &&
           f->inodes[ino].fix & FIX_MAP &&
           lay_check_node(&f->img.geo, &b->node, magic, addr, ino, 0, 0, UINT64_MAX, NULL) == 0;
}

/* Keeps a leaf. Repairs do not touch it and its data until its records are taken. */
static int lost_leaves_keep(struct fsck *f, const struct lay_node *leaf, uint64_t addr)
{
    const struct fsck_lost_leaf item = {
        .ino = lay_get64(leaf->head.owner), .addr = addr, .magic = lay_get32(leaf->head.magic)};

    if (fsck_append(&f->lost_leaves, &item, sizeof(item)) != 0)
        return -ENOMEM;
    fsck_keep(f, addr);
    for (unsigned i = 0; item.magic == LAY_MAGIC_EXTENTS && i < lay_get16(leaf->count); i++) {
        const struct lay_extent *e = &leaf->u.extents[i];
        if (lay_extent_has_blocks(e))
            fsck_claim_fixed(f, lay_get64(e->block), lay_get32(e->len));
    }
    return 0;
}

/* Keeps the block if it is a leaf of the kind that *arg, a magic number, names. */
static int lost_leaves_look(struct fsck *f, uint64_t addr, void *arg)
{
    uint32_t magic = *(const uint32_t *)arg;
    union lay_block b;
    int err = image_read(&f->img, addr, &b);

    if (err || f->img.age == IMAGE_AGE_STALE || !is_wanted(f, &b, magic, addr) ||
        (magic == LAY_MAGIC_EXTENTS && !extents_are_lost(f, &b.node)))
        return err;
    return lost_leaves_keep(f, &b.node, addr);
}

/*
 * Searches the blocks of chunks for leaves that no node refers to, for trees to
 * be rebuilt, and claims them with their data. Called after everything else is
 * claimed.
 */
static int fsck_find_leaves(struct fsck *f)
{
    uint32_t kinds[] = {LAY_MAGIC_EXTENTS, LAY_MAGIC_DIR};
    int err = fsck_each_lost(f, lost_leaves_look, &kinds[0]);

    return err ? err : fsck_each_lost(f, lost_leaves_look, &kinds[1]);
}

/*
 * Claims nodes and the extents of records with a right checksum. Nominates the
 * extents of other records.
 */
static int reserve_salvaged(struct fsck *f, const struct salvaged *s)
{
    const uint64_t *nodes = s->nodes.items;
    int err = 0;

    for (size_t i = 0; i < s->nodes.count; i++)
        fsck_keep(f, nodes[i]);
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

static int reserve_xattrs(struct fsck *f, uint64_t addr)
{
    union lay_block b;
    int err = 0;

    for (unsigned i = 0; i < LAY_XATTR_BLOCKS_MAX && lay_chunk_addr_ok(&f->img.geo, addr) && !err;
         i++) {
        fsck_keep(f, addr);
        err = image_read(&f->img, addr, &b);
        addr = lay_get64(b.xattr.next);
    }
    return err;
}

/* Holds the state of the pass over the inodes that are to be repaired. */
struct reserve {
    struct fsck *f;
    bool maps; /* at least one has FIX_MAP */
};

static int reserve_inode(void *arg, uint64_t ino, const struct lay_inode *inode)
{
    struct reserve *r = arg;
    uint16_t fix = r->f->inodes[ino].fix;
    unsigned kind = lay_get16(inode->map_kind);
    int err = 0;

    r->maps |= (fix & FIX_MAP) != 0;
    if (fix & FIX_MAP && (kind == LAY_MAP_TREE || kind == LAY_MAP_DIR || kind == LAY_MAP_INLINE))
        err = reserve_map(r->f, ino, inode);
    if (fix & FIX_MAP && kind == LAY_MAP_LINK)
        fsck_keep(r->f, lay_get64(inode->map.link.block));
    if (!err && fix & FIX_XATTR)
        err = reserve_xattrs(r->f, lay_get64(inode->xattr));
    return err;
}

int fsck_reserve(struct fsck *f)
{
    struct reserve r = {.f = f};
    int err = fsck_each_inode(f, NULL, 0, FIX_MAP | FIX_XATTR, reserve_inode, &r);

    /* Lost leaves of trees matter only if something was unreadable. */
    if (!err && r.maps && f->incomplete)
        err = fsck_find_leaves(f);
    return err ? err : fsck_plan_maps(f);
}
