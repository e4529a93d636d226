/* SPDX-License-Identifier: BSD-2-Clause */
/* Launches the kernels of a read on the direct path, of its comparison, and of its conclusion. */
#include <errno.h>

#include "client/device/device_image.h"
#include "client/device/gd_launch.h"
#include "client/lib/direct.h"
#include "support/clock.h"
#include "support/minmax.h"

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
 * Returns the number of queues for a read. The read has one queue for each GD_QUEUE_COMMANDS
 * commands. A small read has one queue, because the launch takes most of its time.
 */
static unsigned queues_for(const struct gd_set *set, uint64_t n)
{
    uint64_t want = n / set->max_command / GD_QUEUE_COMMANDS + 1;

    return want < GD_READ_QUEUES ? (unsigned)want : GD_READ_QUEUES;
}

/*
 * Returns the number of blocks for a long read. Each block has one queue. If data is staged, the
 * read has one block for as many bytes as the lanes of a block stage, up to a limit.
 */
static uint64_t read_blocks(const struct gd_launch *l)
{
    const struct gd_set *set = &l->file.set;

    if (!GD_STAGES(&l->buffer))
        return min_u64(queues_for(set, l->len), set->n_queues);
    uint64_t want = l->len / (GD_GROUP * (uint64_t)set->lane_bytes) + 1;
    uint64_t most = l->len < GD_STAGED_MANY ? GD_STAGED_FEW : GD_STAGED_QUEUES;

    return min_u64(want, min_u64(set->n_queues, most));
}

/* Returns the shares of a list: queues beyond those that the bus needs only make its end longer. */
static uint64_t list_shares(const struct gd_launch *l)
{
    uint64_t want = (l->n - 1) / GD_QUEUE_PIECES + 1;

    return min_u64(want, min_u64(l->file.set.n_queues, GD_LIST_QUEUES));
}

static uint64_t blocks_for(const struct gd_launch *l)
{
    if (l->list)
        return list_shares(l);
    return l->unit && !l->concludes ? read_blocks(l) : 1;
}

/*
 * A block that concludes a read or a list has one warp. Any other block with a queue of its own has
 * a second warp, which loads the list, and copy warps if data is staged.
 */
static unsigned warps_for(const struct gd_launch *l)
{
    if (l->concludes)
        return 1;
    if (!l->list && !l->unit)
        return queues_for(&l->file.set, l->len);
    return GD_STAGES(&l->buffer) ? 2 + GD_COPY_WARPS : 2;
}

/* Launches the kernel that executes or concludes a read or a list. */
static int launch_kernel(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    const struct cuda_kernel *kernel = l->list || l->unit ? &d->list_kernel : &d->kernel;
    void *args[] = {l};

    if (!kernel->function)
        return direct_no_kernels();
    l->parts = (struct gd_parts_table *)(uintptr_t)d->parts_at;
    return cuda_driver_launch(d->space.cuda, d->space.device, kernel, (unsigned)blocks_for(l),
                              warps_for(l) * WARP, stream, args);
}

bool direct_compare_pays(const struct gd_launch *l)
{
    uint64_t least = (uint64_t)GD_COMPARE_LEAST * queues_for(&l->file.set, l->len);

    return l->len / GQ_SUM_BLOCK > least;
}

/*
 * Called when CUDA has refused a later launch of a read with err. Waits until the stream is idle,
 * and frees the words of the read's check. Returns err, or -ETIMEDOUT if the kernels have not ended
 * in time; they may then still write to the buffer, the result and the pieces. Does not wait while
 * the stream is being captured. The time limit of a list is that of a read as long as the buffer.
 */
static int launch_give_up(struct gpunvme_direct *d, const struct gd_launch *l, void *stream,
                          int err)
{
    uint64_t patience_ns = direct_patience_ns(&l->file.set, l->list ? l->buffer.len : l->len);

    if (!cuda_driver_stream_drain(d->space.cuda, d->space.device, stream, patience_ns))
        return gpunvme_fail(-ETIMEDOUT,
                            "CUDA refused a launch, and what was launched before has "
                            "not ended for %llu ms: synchronise the stream",
                            (unsigned long long)(patience_ns / NS_PER_MS));
    direct_check_end(d, l->check);
    return err;
}

/* Launches the kernels that follow the read: the comparison and the end of the check. */
static int launch_conclusion(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    int err = direct_compare(d, l, stream);

    l->concludes = true;
    if (!err)
        err = launch_kernel(d, l, stream);
    return err ? launch_give_up(d, l, stream, err) : 0;
}

int direct_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    int err = launch_kernel(d, l, stream);

    if (!l->check)
        return err;
    if (!err)
        return launch_conclusion(d, l, stream);
    direct_slots_give_back(d, l->check);
    return err;
}
