#include "bench/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

static constexpr int kBlocks = 1024, kThreads = 256;

__global__ void count_wrong(const uint64_t *words, uint64_t n, uint64_t seed,
                            unsigned long long *wrong)
{
    unsigned long long mine = 0;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        mine += words[i] != pattern_word(seed, i);
    if (mine)
        atomicAdd(wrong, mine);
}

__global__ void poison(uint64_t *words, uint64_t n, uint64_t seed)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        words[i] = ~pattern_word(seed, i);
}

extern "C" int pattern_count_wrong(const void *addr, uint64_t words, uint64_t seed, uint64_t *wrong)
{
    unsigned long long *count = nullptr, result = 0;
    if (cudaMalloc(&count, sizeof(*count)) != cudaSuccess)
        return -ENOMEM;
    cudaError_t err = cudaMemset(count, 0, sizeof(*count));
    if (err == cudaSuccess) {
        count_wrong<<<kBlocks, kThreads>>>((const uint64_t *)addr, words, seed, count);
        err = cudaGetLastError();
    }
    if (err == cudaSuccess)
        err = cudaMemcpy(&result, count, sizeof(result), cudaMemcpyDeviceToHost);
    cudaFree(count);
    *wrong = result;
    return err == cudaSuccess ? 0 : -EIO;
}

extern "C" int pattern_poison(void *addr, uint64_t words, uint64_t seed)
{
    poison<<<kBlocks, kThreads>>>((uint64_t *)addr, words, seed);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : -EIO;
}
