/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements READ and WRITE of registered buffers: ranges, fallback to the
 * bounce path, and deadlines.
 */
#include "fusefs/daemon/transfer/buffer_transfer.h"

#include <errno.h>
#include <linux/xattr.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <syslog.h>
#include <time.h>

#include "blockdev/nvme/nvme_info.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/fuse_request.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/transfer/transfer_host.h"
#include "layout/format.h"
#include "support/clock.h"
#include "support/minmax.h"
#include "support/trace.h"
#include "support/wait.h"

/* --- Checks of write(2) ---------------------------------------------------------------------- */

/*
 * Applies RLIMIT_FSIZE of process pid: shortens *len, as write(2) does. Returns
 * -EFBIG if offset is not below the limit; no SIGXFSZ is sent. The limit of a
 * process that the daemon may not query does not apply: pid 0 (outside the
 * daemon's PID namespace), and other users' processes for a daemon without
 * CAP_SYS_RESOURCE.
 */
static int write_check_limit(pid_t pid, uint64_t offset, uint64_t *len)
{
    struct rlimit limit;

    if (pid == 0 || prlimit(pid, RLIMIT_FSIZE, NULL, &limit) != 0)
        return 0;
    if (limit.rlim_cur == RLIM_INFINITY || *len == 0)
        return 0;
    if (offset >= limit.rlim_cur)
        return -EFBIG;
    if (*len > limit.rlim_cur - offset)
        *len = limit.rlim_cur - offset;
    return 0;
}

/* Removes security.capability, as every write(2) does. Returns 0 or -errno. */
static int write_drop_capability(struct ffs_inode *inode)
{
    if (ffs_getxattr(inode, XATTR_NAME_CAPS, NULL, 0) == -ENODATA)
        return 0;
    int err = ffs_removexattr(inode, XATTR_NAME_CAPS);
    return err == -ENODATA ? 0 : err;
}

/* --- Repetition ------------------------------------------------------------------------------ */

/*
 * A transfer ends after this number of consecutive runs that moved nothing, so
 * that a permanent fault ends it soon.
 */
#define REPEATS 2u
/* The failed runs of a call may take this number of a command's deadlines in total. */
#define DEADLINES 2u
/* The next run begins after this time if the drive is not ready. */
#define PATIENCE_MS 10u

static bool may_succeed(const struct transfer *t, int err)
{
    unsigned left;

    switch (err) {
    case -EIO: /* without a status, controller or executor have failed for good */
        return nvme_status_retryable(t->status);
    case -ETIMEDOUT:
        return transfer_time_left(t, &left) == 0;
    case -ENODEV: /* all queues wait for recovery, perhaps beyond a deadline */
        return !t->deadline && gq_engine_recover(buffer_engine(t->use.buffer)) == 0;
    default:
        return false;
    }
}

void transfer_begin_run(struct transfer *t)
{
    t->run_ns = now_ns();
    t->status = 0;
}

/*
 * Returns true if the run that ended with err may be repeated. None of its
 * commands is then in flight, since the queue of a lost one has been recovered.
 * Returns false if a repetition does not help, or if the limit of repetitions
 * or of the time of failed runs is reached.
 */
static bool buffer_transfer_repeat(struct transfer *t, int err)
{
    uint64_t most_ns = (uint64_t)DEADLINES * t->daemon->opts->deadline_ms * NS_PER_MS;
    bool not_yet = err == -EIO && nvme_status_not_yet(t->status);

    if (nvme_status_transition(t->status))
        most_ns += (uint64_t)nvme_ctrlr_info(t->daemon->stack.ctrlr)->transition_ms * NS_PER_MS;

    if (t->stuck || t->failures >= REPEATS || t->failed_ns >= most_ns || !may_succeed(t, err))
        return false;
    if (not_yet)
        wait_ms(PATIENCE_MS);
    else
        t->failures++;
    t->failed_ns += now_ns() - t->run_ns;
    return true;
}

/* --- The GPU path ---------------------------------------------------------------------------- */

/*
 * Ends the commands that a call of the engine left in flight. Returns false if
 * they cannot be ended. A controller that has failed for good executes no
 * commands, unless it could not be stopped.
 */
static bool buffer_transfer_gpu_settle(const struct transfer *t)
{
    struct daemon *d = t->daemon;
    int err = gq_engine_recover(buffer_engine(t->use.buffer));

    if (!err || (err == -EIO && nvme_ctrlr_settled(d->stack.ctrlr)))
        return true;
    log_line(LOG_ERR, "%s: commands of the executor cannot be ended: %s", d->opts->device,
             strerror(-err));
    return false;
}

bool transfer_take_result(struct transfer *t, int err, const struct gq_result *result)
{
    t->rw.commands += result->commands;
    if (result->staged && result->bytes)
        t->rw.flags |= GPUNVME_STAGED;
    if (!t->rw.nvme_status)
        t->rw.nvme_status = result->nvme_status;
    t->status = result->nvme_status;
    if (t->status && nvme_status_taken(t->status))
        nvme_ctrlr_set_taken(t->daemon->stack.ctrlr);
    t->needs_recovery |= err == -ENODEV;
    t->stuck |= result->unsettled && !buffer_transfer_gpu_settle(t);
    return !t->stuck;
}

/*
 * Moves map->len bytes. *moved is the number of confirmed bytes. Sets *stuck if
 * commands may remain in flight for an unbounded time. `parts` may be NULL;
 * otherwise it is notified of the parts.
 */
static int buffer_transfer_gpu_move(struct transfer *t, const struct ffs_map *map,
                                    struct transfer_parts *parts, uint64_t *moved, bool *stuck)
{
    struct gq_result result = {0};
    struct gpu_extents x;
    unsigned left;
    int err = transfer_time_left(t, &left);

    if (err)
        return err;
    err = gpu_extents_make(map, t->daemon->stack.bdev->info.lba_size, t->write, &x);
    if (err)
        return err;
    struct gq_request req = {.op = t->write ? GQ_WRITE : GQ_READ,
                             .buffer = buffer_gq(t->use.buffer),
                             .buffer_offset = t->rw.buffer_offset + t->done,
                             .file_offset = t->rw.file_offset + t->done,
                             .len = map->len,
                             .extents = x.extents,
                             .n_extents = x.count,
                             .end = x.end,
                             .deadline_ms = left,
                             .cancel = (const volatile uint32_t *)&t->cancel,
                             .listener = parts ? &parts->listener : NULL};
    err = gq_transfer(buffer_engine(t->use.buffer), &req, &result);
    free(x.extents);
    *moved = result.bytes;
    *stuck = !transfer_take_result(t, err, &result);
    return err;
}

/* Names the first byte of a READ that could not be verified. */
struct lost {
    uint64_t file_offset;
    int err;
};

static void note_lost(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, int err)
{
    struct lost *l = s->ctx;

    (void)owner;
    if (l->err && l->file_offset <= file_offset)
        return;
    l->file_offset = file_offset;
    l->err = err;
}

/* Adds bytes [from, to) of the file, which lie in the range of the transfer. */
static void add_range(struct transfer_sums *s, uint64_t from, uint64_t to)
{
    const struct gpunvme_ioc_rw *rw = &s->t->rw;

    if (from < to)
        transfer_sums_add(s, 0, from, rw->buffer_offset + (from - rw->file_offset), to - from,
                          NULL);
}

/*
 * Verifies the next *moved bytes, which have been read, except those that
 * `parts` has verified. `parts` may be NULL. After an error *moved ends before
 * the first block with an error.
 */
static int buffer_transfer_gpu_verify(struct transfer *t, const struct transfer_parts *parts,
                                      uint64_t *moved)
{
    uint64_t offset = t->rw.file_offset + t->done, end = offset + *moved;
    uint64_t first = parts ? parts->first * LAY_BLOCK_SIZE : offset;
    uint64_t next = parts ? parts->next * LAY_BLOCK_SIZE : offset;
    struct lost lost = {0};

    if (next >= end && first <= offset)
        return 0;
    struct transfer_sums *s = transfer_sums_new(t);
    if (!s) {
        *moved = 0;
        return -ENOMEM;
    }
    s->lost = note_lost;
    s->ctx = &lost;
    add_range(s, offset, min_u64(first, end));
    add_range(s, next > offset ? next : offset, end);
    transfer_sums_end(s);
    transfer_sums_free(s);
    if (lost.err)
        *moved = lost.file_offset - offset;
    return lost.err;
}

static struct transfer_parts *new_parts(struct transfer *t, uint64_t len)
{
    return t->daemon->stack.data_csum && len ? transfer_parts_new(t, len) : NULL;
}

/* Moves at most len bytes at t->done. The caller adds *moved to t->done. */
static int buffer_transfer_gpu_read(struct transfer *t, uint64_t len, uint64_t *moved)
{
    struct ffs_map map;
    bool stuck = false;

    *moved = 0;
    int err = ffs_map_read(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    struct transfer_parts *parts = new_parts(t, map.len);
    if (map.len)
        err = buffer_transfer_gpu_move(t, &map, parts, moved, &stuck);
    if (stuck)
        ffs_map_abandon(&map);
    else
        ffs_map_release(&map);
    if (*moved && parts)
        transfer_parts_read(parts, *moved);
    if (*moved && t->daemon->stack.data_csum) {
        int bad = buffer_transfer_gpu_verify(t, parts, moved);
        err = bad ? bad : err;
    }
    transfer_parts_free(parts);
    return err;
}

/*
 * Ends the map with `written` bytes, which are whole blocks. Blocks without
 * checksums get them by a scrub.
 */
static int end_write(struct ffs_map *map, uint64_t written, struct transfer_parts *parts)
{
    const uint32_t *sums = parts && written ? transfer_parts_written(parts, written) : NULL;

    return ffs_map_write_end(map, written, sums);
}

/*
 * Writes by the GPU path; offset and len are multiples of the block size. Only
 * whole blocks become part of the file, since a new block contains stale data
 * after the last byte written.
 */
static int buffer_transfer_gpu_write(struct transfer *t, uint64_t len, uint64_t *moved)
{
    struct ffs_map map;
    uint64_t written = 0;
    bool stuck = false;

    *moved = 0;
    int err = ffs_map_write(t->inode, t->rw.file_offset + t->done, len, &map);
    if (err)
        return err;
    struct transfer_parts *parts = new_parts(t, len);
    err = buffer_transfer_gpu_move(t, &map, parts, &written, &stuck);
    if (stuck) {
        transfer_parts_free(parts);
        ffs_map_abandon(&map);
        return -EROFS;
    }
    written -= written % LAY_BLOCK_SIZE;
    int end = end_write(&map, written, parts);
    transfer_parts_free(parts);
    if (end)
        return end;
    *moved = written;
    return err;
}

/* --- Ranges and fallback --------------------------------------------------------------------- */

/*
 * Bytes of one run of the executor. A read pins blocks and blocks no other
 * request; a write blocks other writers and ordinary reads of the file.
 */
#define READ_CHUNK  (4ull << 30)
#define WRITE_CHUNK (256ull << 20)
/* Minimum time between two log lines about the fallback. */
#define FALLBACK_LOG_S 60

/*
 * Returns true for errors of the device or the executor that a transfer through
 * host memory may avoid.
 */
static bool may_fall_back(const struct transfer *t, int err)
{
    switch (err) {
    case -EIO:
    case -ENODEV:
    case -ENOTSUP:
    case -ENOMEM:
    case -EAGAIN:
    case -EBUSY:
        return true;
    case -ETIMEDOUT: /* without a deadline only: the executor observes deadlines */
        return t->deadline == 0;
    case -ENOSPC: /* no room for the whole chunk; ffs_write() writes a part */
        return t->write;
    default:
        return false;
    }
}

/*
 * Writes one line per FALLBACK_LOG_S, since every transfer falls back while the
 * executor is quarantined.
 */
static void log_failure(const struct transfer *t, int err, const char *remedy)
{
    struct daemon *d = t->daemon;
    int64_t last = atomic_load_explicit(&d->fallback_logged, memory_order_relaxed);
    int64_t at = now_s() + 1;

    if (last && at - last < FALLBACK_LOG_S)
        return;
    if (atomic_compare_exchange_strong(&d->fallback_logged, &last, at))
        log_line(LOG_WARNING, "%s: %s failed (%s, NVMe status 0x%x), %s", d->opts->device,
                 transfer_engine_name(t), strerror(-err), t->rw.nvme_status, remedy);
}

/*
 * Returns true if host memory must not replace a run of the executor that ended
 * with err.
 */
static bool is_for_executor(const struct transfer *t, int err)
{
    return t->no_fallback || (err == -ETIMEDOUT && t->deadline);
}

int transfer_fall_back(struct transfer *t, int err)
{
    if (is_for_executor(t, err) && buffer_transfer_repeat(t, err)) {
        log_failure(t, err, "the transfer is tried again");
        return 0;
    }
    if (!may_fall_back(t, err))
        return err;
    if (t->no_fallback)
        return err == -ENODEV || err == -ENOTSUP ? -EREMOTEIO : err;
    if (t->path == GPUNVME_PATH_GPU)
        op_fell_back(&t->op, err);
    if (err != -ENOSPC)
        log_failure(t, err,
                    t->path == GPUNVME_PATH_GPU ? "transfers take the bounce path"
                                                : "transfers take the kernel's path");
    t->gpu = false;
    return 0;
}

/* Moves one chunk by the current path, and stores its length in *wanted. */
static int move_chunk(struct transfer *t, uint64_t len, uint64_t *wanted, uint64_t *moved)
{
    unsigned left;
    int err = transfer_time_left(t, &left);

    *wanted = *moved = 0;
    if (err)
        return err;
    if (t->gpu) {
        transfer_begin_run(t);
        *wanted = min_u64(len, t->write ? WRITE_CHUNK : READ_CHUNK);
        return t->write ? buffer_transfer_gpu_write(t, *wanted, moved)
                        : buffer_transfer_gpu_read(t, *wanted, moved);
    }
    *wanted = min_u64(len, MAX_IO);
    return transfer_bounce(t, t->rw.file_offset + t->done, t->rw.buffer_offset + t->done, *wanted,
                           moved);
}

/*
 * Moves the next len bytes. Sets *ended if the file or the free space ended
 * first.
 */
static int buffer_transfer_move_range(struct transfer *t, uint64_t len, bool *ended)
{
    *ended = false;
    while (len > 0 && !*ended) {
        uint64_t wanted;
        uint64_t moved;
        if (transfer_is_cancelled(t))
            return -ECANCELED;
        bool gpu = t->gpu;
        int err = move_chunk(t, len, &wanted, &moved);
        if (moved)
            t->rw.path |= gpu ? t->path : GPUNVME_PATH_BOUNCE;
        if (gpu)
            transfer_count(t, moved);
        t->done += moved;
        len -= moved;
        t->failures = moved ? 0 : t->failures;
        if (err && gpu)
            err = transfer_fall_back(t, err);
        else if (!err && moved < wanted)
            *ended = true;
        if (err)
            return err;
    }
    return 0;
}

/*
 * Moves a partial block through host memory without changing the path of the
 * rest.
 */
static int move_part(struct transfer *t, uint64_t len, bool *ended)
{
    bool gpu = t->gpu;

    t->gpu = false;
    int err = buffer_transfer_move_range(t, len, ended);
    t->gpu = gpu;
    return err;
}

int transfer_read_range(struct transfer *t)
{
    bool ended;

    t->done = 0;
    t->failures = 0;
    return buffer_transfer_move_range(t, t->rw.len, &ended);
}

/*
 * The executor writes whole blocks. The unaligned head and tail are each less
 * than a block.
 */
static int move_write(struct transfer *t)
{
    bool ended = false;
    uint64_t head =
        min_u64((LAY_BLOCK_SIZE - t->rw.file_offset % LAY_BLOCK_SIZE) % LAY_BLOCK_SIZE, t->rw.len);
    uint64_t tail = (t->rw.len - head) % LAY_BLOCK_SIZE;
    int err = head ? move_part(t, head, &ended) : 0;

    if (!err && !ended)
        err = buffer_transfer_move_range(t, t->rw.len - head - tail, &ended);
    if (!err && !ended && tail)
        err = move_part(t, tail, &ended);
    return err;
}

static int buffer_transfer_move_all(struct transfer *t)
{
    if (t->path != GPUNVME_PATH_GPU && t->no_fallback)
        return -EREMOTEIO;
    return t->write ? move_write(t) : transfer_read_range(t);
}

/* Moves within the limit of a cache directory. */
static int move_charged(struct transfer *t)
{
    struct caches *caches = t->daemon->caches;
    struct caches_charge charge;
    int err = caches_charge_begin(caches, t->inode, t->rw.file_offset, t->rw.len, &charge);

    if (!err) {
        err = buffer_transfer_move_all(t);
        caches_charge_end(caches, t->inode, &charge);
    }
    return err;
}

static int64_t deadline_of(const struct gpunvme_ioc_rw *rw)
{
    return rw->deadline_ms ? (int64_t)(now_ms() + rw->deadline_ms) : 0;
}

/*
 * A read is short only at the end of the file. If it stops earlier, it returns
 * the error with `bytes` set, except after a signal. A partial write returns
 * success, as write(2) does, and the next call returns the error.
 */
static int final_error(const struct transfer *t, int err)
{
    if (err == -ECANCELED)
        return t->done ? 0 : -EINTR;
    return err && t->write && t->done ? 0 : err;
}

static uint64_t buffer_transfer_size_of(struct ffs_inode *inode)
{
    struct ffs_attr attr;

    ffs_getattr(inode, &attr);
    return attr.size;
}

/* Shortens rw.len to the caller's RLIMIT_FSIZE. */
static int check_write(struct transfer *t)
{
    uint64_t len = t->rw.len;
    int err = write_check_limit(t->pid, t->rw.file_offset, &len);

    t->rw.len = len;
    if (err || !len)
        return err;
    err = t->uid != 0 ? setid_clear(t->daemon, t->inode, false) : 0;
    return err ? err : write_drop_capability(t->inode);
}

static int run_with_buffer(struct transfer *t)
{
    const struct gpunvme_ioc_rw *rw = &t->rw;
    uint64_t len = buffer_length(t->use.buffer);

    if (rw->buffer_offset > len || rw->len > len - rw->buffer_offset)
        return -ERANGE;
    int err = t->write ? check_write(t) : 0;
    if (err)
        return err;
    return t->write ? move_charged(t) : buffer_transfer_move_all(t);
}

void transfer_op_begin(struct transfer *t, unsigned kind)
{
    t->op = (struct op){.totals = &t->daemon->totals,
                        .activity = t->op.activity,
                        .kind = kind,
                        .ino = ffs_ino(t->inode),
                        .offset = t->rw.file_offset,
                        .len = t->rw.len};
    op_begin(&t->op);
}

void transfer_op_end(struct transfer *t, uint64_t bytes)
{
    t->op.bytes = bytes;
    t->op.commands = t->rw.commands;
    t->op.path = t->rw.path;
    t->op.error = t->error;
    op_end(&t->op);
}

int transfer_begin(struct transfer *t)
{
    struct daemon *d = t->daemon;
    struct gpunvme_ioc_rw *rw = &t->rw;

    t->deadline = deadline_of(rw);
    rw->flags &= ~GPUNVME_STAGED;
    t->done = rw->bytes = rw->commands = rw->path = rw->nvme_status = 0;
    t->failed_ns = t->failures = 0;
    t->stuck = false;
    int err =
        buffer_use_begin(d->buffers, rw->id, rw->key, t->uid, BUFFER_DATA, &t->cancel, &t->use);
    if (err)
        return err;
    t->no_fallback = (rw->flags & GPUNVME_NO_FALLBACK) ||
                     (d->opts->gpu == GPU_REQUIRE && !buffer_bounces(t->use.buffer));
    t->gpu = buffer_gq(t->use.buffer) != NULL;
    t->path = t->gpu && !buffer_bounces(t->use.buffer) ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE;
    if (t->path == GPUNVME_PATH_BOUNCE && !t->no_fallback)
        op_fell_back(&t->op, 0);
    return 0;
}

void transfer_end(struct transfer *t)
{
    buffer_use_end(t->daemon->buffers, &t->use);
}

void transfer_run(struct transfer *t)
{
    struct gpunvme_ioc_rw *rw = &t->rw;
    char last = 0;
    uint64_t size = t->write ? buffer_transfer_size_of(t->inode) : 0, len = rw->len;

    transfer_op_begin(t, t->write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ);
    t->error = transfer_begin(t);
    if (t->error) {
        transfer_op_end(t, 0);
        return;
    }
    t->error = run_with_buffer(t);
    bool grew = t->write && t->done && rw->file_offset + t->done > size;
    if (grew && (rw->file_offset + t->done) % LAY_BLOCK_SIZE)
        buffer_get(t->use.buffer, rw->buffer_offset + t->done - 1, &last, 1);
    transfer_end(t);
    rw->len = len;
    t->error = final_error(t, t->error);
    transfer_op_end(t, t->done);
    rw->bytes = t->done;
    if (t->write && t->done)
        notify_written(t->daemon->session, t->inode, rw->file_offset, t->done, grew, last);
}

void transfer_recover(struct daemon *d)
{
    trace(TRACE_RECOVERY, TRACE_RECOVER_EXECUTOR, 0, 0, 0, 0);
    int err = d->stack.gpus ? gpus_recover(d->stack.gpus) : 0;
    int bounce = bounce_engine_recover(&d->stack.bounce);

    err = err ? err : bounce;
    trace(TRACE_RECOVERY_DONE, TRACE_RECOVER_EXECUTOR, 0, 0, 0, err);
    if (err)
        log_line(LOG_ERR, "%s: queues of the executor stay out of service: %s", d->opts->device,
                 strerror(-err));
}
