/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a handle remembers, so that it can be undone. Private to the storage half.
 */
#ifndef FUSEFS_CORE_INODE_TX_H
#define FUSEFS_CORE_INODE_TX_H

#include "fusefs/core/base/cache.h"
#include "fusefs/core/base/ranges.h"

/*
 * Blocks a handle may dirty beyond its credits: what this half changes on its own account
 * (superblock, bitmaps, growth of the inode file).
 */
#define FFS_TX_SLACK 32u
#define FFS_TX_BUFS  (FFS_TX_MAX_CREDITS + FFS_TX_SLACK)

struct ffs_tx_buf {
    struct ffs_cbuf *cb; /* referenced */
    void *before;        /* of ffs.old_blocks. NULL: the block did not exist */
};

struct ffs_tx_inode {
    struct ffs_tx_inode *next;
    struct ffs_inode *inode; /* referenced, but for the inode file */
    struct ffs_buf *buf;     /* its inode block, or the superblock; held by tx->bufs */
    struct lay_inode before;
    bool fresh; /* made by this handle; not visible to lookups yet */
};

struct ffs_tx {
    struct ffs *fs;
    unsigned credits;
    bool use_reserve;
    struct ffs_tx_inode *inodes;
    struct ffs_ranges allocated, freed;
    struct ffs_ranges revoked; /* metadata blocks among the freed: */
    unsigned nrevoked;         /* that many, at most LAY_JREVOKE_MAX */
    unsigned nbufs;
    struct ffs_tx_buf bufs[FFS_TX_BUFS];
};

/* Adds an inode whose block is `buf`, already dirty in this handle. Takes a reference. */
int ffs_tx_add_inode(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_buf *buf, bool fresh);

#endif
