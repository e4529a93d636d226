/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * POSIX ACLs, stored as extended attributes in the form of <linux/posix_acl_xattr.h>. The kernel
 * checks access by them; the file system keeps them and the mode in step and hands them down. All
 * under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_ACL_H
#define FUSEFS_CORE_NAMES_ACL_H

#include "fusefs/core/storage.h"

/*
 * A new inode of `mode` (with file type) in dir: the ACLs that the default ACL of dir gives it, or
 * the umask where dir has none. The inode is dirty.
 */
int ffs_acl_inherit(struct ffs_tx *tx, struct ffs_inode *inode, struct ffs_inode *dir,
                    uint32_t mode, uint32_t umask);
/* Before the permissions of the inode become those of `mode`: the access ACL follows. */
int ffs_acl_chmod(struct ffs_tx *tx, struct ffs_inode *inode, uint32_t mode);

#endif
