/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels with which benchmarks compare. */
#include "bench/lib/kernels.h"
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

static constexpr unsigned kThreads = 256, kWarp = 32;

/*
 * A line is one load of a warp, 32 words. A warp takes chunks of kLoads lines
 * in turn, whose loads are all in flight together. Pieces are whole chunks.
 */
template <typename word, unsigned kLoads>
__global__ void gather(char *memory, const char *source, struct pattern_pieces p)
{
    constexpr unsigned kChunk = kLoads * kWarp * sizeof(word);
    uint64_t warp = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint64_t warps = (uint64_t)gridDim.x * blockDim.x / kWarp, per_piece = p.bytes / kChunk;
    unsigned lane = threadIdx.x % kWarp;

    for (uint64_t i = warp; i < p.n * per_piece; i += warps) {
        const word *from =
            (const word *)(source + p.gpu_places[i / per_piece] + i % per_piece * kChunk) + lane;
        word *to = (word *)(memory + i * kChunk) + lane;
        word held[kLoads];
#pragma unroll
        for (unsigned k = 0; k < kLoads; k++)
            held[k] = from[k * kWarp];
#pragma unroll
        for (unsigned k = 0; k < kLoads; k++)
            to[k * kWarp] = held[k];
    }
}

__global__ void empty()
{
}

__global__ void compute(uint64_t work, float *never)
{
    float x = (float)threadIdx.x;

    for (uint64_t i = 0; i < work; i++)
        x = x * 1.000001f + 0.5f;
    if (x == -1.0f)
        *never = x;
}

static int ended(cudaStream_t stream)
{
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    return cudaStreamSynchronize(stream) == cudaSuccess ? 0 : -EIO;
}

extern "C" int kernel_gather(void *memory, const void *source, const struct pattern_pieces *p)
{
    bool wide = p->bytes % 512 == 0 && (p->n == 0 || p->places[0] % 16 == 0);
    void (*kernel)(char *, const char *, struct pattern_pieces) = !wide ? gather<uint2, 1>
                                                                  : p->bytes % 4096 == 0
                                                                      ? gather<uint4, 8>
                                                                      : gather<uint4, 1>;

    kernel<<<512, kThreads>>>((char *)memory, (const char *)source, *p);
    return ended(0);
}

extern "C" int kernel_empty(void)
{
    empty<<<1, 1>>>();
    return ended(0);
}

extern "C" int kernel_compute(void *stream, uint64_t work)
{
    int processors = 0, blocks = 0;

    if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, compute, kThreads, 0) != cudaSuccess)
        return -EIO;
    compute<<<processors * blocks, kThreads, 0, (cudaStream_t)stream>>>(work, nullptr);
    return ended((cudaStream_t)stream);
}
