/* SPDX-License-Identifier: BSD-2-Clause */
/* Clears set-id bits on changes by callers without CAP_FSETID. */
#include "fusefs/daemon/request/setid.h"

#include <sys/stat.h>

#include "fusefs/daemon/request/caller_groups.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"

static bool has_bits(struct ffs_inode *inode, gid_t *group)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    *group = attr.gid;
    return S_ISREG(attr.mode) && (attr.mode & (S_ISUID | S_ISGID));
}

int setid_clear(struct daemon *d, struct ffs_inode *inode, bool outsider)
{
    gid_t group;

    if (!has_bits(inode, &group))
        return 0;
    int err = ffs_clear_setid(inode, outsider);
    /*
     * The kernel has cached the bits and would still honour them in execve(2).
     */
    if (!err)
        notify_attr(d->session, ffs_ino(inode));
    return err;
}

int setid_before_change(struct fuse_req *req, struct ffs_inode *inode, bool clears)
{
    gid_t group;

    if (!clears || !has_bits(inode, &group))
        return 0;
    return setid_clear(op_daemon(req), inode, !caller_is_member(req, group));
}
