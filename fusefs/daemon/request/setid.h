/* SPDX-License-Identifier: BSD-2-Clause */
/* Clears set-id bits on changes by callers without CAP_FSETID. */
#ifndef FUSEFS_DAEMON_REQUEST_SETID_H
#define FUSEFS_DAEMON_REQUEST_SETID_H

#include <stdbool.h>

struct daemon;
struct ffs_inode;
struct fuse_req;

/*
 * Called before a change by the caller of an unreplied request. Clears the bits
 * if `clears` is set, which means that the caller has no CAP_FSETID. Returns 0
 * or -errno.
 */
int setid_before_change(struct fuse_req *req, struct ffs_inode *inode, bool clears);
/*
 * Clears the bits of a file that has any. `outsider` is that of
 * ffs_clear_setid(). Returns 0 or -errno.
 */
int setid_clear(struct daemon *d, struct ffs_inode *inode, bool outsider);

#endif
