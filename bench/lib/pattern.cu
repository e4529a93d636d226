/* SPDX-License-Identifier: BSD-2-Clause */
/* The GPU's part of the file contents that host and GPU compute for any byte. */
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

static constexpr int kBlocks = 1024, kThreads = 256;

static __device__ unsigned long long total_wrong;

/* Returns the word of the pattern that belongs to word i of the memory. */
static __device__ uint64_t expected(const struct pattern_pieces &p, uint64_t i)
{
    uint64_t words = p.bytes / 8;

    return pattern_word(p.seed, p.gpu_places[i / words] / 8 + i % words);
}

__global__ void count_wrong(const uint64_t *memory, uint64_t n, struct pattern_pieces p)
{
    unsigned long long mine = 0;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        mine += memory[i] != expected(p, i);
    if (mine)
        atomicAdd(&total_wrong, mine);
}

__global__ void write_all(uint64_t *memory, uint64_t n, uint64_t seed, uint64_t first,
                          uint64_t flip)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        memory[i] = pattern_word(seed, first + i) ^ flip;
}

/*
 * Waits for the stream and not for the device, because other streams may hold a persistent kernel.
 */
static int finish(void)
{
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    return cudaStreamSynchronize(0) == cudaSuccess ? 0 : -EIO;
}

extern "C" int pattern_gpu_count_wrong(const void *memory, const struct pattern_pieces *p,
                                       uint64_t *wrong)
{
    unsigned long long count = 0;

    if (cudaMemcpyToSymbol(total_wrong, &count, sizeof(count)) != cudaSuccess)
        return -EIO;
    count_wrong<<<kBlocks, kThreads>>>((const uint64_t *)memory, p->n * (p->bytes / 8), *p);
    if (finish() || cudaMemcpyFromSymbol(&count, total_wrong, sizeof(count)) != cudaSuccess)
        return -EIO;
    *wrong = count;
    return 0;
}

extern "C" int pattern_gpu_write(void *memory, uint64_t bytes, uint64_t seed, uint64_t place,
                                 bool poison)
{
    write_all<<<kBlocks, kThreads>>>((uint64_t *)memory, bytes / 8, seed, place / 8,
                                     poison ? ~UINT64_C(0) : 0);
    return finish();
}
