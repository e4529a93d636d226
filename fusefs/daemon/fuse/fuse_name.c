/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the operations on names: MKNOD, MKDIR, SYMLINK, LINK, UNLINK,
 * RMDIR and RENAME.
 */

#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"

/* Makes an inode of a type in `mode`; a symbolic link has a target, and a device a number. */
static void name_make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev,
                      const char *target)
{
    struct ffs_cred cred = op_cred(req);
    struct ffs_inode *dir;
    struct ffs_inode *inode = NULL;
    int err = op_node(req, parent, &dir);

    if (!err) {
        if (target)
            err = ffs_symlink(dir, name, target, &cred, &inode);
        else if (S_ISDIR(mode))
            err = ffs_mkdir(dir, name, mode, &cred, &inode);
        else
            err = ffs_mknod(dir, name, mode, (uint32_t)rdev, &cred, &inode);
        if (!err)
            caches_adopt(op_daemon(req)->caches, dir, inode);
        ffs_iput(dir, 1);
    }
    op_reply_entry(req, err, inode);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    name_make(req, parent, name, mode, rdev, NULL);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    name_make(req, parent, name, S_IFDIR | (mode & 07777), 0, NULL);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    name_make(req, parent, name, S_IFLNK, 0, target);
}

/* The entry in the reply has the new link count. */
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct ffs_inode *dir;
    struct ffs_inode *inode = NULL;
    int err = op_node(req, parent, &dir);

    if (err) {
        op_reply(req, err);
        return;
    }
    err = op_node(req, ino, &inode);
    if (!err)
        err = caches_link(op_daemon(req)->caches, inode, dir, name);
    ffs_iput(dir, 1);
    if (err && inode)
        ffs_iput(inode, 1);
    op_reply_entry(req, err, inode);
}

static void name_remove_name(fuse_req_t req, fuse_ino_t parent, const char *name,
                             int (*remove)(struct ffs_inode *dir, const char *name))
{
    struct ffs_inode *dir;
    int err = op_node(req, parent, &dir);

    if (!err) {
        err = remove(dir, name);
        ffs_iput(dir, 1);
    }
    op_reply(req, err);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    name_remove_name(req, parent, name, ffs_unlink);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct caches *caches = op_daemon(req)->caches; /* the reply frees the request */

    name_remove_name(req, parent, name, ffs_rmdir);
    caches_prune(caches);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags)
{
    struct ffs_inode *dir;
    struct ffs_inode *new_dir;
    int err = op_node(req, parent, &dir);

    if (err)
        goto reply;
    err = op_node(req, new_parent, &new_dir);
    if (err)
        goto put_dir;
    err = caches_rename(op_daemon(req)->caches,
                        &(struct caches_rename){dir, name, new_dir, new_name, flags});
    ffs_iput(new_dir, 1);
put_dir:
    ffs_iput(dir, 1);
reply:
    op_reply(req, err);
}
