/* SPDX-License-Identifier: BSD-2-Clause */
/* The FUSE session turns a drive and a mountpoint into a mount, and ends it. */
#ifndef FUSEFS_DAEMON_SESSION_FUSE_SESSION_H
#define FUSEFS_DAEMON_SESSION_FUSE_SESSION_H

#include <stddef.h>

#include "fusefs/daemon/state/daemon.h"
#include "support/reason.h"

struct fuse_args;
struct mounter;

/*
 * Checks that the mountpoint is a directory without a mount, and makes its path
 * absolute. Removes the mount of a dead daemon. Returns 0, or -errno with a
 * line in why.
 */
int session_check_mountpoint(struct options *opts, struct reason *why);

/*
 * Opens the sockets that session_run() serves. Called before the sandbox, which
 * forbids new sockets, and after the mounter has started, so that the mounter
 * does not keep them open. Returns 0, or -errno after a line in the log.
 */
int session_listen(struct options *opts);

/*
 * Mounts, serves until the unmount or until SIGTERM, SIGINT or SIGHUP, and
 * unmounts. The caller has blocked these signals. Takes over the drive and the
 * mounter, even on failure. Returns an exit status; errors have been logged.
 */
int session_run(const struct options *opts, const struct fuse_args *args, const struct drive *drive,
                struct mounter *mounter, int status_fd);

#endif
