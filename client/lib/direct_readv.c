/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of reads through leased queues, and the thread that executes them on mounts without a GPU.
 */
#define GQ_LANES 1
#include "client/device/gd_list.h"

#include "client/device/device_image.h"
#include "client/device/gd_compare.h"
#include "client/device/gd_list_launch.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/shared_list.h"

#define WARP   32u
#define KERNEL "gpunvme_direct_readv"

int direct_readv_open(struct gpunvme_direct *d)
{
    if (!d->space.cuda || !readv_image())
        return 0;
    return cuda_driver_load(d->space.cuda, d->space.device, readv_image(), KERNEL,
                            &d->readv_kernel);
}

/* Returns the shares of a list: queues beyond those that the bus needs only make its end longer. */
static uint32_t shares_of(const struct gd_list_launch *l)
{
    uint32_t most = l->file.set.n_queues < GD_LIST_QUEUES ? l->file.set.n_queues : GD_LIST_QUEUES;
    uint32_t want = (l->n - 1) / GD_QUEUE_PIECES + 1;

    return want < most ? want : most;
}

static int direct_readv_launch(struct gpunvme_direct *d, struct gd_list_launch *l, void *stream)
{
    unsigned copy_warps = l->buffer.target.iova == GD_UNREACHABLE ? GD_COPY_WARPS : 0;
    void *args[] = {l};

    return cuda_driver_launch_blocks(d->space.cuda, d->space.device, &d->readv_kernel, shares_of(l),
                                     (1 + copy_warps) * WARP, stream, args);
}

static int direct_readv_compare(struct gpunvme_direct *d, const struct gd_list_launch *l,
                                void *stream)
{
    struct gd_compare_launch c = {
        .sums = l->file.sums,
        .addr = l->buffer.addr,
        .list = l->list,
        .n = l->n,
        .check = l->check,
    };

    return direct_compare(d, &c, stream);
}

/* Launches the conclusion of a list. The time limit is that of a read as long as the buffer. */
static int direct_readv_conclude(struct gpunvme_direct *d, struct gd_list_launch *l, void *stream)
{
    int err = direct_readv_compare(d, l, stream);

    l->concludes = true;
    if (!err)
        err = direct_readv_launch(d, l, stream);
    uint64_t patience_ns = direct_patience_ns(&l->file.set, l->buffer.len);
    return err ? direct_give_up(d, l->check, stream, patience_ns, err) : 0;
}

static int launch_list(struct leased_file *f, struct gd_list_launch *l, void *stream)
{
    struct gpunvme_direct *d = f->d;
    uint64_t dealing = 0;

    if (!d->readv_kernel.function)
        return gpunvme_fail(-ENOTSUP, "this libgpunvme was built without CUDA: it has no kernels");
    l->check = GD_STAGES(&l->buffer) ? NULL : direct_check_take(d, &l->file, stream);
    /*
     * A list that a graph may run again, in two instances at once, has even shares. So has a list
     * whose data the reading kernel itself compares.
     */
    if (shares_of(l) > 1 && (l->check || !l->file.sums.words) &&
        !cuda_driver_is_captured(d->space.cuda, stream))
        dealing = direct_slots_take(d, &d->dealings);
    l->dealing = (struct gq_dealing *)(uintptr_t)dealing;
    int err = direct_readv_launch(d, l, stream);
    if (err) {
        direct_slots_give_back(d, &d->dealings, dealing);
        direct_check_give_back(d, l->check);
    }
    return err || !l->check ? err : direct_readv_conclude(d, l, stream);
}

static void direct_readv_read_here(struct leased_file *f, struct gd_list_launch *l)
{
    struct gd_reader reader = {.group = gq_whole_group(), .file = &l->file}, again = reader;

    l->check = GD_STAGES(&l->buffer) ? NULL : direct_check_take(f->d, &l->file, NULL);
    reader.defers = l->check != NULL;
    (void)gd_read_share(&reader, &l->buffer, l->list, l->n, 0, 1, NULL);
    if (l->check) {
        (void)direct_readv_compare(f->d, l, NULL);
        gd_conclude_list(&again, &l->buffer, l->list, l->n, 0, 1, l->check);
    }
}

static int direct_readv_read_list(struct leased_file *f, void *ptr, struct gpunvme_piece *pieces,
                                  size_t n, void *stream)
{
    struct gd_list_launch l = {.file = f->device, .n = (uint32_t)n};
    struct gd_buffer around;
    uint64_t at;

    if (n > GD_MAX_PIECES)
        return gpunvme_fail(-EINVAL, "a list of %zu pieces", n);
    if (l.file.set.n_queues == 0)
        return gpunvme_fail(-ESTALE, "the leases have ended: renew them");
    int err = direct_buffer_find(f->d, (uintptr_t)ptr, 1, &around);
    if (err || n == 0)
        return err;
    l.buffer = gd_part_from(&around, (uintptr_t)ptr);
    err = shared_list_locate(f->d->g, pieces, n, &at);
    if (err)
        return err;
    l.list = (struct gq_read_desc *)(uintptr_t)at;
    if (f->d->space.cuda)
        return launch_list(f, &l, stream);
    direct_readv_read_here(f, &l);
    return 0;
}

int direct_readv_async(struct leased_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                       void *stream)
{
    nvtx_range_begin("readv, direct, in a stream", n);
    int err = direct_readv_read_list(f, ptr, pieces, n, stream);
    nvtx_range_end();
    if (!err && n)
        call_stats_enqueued(f->d->g, 0);
    return err;
}
