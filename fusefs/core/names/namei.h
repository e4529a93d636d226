/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Between the files that make, move and remove names. All under ffs.meta.
 */
#ifndef FUSEFS_CORE_NAMES_NAMEI_H
#define FUSEFS_CORE_NAMES_NAMEI_H

#include "fusefs/core/names/dir.h"

/* The inode that a name of `dir` stands for: a number not in use is corruption. */
int ffs_dir_inode(struct ffs_inode *dir, uint64_t ino, struct ffs_inode **out);
/*
 * One name of `inode`, an entry of `dir`, went away: fewer links, the orphan list when none is
 * left. An emptied directory loses all its links, and `dir` the one from its "..".
 */
int ffs_drop_link(struct ffs_tx *tx, struct ffs_inode *dir, struct ffs_inode *inode);

/*
 * A whiteout (a character device 0:0 with mode 0) for a name of `dir`, with one link and the owner
 * of `like`. *out is referenced as soon as it is set, also on failure.
 */
int ffs_whiteout_new(struct ffs_tx *tx, struct ffs_inode *dir, const struct ffs_inode *like,
                     struct ffs_inode **out);

/* The target of a new symbolic link, 1 to LAY_SYMLINK_MAX bytes. */
int ffs_symlink_store(struct ffs_tx *tx, struct ffs_inode *inode, const char *target, size_t len);
/* Gives the block of a long target another place. */
int ffs_symlink_move(struct ffs_tx *tx, struct ffs_inode *inode);

/* Device numbers: as in stat(2), and as stored. */
uint32_t ffs_rdev_pack(uint32_t rdev);
uint32_t ffs_rdev_unpack(uint32_t stored);

#endif
