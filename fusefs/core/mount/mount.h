/* SPDX-License-Identifier: BSD-2-Clause */
/* Functions of super.c that mount.c calls. */
#ifndef FUSEFS_CORE_MOUNT_MOUNT_H
#define FUSEFS_CORE_MOUNT_MOUNT_H

#include "fusefs/core/state.h"

/*
 * Finds the newest sound superblock and sets fs->geo: block 0, or a copy when block 0 is damaged,
 * unreadable or older than the copy (logged). -EINVAL, -ENOTSUP, -EUCLEAN, -EIO when there is none;
 * -EINVAL also when block 0 lacks the magic of a superblock; -EUCLEAN for a mount for writing when
 * block 0 is not a remnant of this superblock.
 */
int ffs_super_find(struct ffs *fs, struct ffs_super_found *found, const struct ffs_reason *r);
/*
 * The superblock after recovery, which began with `found`: addressed to block 0. -EUCLEAN when it
 * names another geometry or, but for a read-only mount, when it does not fit the journal.
 */
int ffs_super_settle(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *out,
                     const struct ffs_reason *r);

#endif
