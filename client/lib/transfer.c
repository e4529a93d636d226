/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads and writes of buffers: the choice of the path, and extents. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/nvtx_range.h"
#include "support/clock.h"
#include "support/page.h"

#define AVOID_GPU_S 10
/* bounce_set_options() documents these limits. bench/RESULTS.md has the measurements. */
#define BOUNCE_CACHED_BELOW ((size_t)128 << 10)
#define BOUNCE_BELOW        ((size_t)16 << 10)
#define BOUNCED_PIECES      4u

/* Returns a reason to bounce other than the size of the transfer. */
static const char *why_bounce(const struct gpunvme_buffer *b, const struct range *r)
{
    const struct gpunvme_options *o = &b->owner->options;

    if (o->path == GPUNVME_PATH_BOUNCE)
        return "asked for";
    if (r->write && b->owner->info.writeback_cache)
        return "mounted with writeback_cache; mount without for writes by the GPU";
    if (!b->shared)
        return b->why_not;
    return NULL;
}

/*
 * Returns true if the library may choose the pipeline. It may not for writes that differ between
 * the paths: the GPU path writes whole pages, and write(2) past RLIMIT_FSIZE sends SIGXFSZ, which
 * the mount's WRITE does not.
 */
static bool may_bounce(const struct range *r)
{
    struct rlimit size;

    if (!r->write)
        return true;
    return !((r->file_offset | r->len) % PAGE_BYTES) && getrlimit(RLIMIT_FSIZE, &size) == 0 &&
           r->file_offset <= size.rlim_cur && r->len <= size.rlim_cur - r->file_offset;
}

/* Returns true if the bounce pipeline is the faster path: see bounce_set_options(). */
static bool is_short(const struct range *r, size_t pieces)
{
    bool cached = !r->write && !r->direct && (r->known || !(fcntl(r->fd, F_GETFL) & O_DIRECT));

    if (!may_bounce(r) || (pieces && (!cached || pieces > BOUNCED_PIECES)))
        return false;
    return r->len < (cached ? BOUNCE_CACHED_BELOW : BOUNCE_BELOW);
}

struct path_taken gpunvme_choose_path(struct gpunvme_buffer *b, const struct range *r,
                                      size_t pieces)
{
    const struct gpunvme_options *o = &b->owner->options;
    struct path_taken taken = {.why = why_bounce(b, r)};

    if (taken.why || o->path == GPUNVME_PATH_GPU || b->device == CUDA_NO_DEVICE)
        return taken;
    if (!pieces && r->len < o->crossover)
        taken.why = "shorter than the crossover";
    else if (now_s() < atomic_load_explicit(&b->avoid_gpu, memory_order_relaxed))
        taken.why = "the mount had to fall back less than ten seconds ago";
    else if (!o->crossover && is_short(r, pieces))
        taken = (struct path_taken){.why = "shorter than the crossover", .by_size = true};
    return taken;
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

    nvtx_range_begin(r->write ? "write by the mount" : "read by the mount", r->len);
    size_t done = gpunvme_transfer_shared(b, r, flags, result, err);
    nvtx_range_end();
    call_stats_count(b->owner, r->write ? GPUNVME_OP_WRITE : GPUNVME_OP_READ, result->path, done,
                     begun);
    gpunvme_note_fallback(b, r, result);
    return done;
}

/*
 * A choice of the library lets no transfer fail that the mount can make, for example when there is
 * no memory for staging.
 */
static size_t lib_transfer_move(struct gpunvme_buffer *b, const struct range *r,
                                const struct path_taken *taken, struct gpunvme_result *result,
                                int *err)
{
    if (taken->why) {
        result->why = gpunvme_log_bounce(taken->why);
        size_t done = gpunvme_transfer_bounced(b, r, result, err);
        if (done || !*err || !taken->by_size)
            return done;
        *result = (struct gpunvme_result){.why = ""};
    }
    return by_the_mount(b, r, result, err);
}

/* Bytes moved before an error count, as in read(2). */
ssize_t transfer_range(struct gpunvme_buffer *b, const struct range *r,
                       struct gpunvme_result *result)
{
    struct gpunvme_result sum = {.why = ""};
    struct path_taken taken = gpunvme_choose_path(b, r, 0);
    size_t done = 0;
    int err = 0;

    if (taken.why && b->owner->options.path == GPUNVME_PATH_GPU)
        err = gpunvme_fail(-EREMOTEIO, "%s", taken.why);
    else
        done = lib_transfer_move(b, r, &taken, &sum, &err);
    if (result)
        *result = sum;
    return done || !err ? (ssize_t)done : err;
}

ssize_t transfer_read(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                      size_t len, struct gpunvme_result *result)
{
    struct range r = {
        .fd = fd, .buffer_offset = buffer_offset, .file_offset = file_offset, .len = len};

    return transfer_range(b, &r, result);
}

ssize_t transfer_write(struct gpunvme_buffer *b, int fd, size_t buffer_offset, uint64_t file_offset,
                       size_t len, struct gpunvme_result *result)
{
    struct range r = {.write = true,
                      .fd = fd,
                      .buffer_offset = buffer_offset,
                      .file_offset = file_offset,
                      .len = len};

    return transfer_range(b, &r, result);
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
