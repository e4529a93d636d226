/* SPDX-License-Identifier: BSD-2-Clause */
// The library's own kernel for lists: gpunvme_readv_async() in a stream.
#include "client/device/gd_compare.h"
#include "client/device/gd_list.h"
#include "client/device/gd_list_launch.h"

static_assert(GD_COPY_WARPS == GQ_COPY_WARPS, "as many as are launched");

/*
 * The first warp of a block reads. Further warps, if there are any, copy staged bytes; there are
 * none where data is compared by another kernel, nor behind it.
 */
extern "C" __global__ void __launch_bounds__((1 + GQ_COPY_WARPS) * GQ_LANES, 1)
    gpunvme_direct_readv(const __grid_constant__ struct gd_list_launch l)
{
    __shared__ struct gq_copy_jobs copies;
    const unsigned warp = threadIdx.x / GQ_LANES;
    struct gd_reader self = {.group = gq_whole_group(), .file = &l.file};

    if (warp == 0)
        gq_copy_jobs_clear(&copies);
    __syncthreads();
    if (warp) {
        gq_copy_jobs_serve(&copies, warp - 1, GQ_COPY_WARPS);
        return;
    }
    if (l.concludes) {
        gd_conclude_list(&self, &l.buffer, l.list, l.n, blockIdx.x, gridDim.x, l.check);
        return;
    }
    if (blockDim.x > GQ_LANES)
        self.copies = &copies;
    self.defers = l.check != NULL;
    gd_read_share(&self, &l.buffer, l.list, l.n, blockIdx.x, gridDim.x, l.dealing);
    gq_copy_jobs_over(&copies);
}
