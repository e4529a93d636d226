/* SPDX-License-Identifier: BSD-2-Clause */
// The library's own kernel for lists: gpunvme_readv_async() in a stream.
#include "client/device/gd_list.h"
#include "client/device/gd_list_launch.h"

extern "C" __global__ void __launch_bounds__(GQ_LANES, 1)
    gpunvme_direct_readv(const __grid_constant__ struct gd_list_launch l)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = &l.file};

    gd_read_share(&self, &l.buffer, l.list, l.n, blockIdx.x, gridDim.x);
}
