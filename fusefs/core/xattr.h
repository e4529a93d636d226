/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef FUSEFS_CORE_XATTR_H
#define FUSEFS_CORE_XATTR_H

#include "fusefs/core/storage.h"

/* Frees the inode's chain of attribute blocks. The inode is dirty. */
int ffs_xattr_free_all(struct ffs_tx *tx, struct ffs_inode *inode);

/* Blocks of the chain, a new block, its bitmap, and what a commit of the inode takes. */
#define FFS_XATTR_CREDITS (LAY_XATTR_BLOCKS_MAX + 15u)

/* Within a handle, or under ffs.meta to load. The name is valid; the inode is dirty. */
int ffs_xattr_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *name, const void *value,
                    size_t len);
/* -ENODATA: there is none. */
int ffs_xattr_drop(struct ffs_tx *tx, struct ffs_inode *inode, const char *name);
/* The length; -ENODATA; -ERANGE: longer than size. */
ssize_t ffs_xattr_load(struct ffs_inode *inode, const char *name, void *buf, size_t size);

#endif
