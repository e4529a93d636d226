/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Decodes and checks ioctls, dispatches them to a thread, and replies.
 * Implements the ioctls that Linux defines for every file system.
 */
#include <errno.h>
#include <linux/fs.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/ioctl/remount.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/buffer_readv.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "layout/format.h"
#include "support/trace.h"

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

/* GETFLAGS returns these flags, so chattr(1) passes them to SETFLAGS. */
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

/* --- FITRIM. A worker runs it, since the drive may need long. --------------------------------- */

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

/*
 * Serves the ioctls that Linux defines for every file system: inode flags
 * (chattr(1), lsattr(1)), the label, and FITRIM (fstrim(8)). Serves the ioctl
 * of remount.h, too. Returns false if cmd is another ioctl. `in` has in_size
 * bytes.
 */
static bool ioctl_linux(fuse_req_t req, struct open_file *file, unsigned cmd, const void *in,
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

/*
 * _IOR('X', 125, uint32_t). The encoding declares the argument as output, so
 * FUSE passes no input.
 */
#define FS_IOC_SHUTDOWN 0x8004587du
#define ROOT_INO        1u
/* Longest READ in bytes that counts as short in ioctl_run(). */
#define SHORT_READ (1u << 20)

static_assert(sizeof(struct trace_record) == sizeof(struct gpunvme_trace_record) &&
                  offsetof(struct trace_record, result) ==
                      offsetof(struct gpunvme_trace_record, result) &&
                  (unsigned)TRACE_RECOVERY_DONE == GPUNVME_TRACE_RECOVERY_DONE,
              "the ring's records are those of the ABI");

static int handle_stats(const struct ioctl_call *call, void *arg)
{
    ioctl_fill_stats(call->daemon, arg);
    return 0;
}

static int handle_open_files(const struct ioctl_call *call, void *arg)
{
    return activity_files(call->daemon, call->uid, arg);
}

static int handle_trace(const struct ioctl_call *call, void *arg)
{
    struct gpunvme_ioc_trace *t = arg;

    if (call->uid != 0)
        return -EPERM;
    if (!trace_ring)
        return -ENODATA;
    t->lost = 0;
    t->end = trace_end();
    t->count = trace_read(&t->next, (struct trace_record *)t->records, GPUNVME_TRACE_MAX, &t->lost);
    return 0;
}

static int handle_share_calls(const struct ioctl_call *call, void *arg)
{
    const struct gpunvme_ioc_share_calls *share = arg;

    int fd;
    int err = fdsocket_take(call->daemon->socket, share->token, call->uid, &fd);

    return err ? err : shared_calls_add(call->daemon, call->file, call->uid, fd);
}

static int handle_queue_lease(const struct ioctl_call *call, void *arg)
{
    return leases_add_queues(call->daemon->leases, call->file, call->uid, arg);
}

static int handle_extent_lease(const struct ioctl_call *call, void *arg)
{
    return leases_add_extents(call->daemon->leases, call->file, call->uid, arg);
}

static int handle_lease_end(const struct ioctl_call *call, void *arg)
{
    const struct gpunvme_ioc_lease_end *end = arg;

    return leases_end(call->daemon->leases, end->id, end->key, call->uid);
}

static const struct request {
    unsigned cmd;
    int (*handle)(const struct ioctl_call *call, void *arg); /* NULL for a transfer */
    bool waits;  /* may block on executor or drive: run by a worker */
    bool leases; /* for callers that may lease queues */
} requests[] = {
    {GPUNVME_IOC_INFO, ioctl_info, false, false},
    {GPUNVME_IOC_REGISTER, ioctl_register, true, false},
    {GPUNVME_IOC_UNREGISTER, ioctl_unregister, true, false},
    {GPUNVME_IOC_READ, NULL, true, false},
    {GPUNVME_IOC_WRITE, NULL, true, false},
    {GPUNVME_IOC_READV, NULL, true, false},
    {GPUNVME_IOC_EXTENTS, ioctl_extents, false, false},
    {GPUNVME_IOC_STATS, handle_stats, false, false},
    {GPUNVME_IOC_QUEUE_LEASE, handle_queue_lease, true, true},
    {GPUNVME_IOC_EXTENT_LEASE, handle_extent_lease, true, true},
    {GPUNVME_IOC_LEASE_END, handle_lease_end, true, false},
    {GPUNVME_IOC_BUFFER_IOVA, ioctl_buffer_iova, true, true},
    {GPUNVME_IOC_SCRUB, ioctl_scrub, true, false},
    {GPUNVME_IOC_OPEN_FILES, handle_open_files, false, false},
    {GPUNVME_IOC_QUEUES, ioctl_queues, false, false},
    {GPUNVME_IOC_GPUS, ioctl_gpus, false, false},
    {GPUNVME_IOC_RESIZE, ioctl_resize, true, false},
    {GPUNVME_IOC_SHARE_CALLS, handle_share_calls, false, false},
    {GPUNVME_IOC_TRACE, handle_trace, false, false},
};

/* Describes a transfer, or a READV if `list` is true. */
struct transfer_job {
    struct job job;
    fuse_req_t req;
    bool list;
    struct readv readv; /* without `list` only its member t */
};

struct request_job {
    struct job job;
    fuse_req_t req;
    const struct request *request;
    uint32_t size;                       /* size of the caller's struct */
    struct ioctl_call call;              /* the open file outlives its ioctl */
    _Alignas(max_align_t) uint8_t arg[]; /* the caller's struct, in and out */
};

/*
 * Returns -EINVAL for a gpunvmefs ioctl with a struct of another size, and
 * -ENOTTY for any other command.
 */
static int find_request(unsigned cmd, const struct request **out)
{
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        const struct request *r = &requests[i];
        if (_IOC_TYPE(cmd) != _IOC_TYPE(r->cmd) || _IOC_NR(cmd) != _IOC_NR(r->cmd))
            continue;
        *out = r;
        return cmd == r->cmd ? 0 : -EINVAL;
    }
    return -ENOTTY;
}

static int ioctl_check_abi(const struct gpunvme_abi *abi, uint32_t size)
{
    if (abi->version != GPUNVME_ABI_VERSION)
        return -EPROTO;
    return abi->size == size ? 0 : -EINVAL;
}

static void ioctl_run_request(struct job *job)
{
    struct request_job *a = (struct request_job *)job;
    const struct request *r = a->request;
    int err = ioctl_check_abi((const struct gpunvme_abi *)a->arg, a->size);

    if (!err && r->leases)
        err = leases_allow(a->call.daemon->opts, a->req);
    if (!err)
        err = r->handle(&a->call, a->arg);
    /* RESIZE returns the size of the drive even with an error. */
    if (err && r->handle != ioctl_resize)
        op_reply(a->req, err);
    else
        fuse_reply_ioctl(a->req, err, a->arg, a->size);
    free(a);
}

static void start_request(fuse_req_t req, const struct request *r, const struct ioctl_call *call,
                          const void *in, uint32_t size)
{
    struct request_job *a = malloc(sizeof(*a) + size);

    if (!a) {
        op_reply(req, -ENOMEM);
        return;
    }
    a->job.run = ioctl_run_request;
    a->job.uid = call->uid;
    a->req = req;
    a->request = r;
    a->call = *call;
    a->size = size;
    memcpy(a->arg, in, size);
    if (r->waits || kernel_cache_is_newer(call->daemon, call->file->inode))
        workers_add(call->daemon->workers, WORK_BUFFER, &a->job);
    else
        ioctl_run_request(&a->job);
}

static void cancel_transfer(fuse_req_t req, void *data)
{
    struct transfer *t = data;

    (void)req;
    atomic_store_explicit(&t->cancel, 1, memory_order_relaxed);
}

/*
 * The reply carries the struct even with an error, since it has the bytes moved
 * and the NVMe status.
 */
static void run_transfer(struct job *job)
{
    struct transfer_job *tj = (struct transfer_job *)job;
    struct transfer *t = &tj->readv.t;
    struct daemon *d = t->daemon;
    fuse_req_t req = tj->req;

    if (!t->write)
        notify_flush(d, t->inode, t->rw.file_offset, t->rw.len); /* of a list: the whole file */
    if (tj->list)
        readv_run(&tj->readv);
    else
        transfer_run(t);
    /*
     * Waits for the delivery of an interrupt. Nothing refers to the transfer
     * afterwards.
     */
    fuse_req_interrupt_func(req, NULL, NULL);
    if (tj->list)
        fuse_reply_ioctl(req, t->error, &tj->readv.v, sizeof(tj->readv.v));
    else
        fuse_reply_ioctl(req, t->error, &t->rw, sizeof(t->rw));
    if (t->needs_recovery)
        transfer_recover(d);
    free(tj);
}

/*
 * Refuses a WRITE under writeback_cache: the kernel would keep showing its own
 * size and times.
 */
static int refuse_write(struct daemon *d)
{
    if (!atomic_exchange(&d->warned_writeback, true))
        log_line(LOG_WARNING,
                 "%s: a write past the kernel is refused: mounted with writeback_cache; mount "
                 "without",
                 d->opts->mountpoint);
    return -EOPNOTSUPP;
}

static bool overflows(uint64_t offset, uint64_t len)
{
    return len > INT64_MAX || offset > INT64_MAX - len;
}

static int check_transfer(const struct open_file *file, const struct transfer_job *job)
{
    int mode = file->flags & O_ACCMODE;
    const struct transfer *t = &job->readv.t;
    const struct gpunvme_ioc_rw *rw = &t->rw;
    const struct gpunvme_ioc_readv *v = &job->readv.v;
    int err =
        job->list ? ioctl_check_abi(&v->abi, sizeof(*v)) : ioctl_check_abi(&rw->abi, sizeof(*rw));

    if (err)
        return err;
    if ((job->list ? v->flags : rw->flags) & ~(GPUNVME_NO_FALLBACK | GPUNVME_STAGED))
        return -EINVAL;
    if (file->directory)
        return -EISDIR;
    /* A write at a given offset contradicts O_APPEND. */
    if (t->write ? mode == O_RDONLY || (file->flags & O_APPEND) : mode == O_WRONLY)
        return -EBADF;
    if (t->write && t->daemon->writeback_cache)
        return refuse_write(t->daemon);
    return overflows(rw->file_offset, rw->len) || overflows(rw->buffer_offset, rw->len) ? -EOVERFLOW
                                                                                        : 0;
}

/*
 * Limits of transfers in session threads. A short one may start while fewer
 * than MOST_SHORT run, which is the executor's own concurrency and half of the
 * initial session threads. A long one may start only if no other runs. Further
 * long ones run in workers, which share them between users and do not count
 * this one.
 */
#define MOST_SHORT 8u
#define MOST_LONG  1u

/*
 * A long transfer that must first write dirty pages back does not run in a
 * session thread, because the write-back needs session threads. Short ones leave
 * it enough of them, and a worker would take longer than most of them.
 */
static bool begin_here(struct daemon *d, struct ffs_inode *inode, bool is_short)
{
    if (!is_short && kernel_cache_is_newer(d, inode))
        return false;
    /* Relaxed: the counter limits threads and orders no memory. */
    if (atomic_fetch_add_explicit(&d->inline_jobs, 1, memory_order_relaxed) <
        (is_short ? MOST_SHORT : MOST_LONG))
        return true;
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
    return false;
}

/* Runs a transfer in this session thread, or later in a worker. */
static void ioctl_run(struct daemon *d, struct transfer_job *job)
{
    const struct transfer *t = &job->readv.t;
    bool is_short = !job->list && !t->write && t->rw.len <= SHORT_READ;

    if (!begin_here(d, t->inode, is_short)) {
        workers_add(d->workers, WORK_TRANSFER, &job->job);
        return;
    }
    job->job.run(&job->job);
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
}

static void ioctl_transfer(unsigned cmd, const struct ioctl_call *call, const void *in)
{
    struct transfer_job *job = calloc(1, sizeof(*job));
    int err = job ? 0 : -ENOMEM;

    if (err)
        goto refuse;
    *job = (struct transfer_job){.readv.t = {.daemon = call->daemon,
                                             .inode = call->file->inode,
                                             .op.activity = &call->file->activity,
                                             .write = cmd == GPUNVME_IOC_WRITE,
                                             .uid = call->uid,
                                             .pid = fuse_req_ctx(call->req)->pid,
                                             .flags = call->file->flags},
                                 .list = cmd == GPUNVME_IOC_READV,
                                 .job = {.run = run_transfer, .uid = call->uid},
                                 .req = call->req};
    memcpy(job->list ? (void *)&job->readv.v : &job->readv.t.rw, in, _IOC_SIZE(cmd));
    err = check_transfer(call->file, job);
    if (err)
        goto refuse;
    fuse_req_interrupt_func(call->req, cancel_transfer, &job->readv.t);
    ioctl_run(call->daemon, job);
    return;
refuse:
    free(job);
    op_reply(call->req, err);
}

static int ioctl_shut_down(const struct ioctl_call *call, fuse_ino_t ino)
{
    if (!caller_is_admin(call->req))
        return -EPERM;
    if (ino != ROOT_INO)
        return -ENOTTY;
    log_line(LOG_WARNING, "%s: shut down by an ioctl", call->daemon->opts->device);
    return ffs_shutdown(call->daemon->stack.fs, true);
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
              unsigned flags, const void *in, size_t in_size, size_t out_size)
{
    const struct request *r;
    struct ioctl_call call = {op_daemon(req), op_file(fi), fuse_req_ctx(req)->uid, req};

    (void)arg;
    (void)flags;
    if (cmd == FS_IOC_SHUTDOWN) {
        int err = ioctl_shut_down(&call, ino);
        if (err)
            op_reply(req, err);
        else
            fuse_reply_ioctl(req, 0, NULL, 0);
        return;
    }
    activity_caller(&call.file->activity, call.uid, fuse_req_ctx(req)->pid);
    if (ioctl_linux(req, call.file, cmd, in, in_size, out_size))
        return;
    int err = find_request(cmd, &r);
    uint32_t size = _IOC_SIZE(cmd);
    if (!err && (in_size != size || out_size != size))
        err = -EINVAL;
    if (err)
        op_reply(req, err);
    else if (r->handle)
        start_request(req, r, &call, in, size);
    else
        ioctl_transfer(cmd, &call, in);
}
