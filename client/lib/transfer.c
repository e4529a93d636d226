/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads and writes of buffers: the choice of the path, and extents. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/trace.h"
#include "support/clock.h"
#include "support/page.h"

#define AVOID_GPU_S 10
/*
 * Where the two ways of a read meet, with one thread (bounce_bench, bench/RESULTS.md): the kernel
 * reads ahead for small ones, unless the file is open with O_DIRECT.
 */
#define CROSSOVER        (128u << 10)
#define CROSSOVER_DIRECT (16u << 10)

int gpunvme_use_begin(struct gpunvme_buffer *b)
{
    atomic_fetch_add(&b->users, 1);
    if (!atomic_load(&b->ending))
        return 0;
    gpunvme_use_end(b);
    return gpunvme_fail(-EINTR, "the buffer was unregistered");
}

/* The last one may be the last that sees the buffer: then nothing of it is looked at afterwards. */
void gpunvme_use_end(struct gpunvme_buffer *b)
{
    struct gpunvme *g = b->owner;

    if (atomic_fetch_sub(&b->users, 1) != (GPUNVME_AWAITED | 1))
        return;
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->unused);
    pthread_mutex_unlock(&g->lock);
}

static uint64_t crossover(const struct gpunvme_options *o, const struct range *r)
{
    if (o->crossover || r->write)
        return o->crossover;
    return fcntl(r->fd, F_GETFL) & O_DIRECT ? CROSSOVER_DIRECT : CROSSOVER;
}

const char *gpunvme_why_bounce(struct gpunvme_buffer *b, const struct range *r)
{
    const struct gpunvme_options *o = &b->owner->options;

    if (o->path == GPUNVME_PATH_BOUNCE)
        return "asked for";
    if (r && r->write && b->owner->info.writeback_cache)
        return "mounted with writeback_cache; mount without for writes by the GPU";
    if (!b->shared)
        return b->why_not;
    if (o->path == GPUNVME_PATH_GPU || b->device == CUDA_NO_DEVICE)
        return NULL;
    if (r && r->len < crossover(o, r))
        return "shorter than the crossover";
    if (now_s() < atomic_load_explicit(&b->avoid_gpu, memory_order_relaxed))
        return "the mount had to fall back less than ten seconds ago";
    return NULL;
}

static const char *why_fallback(const struct gpunvme_buffer *b, const struct range *r)
{
    if (b->owner->info.executor == GPUNVME_EXECUTOR_NONE)
        return "the mount has no executor";
    if (r->write && (r->file_offset % PAGE_BYTES || r->len % PAGE_BYTES))
        return "the executor writes whole blocks";
    return "the mount's executor could not serve all of it";
}

void gpunvme_note_fallback(struct gpunvme_buffer *b, const struct range *r,
                           struct gpunvme_result *result)
{
    if (result->path == GPUNVME_PATH_GPU || !result->path)
        return;
    result->why = gpunvme_log_bounce(why_fallback(b, r));
    if (!r->write)
        atomic_store_explicit(&b->avoid_gpu, now_s() + AVOID_GPU_S, memory_order_relaxed);
}

static size_t by_the_mount(struct gpunvme_buffer *b, const struct range *r,
                           struct gpunvme_result *result, int *err)
{
    uint32_t flags = b->owner->options.path == GPUNVME_PATH_GPU ? GPUNVME_NO_FALLBACK : 0;

    uint64_t begun = now_ns();

    trace_begin(r->write ? "write by the mount" : "read by the mount", r->len);
    size_t done = gpunvme_transfer_shared(b, r, flags, result, err);
    trace_end();
    call_stats_count(b->owner, r->write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ, result->path, done,
                     begun);
    gpunvme_note_fallback(b, r, result);
    return done;
}

/* Bytes moved before an error count, as in read(2). */
static ssize_t transfer(struct gpunvme_buffer *b, const struct range *r,
                        struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    int err = gpunvme_use_begin(b);

    if (err)
        return err;
    size_t done = 0;
    const char *why = gpunvme_why_bounce(b, r);
    if (why && b->owner->options.path == GPUNVME_PATH_GPU) {
        err = gpunvme_fail(-EREMOTEIO, "%s", why);
    } else if (why) {
        sum.why = gpunvme_log_bounce(why);
        done = gpunvme_transfer_bounced(b, r, &sum, &err);
    } else {
        done = by_the_mount(b, r, &sum, &err);
    }
    gpunvme_use_end(b);
    if (result)
        *result = sum;
    return done || !err ? (ssize_t)done : err;
}

ssize_t gpunvme_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                     size_t len, struct gpunvme_result *result)
{
    struct range r = {
        .fd = fd, .buffer_offset = buffer_offset, .file_offset = file_offset, .len = len};

    return transfer(b, &r, result);
}

ssize_t gpunvme_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result)
{
    struct range r = {.write = true,
                      .fd = fd,
                      .buffer_offset = buffer_offset,
                      .file_offset = file_offset,
                      .len = len};

    return transfer(b, &r, result);
}

ssize_t gpunvme_extents(int fd, uint64_t offset, struct gpunvme_extent *out, size_t max)
{
    size_t count = 0;
    struct gpunvme_ioc_extents ext;

    do {
        memset(&ext, 0, sizeof(ext));
        ext.file_offset = offset;
        ext.max = max - count < GPUNVME_EXTENTS_MAX ? (uint32_t)(max - count) : GPUNVME_EXTENTS_MAX;
        int err = gpunvme_ioctl(fd, GPUNVME_IOC_EXTENTS, &ext, sizeof(ext));
        if (err == -ENOTTY)
            return gpunvme_fail(err, "not a file of a gpunvmefs mount");
        if (err)
            return gpunvme_fail(err, "EXTENTS: %s", strerror(-err));
        if (ext.count > ext.max)
            return gpunvme_fail(-EPROTO, "EXTENTS: more than were asked for");
        if (!ext.count)
            break;
        memcpy(out + count, ext.extents, ext.count * sizeof(out[0]));
        count += ext.count;
        offset = out[count - 1].file_offset + out[count - 1].len;
    } while (count < max && !(out[count - 1].flags & GPUNVME_EXTENT_LAST));
    return (ssize_t)count;
}
