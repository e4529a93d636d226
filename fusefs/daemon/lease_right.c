/*
 * Who may lease.
 */
#include <errno.h>
#include <stdlib.h>

#include "fusefs/daemon/lease.h"
#include "fusefs/daemon/ops.h"

/* The kernel names one group; the others are asked for, now: they are those of the moment. */
static bool is_member(fuse_req_t req, gid_t group)
{
    if (fuse_req_ctx(req)->gid == group)
        return true;
    int n = fuse_req_getgroups(req, 0, NULL);
    gid_t *groups = n > 0 ? malloc((size_t)n * sizeof(*groups)) : NULL;
    int got = groups ? fuse_req_getgroups(req, n, groups) : 0;
    bool found = false;
    for (int i = 0; i < got && i < n && !found; i++)
        found = groups[i] == group;
    free(groups);
    return found;
}

int leases_allow(const struct options *opts, struct fuse_req *req)
{
    bool root = fuse_req_ctx(req)->uid == 0;
    switch (opts->direct) {
    case DIRECT_ALL:
        return 0;
    case DIRECT_GROUP:
        return root || is_member(req, opts->direct_group) ? 0 : -EPERM;
    case DIRECT_ROOT:
        return root ? 0 : -EPERM;
    default:
        return -EPERM;
    }
}
