/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the requests INFO, STATS, REGISTER, BUFFER_IOVA, EXTENTS, QUEUES,
 * RESIZE and SCRUB.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "fusefs/daemon/ioctl/ioctl.h"
#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/request/kernel_cache.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/buffer_readv.h"
#include "layout/format.h"

static uint32_t ioctl_requests_executor_of(const struct stack *s)
{
    if (!s->engine)
        return GPUNVME_EXECUTOR_NONE;
    return s->engine_info.executor == GQ_EXECUTOR_CUDA ? GPUNVME_EXECUTOR_CUDA
                                                       : GPUNVME_EXECUTOR_CPU;
}

static_assert((unsigned)NVME_QUIRK_SLOW_DISABLE == GPUNVME_QUIRK_SLOW_DISABLE &&
                  (unsigned)NVME_QUIRK_NO_WRITE_ZEROES == GPUNVME_QUIRK_NO_WRITE_ZEROES &&
                  (unsigned)NVME_QUIRK_NO_NS_DESCRIPTORS == GPUNVME_QUIRK_NO_NS_DESCRIPTORS &&
                  (unsigned)NVME_QUIRK_FALSE_NS_IDS == GPUNVME_QUIRK_FALSE_NS_IDS &&
                  (unsigned)NVME_QUIRK_IGNORES_FUA == GPUNVME_QUIRK_IGNORES_FUA &&
                  (unsigned)NVME_QUIRK_SHORT_TRANSFERS == GPUNVME_QUIRK_SHORT_TRANSFERS &&
                  (unsigned)NVME_QUIRK_NO_ABORT == GPUNVME_QUIRK_NO_ABORT,
              "INFO has the driver's bits");

void ioctl_fill_info(struct daemon *d, struct gpunvme_ioc_info *info)
{
    const struct stack *s = &d->stack;
    const struct gq_info *gq = &s->engine_info;
    struct ffs_statfs fs;

    ffs_statfs(s->fs, &fs);
    *info = (struct gpunvme_ioc_info){.executor = ioctl_requests_executor_of(s),
                                      .tier = gq->tier,
                                      .lease_tier = gq->lease_tier,
                                      .queues = gq->queues,
                                      .depth = gq->depth,
                                      .lba_size = s->bdev->info.lba_size,
                                      .max_command = gq->max_command,
                                      .max_buffers = d->opts->max_buffers,
                                      .block_size = 4096,
                                      .lease_queues = leases_queues(d->leases),
                                      .writeback_cache = d->writeback_cache,
                                      .quirks = s->ctrlr ? nvme_ctrlr_info(s->ctrlr)->quirks : 0};
    const uint64_t cookie = fdsocket_cookie(d->socket);
    memcpy(info->cookie, &cookie, sizeof(info->cookie));
    memcpy(info->fs_uuid, fs.uuid, sizeof(info->fs_uuid));
    memcpy(info->gpu_uuid, gq->gpu_uuid, sizeof(info->gpu_uuid));
    snprintf(info->executor_name, sizeof(info->executor_name), "%.63s", gq->device);
    snprintf(info->fallback, sizeof(info->fallback), "%s", s->engine ? gq->fallback : s->no_engine);
    snprintf(info->transport, sizeof(info->transport), "%s",
             s->drive.transport ? s->drive.transport->ops->name : "kernel");
    snprintf(info->socket, sizeof(info->socket), "%s", fdsocket_name(d->socket));
    snprintf(info->tier_note, sizeof(info->tier_note), "%s",
             s->engine ? gq->tier_note : "no executor runs, see fallback");
    if (fs.failed)
        snprintf(info->tier_note, sizeof(info->tier_note),
                 "no writes: the drive or the file system has failed, see the daemon's log");
}

/* Subtracts the transfers of the self-test, which belong to no application. */
static void leave_out(const struct gq_stats *selftest, struct gq_stats *gq)
{
    gq->transfers -= selftest->transfers;
    gq->commands -= selftest->commands;
    gq->bytes_read -= selftest->bytes_read;
    gq->staged_read -= selftest->staged_read;
}

static void add_metadata_stats(struct ffs *fs, struct gpunvme_ioc_stats *stats)
{
    struct ffs_metadata_counts n;
    struct ffs_scrub_counts scrub;

    ffs_metadata_counts(fs, &n);
    stats->metadata_reread = n.reread;
    stats->metadata_corrected = n.corrected;
    stats->metadata_copied = n.copied;
    stats->metadata_damaged = n.damaged;
    stats->metadata_unwritten = n.unwritten;
    ffs_scrub_counts(fs, &scrub);
    stats->scrub_passes = scrub.passes;
    stats->scrub_bytes = scrub.bytes;
    stats->scrub_found = scrub.found;
    stats->scrub_corrected = scrub.corrected;
    stats->scrub_last_pass = scrub.last;
    stats->scrub_chunks = scrub.chunks;
}

/* Adds the counters of the ordinary path and of the controller. */
static void add_ctrlr_stats(struct nvme_ctrlr *c, struct gpunvme_ioc_stats *stats)
{
    struct nvme_counters n;
    struct nvme_dma_budget regions;

    nvme_ctrlr_counters(c, &n);
    nvme_dma_regions(c, &regions);
    stats->errors += n.errors;
    stats->timeouts += n.timeouts;
    stats->aborts += n.aborts;
    stats->queue_recreations += n.recreates;
    stats->controller_resets = n.resets;
    stats->dma_regions = regions.used;
    stats->dma_region_limit = regions.limit;
}

void ioctl_fill_stats(struct daemon *d, struct gpunvme_ioc_stats *stats)
{
    struct gq_stats gq = {0};

    if (d->stack.engine) {
        gq_engine_stats(d->stack.engine, &gq);
        leave_out(&d->stack.selftest_stats, &gq);
    }
    *stats = (struct gpunvme_ioc_stats){.gpu_transfers = gq.transfers,
                                        .gpu_commands = gq.commands,
                                        .gpu_read_bytes = gq.bytes_read,
                                        .gpu_written_bytes = gq.bytes_written,
                                        .errors = gq.errors,
                                        .timeouts = gq.timeouts,
                                        .cancelled = gq.cancelled,
                                        .buffers = buffers_count(d->buffers),
                                        .quarantined_queues = gq.quarantined,
                                        .aborts = gq.aborts,
                                        .queue_recreations = gq.recreates,
                                        .gpu_staged_read_bytes = gq.staged_read,
                                        .gpu_staged_written_bytes = gq.staged_written,
                                        .leased_commands = leases_commands(d->leases)};
    op_totals_fill(&d->totals, stats);
    shared_calls_sum(d, &stats->calls);
    add_metadata_stats(d->stack.fs, stats);
    if (d->stack.ctrlr)
        add_ctrlr_stats(d->stack.ctrlr, stats);
}

/*
 * Seals the memory against shrinking: a fault beyond its end would raise SIGBUS
 * in the daemon and end the mount. The seal is permitted for memory from
 * memfd_create() with MFD_ALLOW_SEALING.
 */
static int hold_memory(int fd, uint64_t offset, uint64_t len)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (!(seals & F_SEAL_SHRINK) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0))
        return -EPERM;
    if (fstat(fd, &st) != 0)
        return -errno;
    return offset + len <= (uint64_t)st.st_size ? 0 : -ERANGE;
}

typedef int (*add_fn)(struct buffers *t, const struct gq_mem *mem, uid_t uid, const void *owner,
                      uint64_t *id, uint64_t *key);

static int register_fd(struct daemon *d, struct open_file *file, uid_t uid, add_fn add,
                       struct gpunvme_ioc_register *reg)
{
    struct gq_mem mem = {.kind = GQ_MEM_FD,
                         .offset = reg->offset,
                         .len = reg->len,
                         .is_host = reg->flags & GPUNVME_REGISTER_HOST,
                         .for_lease = reg->flags & GPUNVME_REGISTER_STAGING};
    int err = fdsocket_take(d->socket, reg->token, uid, &mem.fd);

    if (err)
        return err;
    err = hold_memory(mem.fd, reg->offset, reg->len);
    if (!err)
        err = add(d->buffers, &mem, uid, file, &reg->id, &reg->key);
    close(mem.fd);
    return err;
}

static int register_ipc(struct daemon *d, struct open_file *file, uid_t uid,
                        struct gpunvme_ioc_register *reg)
{
    struct gq_mem mem = {.kind = GQ_MEM_CUDA_IPC, .fd = -1, .offset = reg->offset, .len = reg->len};
    static_assert(sizeof(mem.ipc) == sizeof(reg->ipc), "IPC handle");
    int err = reg->token ? fdsocket_take(d->socket, reg->token, uid, &mem.fd) : 0;

    if (err)
        return err;
    memcpy(mem.ipc, reg->ipc, sizeof(mem.ipc));
    err = buffers_add(d->buffers, &mem, uid, file, &reg->id, &reg->key);
    if (mem.fd >= 0)
        close(mem.fd);
    return err;
}

/* The executor refuses handles of devices that the mount does not name. */
static int register_device(struct daemon *d, struct open_file *file, uid_t uid,
                           struct gpunvme_ioc_register *reg)
{
    struct gq_mem mem = {.kind = GQ_MEM_DEVICE, .offset = reg->offset, .len = reg->len};
    int err = fdsocket_take(d->socket, reg->token, uid, &mem.fd);

    if (err)
        return err;
    err = buffers_add(d->buffers, &mem, uid, file, &reg->id, &reg->key);
    close(mem.fd);
    return err;
}

/*
 * Warns once per mount, since the application cannot see why its transfers are
 * slower.
 */
static void warn_if_full(struct daemon *d)
{
    struct nvme_dma_budget regions = {0};

    if (d->stack.ctrlr)
        nvme_dma_regions(d->stack.ctrlr, &regions);
    if (regions.full && !atomic_exchange(&d->warned_full, true))
        log_line(LOG_WARNING,
                 "%s: %u of %u DMA regions are in use, data of further buffers is staged: "
                 "register fewer and larger ones",
                 d->opts->device, regions.used, regions.limit);
}

static int ioctl_requests_register_memory(struct daemon *d, struct open_file *file, uid_t uid,
                                          struct gpunvme_ioc_register *reg)
{
    const uint32_t of_host = GPUNVME_REGISTER_HOST | GPUNVME_REGISTER_STAGING;
    bool list = reg->flags == GPUNVME_REGISTER_LIST;

    if ((!list && reg->flags & ~of_host) || reg->len == 0)
        return -EINVAL;
    if (reg->flags && reg->kind != GPUNVME_MEM_FD)
        return -EINVAL;
    if (list && reg->offset % _Alignof(struct gpunvme_piece))
        return -EINVAL;
    if (reg->len > INT64_MAX || reg->offset > INT64_MAX - reg->len)
        return -EOVERFLOW;
    if (list)
        return register_fd(d, file, uid, buffers_add_list, reg);
    switch (reg->kind) {
    case GPUNVME_MEM_FD:
        return register_fd(d, file, uid, buffers_add, reg);
    case GPUNVME_MEM_CUDA_IPC:
        return ioctl_requests_executor_of(&d->stack) == GPUNVME_EXECUTOR_CUDA
                   ? register_ipc(d, file, uid, reg)
                   : -EOPNOTSUPP;
    case GPUNVME_MEM_DEVICE:
        return register_device(d, file, uid, reg);
    default:
        return -EINVAL;
    }
}

int ioctl_register(struct daemon *d, struct open_file *file, uid_t uid,
                   struct gpunvme_ioc_register *reg)
{
    int err = ioctl_requests_register_memory(d, file, uid, reg);

    if (!err)
        warn_if_full(d);
    return err;
}

/*
 * The use keeps the buffer registered during the query. No transfer runs, so
 * cancel has no effect.
 */
int ioctl_buffer_iova(struct daemon *d, uid_t uid, struct gpunvme_ioc_buffer_iova *arg)
{
    _Atomic uint32_t cancel = 0;
    struct gq_buffer_iova iova;
    struct buffer_use use;
    int err = buffer_use_begin(d->buffers, arg->id, arg->key, uid, BUFFER_DATA, &cancel, &use);

    if (err)
        return err;
    struct gq_buffer *gq = buffer_gq(use.buffer);
    err = gq ? gq_buffer_iova(gq, &iova) : -ENOTSUP;
    buffer_use_end(d->buffers, &use);
    if (err)
        return err;
    arg->iova = iova.iova;
    arg->prps_iova = iova.prps;
    arg->pages = iova.pages;
    arg->head = iova.head;
    return 0;
}

/*
 * Collects allocated extents from out->file_offset on. Sets *more if out->max
 * was reached before the last extent.
 */
static int ioctl_requests_collect(struct ffs_inode *inode, struct gpunvme_ioc_extents *out,
                                  bool *more)
{
    struct ffs_segment batch[64];
    uint64_t offset = out->file_offset;

    *more = false;
    for (;;) {
        ssize_t n = ffs_extents(inode, offset, batch, sizeof(batch) / sizeof(batch[0]));
        if (n <= 0)
            return (int)n;
        for (ssize_t i = 0; i < n; i++) {
            const struct ffs_segment *s = &batch[i];
            offset = s->offset + s->len;
            if (s->device == FFS_HOLE)
                continue;
            *more = out->count == out->max;
            if (*more)
                return 0;
            out->extents[out->count++] =
                (struct gpunvme_extent){.file_offset = s->offset,
                                        .len = s->len,
                                        .device = s->device,
                                        .flags = s->unwritten ? GPUNVME_EXTENT_UNWRITTEN : 0};
        }
    }
}

int ioctl_extents(struct ffs_inode *inode, struct gpunvme_ioc_extents *out)
{
    bool more;

    if (out->max == 0 || out->max > GPUNVME_EXTENTS_MAX)
        return -EINVAL;
    if (out->file_offset > INT64_MAX)
        return -EOVERFLOW;
    out->count = 0;
    memset(out->extents, 0, sizeof(out->extents));
    int err = ioctl_requests_collect(inode, out, &more);
    if (!err && !more && out->count)
        out->extents[out->count - 1].flags |= GPUNVME_EXTENT_LAST;
    return err;
}

static int check_scrub(const struct open_file *file, const struct gpunvme_ioc_scrub *arg)
{
    int mode = file->flags & O_ACCMODE;

    if ((arg->flags & ~(GPUNVME_SCRUB_ADD | GPUNVME_SCRUB_CORRECT)) || arg->offset % 4096 ||
        arg->end > INT64_MAX || arg->offset > arg->end)
        return -EINVAL;
    if (file->directory)
        return -EISDIR;
    return mode == O_WRONLY || (arg->flags && mode != O_RDWR) ? -EBADF : 0;
}

static uint32_t scrub_problem(const struct ffs_scrub_block *b)
{
    if (b->copied)
        return GPUNVME_SCRUB_COPIED;
    if (b->corrected)
        return GPUNVME_SCRUB_CORRECTED;
    return b->unreadable ? GPUNVME_SCRUB_UNREADABLE : GPUNVME_SCRUB_DIFFERS;
}

static_assert(FFS_SCRUB_BAD == GPUNVME_SCRUB_BLOCKS_MAX, "as many as one call finds");

static void scrub_reply(const struct ffs_scrub *found, struct gpunvme_ioc_scrub *arg)
{
    arg->offset = found->next;
    arg->matching = found->matching;
    arg->added = found->added;
    arg->without = found->without;
    arg->count = (uint32_t)found->nbad;
    memset(arg->blocks, 0, sizeof(arg->blocks));
    for (size_t i = 0; i < found->nbad; i++)
        arg->blocks[i] = (struct gpunvme_scrub_block){.file_offset = found->bad[i].offset,
                                                      .device = found->bad[i].device,
                                                      .problem = scrub_problem(&found->bad[i])};
}

int ioctl_scrub(const struct open_file *file, struct gpunvme_ioc_scrub *arg)
{
    struct ffs_scrub found;
    int err = check_scrub(file, arg);

    static_assert(FFS_SCRUB_ADD == GPUNVME_SCRUB_ADD && FFS_SCRUB_CORRECT == GPUNVME_SCRUB_CORRECT,
                  "flags are passed on");
    if (!err)
        err = ffs_scrub(file->inode, arg->offset, arg->end, arg->flags, &found);
    if (!err)
        scrub_reply(&found, arg);
    return err;
}

int ioctl_scrub_metadata(struct daemon *d, uid_t uid, struct gpunvme_ioc_scrub *arg)
{
    struct ffs_scrub found;

    if (uid != 0 && uid != geteuid())
        return -EPERM;
    int err = arg->end == 0 ? ffs_scrub_metadata(d->stack.fs, arg->offset, &found) : -EINVAL;
    if (!err)
        scrub_reply(&found, arg);
    return err;
}

/* A larger device may show the signature of another user at its end. */
static int ioctl_requests_check_ours(struct daemon *d)
{
    char why[384];
    int err = ffs_ours(d->stack.bdev, false, why, sizeof(why));

    if (err)
        log_line(LOG_ERR, "%s: not resized: %s", d->opts->device, why);
    return err == -EINVAL ? -EEXIST : err;
}

int ioctl_resize(struct daemon *d, struct gpunvme_ioc_resize *arg)
{
    struct stack *s = &d->stack;
    struct ffs_statfs now;
    int err = arg->flags != 0 ? -EINVAL : 0;

    /*
     * This check comes first: until the drive notices its new size, the caller
     * can still truncate an extended image file again.
     */
    if (!err && arg->bytes)
        err = ffs_grow_check(s->fs, arg->bytes / LAY_BLOCK_SIZE);
    if (!err)
        err = bd_refresh(s->bdev);
    if (!err)
        err = ioctl_requests_check_ours(d);
    arg->device = bd_bytes(s->bdev);
    if (err)
        return err;
    if (s->engine)
        gq_engine_grown(s->engine, arg->device);
    err = ffs_grow(s->fs, (arg->bytes ? arg->bytes : arg->device) / LAY_BLOCK_SIZE);
    ffs_statfs(s->fs, &now);
    if (!err)
        log_line(LOG_NOTICE, "%s: the file system has %llu bytes now", d->opts->device,
                 (unsigned long long)now.blocks * LAY_BLOCK_SIZE);
    arg->bytes = now.blocks * LAY_BLOCK_SIZE;
    return err;
}

int ioctl_check_abi(const struct gpunvme_abi *abi, uint32_t size)
{
    if (abi->version != GPUNVME_ABI_VERSION)
        return -EPROTO;
    return abi->size == size ? 0 : -EINVAL;
}

int ioctl_queues(struct daemon *d, uid_t uid, struct gpunvme_ioc_queues *arg)
{
    struct gq_queue_stats own[GQ_MAX_QUEUES];
    unsigned n = d->stack.engine ? gq_engine_queues(d->stack.engine, own, GQ_MAX_QUEUES) : 0;

    if (arg->reserved)
        return -EINVAL;
    static_assert(2 * GQ_MAX_QUEUES <= GPUNVME_QUEUES_MAX,
                  "those of the executor, and leased ones");
    *arg = (struct gpunvme_ioc_queues){.abi = arg->abi};
    for (unsigned i = 0; i < n; i++)
        arg->queues[arg->count++] = (struct gpunvme_queue){
            .qid = own[i].qid,
            .use = own[i].in_service ? GPUNVME_QUEUE_EXECUTOR : GPUNVME_QUEUE_OUT_OF_SERVICE,
            .commands = own[i].commands};
    arg->count += leases_list(d->leases, &arg->queues[arg->count], GPUNVME_QUEUES_MAX - arg->count);
    for (unsigned i = n; i < arg->count; i++) {
        if (!activity_visible(uid, arg->queues[i].uid))
            arg->queues[i].uid = arg->queues[i].pid = 0;
    }
    return 0;
}

/* --- Threads of transfers -------------------------------------------------------------------- */

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
 * A transfer that must first write dirty pages back does not run in a session
 * thread, because the write-back needs session threads.
 */
static bool begin_here(struct daemon *d, struct ffs_inode *inode, bool is_short)
{
    if (kernel_cache_is_newer(d, inode))
        return false;
    /* Relaxed: the counter limits threads and orders no memory. */
    if (atomic_fetch_add_explicit(&d->inline_jobs, 1, memory_order_relaxed) <
        (is_short ? MOST_SHORT : MOST_LONG))
        return true;
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
    return false;
}

void ioctl_run(struct daemon *d, struct ffs_inode *inode, struct job *job, bool is_short)
{
    if (!begin_here(d, inode, is_short)) {
        workers_add(d->workers, WORK_TRANSFER, job);
        return;
    }
    job->run(job);
    atomic_fetch_sub_explicit(&d->inline_jobs, 1, memory_order_relaxed);
}

/* --- READV ----------------------------------------------------------------------------------- */

struct readv_job {
    struct job job;
    fuse_req_t req;
    struct readv readv;
};

static void cancel(fuse_req_t req, void *data)
{
    struct readv *r = data;

    (void)req;
    atomic_store_explicit(&r->t.cancel, 1, memory_order_relaxed);
}

/*
 * The reply carries the struct even with an error, since it has the bytes read.
 */
static void ioctl_readv_run(struct job *job)
{
    struct readv_job *rj = (struct readv_job *)job;
    struct readv *r = &rj->readv;
    struct daemon *d = r->t.daemon;

    notify_flush(d, r->t.inode, 0, 0);
    readv_run(r);
    /*
     * Waits for the delivery of an interrupt. Nothing refers to the batch
     * afterwards.
     */
    fuse_req_interrupt_func(rj->req, NULL, NULL);
    fuse_reply_ioctl(rj->req, r->t.error, &r->v, sizeof(r->v));
    if (r->t.needs_recovery)
        transfer_recover(d);
    free(rj);
}

static int ioctl_readv_check(const struct open_file *file, const struct gpunvme_ioc_readv *v)
{
    int err = ioctl_check_abi(&v->abi, sizeof(*v));

    if (err)
        return err;
    if (v->flags & ~(GPUNVME_NO_FALLBACK | GPUNVME_STAGED))
        return -EINVAL;
    if (file->directory)
        return -EISDIR;
    return (file->flags & O_ACCMODE) == O_WRONLY ? -EBADF : 0;
}

void ioctl_readv(struct fuse_req *req, struct open_file *file, const void *in)
{
    struct readv_job *job = calloc(1, sizeof(*job));
    int err = job ? 0 : -ENOMEM;

    if (!err) {
        memcpy(&job->readv.v, in, sizeof(job->readv.v));
        err = ioctl_readv_check(file, &job->readv.v);
    }
    if (err) {
        free(job);
        op_reply(req, err);
        return;
    }
    job->job.run = ioctl_readv_run;
    job->job.uid = fuse_req_ctx(req)->uid;
    job->req = req;
    job->readv.t.daemon = op_daemon(req);
    job->readv.t.inode = file->inode;
    job->readv.t.op.activity = &file->activity;
    job->readv.t.uid = fuse_req_ctx(req)->uid;
    fuse_req_interrupt_func(req, cancel, &job->readv);
    ioctl_run(op_daemon(req), file->inode, &job->job, false);
}
