/* SPDX-License-Identifier: BSD-2-Clause */
/* Set-id bits end with changes by callers without CAP_FSETID. */
#ifndef FUSEFS_DAEMON_REQUEST_SETID_H
#define FUSEFS_DAEMON_REQUEST_SETID_H

#include <stdbool.h>

struct daemon;
struct ffs_inode;
struct fuse_req;

/*
 * Before a change by the caller of an unreplied request: clears the bits where `clears` says that
 * it has no CAP_FSETID. 0 or -errno.
 */
int setid_before_change(struct fuse_req *req, struct ffs_inode *inode, bool clears);
/* Clears the bits of a file that has any; outsider as for ffs_clear_setid(). 0 or -errno. */
int setid_clear(struct daemon *d, struct ffs_inode *inode, bool outsider);

#endif
