/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares common parts of FUSE operations. A node id is an inode number. The
 * kernel's lookup count of an inode is held as references.
 */
#ifndef FUSEFS_DAEMON_REQUEST_FUSE_REQUEST_H
#define FUSEFS_DAEMON_REQUEST_FUSE_REQUEST_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)
#endif

#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

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

/*
 * Requests of the kernel that libfuse 3.14 has no operation for, seen before libfuse does.
 *
 * SYNCFS (50) and STATX (52, Linux 6.6), which carries the birth time, are answered here. TMPFILE
 * (51, Linux 6.1) is passed on as CREATE with an empty name, which no other request has. Of other
 * requests it notes a flag that libfuse does not pass on.
 */

/*
 * Handles one request: buf has len bytes read from the connection fd. Returns
 * true if it was answered, and false if libfuse must handle it, perhaps
 * modified.
 */
bool raw_request(struct daemon *d, int fd, void *buf, size_t len);
/*
 * Returns true if the request that this thread serves clears set-id bits. The
 * kernel reports that (HANDLE_KILLPRIV_V2) in WRITE, and if SETATTR, OPEN and
 * CREATE truncate, for callers without CAP_FSETID.
 */
bool raw_clears_setid(void);

/*
 * Returns true if the caller of an unreplied request is in the group. FUSE
 * passes one group; the mounter reads the supplementary groups at the time of
 * the request.
 */
bool caller_is_member(fuse_req_t req, gid_t group);
/*
 * Returns true if the caller is root with CAP_SYS_ADMIN, which Linux requires
 * for changes of the whole file system. Root in a container usually lacks it.
 */
bool caller_is_admin(fuse_req_t req);

/* Clears set-id bits on changes by callers without CAP_FSETID. */

/*
 * Called before a change by the caller of an unreplied request. Clears the bits
 * if `clears` is set, which means that the caller has no CAP_FSETID. Returns 0
 * or -errno.
 */
int setid_before_change(fuse_req_t req, struct ffs_inode *inode, bool clears);
/*
 * Clears the bits of a file that has any. `outsider` is that of
 * ffs_clear_setid(). Returns 0 or -errno.
 */
int setid_clear(struct daemon *d, struct ffs_inode *inode, bool outsider);

struct job;
/*
 * Runs a job that waits for a flush of the drive: here, or in a worker if many
 * session threads already wait for a flush. The job replies to its request.
 */
void request_sync(struct daemon *d, struct job *job);

#endif
