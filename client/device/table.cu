/* SPDX-License-Identifier: BSD-2-Clause */
// gpunvme_table_gather() launches these kernels: the first for a pass, the second
// for a gather of few rows.
//
// With two blocks on an SM, sm_90 has 128 registers for a thread, which hold the
// parts of eight rows. With three blocks it has 80, and 600 bytes are spilled.
// A thread of the second kernel has 255 registers. The compiler would choose
// 168, and spill 2,200 bytes.
#include "client/device/gd_table_few.h"

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

extern "C" __global__ void __launch_bounds__(GD_TABLE_FEW_WARPS *GQ_LANES, 1)
    gpunvme_table_few(const __grid_constant__ struct gd_table_launch l)
{
    const struct gd_table_worker worker = {
        .group = gq_whole_group(),
        .l = &l,
        .rank = blockIdx.x * GD_TABLE_FEW_WARPS + threadIdx.x / GQ_LANES,
        .groups = gridDim.x * GD_TABLE_FEW_WARPS,
    };

    gd_table_few(&worker);
}
