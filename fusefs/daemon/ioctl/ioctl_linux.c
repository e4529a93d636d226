/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements ioctls that Linux defines for every file system. */
#include <errno.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/ioctl/remount.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/state/daemon.h"
#include "layout/format.h"

struct linux_call {
    fuse_req_t req;
    struct open_file *file;
    const void *in;
    size_t in_size, out_size;
};

static const struct {
    uint32_t layout, fl, xflag;
} flag_bits[] = {
    {LAY_INODE_IMMUTABLE, FS_IMMUTABLE_FL, FS_XFLAG_IMMUTABLE},
    {LAY_INODE_APPEND, FS_APPEND_FL, FS_XFLAG_APPEND},
    {LAY_INODE_NOATIME, FS_NOATIME_FL, FS_XFLAG_NOATIME},
};
#define FLAG_BITS (sizeof(flag_bits) / sizeof(flag_bits[0]))

/* GETFLAGS returns these flags, so chattr(1) sets them again. */
#define FLAGS_IGNORED FS_EXTENT_FL

static void reply(const struct linux_call *c, int err, const void *out, size_t size)
{
    if (err)
        op_reply(c->req, err);
    else
        fuse_reply_ioctl(c->req, 0, out, size);
}

/*
 * The kernel permits this ioctl to the owner, and changes of the first two
 * flags only with CAP_LINUX_IMMUTABLE. It does not report the caller's
 * capabilities, and before Linux 5.13 it checks nothing.
 */
static int check_caller(const struct linux_call *c, const struct ffs_attr *attr, uint32_t flags)
{
    uid_t uid = fuse_req_ctx(c->req)->uid;
    bool fixes = (attr->flags ^ flags) & (LAY_INODE_IMMUTABLE | LAY_INODE_APPEND);

    return uid == 0 || (uid == attr->uid && !fixes) ? 0 : -EPERM;
}

/*
 * Refuses to make a file immutable while the kernel may hold pages of it, which
 * could not be written back afterwards.
 */
static int check_writeback(const struct linux_call *c, const struct ffs_attr *attr, uint32_t flags)
{
    struct daemon *d = op_daemon(c->req);
    uint32_t more = flags & ~attr->flags;

    if (!d->writeback_cache || !S_ISREG(attr->mode))
        return 0;
    if (more & LAY_INODE_APPEND)
        return -EOPNOTSUPP;
    return more & LAY_INODE_IMMUTABLE ? file_refuse_writers(d, c->file->inode) : 0;
}

static int set_flags(const struct linux_call *c, uint32_t flags)
{
    struct ffs_inode *inode = c->file->inode;
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    flags |= attr.flags & LAY_INODE_GPU_BOUND;
    int err = check_caller(c, &attr, flags);
    if (!err && flags != attr.flags)
        err = check_writeback(c, &attr, flags);
    if (err || flags == attr.flags)
        return err;
    attr.flags = flags;
    err = ffs_setattr(inode, &attr, FFS_SET_FLAGS, &attr);
    if (!err)
        notify_attr(op_daemon(c->req)->session, ffs_ino(inode));
    return err;
}

static void get_fl(const struct linux_call *c)
{
    struct ffs_attr attr;
    uint32_t fl = FS_EXTENT_FL;

    ffs_getattr(c->file->inode, &attr);
    for (size_t i = 0; i < FLAG_BITS; i++)
        fl |= attr.flags & flag_bits[i].layout ? flag_bits[i].fl : 0;
    reply(c, c->out_size < sizeof(fl) ? -EINVAL : 0, &fl, sizeof(fl));
}

static void set_fl(const struct linux_call *c)
{
    uint32_t fl = 0, flags = 0;

    if (c->in_size < sizeof(fl)) {
        op_reply(c->req, -EINVAL);
        return;
    }
    memcpy(&fl, c->in, sizeof(fl));
    fl &= ~(uint32_t)FLAGS_IGNORED;
    for (size_t i = 0; i < FLAG_BITS; i++) {
        flags |= fl & flag_bits[i].fl ? flag_bits[i].layout : 0;
        fl &= ~flag_bits[i].fl;
    }
    reply(c, fl ? -EOPNOTSUPP : set_flags(c, flags), NULL, 0);
}

static void get_x(const struct linux_call *c)
{
    struct fsxattr x = {0};
    struct ffs_attr attr;

    ffs_getattr(c->file->inode, &attr);
    for (size_t i = 0; i < FLAG_BITS; i++)
        x.fsx_xflags |= attr.flags & flag_bits[i].layout ? flag_bits[i].xflag : 0;
    reply(c, c->out_size < sizeof(x) ? -EINVAL : 0, &x, sizeof(x));
}

static void set_x(const struct linux_call *c)
{
    struct fsxattr x;
    uint32_t flags = 0;

    if (c->in_size < sizeof(x)) {
        op_reply(c->req, -EINVAL);
        return;
    }
    memcpy(&x, c->in, sizeof(x));
    for (size_t i = 0; i < FLAG_BITS; i++) {
        flags |= x.fsx_xflags & flag_bits[i].xflag ? flag_bits[i].layout : 0;
        x.fsx_xflags &= ~flag_bits[i].xflag;
    }
    bool known = !x.fsx_xflags && !x.fsx_extsize && !x.fsx_projid && !x.fsx_cowextsize;
    reply(c, known ? set_flags(c, flags) : -EOPNOTSUPP, NULL, 0);
}

static void get_label(const struct linux_call *c)
{
    char label[FSLABEL_MAX] = "";
    struct ffs_statfs s;

    ffs_statfs(op_daemon(c->req)->stack.fs, &s);
    memcpy(label, s.label, sizeof(s.label));
    reply(c, c->out_size < sizeof(label) ? -EINVAL : 0, label, sizeof(label));
}

static void ioctl_linux_set_label(const struct linux_call *c)
{
    struct ffs *fs = op_daemon(c->req)->stack.fs;
    char label[FSLABEL_MAX + 1] = "";
    int err = caller_is_admin(c->req) ? 0 : -EPERM;

    if (!err && c->in_size < FSLABEL_MAX)
        err = -EINVAL;
    if (!err) {
        memcpy(label, c->in, FSLABEL_MAX);
        err = ffs_set_label(fs, label);
    }
    reply(c, err ? err : ffs_sync(fs), NULL, 0);
}

static void change_mount(const struct linux_call *c)
{
    struct remount_args args;
    int err = caller_is_admin(c->req) ? 0 : -EPERM;

    if (!err && c->in_size != sizeof(args))
        err = -EINVAL;
    if (!err) {
        memcpy(&args, c->in, sizeof(args));
        err = remount_apply(op_daemon(c->req), &args);
    }
    reply(c, err, NULL, 0);
}

/* --- FITRIM: takes as long as the drive takes, so a worker runs it ---------------------------- */

struct trim_job {
    struct job job;
    fuse_req_t req;
    struct fstrim_range range;
};

static bool stopped(void *arg)
{
    fuse_req_t req = arg;

    return fuse_req_interrupted(req) || fuse_session_exited(op_daemon(req)->session);
}

static void run_trim(struct job *job)
{
    struct trim_job *t = (struct trim_job *)job;
    const struct ffs_trim_range range = {t->range.start, t->range.len, t->range.minlen};
    uint64_t trimmed;
    int err = ffs_trim(op_daemon(t->req)->stack.fs, &range, stopped, t->req, &trimmed);

    t->range.len = trimmed;
    if (err)
        op_reply(t->req, err);
    else
        fuse_reply_ioctl(t->req, 0, &t->range, sizeof(t->range));
    free(t);
}

static void ioctl_linux_trim(const struct linux_call *c)
{
    bool admin = caller_is_admin(c->req);
    struct trim_job *t = admin ? malloc(sizeof(*t)) : NULL;

    if (!t || c->in_size < sizeof(t->range) || c->out_size < sizeof(t->range)) {
        op_reply(c->req, !admin ? -EPERM : !t ? -ENOMEM : -EINVAL);
        free(t);
        return;
    }
    *t = (struct trim_job){.job = {.run = run_trim, .uid = 0}, .req = c->req};
    memcpy(&t->range, c->in, sizeof(t->range));
    workers_add(op_daemon(c->req)->workers, WORK_BUFFER, &t->job);
}

static const struct {
    unsigned cmd;
    void (*handle)(const struct linux_call *c);
} calls[] = {
    {FS_IOC_GETFLAGS, get_fl},      {FS_IOC_SETFLAGS, set_fl},
    {FS_IOC_FSGETXATTR, get_x},     {FS_IOC_FSSETXATTR, set_x},
    {FS_IOC_GETFSLABEL, get_label}, {FS_IOC_SETFSLABEL, ioctl_linux_set_label},
    {FITRIM, ioctl_linux_trim},     {REMOUNT_IOCTL, change_mount},
};

bool ioctl_linux(fuse_req_t req, struct open_file *file, unsigned cmd, const void *in,
                 size_t in_size, size_t out_size)
{
    const struct linux_call c = {req, file, in, in_size, out_size};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (calls[i].cmd == cmd) {
            calls[i].handle(&c);
            return true;
        }
    }
    return false;
}
