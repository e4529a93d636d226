/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads through a cache in kernels, as an application does. */
#include "tests/client/device/test_cache_kernels.h"

#include "gpunvme/gpunvme_array.cuh"

namespace
{

constexpr unsigned kThreads = 128, kWarp = 32;

struct element {
    uint8_t bytes[12];
};

__device__ uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 20;
}

__device__ void report(struct cache_found *found, bool wrong, int err)
{
    atomicAdd(&found->reads, 1ull);
    if (err) {
        atomicAdd(&found->failed, 1ull);
        atomicExch(&found->error, err);
    } else if (wrong) {
        atomicAdd(&found->wrong, 1ull);
    }
}

__global__ void __launch_bounds__(kThreads)
    read_warps(const struct gpunvme_device_cache *c, uint8_t *room, unsigned warps, unsigned rounds,
               uint64_t span, struct cache_found *found)
{
    unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    uint64_t state = warp + 1;
    uint8_t *to = room + (uint64_t)warp * CACHE_ROOM;

    for (unsigned i = 0; i < rounds && warp < warps; i++) {
        uint64_t n = 1 + next_random(&state) % CACHE_ROOM, offset = next_random(&state) % span;
        int64_t got = gpunvme_cache_read_warp(c, to, n, offset);
        bool wrong = got >= 0 && (uint64_t)got != n;

        for (uint64_t k = lane; k < n && got > 0; k += kWarp)
            wrong = wrong || to[k] != CACHE_BYTE(offset + k);
        wrong = __any_sync(0xffffffffu, wrong);
        if (lane == 0)
            report(found, wrong, got < 0 ? (int)got : 0);
        __syncwarp();
    }
}

__global__ void __launch_bounds__(kThreads)
    read_threads(const struct gpunvme_device_cache *c, unsigned warps, unsigned rounds,
                 uint64_t span, struct cache_found *found)
{
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t state = thread + 1;

    gpunvme_array<element> elements(c, 5); // at odd places
    for (unsigned i = 0; i < rounds && thread / kWarp < warps; i++) {
        uint64_t number = next_random(&state) % (span / sizeof(element));
        struct element e = {};
        bool wrong = false;
        int err;

        if (thread % 5 == 0)
            err = elements.get(number, &e);
        else
            err = elements.get(number, &e);
        for (uint64_t k = 0; k < sizeof(e); k++)
            wrong = wrong || e.bytes[k] != CACHE_BYTE(5 + number * sizeof(e) + k);
        report(found, wrong, err);
    }
    if (elements.get(elements.size(), nullptr) != -ERANGE)
        report(found, true, 0);
}

/*
 * Each warp holds one line after another, and its lanes get elements at and
 * behind the one for which the line is held. Half of them lie in other lines.
 */
__global__ void __launch_bounds__(kThreads)
    hold_lines(const struct gpunvme_device_cache *c, unsigned warps, unsigned rounds, uint64_t span,
               struct cache_found *found)
{
    unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    uint64_t state = warp + 1;

    gpunvme_array<uint64_t> words(c);
    gpunvme_line<uint64_t> line(words);
    for (unsigned i = 0; i < rounds && warp < warps; i++) {
        uint64_t first = next_random(&state) % (span / 8), number = first + lane * 16, word = 0;
        int err = line.hold(first);

        if (!err)
            err = line.get(number, &word);
        bool wrong = false;
        for (unsigned k = 0; k < 8; k++)
            wrong = wrong || (uint8_t)(word >> k * 8) != CACHE_BYTE(number * 8 + k);
        report(found, wrong, err);
        __syncwarp();
    }
    if (line.hold(words.size()) != -ERANGE)
        report(found, true, 0);
}

__global__ void prefetch_one(const struct gpunvme_device_cache *c, uint64_t n, uint64_t offset,
                             int *error)
{
    int err = gpunvme_array<uint8_t>(c).prefetch(offset, n);

    if (threadIdx.x == 0)
        *error = err;
}

unsigned blocks_of(unsigned warps)
{
    return (warps * kWarp + kThreads - 1) / kThreads;
}

} // namespace

cudaError_t launch_cache_warps(const struct gpunvme_device_cache *c, uint8_t *room, unsigned warps,
                               unsigned rounds, uint64_t span, struct cache_found *found,
                               cudaStream_t stream)
{
    read_warps<<<blocks_of(warps), kThreads, 0, stream>>>(c, room, warps, rounds, span, found);
    return cudaGetLastError();
}

cudaError_t launch_cache_threads(const struct gpunvme_device_cache *c, unsigned warps,
                                 unsigned rounds, uint64_t span, struct cache_found *found,
                                 cudaStream_t stream)
{
    read_threads<<<blocks_of(warps), kThreads, 0, stream>>>(c, warps, rounds, span, found);
    return cudaGetLastError();
}

cudaError_t launch_cache_holds(const struct gpunvme_device_cache *c, unsigned warps,
                               unsigned rounds, uint64_t span, struct cache_found *found,
                               cudaStream_t stream)
{
    hold_lines<<<blocks_of(warps), kThreads, 0, stream>>>(c, warps, rounds, span, found);
    return cudaGetLastError();
}

cudaError_t launch_cache_prefetch(const struct gpunvme_device_cache *c, uint64_t n, uint64_t offset,
                                  int *error, cudaStream_t stream)
{
    prefetch_one<<<1, kWarp, 0, stream>>>(c, n, offset, error);
    return cudaGetLastError();
}
