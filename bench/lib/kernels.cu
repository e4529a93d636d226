/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels with which benchmarks compare. */
#include "bench/lib/kernels.h"
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

static constexpr unsigned kThreads = 256, kWarp = 32;
static constexpr unsigned kLine = kWarp * sizeof(uint4); /* a load of a warp */

/* A warp takes chunks of kLoads lines in turn, all in flight together; pieces are whole chunks. */
template <unsigned kLoads>
__global__ void gather(char *memory, const char *source, struct pattern_pieces p)
{
    constexpr unsigned kChunk = kLoads * kLine;
    uint64_t warp = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint64_t warps = (uint64_t)gridDim.x * blockDim.x / kWarp, per_piece = p.bytes / kChunk;
    unsigned lane = threadIdx.x % kWarp;

    for (uint64_t i = warp; i < p.n * per_piece; i += warps) {
        const uint4 *from =
            (const uint4 *)(source + p.gpu_places[i / per_piece] + i % per_piece * kChunk) + lane;
        uint4 *to = (uint4 *)(memory + i * kChunk) + lane;
        uint4 held[kLoads];
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
    if (p->bytes % (8 * kLine) == 0)
        gather<8><<<512, kThreads>>>((char *)memory, (const char *)source, *p);
    else
        gather<1><<<512, kThreads>>>((char *)memory, (const char *)source, *p);
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
