/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists of reads through leased queues, and the thread that reads them on mounts without a GPU. */
#define GQ_LANES 1
#include "client/device/gd_list.h"

#include "client/device/device_image.h"
#include "client/device/gd_list_launch.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/shared_list.h"
#include "client/lib/trace.h"

#define WARP   32u
#define KERNEL "gpunvme_direct_readv"

int direct_readv_open(struct gpunvme_direct *d)
{
    if (!d->space.cuda || !readv_image())
        return 0;
    return cuda_driver_load(d->space.cuda, d->space.device, readv_image(), KERNEL,
                            &d->readv_kernel);
}

/* More queues than the bus needs only make the list's end longer. */
static uint32_t shares_of(const struct gd_list_launch *l)
{
    uint32_t most = l->file.set.n_queues < GD_LIST_QUEUES ? l->file.set.n_queues : GD_LIST_QUEUES;
    uint32_t want = (l->n - 1) / GD_QUEUE_PIECES + 1;

    return want < most ? want : most;
}

static int launch(struct gpunvme_direct *d, struct gd_list_launch *l, void *stream)
{
    unsigned copy_warps = l->buffer.target.iova == GD_UNREACHABLE ? GD_LIST_COPY_WARPS : 0;
    void *args[] = {l};
    int err;

    if (!d->readv_kernel.function)
        return gpunvme_fail(-ENOTSUP, "this libgpunvme was built without CUDA: it has no kernels");
    /*
     * A graph may run the list again, in two instances at once: its shares are even. Those of a
     * file with checksums are even, too.
     */
    if (shares_of(l) > 1 && !l->file.sums.words && !cuda_driver_is_captured(d->space.cuda, stream))
        l->dealing = direct_dealing_take(d);
    err = cuda_driver_launch_blocks(d->space.cuda, d->space.device, &d->readv_kernel, shares_of(l),
                                    (1 + copy_warps) * WARP, stream, args);
    if (err)
        direct_dealing_give_back(d, l->dealing);
    return err;
}

static void read_here(const struct gd_list_launch *l)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = &l->file};

    (void)gd_read_share(&self, &l->buffer, l->list, l->n, 0, 1, NULL);
}

static int read_list(struct gpunvme_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                     void *stream)
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
        return launch(f->d, &l, stream);
    read_here(&l);
    return 0;
}

int gpunvme_readv_async(struct gpunvme_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                        void *stream)
{
    trace_begin("readv, direct, in a stream", n);
    int err = read_list(f, ptr, pieces, n, stream);
    trace_end();
    if (!err && n)
        call_stats_enqueued();
    return err;
}
