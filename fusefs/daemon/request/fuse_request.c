/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the common parts of FUSE operations. */
#include "fusefs/daemon/request/fuse_request.h"

#include <errno.h>

#include "fusefs/daemon/request/kernel_cache.h"

struct daemon *op_daemon(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

int op_node(fuse_req_t req, fuse_ino_t ino, struct ffs_inode **out)
{
    return ffs_iget(op_daemon(req)->stack.fs, ino, out);
}

struct open_file *op_file(const struct fuse_file_info *fi)
{
    return (struct open_file *)(uintptr_t)fi->fh;
}

struct ffs_cred op_cred(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    return (struct ffs_cred){.uid = ctx->uid, .gid = ctx->gid, .umask = ctx->umask};
}

void op_reply(fuse_req_t req, int err)
{
    fuse_reply_err(req, -err);
}

void op_stat(const struct ffs_attr *attr, struct stat *st)
{
    *st = (struct stat){.st_ino = attr->ino,
                        .st_mode = attr->mode,
                        .st_nlink = attr->nlink,
                        .st_uid = attr->uid,
                        .st_gid = attr->gid,
                        .st_rdev = attr->rdev,
                        .st_size = (off_t)attr->size,
                        .st_blksize = 4096,
                        .st_blocks = (blkcnt_t)attr->blocks,
                        .st_atim = attr->atime,
                        .st_mtim = attr->mtime,
                        .st_ctim = attr->ctime};
}

void op_entry(struct daemon *d, struct ffs_inode *inode, struct fuse_entry_param *e)
{
    struct ffs_attr attr;

    kernel_cache_add(inode, KERNEL_ATTR);
    ffs_getattr(inode, &attr);
    *e = (struct fuse_entry_param){.ino = attr.ino,
                                   .generation = attr.generation,
                                   .attr_timeout = d->opts->attr_timeout_s,
                                   .entry_timeout = d->opts->entry_timeout_s};
    op_stat(&attr, &e->attr);
}

/*
 * If the kernel does not accept the reply because the process was killed, the
 * lookup does not count.
 */
void op_reply_entry(fuse_req_t req, int err, struct ffs_inode *inode)
{
    struct fuse_entry_param e;

    if (err) {
        op_reply(req, err);
        return;
    }
    op_entry(op_daemon(req), inode, &e);
    if (fuse_reply_entry(req, &e) != 0)
        ffs_iput(inode, 1);
}
