/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * READ and WRITE of registered buffers: ranges, fallback to the bounce path,
 * and deadlines.
 */
#include "fusefs/daemon/transfer/buffer_transfer.h"

#include <errno.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/caches/caches.h"
#include "fusefs/daemon/request/fuse_notify.h"
#include "fusefs/daemon/request/setid.h"
#include "fusefs/daemon/transfer/write_checks.h"
#include "layout/format.h"
#include "support/clock.h"
#include "support/minmax.h"
#include "support/trace.h"

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
        log_line(LOG_WARNING, "%s: the GPU path failed (%s, NVMe status 0x%x), %s", d->opts->device,
                 strerror(-err), t->rw.nvme_status, remedy);
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
    if (is_for_executor(t, err) && transfer_repeat(t, err)) {
        log_failure(t, err, "the transfer is tried again");
        return 0;
    }
    if (!may_fall_back(t, err))
        return err;
    if (t->no_fallback)
        return err == -ENODEV || err == -ENOTSUP ? -EREMOTEIO : err;
    op_fell_back(&t->op, err);
    if (err != -ENOSPC)
        log_failure(t, err, "transfers take the bounce path");
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
        return t->write ? transfer_gpu_write(t, *wanted, moved)
                        : transfer_gpu_read(t, *wanted, moved);
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
            t->rw.path |= gpu ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE;
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

int transfer_read(struct transfer *t)
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
    if (!t->gpu && t->no_fallback)
        return -EREMOTEIO;
    return t->write ? move_write(t) : transfer_read(t);
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
    uint64_t len = buffer_len(t->use.buffer);

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

    t->no_fallback = (rw->flags & GPUNVME_NO_FALLBACK) || d->opts->gpu == GPU_REQUIRE;
    t->deadline = deadline_of(rw);
    rw->flags &= ~GPUNVME_STAGED;
    t->done = rw->bytes = rw->commands = rw->path = rw->nvme_status = 0;
    t->failed_ns = t->failures = 0;
    t->stuck = false;
    int err =
        buffer_use_begin(d->buffers, rw->id, rw->key, t->uid, BUFFER_DATA, &t->cancel, &t->use);
    if (!err)
        t->gpu = buffer_gq(t->use.buffer) != NULL;
    if (!err && !t->gpu && !t->no_fallback)
        op_fell_back(&t->op, 0);
    return err;
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
    if (pthread_mutex_trylock(&d->recovery) != 0)
        return;
    trace(TRACE_RECOVERY, TRACE_RECOVER_EXECUTOR, 0, 0, 0, 0);
    int err = gq_engine_recover(d->stack.engine);
    trace(TRACE_RECOVERY_DONE, TRACE_RECOVER_EXECUTOR, 0, 0, 0, err);
    pthread_mutex_unlock(&d->recovery);
    if (err)
        log_line(LOG_ERR, "%s: queues of the executor stay out of service: %s", d->opts->device,
                 strerror(-err));
}
