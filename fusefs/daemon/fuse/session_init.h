/* SPDX-License-Identifier: BSD-2-Clause */
/* A session of libfuse: its arguments, and the operations that it calls. */
#ifndef FUSEFS_DAEMON_FUSE_SESSION_INIT_H
#define FUSEFS_DAEMON_FUSE_SESSION_INIT_H

#include <stddef.h>

struct daemon;
struct fuse_args;
struct fuse_session;
struct options;

/* libfuse's session, not mounted; NULL: libfuse has logged its objection to the arguments. */
struct fuse_session *session_new(const struct fuse_args *args, struct daemon *d);
/* Logs the consequence of -o noiommu. */
void session_warn_noiommu(const struct options *opts);
/*
 * Checks that libfuse knows the remaining arguments. 0, or -EINVAL with a line
 * in why.
 */
int session_check_arguments(const struct fuse_args *args, char *why, size_t len);

#endif
