/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * POSIX ACLs, stored as extended attributes in the form of
 * <linux/posix_acl_xattr.h>. The kernel uses them to check access; the file
 * system keeps them consistent with the mode and passes them on to new inodes.
 * All functions are called under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_ACL_H
#define FUSEFS_CORE_NAMES_ACL_H

#include "fusefs/core/storage.h"

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
