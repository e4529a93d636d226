#include <errno.h>
#include <string.h>

#include "client/device/gd_launch.h"
#include "client/direct.h"

#define MAX_READ ((uint64_t)INT64_MAX)
#define WARP     32u

/*
 * A warp for each queue that the kernel may want to use (gd_queues_for): one for a small read, for
 * which the launch is most of the time.
 */
static unsigned warps_for(const struct gd_set *set, uint64_t n)
{
    uint64_t want = n / set->max_command / GD_QUEUE_COMMANDS + 1;
    return want < GD_READ_QUEUES ? (unsigned)want : GD_READ_QUEUES;
}

static int launch(struct gpunvme_file *f, const struct gd_buffer *b, void *ptr, uint64_t n,
                  uint64_t offset, void *stream, int64_t *bytes)
{
    struct gpunvme_direct *d = f->d;
    if (!d->kernel.function)
        return gpunvme_fail(-ENOTSUP, "this libgpunvme was built without CUDA: it has no kernels");
    struct gd_launch l = {.file = f->device,
                          .buffer = *b,
                          .addr = (uintptr_t)ptr,
                          .len = n,
                          .offset = offset,
                          .bytes = bytes};
    void *args[] = {&l};
    return cuda_driver_launch(d->place.cuda, d->place.device, &d->kernel,
                              warps_for(&f->device.set, n) * WARP, stream, args);
}

int gpunvme_read_async(struct gpunvme_file *f, void *ptr, size_t n, uint64_t offset, void *stream,
                       int64_t *bytes)
{
    struct gd_buffer b;
    if (n > MAX_READ || offset > MAX_READ)
        return gpunvme_fail(-EINVAL, "read of %zu bytes at %llu", n, (unsigned long long)offset);
    if (f->device.set.n_queues == 0)
        return gpunvme_fail(-ESTALE, "the leases have ended: renew them");
    uint64_t left = offset < f->device.map.end ? f->device.map.end - offset : 0;
    uint64_t len = n < left ? n : left;
    int err = direct_buffer_find(f->d, (uintptr_t)ptr, len, &b);
    if (err)
        return err;
    if (f->d->place.cuda)
        return launch(f, &b, ptr, len, offset, stream, bytes);
    *bytes = len ? direct_cpu_read(&f->device, &b, ptr, len, offset) : 0;
    return 0;
}
