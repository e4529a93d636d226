/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocates and frees inode slots, and evicts inodes without links.
 *
 * Inode blocks with a free slot form a list, whose head is in the superblock. A block leaves the
 * list when its last slot is allocated, and returns to its head when a slot is freed.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fusefs/core/data/data.h"
#include "fusefs/core/inode/tx.h"
#include "fusefs/core/map/extents.h"
#include "fusefs/core/map/tree.h"
#include "fusefs/core/names/dir.h"
#include "fusefs/core/names/xattr.h"
#include "fusefs/core/state.h"

/*
 * The inode file grows by this many blocks, so that inodes created together are adjacent on the
 * device.
 */
#define GROW_BLOCKS 16u

/* Links the new inode blocks into the free list and stores its head in the superblock. */
static int islot_init_blocks(struct ffs_tx *tx, uint64_t index, uint64_t block, uint64_t n)
{
    uint64_t old_head = lay_get64(ffs_super(tx->fs)->free_inode_block);

    for (uint64_t i = 0; i < n; i++) {
        struct ffs_buf *buf;
        uint64_t first = (index + i) * LAY_INODES_PER_BLOCK;
        int err = ffs_tx_new(tx, block + i, LAY_MAGIC_INODES, first, &buf);
        if (err)
            return err;
        struct lay_inode_block *ib = buf->data;
        ib->next_free = lay_put64(i + 1 < n ? index + i + 1 : old_head);
        ffs_buf_put(buf);
    }
    ffs_super(tx->fs)->free_inode_block = lay_put64(index);
    return 0;
}

static int islot_grow(struct ffs_tx *tx)
{
    struct ffs_inode *file = &tx->fs->inode_file;
    uint64_t index = ffs_inode_file_blocks(tx->fs);
    struct ffs_extent last, extent = {.file_block = index};

    int err = ffs_extent_find(file, index - 1, &last);
    if (!err)
        err = ffs_inode_dirty(tx, file);
    if (!err)
        err = ffs_alloc_meta_run(tx, last.block == LAY_NONE ? 0 : last.block + 1, GROW_BLOCKS,
                                 &extent.block, &extent.len);
    if (!err)
        err = ffs_extent_add(tx, file, &extent);
    if (err)
        return err;
    file->d.size = lay_put64((index + extent.len) << LAY_BLOCK_SHIFT);
    return islot_init_blocks(tx, index, extent.block, extent.len);
}

/*
 * Sets *out to the first inode block with a free slot, referenced and dirty. Grows the inode file
 * if the free list is empty, or if its first block is damaged: the new blocks come before that one.
 */
static int islot_get_free_block(struct ffs_tx *tx, uint64_t *index, struct ffs_buf **out)
{
    struct ffs *fs = tx->fs;
    int err = ffs_tx_dirty(tx, fs->super);

    if (!err && lay_get64(ffs_super(fs)->free_inode_block) == LAY_NONE)
        err = islot_grow(tx);
    if (err)
        return err;
    *index = lay_get64(ffs_super(fs)->free_inode_block);
    err = ffs_inode_file_block(fs, *index, out);
    if (err == -EUCLEAN) {
        err = islot_grow(tx);
        *index = lay_get64(ffs_super(fs)->free_inode_block);
        if (!err)
            err = ffs_inode_file_block(fs, *index, out);
    }
    if (err)
        return err == -ESTALE ? ffs_corrupt(fs, 0, 0, "free_inode_block") : err;
    const struct lay_inode_block *ib = (*out)->data;
    err = ib->used == 0xff ? ffs_corrupt(fs, (*out)->block, 0, "full, but on the free list")
                           : ffs_tx_dirty(tx, *out);
    if (err)
        ffs_buf_put(*out);
    return err;
}

/* Allocates a slot of the dirty inode block at the head of the free list. */
static unsigned islot_take_slot(struct ffs *fs, struct lay_inode_block *ib)
{
    struct lay_super *sb = ffs_super(fs);
    unsigned slot = (unsigned)__builtin_ctz(~(unsigned)ib->used);

    ib->used = (uint8_t)(ib->used | 1u << slot);
    if (ib->used == 0xff) {
        sb->free_inode_block = ib->next_free;
        ib->next_free = lay_put64(LAY_NONE);
    }
    sb->inodes = lay_put64(lay_get64(sb->inodes) + 1);
    return slot;
}

int ffs_inode_new(struct ffs_tx *tx, uint32_t mode, struct ffs_inode **out)
{
    struct ffs_buf *buf;
    uint64_t index;
    int err = islot_get_free_block(tx, &index, &buf);

    if (err)
        return err;
    struct lay_inode_block *ib = buf->data;
    unsigned slot = islot_take_slot(tx->fs, ib);
    struct ffs_inode *inode = ffs_inode_alloc(tx->fs, index * LAY_INODES_PER_BLOCK + slot);
    if (!inode) {
        err = -ENOMEM;
        goto put;
    }
    inode->d.mode = lay_put32(mode);
    inode->d.generation = lay_put32(lay_get32(ib->inodes[slot].generation) + 1);
    err = ffs_tx_add_inode(tx, inode, buf, true);
    if (err) {
        ffs_itable_discard(tx->fs, inode);
        ffs_iput(inode, 1);
    } else {
        *out = inode;
    }
put:
    ffs_buf_put(buf);
    return err;
}

/* Clears the inode but for its generation, so that the next inode of the slot gets another one. */
static void islot_clear_inode(struct ffs_inode *inode)
{
    le32 generation = inode->d.generation;

    memset(&inode->d, 0, sizeof(inode->d));
    inode->d.generation = generation;
}

int ffs_inode_release(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct lay_super *sb = ffs_super(tx->fs);
    struct ffs_buf *buf;
    int err = ffs_inode_dirty(tx, inode);

    if (!err)
        err = ffs_tx_dirty(tx, tx->fs->super);
    if (!err)
        err = ffs_inode_block(tx->fs, inode->ino, &buf);
    if (err)
        return err;
    struct lay_inode_block *ib = buf->data;
    if (ib->used == 0xff) {
        ib->next_free = sb->free_inode_block;
        sb->free_inode_block = lay_put64(inode->ino / LAY_INODES_PER_BLOCK);
    }
    ib->used = (uint8_t)(ib->used & ~(1u << inode->ino % LAY_INODES_PER_BLOCK));
    sb->inodes = lay_put64(lay_get64(sb->inodes) - 1);
    islot_clear_inode(inode);
    ffs_buf_put(buf);
    return 0;
}

/* --- Eviction --------------------------------------------------------------------------------- */

/* Frees blocks of the map other than those of extents. */
static int islot_free_map(struct ffs_tx *tx, struct ffs_inode *inode)
{
    switch (lay_get16(inode->d.map_kind)) {
    case LAY_MAP_LINK:
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

/* The inode is being evicted, so no other thread changes it. */
static int islot_evict(struct ffs_inode *inode)
{
    ffs_meta_read(inode->fs);
    bool has_xattrs = lay_get64(inode->d.xattr) != 0;
    bool has_extents = S_ISREG(ffs_mode(inode)) && (lay_get16(inode->d.map_count) != 0 ||
                                                    lay_get16(inode->d.map_kind) == LAY_MAP_TREE);
    ffs_meta_done(inode->fs);
    int err = has_extents ? ffs_unmap(inode, 0, UINT64_MAX) : 0;
    if (!err && has_xattrs)
        err = ffs_xattr_shorten(inode);
    return err ? err : islot_free_inode(inode);
}

const struct ffs_semantics ffs_semantics = {.evict = islot_evict,
                                            .truncate_finish = ffs_truncate_finish};
