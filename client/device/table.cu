/* SPDX-License-Identifier: BSD-2-Clause */
// The kernel of the library that executes the passes of gpunvme_table_gather().
// With two blocks on an SM, sm_90 has 128 registers for a thread, which hold the
// parts of eight rows; with three there are 80, and 600 bytes spill.
#include "client/device/gd_table.h"

extern "C" __global__ void __launch_bounds__(GD_TABLE_WARPS *GQ_LANES, 2)
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
