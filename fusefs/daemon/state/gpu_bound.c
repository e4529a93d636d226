/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the GPU-bound flag as the extended attribute GPU_BOUND_XATTR. */
#include "fusefs/daemon/state/gpu_bound.h"

#include <errno.h>
#include <string.h>

#include "layout/format.h"

bool gpu_bound_is(const char *name)
{
    return strcmp(name, GPU_BOUND_XATTR) == 0;
}

ssize_t gpu_bound_get(struct ffs_inode *inode, char *value, size_t size)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    if (size)
        value[0] = attr.flags & LAY_INODE_GPU_BOUND ? '1' : '0';
    return 1;
}

int gpu_bound_set(struct ffs_inode *inode, const char *value, size_t size)
{
    struct ffs_attr attr;

    if (size != 1 || (value[0] != '0' && value[0] != '1'))
        return -EINVAL;
    ffs_getattr(inode, &attr);
    if (attr.flags & (LAY_INODE_IMMUTABLE | LAY_INODE_APPEND))
        return -EPERM;
    attr.flags &= ~LAY_INODE_GPU_BOUND;
    if (value[0] == '1')
        attr.flags |= LAY_INODE_GPU_BOUND;
    return ffs_setattr(inode, &attr, FFS_SET_FLAGS, &attr);
}
