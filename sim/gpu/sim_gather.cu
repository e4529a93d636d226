/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies of any size and alignment by a kernel that is launched for them. */
#include "sim/gpu/sim_gather.h"

#include "cuda/queue/gq_bytes.h"

namespace
{

constexpr unsigned kThreads = 128;
constexpr unsigned kMaxBlocks = 512;

__global__ void __launch_bounds__(kThreads) gather(const struct sim_gather *copies, uint32_t n)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct sim_gather copy = copies[i];

        gq_copy_bytes(copy.dst, copy.src, copy.len, threadIdx.x, kThreads);
    }
}

} // namespace

extern "C" cudaError_t sim_gather_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)gather);
}

extern "C" cudaError_t sim_gather_run(const struct sim_gather *copies, uint32_t n,
                                      cudaStream_t stream)
{
    void *args[] = {&copies, &n};

    return cudaLaunchKernel((const void *)gather, n < kMaxBlocks ? n : kMaxBlocks, kThreads, args,
                            0, stream);
}
