/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions shared by the files that create, move and remove names. All are
 * called under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_NAMEI_H
#define FUSEFS_CORE_NAMES_NAMEI_H

#include "fusefs/core/names/dir.h"

/*
 * Gets the inode that belongs to a name of `dir`. A number not in use is a
 * corruption.
 */
int ffs_dir_inode(struct ffs_inode *dir, uint64_t ino, struct ffs_inode **out);
/*
 * Called after a name of `inode` was removed from `dir`. Decrements the links,
 * and adds the inode to the orphan list if none is left. An emptied directory
 * loses all its links, and `dir` loses the one from its "..".
 */
int ffs_drop_link(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_inode *inode);

/*
 * Creates a whiteout (a character device 0:0 with mode 0) for a name of `dir`,
 * with one link and the owner of `like`. *out is referenced as soon as it is
 * set, also on failure.
 */
int ffs_whiteout_new(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_inode *like,
                     struct ffs_inode **out);

/* Convert device numbers between the form of stat(2) and the stored form. */
uint32_t ffs_rdev_pack(uint32_t rdev);

#endif
