/* SPDX-License-Identifier: BSD-2-Clause */
// The kernel of the library that executes the passes of gpunvme_table_gather().
// With three blocks on an SM, sm_90 has 80 registers for a thread, which few
// words spill; with four there are 64, and 200 bytes spill.
#include "client/device/gd_table.h"

extern "C" __global__ void __launch_bounds__(GD_TABLE_WARPS *GQ_LANES, 3)
    gpunvme_table(const __grid_constant__ struct gd_table_launch l)
{
    const struct gd_table_worker worker = {
        .group = gq_whole_group(),
        .l = &l,
        .rank = blockIdx.x * GD_TABLE_WARPS + threadIdx.x / GQ_LANES,
        .groups = gridDim.x * GD_TABLE_WARPS,
    };

    gd_table_run(&worker);
}
