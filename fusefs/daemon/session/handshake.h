/* SPDX-License-Identifier: BSD-2-Clause */
/* Answers INIT, the first request of a connection. */
#ifndef FUSEFS_DAEMON_SESSION_HANDSHAKE_H
#define FUSEFS_DAEMON_SESSION_HANDSHAKE_H

struct fuse_session;

/*
 * Gives the session a connection that the kernel has mounted, and answers INIT.
 * No thread may serve the session yet. The session, or this function after an
 * error, closes fd. Returns 0, or -errno if the connection cannot be served.
 */
int handshake_run(struct fuse_session *session, int fd);

#endif
