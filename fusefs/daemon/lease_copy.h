/*
 * Copiers of applications. A simulated drive copies by work on the GPU, and the daemon's work waits
 * for its turn while a kernel of an application runs. Whoever leases queues of such a drive may
 * therefore bring a copier of his own (cuda/gq_route.h). A real drive has none of this: everything
 * here is -ENOTSUP then, and everything else works without.
 */
#ifndef FUSEFS_DAEMON_LEASE_COPY_H
#define FUSEFS_DAEMON_LEASE_COPY_H

#include <sys/types.h>

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/daemon.h"

struct gq_remote;

/* Of one user at a time: half of those that a mount has (GQ_REMOTES). */
#define COPIERS_OF_USER 4u

/*
 * GPUNVME_ASK_COPIER: 2 descriptors, or -errno. *copier NULL: made, and the caller's until
 * copier_end(). -EBUSY: there are as many as a mount has. Calls for one *copier come one at a time.
 */
int copier_tell(struct daemon *d, struct gq_remote **copier, struct gpunvme_told *told, int fds[2]);
/* GPUNVME_IOC_COPIER. copier NULL (nobody has asked): -ENOENT. */
int copier_route(struct daemon *d, struct gq_remote *copier, uid_t uid,
                 const struct gpunvme_ioc_copier *arg);
/* NULL: nothing. What it has not copied the daemon copies. */
void copier_end(struct gq_remote *copier);

#endif
