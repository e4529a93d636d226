/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the old contents that a handle keeps for an abort, for the storage
 * half only.
 */
#ifndef FUSEFS_CORE_INODE_TX_H
#define FUSEFS_CORE_INODE_TX_H

#include "fusefs/core/base/cache.h"
#include "fusefs/core/base/ranges.h"

/*
 * Number of blocks that a handle may dirty in addition to its credits. The
 * storage half itself changes the superblock, bitmaps, the inode file when it
 * grows, and one chunk with its copy, which has up to 16 blocks of entries.
 */
#define FFS_TX_SLACK 54u
#define FFS_TX_BUFS  (FFS_TX_MAX_CREDITS + FFS_TX_SLACK)

struct ffs_tx_buf {
    struct ffs_cbuf *cb; /* referenced */
    void *before;        /* from ffs.old_blocks; NULL if the block did not exist */
};

struct ffs_tx_inode {
    struct ffs_tx_inode *next;
    struct ffs_inode *inode; /* referenced, except for the inode file */
    struct ffs_buf *buf;     /* inode block or the superblock; tx->bufs holds the reference */
    struct lay_inode before;
    bool fresh; /* made by this handle; not visible to lookups yet */
};

struct ffs_tx {
    struct ffs *fs;
    unsigned credits;
    bool use_reserve;
    struct ffs_tx_inode *inodes;
    bool mapped;                        /* the handle has mapped a chunk, and maps no other one */
    struct ffs_ranges allocated, freed; /* blocks of the device */
    struct ffs_ranges forgotten;        /* addresses of the metadata blocks that it freed */
    struct ffs_ranges unmapped;         /* addresses of the chunks that it unmapped */
    unsigned nbufs;
    struct ffs_tx_buf bufs[FFS_TX_BUFS];
};

/* Adds an inode whose block is `buf`, already dirty in this handle. Takes a reference. */
int ffs_tx_add_inode(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_buf *buf, bool fresh);

#endif
