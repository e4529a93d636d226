/* SPDX-License-Identifier: BSD-2-Clause */
// The library's own kernel: gpunvme_read_async() in a stream.
#include "client/device/gd_compare.h"
#include "client/device/gd_launch.h"
#include "client/device/gd_pread.h"

/* Called by a block of one warp, after the comparison. */
static __device__ void conclude(const struct gd_launch &l)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = &l.file};
    int64_t bytes = gd_conclude_read(
        &self, &l.buffer, {.file_offset = l.offset, .at = l.addr - l.buffer.addr, .len = l.len},
        l.check);

    if (threadIdx.x == 0)
        gd_store_result(l.bytes, bytes);
}

extern "C" __global__ void __launch_bounds__(GD_READ_QUEUES *GQ_LANES, 1)
    gpunvme_direct_read(const __grid_constant__ struct gd_launch l)
{
    if (l.concludes) {
        conclude(l);
        return;
    }
    int64_t bytes = gd_pread_block(&l.file, {&l.buffer, l.addr, l.len, l.offset, l.check != NULL});

    if (threadIdx.x != 0)
        return;
    if (l.check)
        l.check->bytes = bytes;
    else if (blockDim.x == GQ_LANES)
        gd_store_own_result(l.bytes, bytes);
    else
        gd_store_result(l.bytes, bytes);
}
