/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Eviction: frees everything that an inode without links owns, and then its slot. The inode stays
 * on the orphan list until its slot is free, so that a mount after a crash continues.
 */
#include <errno.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/map/tree.h"
#include "fusefs/core/names/dir.h"
#include "fusefs/core/names/xattr.h"
#include "fusefs/core/state.h"

/* Frees what the map owns besides extents. */
static int islot_free_map(struct ffs_tx *tx, struct ffs_inode *inode)
{
    switch (lay_get16(inode->d.map_kind)) {
    case LAY_MAP_LINK:
        inode->d.blocks = lay_put64(lay_get64(inode->d.blocks) - 1);
        return ffs_free_meta(tx, lay_get64(inode->d.map.link.block));
    case LAY_MAP_DIR: {
        int err = ffs_dir_check_empty(inode);
        if (err == -ENOTEMPTY)
            return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "removed directory has names");
        return err ? err : ffs_tree_free_root(tx, inode);
    }
    case LAY_MAP_TREE:
        return ffs_corrupt(inode->fs, LAY_NONE, inode->ino, "extents past the last one");
    default:
        return 0;
    }
}

static int islot_free_in(struct ffs_tx *tx, struct ffs_inode *inode)
{
    int err = ffs_inode_dirty(tx, inode);

    if (!err)
        err = ffs_xattr_free_all(tx, inode);
    if (!err)
        err = islot_free_map(tx, inode);
    if (!err)
        err = ffs_orphan_del(tx, inode);
    if (!err)
        err = ffs_inode_release(tx, inode);
    return err;
}

static int islot_free_inode(struct ffs_inode *inode)
{
    struct ffs_tx *tx;
    int err = ffs_tx_begin(inode->fs, FFS_TX_MAX_CREDITS, &tx);

    if (err)
        return err;
    ffs_tx_use_reserve(tx);
    return ffs_tx_finish(tx, islot_free_in(tx, inode));
}

/* Of an inode on its way out, which no handle but this one changes. */
static bool islot_has_extents(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool inline_map = lay_get16(inode->d.map_kind) == LAY_MAP_INLINE;
    bool none = inline_map && lay_get16(inode->d.map_count) == 0;
    bool regular = S_ISREG(ffs_mode(inode));
    ffs_meta_done(inode->fs);
    return regular && !none;
}

static int islot_evict(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool has_xattrs = lay_get64(inode->d.xattr) != 0;
    ffs_meta_done(inode->fs);
    int err = islot_has_extents(inode) ? ffs_unmap(inode, 0, UINT64_MAX) : 0;
    if (!err && has_xattrs)
        err = ffs_xattr_shorten(inode);
    return err ? err : islot_free_inode(inode);
}

const struct ffs_semantics ffs_semantics = {.evict = islot_evict,
                                            .truncate_finish = ffs_truncate_finish};
