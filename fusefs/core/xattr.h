/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef FUSEFS_CORE_XATTR_H
#define FUSEFS_CORE_XATTR_H

#include "fusefs/core/storage.h"

/* Frees the inode's chain of attribute blocks. The inode is dirty. */
int ffs_xattr_free_all(struct ffs_tx *tx, struct ffs_inode *inode);

#endif
