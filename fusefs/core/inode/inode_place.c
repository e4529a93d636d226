/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Places of inodes on disk: blocks of the inode file, and slots in them.
 */
#include <errno.h>

#include "fusefs/core/base/extent_find.h"
#include "fusefs/core/state.h"

uint64_t ffs_inode_file_blocks(const struct ffs *fs)
{
    return lay_get64(fs->inode_file.d.size) >> LAY_BLOCK_SHIFT;
}

int ffs_inode_file_block(struct ffs *fs, uint64_t index, struct ffs_buf **out)
{
    struct ffs_expect expect = {
        .magic = LAY_MAGIC_INODES, .owner = index * LAY_INODES_PER_BLOCK, .index = index};
    struct ffs_extent extent;

    if (index >= ffs_inode_file_blocks(fs))
        return -ESTALE;
    int err = ffs_extent_find(&fs->inode_file, index, &extent);
    if (err)
        return err;
    if (extent.block == LAY_NONE)
        return ffs_corrupt(fs, 0, 0, "hole in the inode file");
    return ffs_buf_get(fs, extent.block, &expect, out);
}

int ffs_inode_block(struct ffs *fs, uint64_t ino, struct ffs_buf **out)
{
    if (ino != 0)
        return ffs_inode_file_block(fs, ino / LAY_INODES_PER_BLOCK, out);
    ffs_cache_ref(ffs_cbuf(fs->super));
    *out = fs->super;
    return 0;
}

struct lay_inode *ffs_inode_slot(struct ffs_buf *buf, uint64_t ino)
{
    if (ino == 0)
        return &((struct lay_super *)buf->data)->inode_file;
    return &((struct lay_inode_block *)buf->data)->inodes[ino % LAY_INODES_PER_BLOCK];
}
