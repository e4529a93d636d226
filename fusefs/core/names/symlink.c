/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Stores targets of symbolic links in the inode, or in a block with the last
 * bytes in the inode.
 */
#include <errno.h>
#include <string.h>

#include "fusefs/core/journal/ops.h"
#include "fusefs/core/names/namei.h"

static int symlink_store_in_block(struct ffs_tx *tx, struct ffs_inode *inode, const char *target,
                                  size_t len)
{
    size_t head = len < LAY_PAYLOAD ? len : LAY_PAYLOAD;
    struct ffs_buf *buf;
    uint64_t block;
    int err = ffs_alloc_meta(tx, 0, &block);

    if (!err)
        err = ffs_tx_new(tx, block, LAY_MAGIC_SYMLINK, inode->ino, &buf);
    if (err)
        return err;
    struct lay_symlink_block *sl = buf->data;
    sl->len = lay_put32((uint32_t)head);
    memcpy(sl->bytes, target, head);
    ffs_buf_put(buf);

    inode->d.map_kind = lay_put16(LAY_MAP_LINK);
    inode->d.map.link.block = lay_put64(block);
    memcpy(inode->d.map.link.tail, target + head, len - head);
    inode->d.blocks = lay_put64(lay_get64(inode->d.blocks) + 1);
    return 0;
}

int ffs_symlink_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *target, size_t len)
{
    inode->d.size = lay_put64(len);
    memset(&inode->d.map, 0, sizeof(inode->d.map));
    if (len > LAY_MAP_BYTES)
        return symlink_store_in_block(tx, inode, target, len);
    inode->d.map_kind = lay_put16(LAY_MAP_TARGET);
    memcpy(inode->d.map.bytes, target, len);
    return 0;
}

/* Called under ffs.meta. `target` has room for LAY_SYMLINK_MAX bytes. */
static ssize_t symlink_load(struct ffs_inode *inode, char *target)
{
    size_t len = ffs_size(inode);

    if (!S_ISLNK(ffs_mode(inode)))
        return -EINVAL;
    if (lay_get16(inode->d.map_kind) == LAY_MAP_TARGET) {
        memcpy(target, inode->d.map.bytes, len);
        return (ssize_t)len;
    }
    struct ffs_expect expect = {.magic = LAY_MAGIC_SYMLINK, .owner = inode->ino};
    struct ffs_buf *buf;
    uint64_t block = lay_get64(inode->d.map.link.block);
    int err = ffs_buf_get(inode->fs, block, &expect, &buf);
    if (err)
        return err;
    const struct lay_symlink_block *sl = buf->data;
    size_t head = len < LAY_PAYLOAD ? len : LAY_PAYLOAD;
    if (lay_get32(sl->head.magic) != LAY_MAGIC_SYMLINK || lay_get32(sl->len) != head)
        err = ffs_corrupt(inode->fs, block, inode->ino, "length of the target");
    if (!err) {
        memcpy(target, sl->bytes, head);
        memcpy(target + head, inode->d.map.link.tail, len - head);
    }
    ffs_buf_put(buf);
    return err ? err : (ssize_t)len;
}

int ffs_symlink_move(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs_expect expect = {.magic = LAY_MAGIC_SYMLINK, .owner = inode->ino};
    uint64_t old = lay_get64(inode->d.map.link.block), block;
    struct ffs_buf *buf;
    int err = ffs_buf_get(inode->fs, old, &expect, &buf);

    if (err)
        return err;
    err = ffs_alloc_meta(tx, 0, &block);
    if (!err)
        err = ffs_tx_copy(tx, buf, block);
    ffs_buf_put(buf);
    if (!err)
        err = ffs_inode_dirty(tx, inode);
    if (err)
        return err;
    inode->d.map.link.block = lay_put64(block);
    return ffs_free_meta(tx, old);
}

ssize_t ffs_readlink(struct ffs_inode *inode, char *buf, size_t size)
{
    char target[LAY_SYMLINK_MAX];
    int err = ffs_alive(inode->fs);

    if (err)
        return err;
    ffs_meta_read(inode->fs);
    ssize_t len = symlink_load(inode, target);
    ffs_meta_done(inode->fs);
    if (len > 0)
        memcpy(buf, target, (size_t)len < size ? (size_t)len : size);
    return len;
}
