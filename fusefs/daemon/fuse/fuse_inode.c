/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the inode operations LOOKUP, FORGET, GETATTR, SETATTR, READLINK
 * and STATFS.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/fuse/fuse_ops.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"

/*
 * Lookups of "." and ".." come from NFS export; with "." the node id may be
 * stale. A negative entry is cached like any other, since new names appear only
 * through this kernel.
 */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct ffs_inode *dir;
    struct ffs_inode *inode = NULL;
    int err = op_node(req, parent, &dir);

    if (err) {
        op_reply(req, err);
        return;
    }
    if (strcmp(name, ".") == 0) {
        op_reply_entry(req, 0, dir);
        return;
    }
    err = strcmp(name, "..") == 0 ? ffs_parent(dir, &inode) : ffs_lookup(dir, name, &inode);
    if (!err && strcmp(name, "..") != 0)
        caches_adopt(op_daemon(req)->caches, dir, inode);
    ffs_iput(dir, 1);
    if (err == -ENOENT) {
        struct fuse_entry_param none = {.entry_timeout = op_daemon(req)->opts->entry_timeout_s};
        fuse_reply_entry(req, &none);
        return;
    }
    op_reply_entry(req, err, inode);
}

/*
 * The kernel's lookup count keeps the inode in memory, so ffs_iget() cannot
 * fail.
 */
static void inode_forget(struct ffs *fs, uint64_t ino, uint64_t count)
{
    struct ffs_inode *inode;

    if (ffs_iget(fs, ino, &inode) == 0)
        ffs_iput(inode, count + 1);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
    inode_forget(op_daemon(req)->stack.fs, ino, count);
    fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    struct ffs *fs = op_daemon(req)->stack.fs;

    for (size_t i = 0; i < count; i++)
        inode_forget(fs, forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static void reply_attr(fuse_req_t req, int err, const struct ffs_attr *attr)
{
    struct stat st;

    if (err) {
        op_reply(req, err);
        return;
    }
    op_stat(attr, &st);
    fuse_reply_attr(req, &st, op_daemon(req)->opts->attr_timeout_s);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct ffs_inode *inode;
    struct ffs_attr attr;

    (void)fi;
    int err = op_node(req, ino, &inode);
    if (!err) {
        kernel_cache_add(inode, KERNEL_ATTR);
        ffs_getattr(inode, &attr);
        ffs_iput(inode, 1);
    }
    reply_attr(req, err, &attr);
}

static const struct {
    int fuse;
    uint32_t ffs;
} set_bits[] = {
    {FUSE_SET_ATTR_MODE, FFS_SET_MODE},
    {FUSE_SET_ATTR_UID, FFS_SET_UID},
    {FUSE_SET_ATTR_GID, FFS_SET_GID},
    {FUSE_SET_ATTR_SIZE, FFS_SET_SIZE},
    {FUSE_SET_ATTR_ATIME, FFS_SET_ATIME},
    {FUSE_SET_ATTR_MTIME, FFS_SET_MTIME},
    {FUSE_SET_ATTR_ATIME_NOW, FFS_SET_ATIME_NOW},
    {FUSE_SET_ATTR_MTIME_NOW, FFS_SET_MTIME_NOW},
    {FUSE_SET_ATTR_CTIME, FFS_SET_CTIME},
};

/*
 * FUSE sets the plain bit in addition to the NOW bit. The clock of the file
 * system takes precedence.
 */
static uint32_t set_of(int fuse)
{
    uint32_t set = 0;

    for (size_t i = 0; i < sizeof(set_bits) / sizeof(set_bits[0]); i++) {
        if (fuse & set_bits[i].fuse)
            set |= set_bits[i].ffs;
    }
    if (set & FFS_SET_ATIME_NOW)
        set &= ~(uint32_t)FFS_SET_ATIME;
    if (set & FFS_SET_MTIME_NOW)
        set &= ~(uint32_t)FFS_SET_MTIME;
    return set;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *fi)
{
    struct ffs_inode *inode;
    struct ffs_attr out;
    struct ffs_attr attr = {.mode = st->st_mode,
                            .uid = st->st_uid,
                            .gid = st->st_gid,
                            .size = (uint64_t)st->st_size,
                            .atime = st->st_atim,
                            .mtime = st->st_mtim,
                            .ctime = st->st_ctim};

    (void)fi;
    int err = op_node(req, ino, &inode);
    if (!err) {
        kernel_cache_add(inode, KERNEL_ATTR);
        err = setid_before_change(req, inode, raw_clears_setid());
        err = err ? err : ffs_setattr(inode, &attr, set_of(set), &out);
        ffs_iput(inode, 1);
    }
    reply_attr(req, err, &out);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[PATH_MAX];
    struct ffs_inode *inode;
    ssize_t n = op_node(req, ino, &inode);

    if (n == 0) {
        n = ffs_readlink(inode, target, sizeof(target) - 1);
        ffs_iput(inode, 1);
    }
    if (n < 0) {
        op_reply(req, (int)n);
        return;
    }
    target[n] = '\0';
    fuse_reply_readlink(req, target);
}

/*
 * Inodes are allocated from free blocks, so as many inodes as blocks are free.
 */
void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct ffs_statfs s;
    uint64_t id;

    (void)ino;
    ffs_statfs(op_daemon(req)->stack.fs, &s);
    memcpy(&id, s.uuid, sizeof(id));
    struct statvfs st = {.f_bsize = 4096,
                         .f_frsize = 4096,
                         .f_blocks = s.blocks,
                         .f_bfree = s.free_blocks,
                         .f_bavail = s.free_blocks,
                         .f_files = s.inodes + s.free_blocks,
                         .f_ffree = s.free_blocks,
                         .f_favail = s.free_blocks,
                         .f_fsid = id,
                         .f_namemax = 255};
    fuse_reply_statfs(req, &st);
}
