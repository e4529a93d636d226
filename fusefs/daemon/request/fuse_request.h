/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Common parts of FUSE operations. A node id is an inode number. The kernel's
 * lookup count of an inode is held as references.
 */
#ifndef FUSEFS_DAEMON_REQUEST_FUSE_REQUEST_H
#define FUSEFS_DAEMON_REQUEST_FUSE_REQUEST_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)
#endif

#include <fuse_lowlevel.h>

#include "fusefs/daemon/state/daemon.h"

struct daemon *op_daemon(fuse_req_t req);
/* Stores the inode of a node id with a reference. Returns 0 or -errno. */
int op_node(fuse_req_t req, fuse_ino_t ino, struct ffs_inode **out);
struct open_file *op_file(const struct fuse_file_info *fi);
struct ffs_cred op_cred(fuse_req_t req);
/* Replies with an error; err is 0 or -errno. */
void op_reply(fuse_req_t req, int err);
void op_stat(const struct ffs_attr *attr, struct stat *st);
/*
 * Fills in attributes and timeouts. The kernel counts a lookup if it accepts
 * the reply.
 */
void op_entry(struct daemon *d, struct ffs_inode *inode, struct fuse_entry_param *e);
/*
 * Replies with an entry, or with err. The reference is passed to the kernel or
 * dropped.
 */
void op_reply_entry(fuse_req_t req, int err, struct ffs_inode *inode);

#endif
