/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of an application that reads lists by the direct path. */
#include "tests/client/device/test_direct_readv_kernels.h"

#include "gpunvme/gpunvme_device.h"

namespace
{

constexpr unsigned kWarp = 32;

__global__ void lists(const struct gpunvme_device_file *f, void *dst, struct gpunvme_piece *pieces,
                      unsigned n, const int *expected, int *returned, unsigned *wrong)
{
    unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    struct gpunvme_piece *mine = pieces + warp * n;
    int err = gpunvme_preadv_warp(f, dst, mine, n);

    for (unsigned i = lane; i < n; i += kWarp) {
        if (mine[i].result != expected[warp * n + i])
            atomicAdd(wrong, 1);
    }
    if (lane == 0)
        returned[warp] = err;
}

} // namespace

extern "C" cudaError_t launch_lists(const struct gpunvme_device_file *f, void *dst,
                                    struct gpunvme_piece *pieces, unsigned n, unsigned warps,
                                    const int *expected, int *returned, unsigned *wrong,
                                    cudaStream_t stream)
{
    constexpr unsigned kBlock = 4; // warps

    lists<<<warps / kBlock, kBlock * kWarp, 0, stream>>>(f, dst, pieces, n, expected, returned,
                                                         wrong);
    return cudaGetLastError();
}
