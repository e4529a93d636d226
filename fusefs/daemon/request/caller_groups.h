/* SPDX-License-Identifier: BSD-2-Clause */
/* Determines the groups of a caller. */
#ifndef FUSEFS_DAEMON_REQUEST_CALLER_GROUPS_H
#define FUSEFS_DAEMON_REQUEST_CALLER_GROUPS_H

#include <stdbool.h>
#include <sys/types.h>

struct fuse_req;

/*
 * Returns whether the caller of an unreplied request is in the group. FUSE
 * passes one group; the supplementary groups are read from /proc at the time of
 * the request. If the sandbox hides /proc, the caller counts as having no
 * supplementary groups.
 */
bool caller_is_member(struct fuse_req *req, gid_t group);

#endif
