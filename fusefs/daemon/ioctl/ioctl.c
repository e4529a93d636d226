/* SPDX-License-Identifier: BSD-2-Clause */
/* Decodes and checks ioctls, dispatches them to a thread, and replies. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/base/workers.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/ioctl/ioctl_linux.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/buffer_transfer.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "support/trace.h"

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

/* The caller of an ioctl other than a transfer. */
struct call {
    struct daemon *daemon;
    struct open_file *file;
    uid_t uid;
    fuse_req_t req; /* not yet replied to; identifies the caller */
};

typedef int (*handle_fn)(const struct call *call, void *arg);

static int handle_info(const struct call *call, void *arg)
{
    struct gpunvme_ioc_info *info = arg;
    struct gpunvme_abi abi = info->abi;

    ioctl_fill_info(call->daemon, info);
    info->direct = leases_allow(call->daemon->opts, call->req) == 0;
    info->abi = abi;
    return 0;
}

static int handle_stats(const struct call *call, void *arg)
{
    struct gpunvme_ioc_stats *stats = arg;
    struct gpunvme_abi abi = stats->abi;

    ioctl_fill_stats(call->daemon, stats);
    stats->abi = abi;
    return 0;
}

static int handle_register(const struct call *call, void *arg)
{
    const struct gpunvme_ioc_register *reg = arg;
    bool for_lease = reg->flags & GPUNVME_REGISTER_STAGING;
    int err = for_lease ? leases_allow(call->daemon->opts, call->req) : 0;

    return err ? err : ioctl_register(call->daemon, call->file, call->uid, arg);
}

static int handle_unregister(const struct call *call, void *arg)
{
    const struct gpunvme_ioc_unregister *u = arg;

    return buffers_remove(call->daemon->buffers, u->id, u->key, call->uid);
}

static int handle_extents(const struct call *call, void *arg)
{
    if (call->file->directory)
        return -EISDIR;
    notify_flush(call->daemon, call->file->inode, 0, 0);
    return ioctl_extents(call->file->inode, arg);
}

static int handle_scrub(const struct call *call, void *arg)
{
    struct gpunvme_ioc_scrub *scrub = arg;

    if (scrub->flags == GPUNVME_SCRUB_METADATA)
        return ioctl_scrub_metadata(call->daemon, call->uid, scrub);
    notify_flush(call->daemon, call->file->inode, 0, 0);
    return ioctl_scrub(call->file, scrub);
}

static int handle_open_files(const struct call *call, void *arg)
{
    return activity_files(call->daemon, call->uid, arg);
}

static int handle_queues(const struct call *call, void *arg)
{
    return ioctl_queues(call->daemon, call->uid, arg);
}

static int handle_trace(const struct call *call, void *arg)
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

static int handle_share_calls(const struct call *call, void *arg)
{
    const struct gpunvme_ioc_share_calls *share = arg;

    int fd;
    int err = fdsocket_take(call->daemon->socket, share->token, call->uid, &fd);

    return err ? err : shared_calls_add(call->daemon, call->file, call->uid, fd);
}

static int handle_resize(const struct call *call, void *arg)
{
    return caller_is_admin(call->req) ? ioctl_resize(call->daemon, arg) : -EPERM;
}

static int handle_queue_lease(const struct call *call, void *arg)
{
    struct daemon *d = call->daemon;
    int err = leases_allow(d->opts, call->req);

    return err ? err : leases_add_queues(d->leases, call->file, call->uid, arg);
}

static int handle_extent_lease(const struct call *call, void *arg)
{
    struct daemon *d = call->daemon;
    int err = leases_allow(d->opts, call->req);

    return err ? err : leases_add_extents(d->leases, call->file, call->uid, arg);
}

static int handle_lease_end(const struct call *call, void *arg)
{
    const struct gpunvme_ioc_lease_end *end = arg;

    return leases_end(call->daemon->leases, end->id, end->key, call->uid);
}

static int handle_buffer_iova(const struct call *call, void *arg)
{
    struct daemon *d = call->daemon;
    int err = leases_allow(d->opts, call->req);

    return err ? err : ioctl_buffer_iova(d, call->uid, arg);
}

static const struct request {
    unsigned cmd;
    handle_fn handle; /* NULL for a transfer */
    bool waits;       /* may block on executor or drive: run by a worker */
} requests[] = {
    {GPUNVME_IOC_INFO, handle_info, false},
    {GPUNVME_IOC_REGISTER, handle_register, true},
    {GPUNVME_IOC_UNREGISTER, handle_unregister, true},
    {GPUNVME_IOC_READ, NULL, true},
    {GPUNVME_IOC_WRITE, NULL, true},
    {GPUNVME_IOC_READV, NULL, true},
    {GPUNVME_IOC_EXTENTS, handle_extents, false},
    {GPUNVME_IOC_STATS, handle_stats, false},
    {GPUNVME_IOC_QUEUE_LEASE, handle_queue_lease, true},
    {GPUNVME_IOC_EXTENT_LEASE, handle_extent_lease, true},
    {GPUNVME_IOC_LEASE_END, handle_lease_end, true},
    {GPUNVME_IOC_BUFFER_IOVA, handle_buffer_iova, true},
    {GPUNVME_IOC_SCRUB, handle_scrub, true},
    {GPUNVME_IOC_OPEN_FILES, handle_open_files, false},
    {GPUNVME_IOC_QUEUES, handle_queues, false},
    {GPUNVME_IOC_RESIZE, handle_resize, true},
    {GPUNVME_IOC_SHARE_CALLS, handle_share_calls, false},
    {GPUNVME_IOC_TRACE, handle_trace, false},
};

struct transfer_job {
    struct job job;
    fuse_req_t req;
    struct transfer transfer;
};

struct request_job {
    struct job job;
    fuse_req_t req;
    const struct request *request;
    uint32_t size;    /* size of the caller's struct */
    struct call call; /* the open file outlives its ioctl */
    union {
        struct gpunvme_ioc_register reg;
        struct gpunvme_ioc_unregister unreg;
        struct gpunvme_ioc_info info;
        struct gpunvme_ioc_extents extents;
        struct gpunvme_ioc_stats stats;
        struct gpunvme_ioc_queue_lease queues;
        struct gpunvme_ioc_extent_lease lease;
        struct gpunvme_ioc_lease_end end;
        struct gpunvme_ioc_buffer_iova iova;
        struct gpunvme_ioc_scrub scrub;
        struct gpunvme_ioc_open_files open_files;
        struct gpunvme_ioc_queues queue_list;
        struct gpunvme_ioc_resize resize;
        struct gpunvme_ioc_share_calls share_calls;
        struct gpunvme_ioc_trace trace;
    } arg;
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

static void ioctl_run_request(struct job *job)
{
    struct request_job *a = (struct request_job *)job;
    const struct request *r = a->request;
    int err = ioctl_check_abi((const struct gpunvme_abi *)&a->arg, a->size);

    if (!err)
        err = r->handle(&a->call, &a->arg);
    /* RESIZE returns the size of the drive even with an error. */
    if (err && r->handle != handle_resize)
        op_reply(a->req, err);
    else
        fuse_reply_ioctl(a->req, err, &a->arg, a->size);
    free(a);
}

static void start_request(fuse_req_t req, const struct request *r, const struct call *call,
                          const void *in, uint32_t size)
{
    struct request_job *a = malloc(sizeof(*a));

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
    memcpy(&a->arg, in, size);
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
    struct transfer *t = &tj->transfer;
    struct daemon *d = t->daemon;
    fuse_req_t req = tj->req;

    if (!t->write)
        notify_flush(d, t->inode, t->rw.file_offset, t->rw.len);
    transfer_run(t);
    /*
     * Waits for the delivery of an interrupt. Nothing refers to the transfer
     * afterwards.
     */
    fuse_req_interrupt_func(req, NULL, NULL);
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

static int check_transfer(const struct open_file *file, const struct transfer *t)
{
    int mode = file->flags & O_ACCMODE;
    const struct gpunvme_ioc_rw *rw = &t->rw;
    int err = ioctl_check_abi(&rw->abi, sizeof(*rw));

    if (err)
        return err;
    if (rw->flags & ~(GPUNVME_NO_FALLBACK | GPUNVME_STAGED))
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

static void ioctl_transfer(fuse_req_t req, unsigned cmd, const struct call *call, const void *in)
{
    struct transfer_job *job = calloc(1, sizeof(*job));
    int err = job ? 0 : -ENOMEM;

    if (err)
        goto refuse;
    *job = (struct transfer_job){.transfer = {.daemon = call->daemon,
                                              .inode = call->file->inode,
                                              .op.activity = &call->file->activity,
                                              .write = cmd == GPUNVME_IOC_WRITE,
                                              .uid = call->uid,
                                              .pid = fuse_req_ctx(req)->pid,
                                              .flags = call->file->flags},
                                 .job = {.run = run_transfer, .uid = call->uid},
                                 .req = req};
    memcpy(&job->transfer.rw, in, sizeof(job->transfer.rw));
    err = check_transfer(call->file, &job->transfer);
    if (err)
        goto refuse;
    fuse_req_interrupt_func(req, cancel_transfer, &job->transfer);
    bool is_short = !job->transfer.write && job->transfer.rw.len <= SHORT_READ;
    ioctl_run(call->daemon, call->file->inode, &job->job, is_short);
    return;
refuse:
    free(job);
    op_reply(req, err);
}

static int ioctl_shut_down(const struct call *call, fuse_ino_t ino)
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
    struct call call = {op_daemon(req), op_file(fi), fuse_req_ctx(req)->uid, req};

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
    else if (cmd == GPUNVME_IOC_READV)
        ioctl_readv(req, call.file, in);
    else
        ioctl_transfer(req, cmd, &call, in);
}
