/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserves blocks that only damaged trees refer to: no repair may write there
 * before their contents are taken.
 */
#include <sys/stat.h>

#include "mkfs/fsck/salvage.h"

static int reserve_tree(struct fsck *f, uint64_t ino, uint32_t magic, uint64_t root)
{
    struct salvaged s = {0};
    int err = salvage_tree(f, ino, magic, root, &s);
    const uint64_t *nodes = s.nodes.items;
    const struct lay_extent *e = s.extents.items;

    for (size_t i = 0; i < s.nodes.count && !err; i++)
        fsck_claim_fixed(f, nodes[i], 1);
    for (size_t i = 0; i < s.extents.count && !err; i++)
        fsck_claim_fixed(f, lay_get64(e[i].block), lay_get32(e[i].len));
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

    if (fix & FIX_MAP && (kind == LAY_MAP_TREE || kind == LAY_MAP_DIR))
        err = reserve_tree(f, ino, kind == LAY_MAP_DIR ? LAY_MAGIC_DIR : LAY_MAGIC_EXTENTS,
                           lay_get64(inode->map.tree.root));
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
    return err;
}
