/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef FUSEFS_CORE_NAMES_XATTR_H
#define FUSEFS_CORE_NAMES_XATTR_H

#include "fusefs/core/storage.h"

/*
 * Frees blocks of the inode's chain, in handles of its own, until ffs_xattr_free_all() can free the
 * others. The inode is on the orphan list.
 */
int ffs_xattr_shorten(struct ffs_inode *inode);
/* Frees the inode's chain of attribute blocks. The inode is dirty. */
int ffs_xattr_free_all(struct ffs_tx *tx, struct ffs_inode *inode);

/* One small value: a few blocks of the chain, a new block, its bitmap, and the inode. */
#define FFS_XATTR_CREDITS 32u

/*
 * Store a value in a handle, or load it under ffs.meta. The name is valid; the
 * inode is dirty.
 */
int ffs_xattr_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *name, const void *value,
                    size_t len);
/* Removes a value. Returns -ENODATA if there is none. */
int ffs_xattr_drop(struct ffs_tx *tx, struct ffs_inode *inode, const char *name);
/*
 * Returns the length of the value, -ENODATA if there is none, or -ERANGE if it is longer than size.
 */
ssize_t ffs_xattr_load(struct ffs_inode *inode, const char *name, void *buf, size_t size);

/* --- ACLs (acl.c) ----------------------------------------------------------------------------- */

/*
 * Stores POSIX ACLs as extended attributes in the form of
 * <linux/posix_acl_xattr.h>. The kernel uses them to check access; the file
 * system keeps them consistent with the mode and passes them on to new inodes.
 * All functions are called under ffs.meta.
 */

/*
 * Gives a new inode with `mode` (including the file type) the ACLs from the
 * default ACL of dir, or applies the umask if dir has none. The inode is dirty.
 */
int ffs_acl_inherit(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_inode *dir,
                    uint32_t mode, uint32_t umask);
/*
 * Updates the access ACL before the permissions of the inode become those of
 * `mode`.
 */
int ffs_acl_chmod(struct ffs_tx *tx, struct ffs_inode *inode, uint32_t mode);

#endif
