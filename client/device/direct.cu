/* SPDX-License-Identifier: BSD-2-Clause */
// Implements the library's kernel for short reads in a stream (gpunvme_submit_stream()).
#include "client/device/gd_launch.h"
#include "client/device/gd_shared_pread.h"

extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_read(const __grid_constant__ struct gd_launch l)
{
    int64_t bytes = gd_shared_pread_block(l.file_at, l.addr, l.len, l.offset);

    if (threadIdx.x == 0)
        gd_store_result(l.bytes, bytes);
}
