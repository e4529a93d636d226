/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the segments of GPUNVME_MEM_SEGMENTS that a client sends. */
#ifndef FUSEFS_DAEMON_IOCTL_REGISTER_SEGMENTS_H
#define FUSEFS_DAEMON_IOCTL_REGISTER_SEGMENTS_H

#include "cuda/gq.h"
#include "fusefs/daemon/ioctl/fdsocket.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Reads the table in the first descriptor and stores its segments, with their
 * descriptors, in `out`, which has room for GQ_SEGMENTS. Returns the number of
 * segments, or -EINVAL if the table is not a memfd of valid elements, or names
 * another number of descriptors than were sent.
 */
int register_segments_read(const struct fdsocket_fds *fds, struct gq_segment *out);

#ifdef __cplusplus
}
#endif

#endif
