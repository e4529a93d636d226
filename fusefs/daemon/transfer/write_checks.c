/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes the checks of write(2) for the WRITE ioctl. */
#include "fusefs/daemon/transfer/write_checks.h"

#include <errno.h>
#include <linux/xattr.h>
#include <sys/resource.h>

#include "fusefs/core/ffs.h"

int write_check_limit(pid_t pid, uint64_t offset, uint64_t *len)
{
    struct rlimit limit;

    if (pid == 0 || prlimit(pid, RLIMIT_FSIZE, NULL, &limit) != 0)
        return 0;
    if (limit.rlim_cur == RLIM_INFINITY || *len == 0)
        return 0;
    if (offset >= limit.rlim_cur)
        return -EFBIG;
    if (*len > limit.rlim_cur - offset)
        *len = limit.rlim_cur - offset;
    return 0;
}

int write_drop_capability(struct ffs_inode *inode)
{
    if (ffs_getxattr(inode, XATTR_NAME_CAPS, NULL, 0) == -ENODATA)
        return 0;
    int err = ffs_removexattr(inode, XATTR_NAME_CAPS);
    return err == -ENODATA ? 0 : err;
}
