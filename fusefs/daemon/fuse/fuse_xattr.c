/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the operations on extended attributes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "layout/format.h"

/* --- The GPU-bound flag ---------------------------------------------------------------------- */

/*
 * The GPU-bound flag of a file or directory (FORMAT.md 3.6) is an extended
 * attribute, "1" or "0". LISTXATTR omits it: a program that copies a file sets
 * the attributes after the data, when a file that has blocks no longer accepts
 * the flag.
 */
#define GPU_BOUND_XATTR "user.gpunvme.gpu_bound"

static bool gpu_bound_is(const char *name)
{
    return strcmp(name, GPU_BOUND_XATTR) == 0;
}

/* Returns the length 1. Writes nothing if size is 0. */
static ssize_t gpu_bound_get(struct ffs_inode *inode, char *value, size_t size)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    if (size)
        value[0] = attr.flags & LAY_INODE_GPU_BOUND ? '1' : '0';
    return 1;
}

/*
 * Returns -EINVAL if the value is not "0" or "1", if the file has blocks, or if
 * the inode is neither a file nor a directory.
 */
static int gpu_bound_set(struct ffs_inode *inode, const char *value, size_t size)
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

/* --- Operations ------------------------------------------------------------------------------ */

/* XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux. */
#define MAX_SIZE 65536u

static bool is_acl(const char *name)
{
    return strcmp(name, FFS_ACL_ACCESS) == 0 || strcmp(name, FFS_ACL_DEFAULT) == 0;
}

/*
 * A name in "system." must be the name of an ACL. No name may consist of only
 * the prefix. The kernel checks access to "trusted." and "security.".
 */
static int check_name(const char *name)
{
    static const char *const spaces[] = {"user.", "trusted.", "security."};

    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        size_t len = strlen(spaces[i]);
        if (strncmp(name, spaces[i], len) == 0)
            return name[len] ? 0 : -EINVAL;
    }
    return is_acl(name) ? 0 : -EOPNOTSUPP;
}

/*
 * A new ACL clears set-gid unless the caller is in the group of the file. The
 * kernel leaves that to the file system.
 */
static bool may_keep_setgid(fuse_req_t req, struct ffs_inode *inode)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    return fuse_req_ctx(req)->uid == 0 || caller_is_member(req, attr.gid);
}

static int set_acl(fuse_req_t req, struct ffs_inode *inode, const char *name, const char *value,
                   size_t size)
{
    bool is_default = strcmp(name, FFS_ACL_DEFAULT) == 0;
    bool keep = is_default || !value || may_keep_setgid(req, inode);

    return ffs_set_acl(inode, is_default, value, size, keep);
}

static int set_value(fuse_req_t req, struct ffs_inode *inode, const char *name, const char *value,
                     size_t size, int flags)
{
    if (is_acl(name))
        return set_acl(req, inode, name, value, size);
    if (gpu_bound_is(name))
        return gpu_bound_set(inode, value, size);
    if (strcmp(name, CACHES_STATE_XATTR) == 0)
        return -EPERM;
    if (strcmp(name, CACHES_LIMIT_XATTR) == 0)
        return caches_set(op_daemon(req)->caches, inode, fuse_req_ctx(req)->uid, value, size,
                          flags);
    return ffs_setxattr(inode, name, value, size, flags);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags)
{
    struct ffs_inode *inode;
    int err = check_name(name);

    if (!err)
        err = op_node(req, ino, &inode);
    if (!err) {
        err = set_value(req, inode, name, value, size, flags);
        ffs_iput(inode, 1);
    }
    op_reply(req, err);
}

/* Replies with the length only if size is 0. */
static void reply_value(fuse_req_t req, ssize_t n, const char *value, size_t size)
{
    if (n < 0)
        op_reply(req, (int)n);
    else if (size == 0)
        fuse_reply_xattr(req, (size_t)n);
    else
        fuse_reply_buf(req, value, (size_t)n);
}

static ssize_t get_value(struct daemon *d, struct ffs_inode *inode, const char *name, char *value,
                         size_t room)
{
    if (gpu_bound_is(name))
        return gpu_bound_get(inode, value, room);
    if (strcmp(name, CACHES_STATE_XATTR) == 0)
        return caches_state(d->caches, inode, value, room);
    return ffs_getxattr(inode, name, value, room);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct ffs_inode *inode;
    size_t room = size < MAX_SIZE ? size : MAX_SIZE;
    char *value = room ? malloc(room) : NULL;
    ssize_t n = room && !value ? -ENOMEM : check_name(name);

    if (n == 0)
        n = op_node(req, ino, &inode);
    if (n == 0) {
        n = get_value(op_daemon(req), inode, name, value, room);
        ffs_iput(inode, 1);
    }
    reply_value(req, n, value, room);
    free(value);
}

/* Only root sees names in "trusted.", as on other file systems of Linux. */
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct ffs_inode *inode;
    size_t room = size < MAX_SIZE ? size : MAX_SIZE;
    char *names = room ? malloc(room) : NULL;
    ssize_t n = room && !names ? -ENOMEM : op_node(req, ino, &inode);

    if (n == 0) {
        n = ffs_listxattr(inode, fuse_req_ctx(req)->uid == 0, names, room);
        ffs_iput(inode, 1);
    }
    reply_value(req, n, names, room);
    free(names);
}

static int remove_value(fuse_req_t req, struct ffs_inode *inode, const char *name)
{
    if (is_acl(name))
        return set_acl(req, inode, name, NULL, 0);
    if (strcmp(name, CACHES_LIMIT_XATTR) == 0)
        return caches_clear(op_daemon(req)->caches, inode, fuse_req_ctx(req)->uid);
    return gpu_bound_is(name) ? gpu_bound_set(inode, "0", 1) : ffs_removexattr(inode, name);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct ffs_inode *inode;
    int err = check_name(name);

    if (!err)
        err = op_node(req, ino, &inode);
    if (!err) {
        err = remove_value(req, inode, name);
        ffs_iput(inode, 1);
    }
    op_reply(req, err);
}
