/* SPDX-License-Identifier: BSD-2-Clause */
// Implements the library's kernel for lists and for long reads (gpunvme_submit_stream()).
#include "client/device/gd_compare.h"
#include "client/device/gd_launch.h"
#include "client/device/gd_list.h"
#include "cuda/queue/gq_list_block.h"

static_assert(GD_COPY_WARPS == GQ_COPY_WARPS, "as many as are launched");

/* A group takes its pieces from a counter if it has more than its lanes load in two turns. */
static __device__ bool is_dealt(const struct gd_launch &l, const struct gd_list_share *s)
{
    return l.parts && s->groups > 1 && !s->compares &&
           (!s->reads.desc || s->run.n_cmds / s->groups >= 2 * GQ_LANES);
}

/* Describes the pieces of a launch, and the number of blocks that read these pieces. */
struct list_window {
    struct gq_read_desc *list; /* NULL: a single read */
    uint32_t n, blocks;
};

/*
 * If a kernel made the list, it may have fewer pieces than the host has
 * launched blocks for.
 */
static __device__ struct list_window window_of(const struct gd_launch &l)
{
    struct list_window win = {l.list, l.n, gridDim.x};
    uint32_t first;

    if (l.bounds) {
        win.n = gd_list_window(l.bounds, l.from, l.n, &first);
        win.list += first;
        win.blocks = min(gridDim.x, (win.n + GD_QUEUE_PIECES - 1) / GD_QUEUE_PIECES);
    }
    return win;
}

/*
 * Called by the first warp. Sets up the block's share, and takes a queue for
 * it. Returns its error.
 */
static __device__ int begin(struct gd_reader *w, const struct gd_launch &l,
                            const struct list_window &win, struct gd_list_share *s)
{
    const struct gq_read read = {
        .file_offset = l.offset, .at = l.addr - l.buffer.addr, .len = l.len};

    if (l.list)
        gd_share_list(w, &l.buffer, win.list, win.n, blockIdx.x, win.blocks, s);
    else
        gd_share_read(w, &l.buffer, read, l.unit, l.cancel, blockIdx.x, gridDim.x, s);
    if (is_dealt(l, s))
        gd_set_parts(s, gd_parts_of(w, l.parts, 1 + gd_launch_number()));
    return gd_take_share(w, s);
}

/*
 * Called by the first warp. Reads, and stores the result of a read if the block
 * is the last one.
 */
static __device__ void lead(struct gd_reader *w, const struct gd_launch &l, struct gd_list_share *s,
                            int err)
{
    err = gd_read_share(w, &l.buffer, s, err);
    gq_copy_jobs_over(w->copies);
    if (!gd_end_share(w, l.parts, s, &err) || l.list || threadIdx.x != 0)
        return;
    if (l.check)
        l.check->bytes = err ? err : (int64_t)l.len;
    else
        gd_store_result(l.bytes, err ? err : (int64_t)l.len);
}

/* Concludes a read or a list after the comparison. Called by a block of one warp. */
static __device__ __noinline__ void conclude(const struct gd_launch &l)
{
    const struct gd_concluder self = {gq_whole_group(), l.file_at, l.check};

    if (l.list) {
        gd_conclude_list(&self, l.buffer.addr, l.list, l.n, blockIdx.x, gridDim.x);
        return;
    }
    int64_t bytes = gd_conclude_read(&self, l.addr, l.offset, l.len);

    if (threadIdx.x == 0)
        gd_store_result(l.bytes, bytes);
}

/*
 * The second warp of a block loads the list, further ones copy staged bytes. The first warp loads a
 * short list by itself, because the way through the ring takes longer than its few loads.
 */
extern "C" __global__ void __launch_bounds__(GQ_LIST_WARPS *GQ_LANES, 1)
    gpunvme_direct_list(const __grid_constant__ struct gd_launch l)
{
    __shared__ struct gq_list_block block;
    __shared__ struct gd_list_share share;
    __shared__ int err;
    const unsigned warp = threadIdx.x / GQ_LANES;
    struct gd_reader self = {.group = gq_whole_group(), .file = &l.file, .copies = &block.copies};

    if (l.concludes) {
        conclude(l);
        return;
    }
    const struct list_window win = window_of(l);
    if (blockIdx.x >= win.blocks)
        return;
    self.defers = l.check != NULL;
    if (warp == 0)
        err = begin(&self, l, win, &share);
    gq_list_block_clear(&block);
    const bool prefetches = l.list && share.parts && !err && share.rank < share.sharing;
    if (warp > 1) {
        gq_copy_jobs_serve(&block.copies, warp - 2, GQ_COPY_WARPS);
    } else if (warp == 1) {
        if (prefetches)
            gq_prefetch_serve(&block.prefetch, &share.run, &share.reads, share.rank);
    } else {
        self.prefetch = prefetches ? &block.prefetch : NULL;
        lead(&self, l, &share, err);
    }
}
