/* SPDX-License-Identifier: BSD-2-Clause */
/* A block of a kernel that reads a file for itself. */
#include "bench/lib/direct_kernels.h"

#include <cuda_runtime.h>
#include <errno.h>

#include "gpunvme/gpunvme_device.h"

namespace
{

constexpr unsigned kThreads = 256;

__device__ long long failed; /* the result of a read that was not served whole */

__global__ void __launch_bounds__(kThreads)
    read_in_parts(const struct gpunvme_device_file *file, char *to, uint64_t bytes, uint64_t part)
{
    for (uint64_t at = blockIdx.x * part; at < bytes; at += gridDim.x * part) {
        uint64_t n = part < bytes - at ? part : bytes - at;
        int64_t got = gpunvme_pread_block(file, to + at, n, at);

        if (got != (int64_t)n && threadIdx.x == 0)
            failed = got < 0 ? got : -ENODATA;
    }
}

} // namespace

extern "C" int kernel_block_reads(const struct gpunvme_device_file *file, void *to, uint64_t bytes,
                                  uint64_t part, unsigned blocks)
{
    long long result = 0;

    if (cudaMemcpyToSymbol(failed, &result, sizeof(result)) != cudaSuccess)
        return -EIO;
    read_in_parts<<<blocks, kThreads>>>(file, (char *)to, bytes, part);
    if (cudaGetLastError() != cudaSuccess || cudaStreamSynchronize(0) != cudaSuccess ||
        cudaMemcpyFromSymbol(&result, failed, sizeof(result)) != cudaSuccess)
        return -EIO;
    return (int)result;
}
