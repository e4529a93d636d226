/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs warps and threads that read a file through a cache, or in other ways. */
#include "bench/lib/cache_kernels.h"
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

#include "gpunvme/gpunvme_array.cuh"

namespace
{

constexpr unsigned kThreads = 128, kWarp = 32;

/* The result of a read that failed, or -EBADMSG for wrong bytes. */
__device__ long long failed;

__device__ void tell(int64_t got)
{
    atomicCAS((unsigned long long *)&failed, 0ull, (unsigned long long)got);
}

/* Returns the i-th of n numbers below a power of two, each of them once. */
__device__ uint64_t permuted(uint64_t i, uint64_t n)
{
    return i * 0x9e3779b97f4a7c15u & (n - 1);
}

__device__ int64_t get_line(enum cache_way way, const struct cache_run &r, char *to, uint64_t line)
{
    uint64_t at = line * r.line;

    if (way == CACHE_PREAD)
        return gpunvme_pread_warp(r.file, to, r.line, at);
    if (way == CACHE_LINES)
        return gpunvme_cache_read_warp(r.cache, to, r.line, at);
    for (uint64_t k = threadIdx.x % kWarp; k < r.line / sizeof(uint4); k += kWarp)
        ((uint4 *)to)[k] = ((const uint4 *)((const char *)r.copy + at))[k];
    __syncwarp();
    return (int64_t)r.line;
}

/* Each lane compares one word of the line. */
template <enum cache_way way>
__global__ void __launch_bounds__(kThreads) get_lines(const __grid_constant__ struct cache_run r)
{
    uint64_t warp = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint64_t word = threadIdx.x % kWarp * (r.line / 8 / kWarp);
    char *to = (char *)r.to + warp * r.line;

    for (uint64_t i = warp; i < r.n && warp < r.warps; i += r.warps) {
        uint64_t line = permuted(i, r.lines);
        int64_t got = get_line(way, r, to, line);

        if (got != (int64_t)r.line)
            tell(got < 0 ? got : -ENODATA);
        else if (((const volatile uint64_t *)to)[word] !=
                 pattern_word(r.seed, line * (r.line / 8) + word))
            tell(-EBADMSG);
        __syncwarp();
    }
}

template <enum cache_way way>
__global__ void __launch_bounds__(kThreads) get_elements(const __grid_constant__ struct cache_run r)
{
    uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t words = r.lines * (r.line / 8);

    gpunvme_array<uint64_t> elements(r.cache);
    for (uint64_t i = thread; i < r.n; i += (uint64_t)r.warps * kWarp) {
        uint64_t number = permuted(i, words), found = 0;
        int err = 0;

        if (way == CACHE_ELEMENTS)
            err = elements.get(number, &found);
        else
            found = ((const volatile uint64_t *)r.copy)[number];
        if (err)
            tell(err);
        else if (found != pattern_word(r.seed, number))
            tell(-EBADMSG);
    }
}

__device__ bool is_byte(uint64_t seed, uint64_t at, char byte)
{
    return byte == (char)(pattern_word(seed, at / 8) >> at % 8 * 8);
}

/*
 * Returns true if the lane's word is wrong. The warp holds the line that
 * contains the word of lane 0.
 */
__device__ bool load_held(const struct cache_run &r, uint64_t word, int64_t *got)
{
    unsigned lane = threadIdx.x % kWarp;
    uint64_t found = 0;

    gpunvme_array<uint64_t> words(r.cache);
    gpunvme_line<uint64_t> line(words);
    uint64_t number = min(word + lane, words.size() - 1);
    int err = line.hold(word);
    __nanosleep(1000); /* others need the way meanwhile */
    if (!err)
        err = line.get(number, &found);
    *got = __reduce_min_sync(0xffffffffu, err);
    return !err && found != pattern_word(r.seed, number);
}

/* Returns true if one of the lane's bytes is wrong, of n that the warp reads to its memory. */
__device__ bool read_random(const struct cache_run &r, char *to, uint64_t n, uint64_t offset,
                            int64_t *got)
{
    bool wrong = false;

    *got = gpunvme_cache_read_warp(r.cache, to, n, offset);
    for (uint64_t k = threadIdx.x % kWarp; k<n && * got> 0; k += kWarp)
        wrong = wrong || !is_byte(r.seed, offset + k, ((const volatile char *)to)[k]);
    return wrong || (*got >= 0 && (uint64_t)*got != n);
}

__global__ void __launch_bounds__(kThreads)
    read_many(const __grid_constant__ struct cache_run r, uint64_t turn, unsigned rounds,
              struct cache_found *found)
{
    uint64_t warp = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint64_t bytes = r.lines * r.line;

    for (unsigned i = 0; i < rounds && warp < r.warps; i++) {
        uint64_t random = pattern_word(turn, warp * rounds + i),
                 n = 1 + (random >> 48) % (2 * r.line);
        uint64_t offset = random % ((random >> 40 & 1 ? bytes : bytes / 8) - n);
        int64_t got = 0;
        bool wrong = random >> 41 & 3
                         ? read_random(r, (char *)r.to + warp * 2 * r.line, n, offset, &got)
                         : load_held(r, offset / 8, &got);

        wrong = __any_sync(0xffffffffu, wrong);
        if (threadIdx.x % kWarp == 0) {
            atomicAdd(&found->reads, 1ull);
            atomicAdd(&found->failed, (unsigned long long)(got < 0));
            atomicAdd(&found->wrong, (unsigned long long)wrong);
            if (got < 0)
                found->error = got;
        }
        __syncwarp();
    }
}

using kernel = void (*)(struct cache_run r);

} // namespace

extern "C" int kernel_cache(enum cache_way way, const struct cache_run *r, double *seconds,
                            int64_t *result)
{
    static const kernel kernels[] = {get_lines<CACHE_COPY>, get_lines<CACHE_PREAD>,
                                     get_lines<CACHE_LINES>, get_elements<CACHE_LOADS>,
                                     get_elements<CACHE_ELEMENTS>};
    long long first = 0;
    float ms = 0;
    cudaEvent_t start, end;

    *result = 0;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    bool ok = cudaMemcpyToSymbol(failed, &first, sizeof(first)) == cudaSuccess;
    cudaEventRecord(start);
    kernels[way]<<<(r->warps * kWarp + kThreads - 1) / kThreads, kThreads>>>(*r);
    ok = ok && cudaGetLastError() == cudaSuccess;
    cudaEventRecord(end);
    ok = ok && cudaStreamSynchronize(0) == cudaSuccess &&
         cudaEventElapsedTime(&ms, start, end) == cudaSuccess &&
         cudaMemcpyFromSymbol(&first, failed, sizeof(first)) == cudaSuccess;
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    *seconds = ms * 1e-3;
    *result = first;
    return !ok || first ? -EIO : 0;
}

extern "C" int kernel_cache_random(const struct cache_run *r, uint64_t turn, unsigned rounds,
                                   struct cache_found *found)
{
    struct cache_found *sums = nullptr;
    bool ok = cudaMalloc(&sums, sizeof(*sums)) == cudaSuccess &&
              cudaMemcpy(sums, found, sizeof(*sums), cudaMemcpyDefault) == cudaSuccess;

    if (ok) {
        read_many<<<(r->warps * kWarp + kThreads - 1) / kThreads, kThreads>>>(*r, turn, rounds,
                                                                              sums);
        ok = cudaGetLastError() == cudaSuccess &&
             cudaMemcpy(found, sums, sizeof(*sums), cudaMemcpyDefault) == cudaSuccess;
    }
    cudaFree(sums);
    return ok ? 0 : -EIO;
}
