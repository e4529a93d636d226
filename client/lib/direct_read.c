/* SPDX-License-Identifier: BSD-2-Clause */
/* Executes reads of the direct path in kernels of the library. Uses a stream or the service. */
#include <errno.h>

#include "client/device/gd_launch.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/nvtx_range.h"

#define MAX_READ ((uint64_t)INT64_MAX)

/* Fills in the launch of a read, shortened to the end of the file. */
static int make_read(struct leased_file *f, void *ptr, size_t n, uint64_t offset,
                     struct gd_launch *out)
{
    if (n > MAX_READ || offset > MAX_READ)
        return gpunvme_fail(-EINVAL, "read of %zu bytes at %llu", n, (unsigned long long)offset);
    if (f->device.set.n_queues == 0)
        return gpunvme_fail(-ESTALE, "the leases have ended: renew them");
    *out = (struct gd_launch){.file = f->device,
                              .file_at = leased_file_device(f),
                              .addr = (uintptr_t)ptr,
                              .len = gq_read_bytes(&f->device.map, offset, n),
                              .offset = offset};
    return direct_buffer_find(f->d, out->addr, out->len, &out->buffer);
}

/* Executes the read on the calling thread. */
static int64_t direct_read_here(struct leased_file *f, const struct gd_launch *l)
{
    int64_t got = direct_cpu_read(l);

    return got < 0 ? direct_say_failed(f, (int)got) : got;
}

int direct_read_launch(struct leased_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes)
{
    struct gd_launch l;
    int err = make_read(f, ptr, n, offset, &l);

    if (err)
        return err;
    l.bytes = bytes;
    if (direct_long_takes(f->d, &l)) {
        err = direct_long_launch(f->d, &l, stream);
        if (err)
            return err < 0 ? err : 0;
    }
    if (f->d->space.cuda)
        return direct_launch(f->d, &l, stream);
    *bytes = direct_read_here(f, &l);
    return 0;
}

int direct_read_async(struct leased_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                      int64_t *bytes)
{
    nvtx_range_begin("read, direct, in a stream", n);
    int err = direct_read_launch(f, ptr, n, offset, stream, bytes);
    nvtx_range_end();
    if (!err)
        call_stats_enqueued(f->d->g, gq_read_bytes(&f->device.map, offset, n));
    return err;
}

static int64_t read_by_service(struct leased_file *f, const struct gd_launch *l)
{
    const struct direct_service_read r = {
        .file = &f->device,
        .file_at = f->device_at,
        .addr = l->addr,
        .len = l->len,
        .offset = l->offset,
        .launch = direct_long_takes(f->d, l) ? direct_long_launch : NULL,
        .direct = f->d,
        .whole = l,
    };

    return direct_service_read(f->d->service, &r);
}

static ssize_t read_and_wait(struct leased_file *f, void *ptr, size_t n, uint64_t offset)
{
    struct gd_launch l;
    int err = make_read(f, ptr, n, offset, &l);

    if (err)
        return err;
    if (!f->d->space.cuda)
        return direct_read_here(f, &l);
    if (!f->d->service)
        return direct_no_kernels();
    int64_t got = read_by_service(f, &l);
    return got == -EIO && f->device.sums.words ? direct_say_failed(f, -EIO) : got;
}

ssize_t direct_read_wait(struct leased_file *f, void *ptr, size_t n, uint64_t offset)
{
    uint64_t begun = now_ns();

    nvtx_range_begin("read, direct", n);
    ssize_t got = read_and_wait(f, ptr, n, offset);
    nvtx_range_end();
    call_stats_count(f->d->g, GPUNVME_OP_READ, GPUNVME_CALLS_DIRECT, got > 0 ? (uint64_t)got : 0,
                     begun);
    return got;
}
