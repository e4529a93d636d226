/* SPDX-License-Identifier: BSD-2-Clause */
/* The loads and stores of reads without the protocol. */
#include "bench/lib/kernels.h"
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

/* Rings are as large as those of 32 queues, and used in turn. */
static constexpr unsigned kThreads = 256, kBlocks = 64, kWarp = 32, kLoads = 8;
static constexpr unsigned kSlotTurns = 256, kEntryTurns = 1024, kListWords = 3;

struct rings {
    uint4 slots[kSlotTurns][kWarp]; /* of a simulated drive's copy kernel: where from, where to */
    uint4 cqes[kEntryTurns][kWarp]; /* of which the last word is looked at */
    uint4 sqes[kEntryTurns][kWarp][4]; /* written */
};
static_assert(sizeof(struct rings) <= KERNEL_RINGS_BYTES, "the caller has room");

/* What goes over the link for as many pieces as a warp has lanes, but for their bytes. */
__device__ uint32_t move_entries(struct rings *rings, uint64_t *list, uint32_t turn)
{
    unsigned lane = threadIdx.x % kWarp, at = turn % kEntryTurns;
    uint32_t seen =
        __ldcv(&rings->slots[turn % kSlotTurns][lane]).x + __ldcv(&rings->cqes[at][lane].w);

    for (unsigned k = 0; k < 4; k++)
        rings->sqes[at][lane][k] = make_uint4(turn, k, lane, 0);
    for (unsigned k = 0; list && k < kListWords; k++) {
        uint64_t *word = &list[((uint64_t)turn * kListWords + k) * kWarp + lane];
        uint64_t value = __ldcv(word);

        *word = value;
        seen += (uint32_t)value;
    }
    return seen;
}

__global__ void __launch_bounds__(kThreads)
    traffic(char *memory, const char *source, struct pattern_pieces p, struct rings *rings,
            uint64_t *list, uint32_t *never)
{
    uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint32_t lines = (uint32_t)(p.bytes / (kWarp * sizeof(uint4))); /* of a piece */
    uint64_t line_bytes = kWarp * sizeof(uint4), first = threadIdx.x % kWarp * sizeof(uint4);
    uint32_t seen = 0;

    for (uint32_t turn = warp; turn < p.n / kWarp; turn += gridDim.x * blockDim.x / kWarp) {
        seen += move_entries(rings, list, turn);
        for (uint32_t i = turn * kWarp * lines; i < (turn + 1) * kWarp * lines; i += kLoads) {
            uint4 held[kLoads];
#pragma unroll
            for (unsigned k = 0; k < kLoads; k++)
                held[k] = __ldcv((const uint4 *)(source + p.gpu_places[(i + k) / lines] +
                                                 (i + k) % lines * line_bytes + first));
#pragma unroll
            for (unsigned k = 0; k < kLoads; k++)
                *(uint4 *)(memory + (i + k) * line_bytes + first) = held[k];
        }
    }
    if (seen == UINT32_MAX) /* so that none of it is left out */
        *never = seen;
}

extern "C" int kernel_traffic(void *memory, const void *source, const struct pattern_pieces *p,
                              void *rings, void *list)
{
    traffic<<<kBlocks, kThreads>>>((char *)memory, (const char *)source, *p, (struct rings *)rings,
                                   (uint64_t *)list, (uint32_t *)memory);
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    return cudaStreamSynchronize(0) == cudaSuccess ? 0 : -EIO;
}
