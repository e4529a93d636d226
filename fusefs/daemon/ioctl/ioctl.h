/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the ioctls and the requests that implement them. ioctl.c decodes and
 * replies.
 */
#ifndef FUSEFS_DAEMON_IOCTL_IOCTL_H
#define FUSEFS_DAEMON_IOCTL_IOCTL_H

#include "fusefs/daemon/state/daemon.h"
#include "gpunvme/gpunvme_ioctl.h"

struct fuse_file_info;
struct fuse_req;

/* Implements the FUSE operation IOCTL. */
void op_ioctl(struct fuse_req *req, uint64_t ino, unsigned cmd, void *arg,
              struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size,
              size_t out_size);

/* Describes the caller of an ioctl other than a transfer. */
struct ioctl_call {
    struct daemon *daemon;
    struct open_file *file;
    uid_t uid;
    struct fuse_req *req; /* not yet replied to; identifies the caller */
};

/*
 * These functions serve the requests (ioctl_requests.c). `arg` is the struct of
 * the request, in and out. They return 0 or -errno.
 */
int ioctl_info(const struct ioctl_call *call, void *arg);
int ioctl_register(const struct ioctl_call *call, void *arg);
int ioctl_unregister(const struct ioctl_call *call, void *arg);
int ioctl_buffer_iova(const struct ioctl_call *call, void *arg);
int ioctl_extents(const struct ioctl_call *call, void *arg);
/*
 * Reports the queues of the executor and the leased ones. The holders that the
 * caller may not see are reported as 0.
 */
int ioctl_queues(const struct ioctl_call *call, void *arg);
/* Reports the GPUs of the mount. */
int ioctl_gpus(const struct ioctl_call *call, void *arg);
int ioctl_resize(const struct ioctl_call *call, void *arg);
int ioctl_scrub(const struct ioctl_call *call, void *arg);

/* Fills in all members but abi. */
void ioctl_fill_stats(struct daemon *d, struct gpunvme_ioc_stats *stats);
void ioctl_fill_gpus(struct daemon *d, struct gpunvme_ioc_gpus *out);

#endif
