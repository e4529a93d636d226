/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks and inodes that a handle changes: their old contents are kept for its abort.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/inode/tx.h"
#include "fusefs/core/state.h"

unsigned ffs_tx_left(const struct ffs_tx *tx)
{
    unsigned blocks = tx->nbufs < tx->credits ? tx->credits - tx->nbufs : 0;
    /* Nodes merged into their siblings are freed without having been dirty. */
    unsigned revokes = LAY_JREVOKE_MAX - tx->nrevoked;

    return blocks < revokes ? blocks : revokes;
}

void ffs_tx_use_reserve(struct ffs_tx *tx)
{
    tx->use_reserve = true;
}

int ffs_tx_dirty(struct ffs_tx *tx, struct ffs_buf *buf)
{
    struct ffs_cbuf *cb = ffs_cbuf(buf);

    if (cb->tx == tx)
        return 0;
    assert(!cb->tx);
    if (tx->nbufs >= tx->credits + FFS_TX_SLACK)
        return -ENOSPC;
    void **before = &tx->fs->old_blocks[tx->nbufs];
    if (!*before)
        *before = malloc(LAY_BLOCK_SIZE);
    if (!*before)
        return -ENOMEM;
    memcpy(*before, buf->data, LAY_BLOCK_SIZE);
    ffs_cache_ref(cb);
    cb->tx = tx;
    tx->bufs[tx->nbufs++] = (struct ffs_tx_buf){cb, *before};
    return 0;
}

int ffs_tx_new(struct ffs_tx *tx, uint64_t block, uint32_t magic, uint64_t owner,
               struct ffs_buf **out)
{
    struct ffs *fs = tx->fs;
    struct ffs_cbuf *cb;

    if (tx->nbufs >= tx->credits + FFS_TX_SLACK)
        return -ENOSPC;
    int err = ffs_cache_create(fs, block, &cb);
    if (err == -EEXIST)
        return ffs_corrupt(fs, block, owner, "free in the bitmap, but in use as metadata");
    if (err)
        return err;
    lay_head_init(cb->pub.data, magic, fs->geo.uuid, block, owner);
    ffs_cache_ref(cb);
    cb->tx = tx;
    tx->bufs[tx->nbufs++] = (struct ffs_tx_buf){cb, NULL};
    *out = &cb->pub;
    return 0;
}

int ffs_tx_copy(struct ffs_tx *tx, const struct ffs_buf *from, uint64_t block)
{
    const struct lay_head *head = from->data;
    struct ffs_buf *to;
    int err = ffs_tx_new(tx, block, lay_get32(head->magic), lay_get64(head->owner), &to);

    if (err)
        return err;
    memcpy((uint8_t *)to->data + sizeof(*head), (const uint8_t *)from->data + sizeof(*head),
           LAY_BLOCK_SIZE - sizeof(*head));
    ffs_buf_put(to);
    return 0;
}

int ffs_tx_add_inode(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_buf *buf, bool fresh)
{
    assert(ffs_cbuf(buf)->tx == tx && !inode->dirty_in);
    struct ffs_tx_inode *entry = malloc(sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    *entry = (struct ffs_tx_inode){
        .next = tx->inodes, .inode = inode, .buf = buf, .before = inode->d, .fresh = fresh};
    tx->inodes = entry;
    inode->dirty_in = tx;
    if (inode->ino)
        ffs_iref(inode, 1);
    return 0;
}

int ffs_inode_dirty(struct ffs_tx *tx, struct ffs_inode *inode)
{
    struct ffs_buf *buf;

    if (inode->dirty_in == tx)
        return 0;
    int err = ffs_inode_block(tx->fs, inode->ino, &buf);
    if (err)
        return err;
    err = ffs_tx_dirty(tx, buf);
    if (!err)
        err = ffs_tx_add_inode(tx, inode, buf, false);
    ffs_buf_put(buf);
    return err;
}
