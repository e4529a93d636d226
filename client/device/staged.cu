/* SPDX-License-Identifier: BSD-2-Clause */
// The library's own kernel for long reads that are staged: gpunvme_read_async() in a stream.
#include "client/device/gd_launch.h"
#include "client/device/gd_staged.h"

static_assert(GD_COPY_WARPS == GQ_COPY_WARPS, "as many as are launched");

/* By one thread. */
static __device__ void begin_or_end(const struct gd_launch &l)
{
    if (l.step == GD_BEGINS)
        gd_store_result(l.bytes, 0);
    else if (*l.bytes == 0)
        gd_store_result(l.bytes, (int64_t)l.len);
}

/* The first warp of a block drives a queue, the other ones copy. */
extern "C" __global__ void __launch_bounds__((1 + GQ_COPY_WARPS) * GQ_LANES, 1)
    gpunvme_direct_read_staged(const __grid_constant__ struct gd_launch l)
{
    __shared__ struct gq_copy_jobs copies;
    const unsigned warp = threadIdx.x / GQ_LANES;
    struct gd_reader self = {.group = gq_whole_group(), .file = &l.file, .copies = &copies};
    int err;

    if (l.step != GD_READS) {
        if (threadIdx.x == 0)
            begin_or_end(l);
        return;
    }
    if (warp == 0)
        gq_copy_jobs_clear(&copies);
    __syncthreads();
    if (warp) {
        gq_copy_jobs_serve(&copies, warp - 1, GQ_COPY_WARPS);
        return;
    }
    const struct gd_staged s = {
        .buffer = &l.buffer,
        .read = {.file_offset = l.offset, .at = l.addr - l.buffer.addr, .len = l.len},
        .parts = l.parts,
        .cancel = l.cancel,
        .groups = gridDim.x,
        .unit = l.unit};
    bool is_last = gd_read_staged(&self, &s, blockIdx.x, &err);
    gq_copy_jobs_over(&copies);
    if (threadIdx.x != 0 || !(is_last || (err && !l.parts)))
        return;
    if (l.check)
        l.check->bytes = err ? err : (int64_t)l.len;
    else
        gd_store_result(l.bytes, err ? err : (int64_t)l.len);
}
