/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Launches lists of reads, and long reads. Both have queues of their own. One block reads on each
 * queue. On mounts without a GPU the calling thread executes lists.
 */
#define GQ_LANES 1
#include "client/device/gd_list.h"

#include "client/device/gd_launch.h"
#include "client/lib/call_stats.h"
#include "client/lib/direct.h"
#include "client/lib/nvtx_range.h"
#include "client/lib/shared_list.h"

/* --- Long reads ------------------------------------------------------------------------------ */

/*
 * Returns true if the file has no checksums, or if a kernel after the read can compare whole
 * blocks.
 */
static bool direct_long_suits_sums(const struct gd_launch *l)
{
    return !l->file.sums.words ||
           ((l->offset | l->len) % GQ_SUM_BLOCK == 0 && direct_compare_pays(l));
}

bool direct_long_takes(const struct gpunvme_direct *d, const struct gd_launch *l)
{
    const struct gd_set *set = &l->file.set;
    uint64_t most =
        GD_STAGES(&l->buffer) ? set->lane_bytes : (uint64_t)set->max_command * GD_QUEUE_COMMANDS;

    return d->list_kernel.function && l->len > most && direct_long_suits_sums(l);
}

int direct_long_launch(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    l->check = direct_check_take(d, &l->file, stream);
    if (l->file.sums.words && !l->check)
        return 0;
    l->unit = gd_staged_unit(&l->file.set, l->len);
    int err = direct_launch(d, l, stream);
    return err ? err : 1;
}

/* --- Lists ----------------------------------------------------------------------------------- */

static int direct_list_start(struct gpunvme_direct *d, struct gd_launch *l, void *stream)
{
    l->check = GD_STAGES(&l->buffer) ? NULL : direct_check_take(d, &l->file, stream);
    return direct_launch(d, l, stream);
}

static void direct_list_execute(const struct gd_launch *l)
{
    struct gd_reader reader = {.group = gq_whole_group(), .file = &l->file};
    struct gd_list_share share;

    gd_share_list(&reader, &l->buffer, l->list, l->n, 0, 1, &share);
    (void)gd_read_share(&reader, &l->buffer, &share, gd_take_share(&reader, &share));
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
    struct gd_launch l = {.file = f->device, .file_at = leased_file_device(f), .n = (uint32_t)n};
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
    direct_list_execute(&l);
    return 0;
}

/* Reads the pieces of the window on the calling thread. */
static void direct_list_window_here(struct gd_launch *l)
{
    uint32_t first;

    l->n = gd_list_window(l->bounds, l->from, l->n, &first);
    l->list += first;
    l->bounds = NULL;
    if (l->n)
        direct_list_execute(l);
}

int direct_list_read_window(struct leased_file *f, const struct direct_window *win, void *stream)
{
    struct gpunvme_direct *d = f->d;
    struct gd_launch l = {.file = f->device,
                          .file_at = leased_file_device(f),
                          .list = win->pieces,
                          .n = win->n,
                          .bounds = win->bounds,
                          .from = win->from};
    int err = direct_list_find(f, win->ptr, &l);

    if (err)
        return err;
    if (d->space.cuda)
        return direct_launch(d, &l, stream);
    direct_list_window_here(&l);
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
