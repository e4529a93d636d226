/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy kernels of applications. A simulated drive copies data by work on the
 * GPU, and the daemon's work waits while a kernel of an application runs. An
 * application that leases queues of such a drive may therefore run a copy
 * kernel of its own (cuda/gq_copies.h). With a real drive every function here
 * returns -ENOTSUP, and leases work without them.
 */
#ifndef FUSEFS_DAEMON_LEASE_LEASE_COPY_H
#define FUSEFS_DAEMON_LEASE_LEASE_COPY_H

#include <sys/types.h>

#include "fusefs/daemon/state/daemon.h"
#include "sim/gpu/sim_copy_ioctl.h"

struct gq_copies_peer;

/* Limit of one user: half of the mount's GQ_COPIES_PEERS. */
#define COPY_KERNELS_OF_USER 4u

/*
 * Serves GPUNVME_ASK_COPY_KERNEL. Returns 2 descriptors in fds, or -errno. *copy kernel
 * NULL: opened, and the caller's until lease_copy_end(). -EBUSY: the mount has no
 * more. Calls for one *copy kernel are serialised by the caller.
 */
int lease_copy_reply(struct daemon *d, struct gq_copies_peer **copy_kernel,
                     struct gpunvme_reply *reply, int fds[2]);
/* Serves GPUNVME_IOC_COPY_KERNEL. copy kernel NULL (never requested): -ENOENT. */
int lease_copy_window(struct daemon *d, struct gq_copies_peer *copy_kernel, uid_t uid,
                      const struct gpunvme_ioc_copy_kernel *arg);
/* NULL: nothing. The daemon makes the copies that it had not finished. */
void lease_copy_end(struct daemon *d, struct gq_copies_peer *copy_kernel);

#endif
