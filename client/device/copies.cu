/* SPDX-License-Identifier: BSD-2-Clause */
// The block that stays for copies of small reads.
#include "client/device/gd_copy_warp.h"

extern "C" __global__ void __launch_bounds__(GD_COPIES_SLOTS *GQ_LANES, 1)
    gpunvme_copies(const __grid_constant__ struct gd_copies_launch l)
{
    __shared__ struct gd_copies_block block;

    if (threadIdx.x == 0) {
        block.served = block.leaving = 0;
        gd_store_own_result((int64_t *)&l.copies->started.value, l.number);
    }
    __syncthreads();
    gd_copies_serve(&l, &block, threadIdx.x / GQ_LANES);
    __syncthreads();
    if (threadIdx.x == 0)
        gd_store_result((int64_t *)&l.copies->ended.value, l.number);
}
