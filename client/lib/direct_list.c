/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of reads through leased queues, and long reads into memory that the controller does not
 * reach. One block reads on each queue. On mounts without a GPU the calling thread executes lists.
 */
#define GQ_LANES 1
#include "client/device/gd_list.h"

#include "client/device/gd_compare.h"
#include "client/device/gd_launch.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/shared_list.h"
#include "support/minmax.h"

#define WARP 32u

/*
 * A block that concludes has one warp. Any other has a second one that loads the list, and copy
 * warps if data is staged.
 */
static int direct_list_launch(struct gpunvme_direct *d, struct gd_launch *l, uint64_t blocks,
                              void *stream)
{
    unsigned warps = l->concludes ? 1 : GD_STAGES(&l->buffer) ? 2 + GD_COPY_WARPS : 2;
    void *args[] = {l};

    l->parts = (struct gd_parts_table *)(uintptr_t)d->parts_at;
    return cuda_driver_launch(d->space.cuda, d->space.device, &d->list_kernel, (unsigned)blocks,
                              warps * WARP, stream, args);
}

/* --- Long reads ------------------------------------------------------------------------------ */

/* Returns one block for as many bytes as its lanes have in flight. */
static uint64_t direct_staged_blocks(const struct gd_launch *l)
{
    const struct gd_set *set = &l->file.set;
    uint64_t want = l->len / (GD_GROUP * (uint64_t)set->lane_bytes) + 1;

    return min_u64(want, min_u64(set->n_queues, GD_STAGED_QUEUES));
}

/* Copy warps compare nothing. A kernel that runs after them compares whole blocks. */
static bool direct_staged_suits_sums(const struct gd_launch *l)
{
    return !l->file.sums.words ||
           ((l->offset | l->len) % GQ_SUM_BLOCK == 0 && direct_compare_pays(l));
}

bool direct_staged_takes(const struct gpunvme_direct *d, const struct gd_launch *l)
{
    return d->list_kernel.function && GD_STAGES(&l->buffer) && l->len > l->file.set.lane_bytes &&
           direct_staged_suits_sums(l);
}

int direct_staged_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    l->unit = gd_staged_unit(&l->file.set, l->len);
    l->check = direct_check_take(d, &l->file, stream);
    if (l->file.sums.words && !l->check)
        return 0;
    int err = direct_list_launch(d, l, direct_staged_blocks(l), stream);
    if (err)
        direct_slots_give_back(d, l->check);
    else if (l->check)
        err = direct_conclude(d, l, stream);
    return err ? err : 1;
}

/* --- Lists ----------------------------------------------------------------------------------- */

/* Returns the shares of a list: queues beyond those that the bus needs only make its end longer. */
static uint64_t direct_list_shares(const struct gd_launch *l)
{
    uint64_t want = (l->n - 1) / GD_QUEUE_PIECES + 1;

    return min_u64(want, min_u64(l->file.set.n_queues, GD_LIST_QUEUES));
}

/* Launches the conclusion of a list. The time limit is that of a read as long as the buffer. */
static int direct_list_conclude(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    int err = direct_compare(d, l, stream);

    l->concludes = true;
    if (!err)
        err = direct_list_launch(d, l, direct_list_shares(l), stream);
    uint64_t patience_ns = direct_patience_ns(&l->file.set, l->buffer.len);
    return err ? direct_give_up(d, l->check, stream, patience_ns, err) : 0;
}

static int direct_list_start(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    if (!d->list_kernel.function)
        return direct_no_kernels();
    l->check = GD_STAGES(&l->buffer) ? NULL : direct_check_take(d, &l->file, stream);
    int err = direct_list_launch(d, l, direct_list_shares(l), stream);
    if (err)
        direct_slots_give_back(d, l->check);
    return err || !l->check ? err : direct_list_conclude(d, l, stream);
}

static void direct_list_execute(struct gpunvme_direct *d, struct gd_launch *l)
{
    struct gd_reader reader = {.group = gq_whole_group(), .file = &l->file}, again = reader;
    struct gd_list_share share;

    l->check = GD_STAGES(&l->buffer) ? NULL : direct_check_take(d, &l->file, NULL);
    reader.defers = l->check != NULL;
    gd_share_list(&reader, &l->buffer, l->list, l->n, 0, 1, &share);
    (void)gd_read_share(&reader, &l->buffer, &share, gd_take_share(&reader, &share));
    if (l->check) {
        (void)direct_compare(d, l, NULL);
        gd_conclude_list(&again, &l->buffer, l->list, l->n, 0, 1, l->check);
    }
}

/* Sets the buffer of a launch from ptr on, in registered memory. */
static int direct_list_find(struct leased_file *f, const void *ptr, struct gd_launch *l)
{
    struct gd_buffer around;

    if (l->file.set.n_queues == 0)
        return gpunvme_fail(-ESTALE, "the leases have ended: renew them");
    int err = direct_buffer_find(f->d, (uintptr_t)ptr, 1, &around);
    if (!err)
        l->buffer = gd_part_from(&around, (uintptr_t)ptr);
    return err;
}

static int direct_list_read(struct leased_file *f, void *ptr, struct gpunvme_piece *pieces,
                            size_t n, void *stream)
{
    struct gd_launch l = {.file = f->device, .n = (uint32_t)n};
    uint64_t at;

    if (n > GD_MAX_PIECES)
        return gpunvme_fail(-EINVAL, "a list of %zu pieces", n);
    int err = direct_list_find(f, ptr, &l);
    if (err || n == 0)
        return err;
    err = shared_list_locate(f->d->g, pieces, n, &at);
    if (err)
        return err;
    l.list = (struct gq_read_desc *)(uintptr_t)at;
    if (f->d->space.cuda)
        return direct_list_start(f->d, &l, stream);
    direct_list_execute(f->d, &l);
    return 0;
}

/* Reads the pieces of the window on the calling thread. */
static void direct_list_window_here(struct gpunvme_direct *d, struct gd_launch *l)
{
    uint32_t first;

    l->n = gd_list_window(l->bounds, l->from, l->n, &first);
    l->list += first;
    l->bounds = NULL;
    if (l->n)
        direct_list_execute(d, l);
}

int direct_list_read_window(struct leased_file *f, const struct direct_window *win, void *stream)
{
    struct gpunvme_direct *d = f->d;
    struct gd_launch l = {.file = f->device,
                          .list = win->pieces,
                          .n = win->n,
                          .bounds = win->bounds,
                          .from = win->from};
    int err = direct_list_find(f, win->ptr, &l);

    if (err)
        return err;
    if (d->space.cuda)
        return direct_list_launch(d, &l, direct_list_shares(&l), stream);
    direct_list_window_here(d, &l);
    return 0;
}

int direct_readv_async(struct leased_file *f, void *ptr, struct gpunvme_piece *pieces, size_t n,
                       void *stream)
{
    nvtx_range_begin("readv, direct, in a stream", n);
    int err = direct_list_read(f, ptr, pieces, n, stream);
    nvtx_range_end();
    if (!err && n)
        call_stats_enqueued(f->d->g, 0);
    return err;
}
