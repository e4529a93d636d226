#include <errno.h>
#include <string.h>

#include "client/device/gd_launch.h"
#include "client/direct.h"

#define MAX_READ  ((uint64_t)INT64_MAX)
#define WARP      32u
#define MAX_WARPS 32u /* of a block */

/*
 * A warp for each queue that gets something to do: one for what a single command carries, so that a
 * small read is one warp's.
 */
static unsigned warps_for(const struct gd_set *set, uint64_t n)
{
    uint64_t units = n / set->max_command + 1;
    uint64_t most = set->n_queues < MAX_WARPS ? set->n_queues : MAX_WARPS;
    return (unsigned)(units < most ? units : most);
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
    int err = direct_buffer_find(f->d, (uintptr_t)ptr, n, &b);
    if (err)
        return err;
    if (f->d->place.cuda)
        return launch(f, &b, ptr, n, offset, stream, bytes);
    *bytes = direct_cpu_read(&f->device, &b, ptr, n, offset);
    return 0;
}
