/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the requests INFO, GPUS, STATS, REGISTER, BUFFER_IOVA, EXTENTS, QUEUES,
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
#include "fusefs/daemon/state/buffers.h"
#include "fusefs/daemon/state/daemon.h"
#include "layout/format.h"

static uint32_t ioctl_requests_executor_of(const struct stack *s)
{
    if (!s->gpus)
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

int ioctl_info(const struct ioctl_call *call, void *arg)
{
    struct gpunvme_ioc_info *info = arg;
    struct daemon *d = call->daemon;
    const struct stack *s = &d->stack;
    const struct gq_info *gq = &s->engine_info;
    struct ffs_statfs fs;

    ffs_statfs(s->fs, &fs);
    *info = (struct gpunvme_ioc_info){.abi = info->abi,
                                      .executor = ioctl_requests_executor_of(s),
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
                                      .direct = leases_allow(d->opts, call->req) == 0,
                                      .quirks = s->ctrlr ? nvme_ctrlr_info(s->ctrlr)->quirks : 0};
    const uint64_t cookie = fdsocket_cookie(d->socket);
    memcpy(info->cookie, &cookie, sizeof(info->cookie));
    memcpy(info->fs_uuid, fs.uuid, sizeof(info->fs_uuid));
    memcpy(info->gpu_uuid, gq->gpu_uuid, sizeof(info->gpu_uuid));
    snprintf(info->executor_name, sizeof(info->executor_name), "%.63s", gq->device);
    snprintf(info->fallback, sizeof(info->fallback), "%.127s",
             s->gpus ? gq->fallback.text : s->no_engine.text);
    snprintf(info->transport, sizeof(info->transport), "%s",
             s->drive.transport ? s->drive.transport->ops->name : "kernel");
    snprintf(info->socket, sizeof(info->socket), "%s", fdsocket_name(d->socket));
    snprintf(info->tier_note, sizeof(info->tier_note), "%s",
             s->gpus ? gq->tier_note : "no executor runs, see fallback");
    if (fs.failed)
        snprintf(info->tier_note, sizeof(info->tier_note),
                 "no writes: the drive or the file system has failed, see the daemon's log");
    return 0;
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

/* Adds the counters of the bounce path's engine. */
static void add_bounce_stats(const struct bounce_engine *b, struct gpunvme_ioc_stats *stats)
{
    struct gq_engine *engine = bounce_engine_opened(b);
    struct gq_stats gq;

    if (!engine)
        return;
    gq_engine_stats(engine, &gq);
    stats->errors += gq.errors;
    stats->timeouts += gq.timeouts;
    stats->cancelled += gq.cancelled;
    stats->quarantined_queues += gq.quarantined;
    stats->aborts += gq.aborts;
    stats->queue_recreations += gq.recreates;
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

    if (d->stack.gpus)
        gpus_stats(d->stack.gpus, &gq);
    *stats = (struct gpunvme_ioc_stats){.abi = stats->abi,
                                        .gpu_transfers = gq.transfers,
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
    add_bounce_stats(&d->stack.bounce, stats);
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

static int register_buffer(const struct ioctl_call *call, struct gq_mem *mem,
                           struct gpunvme_ioc_register *reg)
{
    return buffers_add(call->daemon->buffers, mem,
                       reg->flags & GPUNVME_REGISTER_BOUNCE ? NULL : reg->gpu_uuid, call->uid,
                       call->file, &reg->id, &reg->key);
}

static int ioctl_requests_segments(const struct ioctl_call *call, struct gq_mem *mem,
                                   struct gpunvme_ioc_register *reg)
{
    struct gq_segment segments[GQ_SEGMENTS];
    struct fd_message fds;
    int err = fdsocket_take_all(call->daemon->socket, reg->token, call->uid, &fds);

    if (err)
        return err;
    int n = fdsocket_segments(&fds, segments);
    if (n >= 0) {
        mem->segments = segments;
        mem->n_segments = (unsigned)n;
    }
    err = n < 0 ? n : register_buffer(call, mem, reg);
    fd_message_close(&fds);
    return err;
}

/* A handle of CUDA may come without a descriptor. */
static int register_at(const struct ioctl_call *call, struct gq_mem *mem,
                       struct gpunvme_ioc_register *reg)
{
    struct daemon *d = call->daemon;
    bool has_fd = reg->token || mem->kind != GQ_MEM_CUDA_IPC;
    int err = has_fd ? fdsocket_take(d->socket, reg->token, call->uid, &mem->fd) : 0;

    if (err)
        return err;
    if (mem->kind == GQ_MEM_FD)
        err = hold_memory(mem->fd, reg->offset, reg->len);
    if (!err)
        err = register_buffer(call, mem, reg);
    if (has_fd)
        close(mem->fd);
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
                 "%s: %u of %u DMA regions are in use, %s: register fewer and larger ones",
                 d->opts->device, regions.used, regions.limit,
                 d->opts->p2p == P2P_REQUIRE ? "further buffers are refused or staged"
                                             : "data of further buffers is staged");
}

static int ioctl_requests_check_register(const struct gpunvme_ioc_register *reg, bool list)
{
    const uint32_t of_host =
        GPUNVME_REGISTER_HOST | GPUNVME_REGISTER_STAGING | GPUNVME_REGISTER_BOUNCE;

    if ((!list && reg->flags & ~of_host) || reg->len == 0)
        return -EINVAL;
    if (reg->flags && reg->kind != GPUNVME_MEM_FD)
        return -EINVAL;
    if (list && reg->offset % _Alignof(struct gpunvme_piece))
        return -EINVAL;
    return reg->len > INT64_MAX || reg->offset > INT64_MAX - reg->len ? -EOVERFLOW : 0;
}

/* The executor refuses handles of devices that the mount does not name. */
static int ioctl_requests_register_memory(const struct ioctl_call *call,
                                          struct gpunvme_ioc_register *reg)
{
    struct gq_mem mem = {.fd = -1,
                         .offset = reg->offset,
                         .len = reg->len,
                         .is_host = reg->flags & GPUNVME_REGISTER_HOST,
                         .for_lease = reg->flags & GPUNVME_REGISTER_STAGING,
                         .is_list =
                             (reg->flags & ~GPUNVME_REGISTER_BOUNCE) == GPUNVME_REGISTER_LIST};
    int err = ioctl_requests_check_register(reg, mem.is_list);

    if (err)
        return err;
    static_assert(sizeof(mem.ipc) == sizeof(reg->ipc), "IPC handle");
    switch (reg->kind) {
    case GPUNVME_MEM_FD:
        mem.kind = GQ_MEM_FD;
        break;
    case GPUNVME_MEM_CUDA_IPC:
        if (ioctl_requests_executor_of(&call->daemon->stack) != GPUNVME_EXECUTOR_CUDA)
            return -EOPNOTSUPP;
        mem.kind = GQ_MEM_CUDA_IPC;
        memcpy(mem.ipc, reg->ipc, sizeof(mem.ipc));
        break;
    case GPUNVME_MEM_DEVICE:
        mem.kind = GQ_MEM_DEVICE;
        break;
    case GPUNVME_MEM_SEGMENTS:
        mem.kind = GQ_MEM_SEGMENTS;
        return ioctl_requests_segments(call, &mem, reg);
    default:
        return -EINVAL;
    }
    return register_at(call, &mem, reg);
}

int ioctl_register(const struct ioctl_call *call, void *arg)
{
    const struct gpunvme_ioc_register *reg = arg;
    bool for_lease = reg->flags & GPUNVME_REGISTER_STAGING;
    int err = for_lease ? leases_allow(call->daemon->opts, call->req) : 0;

    if (!err)
        err = ioctl_requests_register_memory(call, arg);
    if (!err)
        warn_if_full(call->daemon);
    return err;
}

int ioctl_unregister(const struct ioctl_call *call, void *arg)
{
    const struct gpunvme_ioc_unregister *u = arg;

    return buffers_remove(call->daemon->buffers, u->id, u->key, call->uid);
}

/*
 * The use keeps the buffer registered during the query. No transfer runs, so
 * cancel has no effect.
 */
int ioctl_buffer_iova(const struct ioctl_call *call, void *argument)
{
    struct gpunvme_ioc_buffer_iova *arg = argument;
    struct buffers *buffers = call->daemon->buffers;
    _Atomic uint32_t cancel = 0;
    struct gq_buffer_iova iova;
    struct buffer_use use;
    int err = buffer_use_begin(buffers, arg->id, arg->key, call->uid, BUFFER_DATA, &cancel, &use);

    if (err)
        return err;
    err = buffer_bounces(use.buffer) ? -ENOTSUP : gq_buffer_iova(buffer_gq(use.buffer), &iova);
    buffer_use_end(buffers, &use);
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

int ioctl_extents(const struct ioctl_call *call, void *arg)
{
    struct gpunvme_ioc_extents *out = arg;
    bool more;

    if (call->file->directory)
        return -EISDIR;
    notify_flush(call->daemon, call->file->inode, 0, 0);
    if (out->max == 0 || out->max > GPUNVME_EXTENTS_MAX)
        return -EINVAL;
    if (out->file_offset > INT64_MAX)
        return -EOVERFLOW;
    out->count = 0;
    memset(out->extents, 0, sizeof(out->extents));
    int err = ioctl_requests_collect(call->file->inode, out, &more);
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

static int ioctl_scrub_file(const struct ioctl_call *call, const struct gpunvme_ioc_scrub *arg,
                            struct ffs_scrub *found)
{
    int err = check_scrub(call->file, arg);

    static_assert(FFS_SCRUB_ADD == GPUNVME_SCRUB_ADD && FFS_SCRUB_CORRECT == GPUNVME_SCRUB_CORRECT,
                  "flags are passed on");
    if (err)
        return err;
    notify_flush(call->daemon, call->file->inode, 0, 0);
    return ffs_scrub(call->file->inode, arg->offset, arg->end, arg->flags, found);
}

/* Called for root and the user of the daemon. */
static int ioctl_scrub_metadata(const struct ioctl_call *call, const struct gpunvme_ioc_scrub *arg,
                                struct ffs_scrub *found)
{
    if (call->uid != 0 && call->uid != geteuid())
        return -EPERM;
    return arg->end == 0 ? ffs_scrub_metadata(call->daemon->stack.fs, arg->offset, found) : -EINVAL;
}

int ioctl_scrub(const struct ioctl_call *call, void *argument)
{
    struct gpunvme_ioc_scrub *arg = argument;
    struct ffs_scrub found;
    int err = arg->flags == GPUNVME_SCRUB_METADATA ? ioctl_scrub_metadata(call, arg, &found)
                                                   : ioctl_scrub_file(call, arg, &found);

    if (!err)
        scrub_reply(&found, arg);
    return err;
}

/* A larger device may show the signature of another user at its end. */
static int ioctl_requests_check_ours(struct daemon *d)
{
    struct reason why;
    int err = ffs_ours(d->stack.bdev, false, &why);

    if (err)
        log_line(LOG_ERR, "%s: not resized: %s", d->opts->device, why.text);
    return err == -EINVAL ? -EEXIST : err;
}

int ioctl_resize(const struct ioctl_call *call, void *argument)
{
    struct gpunvme_ioc_resize *arg = argument;
    struct daemon *d = call->daemon;
    struct stack *s = &d->stack;
    struct ffs_statfs now;
    int err = arg->flags != 0 ? -EINVAL : 0;

    if (!caller_is_admin(call->req))
        return -EPERM;
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
    if (s->gpus)
        gpus_grown(s->gpus, arg->device);
    bounce_engine_grown(&s->bounce, arg->device);
    err = ffs_grow(s->fs, (arg->bytes ? arg->bytes : arg->device) / LAY_BLOCK_SIZE);
    ffs_statfs(s->fs, &now);
    if (!err)
        log_line(LOG_NOTICE, "%s: the file system has %llu bytes now", d->opts->device,
                 (unsigned long long)now.blocks * LAY_BLOCK_SIZE);
    arg->bytes = now.blocks * LAY_BLOCK_SIZE;
    return err;
}

static_assert((int)PCI_DISTANCE_SWITCH == GPUNVME_DISTANCE_SWITCH &&
                  (int)PCI_DISTANCE_ROOT == GPUNVME_DISTANCE_ROOT &&
                  (int)PCI_DISTANCE_FAR == GPUNVME_DISTANCE_FAR,
              "as in the ioctl");

static struct gpunvme_gpu gpu_entry(const struct gpu_status *s)
{
    struct gpunvme_gpu gpu = {.state = s->lost   ? GPUNVME_GPU_LOST
                                       : s->open ? GPUNVME_GPU_OPEN
                                                 : GPUNVME_GPU_CLOSED,
                              .tier = s->info.tier,
                              .lease_tier = s->info.lease_tier,
                              .queues = s->open ? s->info.queues : 0,
                              .buffers = s->stats.buffers,
                              .numa_node = (int16_t)s->place.numa_node,
                              .distance = (uint8_t)s->place.distance,
                              .transfers = s->stats.transfers,
                              .commands = s->stats.commands,
                              .read_bytes = s->stats.bytes_read,
                              .written_bytes = s->stats.bytes_written,
                              .staged_read_bytes = s->stats.staged_read,
                              .staged_written_bytes = s->stats.staged_written,
                              .errors = s->stats.errors,
                              .timeouts = s->stats.timeouts};

    memcpy(gpu.uuid, s->uuid, sizeof(gpu.uuid));
    snprintf(gpu.name, sizeof(gpu.name), "%s", s->name);
    return gpu;
}

void ioctl_fill_gpus(struct daemon *d, struct gpunvme_ioc_gpus *out)
{
    static_assert(GPUS_MAX <= GPUNVME_GPUS_MAX, "GPUS has room for all");
    unsigned n = d->stack.gpus ? gpus_count(d->stack.gpus) : 0;

    *out = (struct gpunvme_ioc_gpus){.abi = out->abi, .count = n};
    for (unsigned i = 0; i < n; i++) {
        struct gpu_status status;

        gpus_status(d->stack.gpus, i, &status);
        out->gpus[i] = gpu_entry(&status);
    }
}

int ioctl_gpus(const struct ioctl_call *call, void *arg)
{
    struct gpunvme_ioc_gpus *out = arg;

    if (out->reserved)
        return -EINVAL;
    ioctl_fill_gpus(call->daemon, out);
    return 0;
}

/* The reply has room for as many leased queues as there may be. */
#define MOST_OF_EXECUTORS (GPUNVME_QUEUES_MAX - GQ_MAX_QUEUES)

/* Stores the queues of all engines. */
static unsigned own_queues(const struct stack *s, struct gq_queue_stats *out)
{
    struct gq_engine *bounce = bounce_engine_opened(&s->bounce);
    unsigned n = s->gpus ? gpus_queues(s->gpus, out, MOST_OF_EXECUTORS) : 0;

    if (bounce)
        n += gq_engine_queues(bounce, out + n, MOST_OF_EXECUTORS - n);
    return n;
}

int ioctl_queues(const struct ioctl_call *call, void *argument)
{
    struct gpunvme_ioc_queues *arg = argument;
    struct daemon *d = call->daemon;
    struct gq_queue_stats own[MOST_OF_EXECUTORS];
    unsigned n = own_queues(&d->stack, own);

    if (arg->reserved)
        return -EINVAL;
    *arg = (struct gpunvme_ioc_queues){.abi = arg->abi};
    for (unsigned i = 0; i < n; i++)
        arg->queues[arg->count++] = (struct gpunvme_queue){
            .qid = own[i].qid,
            .use = own[i].in_service ? GPUNVME_QUEUE_EXECUTOR : GPUNVME_QUEUE_OUT_OF_SERVICE,
            .commands = own[i].commands};
    arg->count += leases_list(d->leases, &arg->queues[arg->count], GPUNVME_QUEUES_MAX - arg->count);
    for (unsigned i = n; i < arg->count; i++) {
        if (!activity_visible(call->uid, arg->queues[i].uid))
            arg->queues[i].uid = arg->queues[i].pid = 0;
    }
    return 0;
}
