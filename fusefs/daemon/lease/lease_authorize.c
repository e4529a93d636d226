/* SPDX-License-Identifier: BSD-2-Clause */
/* Authorizes leases by the mount option direct=. */
#include <errno.h>
#include <stdbool.h>

#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/caller_groups.h"
#include "fusefs/daemon/request/fuse_request.h"

int leases_allow(const struct options *opts, struct fuse_req *req)
{
    bool root = fuse_req_ctx(req)->uid == 0;

    switch (opts->direct) {
    case DIRECT_ALL:
        return 0;
    case DIRECT_GROUP:
        return root || caller_is_member(req, opts->direct_group) ? 0 : -EPERM;
    case DIRECT_ROOT:
        return root ? 0 : -EPERM;
    default:
        return -EPERM;
    }
}
