/* SPDX-License-Identifier: BSD-2-Clause */
/* Launches the kernels of a read on the direct path, of its comparison, and of its conclusion. */
#include <errno.h>

#include "client/device/device_image.h"
#include "client/device/gd_launch.h"
#include "client/lib/direct.h"
#include "support/clock.h"

#define WARP 32u

int direct_no_kernels(void)
{
    return gpunvme_fail(-ENOTSUP, "this libgpunvme was built without CUDA: it has no kernels");
}

bool direct_has_kernels(void)
{
    return direct_image() != NULL;
}

/*
 * Returns one warp for each queue that the kernel may use (gd_queues_for). A small read gets one
 * warp, because most of its time is the launch.
 */
static unsigned warps_for(const struct gd_set *set, uint64_t n)
{
    uint64_t want = n / set->max_command / GD_QUEUE_COMMANDS + 1;

    return want < GD_READ_QUEUES ? (unsigned)want : GD_READ_QUEUES;
}

static int direct_launch_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    unsigned warps = l->concludes ? 1 : warps_for(&l->file.set, l->len);
    void *args[] = {l};

    if (!d->kernel.function)
        return direct_no_kernels();
    return cuda_driver_launch(d->space.cuda, d->space.device, &d->kernel, 1, warps * WARP, stream,
                              args);
}

bool direct_compare_pays(const struct gd_launch *l)
{
    uint64_t least = (uint64_t)GD_COMPARE_LEAST * warps_for(&l->file.set, l->len);

    return l->len / GQ_SUM_BLOCK > least;
}

int direct_give_up(struct gpunvme_direct *d, const struct gd_check *check, void *stream,
                   uint64_t patience_ns, int err)
{
    if (!cuda_driver_stream_drain(d->space.cuda, d->space.device, stream, patience_ns))
        return gpunvme_fail(-ETIMEDOUT,
                            "CUDA refused a launch, and what was launched before has "
                            "not ended for %llu ms: synchronise the stream",
                            (unsigned long long)(patience_ns / NS_PER_MS));
    direct_check_end(d, check);
    return err;
}

int direct_conclude(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    int err = direct_compare(d, l, stream);

    l->concludes = true;
    if (!err)
        err = direct_launch_launch(d, l, stream);
    return err ? direct_give_up(d, l->check, stream, direct_patience_ns(&l->file.set, l->len), err)
               : 0;
}

int direct_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    int err = direct_launch_launch(d, l, stream);

    if (!l->check)
        return err;
    if (!err)
        return direct_conclude(d, l, stream);
    direct_slots_give_back(d, l->check);
    return err;
}
