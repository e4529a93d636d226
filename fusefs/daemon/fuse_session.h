/*
 * The FUSE session: from a drive and a mountpoint to a mount, and back.
 */
#ifndef FUSEFS_DAEMON_FUSE_SESSION_H
#define FUSEFS_DAEMON_FUSE_SESSION_H

#include <stddef.h>

#include "fusefs/daemon/daemon.h"

struct fuse_args;

/*
 * Is the mountpoint a directory on which nothing is mounted? Replaces it by its absolute path. A
 * mount left there by a daemon that died is removed. 0, or -errno with a line in why.
 */
int session_check_mountpoint(struct options *opts, char *why, size_t len);

/*
 * Mounts, serves until unmounted or told to end by SIGTERM, SIGINT or SIGHUP, and unmounts. The
 * signals are blocked in the caller. The drive is the session's from then on. Returns an exit
 * status; what went wrong has been said.
 */
int session_run(const struct options *opts, const struct fuse_args *args, const struct drive *drive,
                int verdict);
/* Says what -o noiommu means, to the terminal or to the log. */
void session_warn_noiommu(const struct options *opts);
/* Are the arguments that are left libfuse's? 0, or -EINVAL with a line in why. */
int session_check_arguments(const struct fuse_args *args, char *why, size_t len);

#endif
