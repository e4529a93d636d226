/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The ioctls and the requests that implement them. ioctl.c decodes and replies;
 * READV replies itself.
 */
#ifndef FUSEFS_DAEMON_IOCTL_IOCTL_H
#define FUSEFS_DAEMON_IOCTL_IOCTL_H

#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "gpunvme/gpunvme_ioctl.h"

struct fuse_file_info;
struct fuse_req;

/* Implements the FUSE operation IOCTL. */
void op_ioctl(struct fuse_req *req, uint64_t ino, unsigned cmd, void *arg,
              struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size,
              size_t out_size);

/*
 * Returns -EPROTO for another ABI version, and -EINVAL for another struct size.
 */
int ioctl_check_abi(const struct gpunvme_abi *abi, uint32_t size);
/*
 * Replies in this call, or later from a worker. `in` is a struct
 * gpunvme_ioc_readv.
 */
void ioctl_readv(struct fuse_req *req, struct open_file *file, const void *in);

/*
 * Runs a transfer of the inode in this session thread, or later in a worker.
 * With is_short it may start while further transfers run in session threads.
 */
void ioctl_run(struct daemon *d, struct ffs_inode *inode, struct job *job, bool is_short);

void ioctl_fill_info(struct daemon *d, struct gpunvme_ioc_info *info);
void ioctl_fill_stats(struct daemon *d, struct gpunvme_ioc_stats *stats);
int ioctl_register(struct daemon *d, struct open_file *file, uid_t uid,
                   struct gpunvme_ioc_register *reg);
int ioctl_buffer_iova(struct daemon *d, uid_t uid, struct gpunvme_ioc_buffer_iova *arg);
int ioctl_extents(struct ffs_inode *inode, struct gpunvme_ioc_extents *out);
/*
 * Reports the queues of the executor and the leased ones. The holders that uid
 * may not see are reported as 0.
 */
int ioctl_queues(struct daemon *d, uid_t uid, struct gpunvme_ioc_queues *arg);
int ioctl_resize(struct daemon *d, struct gpunvme_ioc_resize *arg);
int ioctl_scrub(const struct open_file *file, struct gpunvme_ioc_scrub *arg);
/* Scrubs metadata, for root and the user of the daemon. */
int ioctl_scrub_metadata(struct daemon *d, uid_t uid, struct gpunvme_ioc_scrub *arg);

#endif
