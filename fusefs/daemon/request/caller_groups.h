/* SPDX-License-Identifier: BSD-2-Clause */
/* Groups of a caller. */
#ifndef FUSEFS_DAEMON_REQUEST_CALLER_GROUPS_H
#define FUSEFS_DAEMON_REQUEST_CALLER_GROUPS_H

#include <stdbool.h>
#include <sys/types.h>

struct fuse_req;

/*
 * Is the caller of an unreplied request in the group? FUSE passes one group; the
 * supplementary groups are read from /proc at the time of the request. Where the
 * sandbox keeps /proc from the daemon they are not known, and count as none.
 */
bool caller_is_member(struct fuse_req *req, gid_t group);

#endif
