/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creates libfuse's session, with its arguments and the operations that it
 * calls.
 */
#ifndef FUSEFS_DAEMON_FUSE_SESSION_INIT_H
#define FUSEFS_DAEMON_FUSE_SESSION_INIT_H

#include <stddef.h>

#include "support/reason.h"

struct daemon;
struct fuse_args;
struct fuse_session;
struct options;

/*
 * Returns a session that is not mounted. Returns NULL if libfuse refuses the
 * arguments, which it has logged.
 */
struct fuse_session *session_new(const struct fuse_args *args, struct daemon *d);
/* Logs the consequence of -o noiommu. */
void session_warn_noiommu(const struct options *opts);
/*
 * Checks that libfuse knows the remaining arguments. Returns 0, or -EINVAL with
 * a line in why.
 */
int session_check_arguments(const struct fuse_args *args, struct reason *why);

#endif
