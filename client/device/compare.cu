/* SPDX-License-Identifier: BSD-2-Clause */
// Implements the kernel that compares data with checksums. An earlier kernel in the stream has read
// the data.
#include "client/device/gd_compare.h"

extern "C" __global__ void __launch_bounds__(GD_COMPARE_WARPS *GQ_LANES, 4)
    gpunvme_direct_compare(const __grid_constant__ struct gd_compare_launch l)
{
    const struct gq_summer summer = {.group = gq_whole_group(), .sums = l.sums};

    gd_compare(&summer, &l, blockIdx.x * GD_COMPARE_WARPS + threadIdx.x / GQ_LANES,
               gridDim.x * GD_COMPARE_WARPS);
}
