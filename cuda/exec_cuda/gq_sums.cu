/* SPDX-License-Identifier: BSD-2-Clause */
// Computes the CRC-32C of parts of GQ_SUM_BYTES bytes. One warp computes each
// part.
#include "cuda/exec_cuda/gq_kernels.h"
#include "cuda/gq_sum_fill.h"
#include "cuda/queue/gq_data_sums.h"

namespace
{

static_assert(GQ_SUM_BYTES == GQ_SUM_BLOCK, "a part is what a warp takes at once");

constexpr unsigned kWarps = 8, kBlocks = 528; /* warps of a block, and blocks launched */
constexpr unsigned kBlocksEach = 4;           /* per multiprocessor: 64 registers */

__device__ struct gq_sum_table the_table;

/*
 * Computes the checksums of the parts as they are at the launch; nothing of
 * this run stores to them meanwhile.
 */
__global__ void __launch_bounds__(kWarps *GQ_LANES, kBlocksEach)
    make_sums(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums)
{
    const struct gq_summer summer = {.group = gq_whole_group(), .sums = {NULL, &the_table}};

    for (uint32_t i = blockIdx.x * kWarps + threadIdx.x / GQ_LANES; i < n;
         i += gridDim.x * kWarps) {
        uint32_t crc = gq_block_crc(&summer, base + (at ? at[i] : (uint64_t)i * GQ_SUM_BYTES));

        if (summer.group.rank == 0)
            sums[i] = crc;
    }
}

} // namespace

extern "C" cudaError_t gq_sums_load(void)
{
    struct cudaFuncAttributes attr;
    struct gq_sum_table table;
    cudaError_t err = cudaFuncGetAttributes(&attr, (const void *)make_sums);

    if (err != cudaSuccess)
        return err;
    gq_sum_fill(&table);
    return cudaMemcpyToSymbol(the_table, &table, sizeof(table));
}

extern "C" cudaError_t gq_sums_launch(uint64_t base, const uint64_t *at, uint32_t n, uint32_t *sums,
                                      cudaStream_t stream)
{
    unsigned blocks = (n + kWarps - 1) / kWarps;
    void *args[] = {&base, &at, &n, &sums};

    return cudaLaunchKernel((const void *)make_sums, blocks < kBlocks ? blocks : kBlocks,
                            kWarps * GQ_LANES, args, 0, stream);
}
