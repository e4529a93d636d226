/* SPDX-License-Identifier: BSD-2-Clause */
// The library's own kernel: gpunvme_read_async() in a stream.
#include "client/device/gd_launch.h"
#include "client/device/gd_pread.h"

extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_read(const __grid_constant__ struct gd_launch l)
{
    int64_t bytes = gd_pread_block(&l.file, &l.buffer, l.addr, l.len, l.offset);

    if (threadIdx.x != 0)
        return;
    if (blockDim.x == GQ_LANES)
        gd_store_own_result(l.bytes, bytes);
    else
        gd_store_result(l.bytes, bytes);
}
