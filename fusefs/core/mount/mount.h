/* SPDX-License-Identifier: BSD-2-Clause */
/* Functions of super.c that mount.c calls. */
#ifndef FUSEFS_CORE_MOUNT_MOUNT_H
#define FUSEFS_CORE_MOUNT_MOUNT_H

#include "fusefs/core/state.h"

/*
 * Finds the newest valid superblock and sets fs->geo. It is block 0, or a copy
 * (logged) if block 0 is damaged, unreadable or older. Returns -EINVAL,
 * -ENOTSUP, -EUCLEAN or -EIO if there is none. Also returns -EINVAL if block 0
 * lacks the magic of a superblock, and -EUCLEAN for a writable mount if block 0
 * is not a remnant of this superblock.
 */
int ffs_super_find(struct ffs *fs, struct ffs_super_found *found, const struct ffs_reason *r);
/*
 * Finds the superblock after a recovery that began with `found`, and addresses
 * it to block 0. Returns -EUCLEAN if it describes another geometry or, except
 * for a read-only mount, does not match the journal.
 */
int ffs_super_settle(struct ffs *fs, const struct ffs_super_found *found, struct lay_super *out,
                     const struct ffs_reason *r);

#endif
