/*
 * A group of lanes that work in step: a warp on a GPU; on a host, one thread that plays GQ_LANES
 * lanes one after the other, region by region.
 *
 * Code that uses it is written in regions, GQ_FOR_LANES(lane) { ... }: every lane runs the region,
 * and what it stored is seen by all lanes in the next one. A variable that differs from lane to
 * lane is declared by GQ_LANE_VAR and used inside regions, whose index is always called lane, as
 * GQ_AT(name). All other variables are the same for all lanes, and are assigned outside regions
 * from values that are.
 */
#ifndef CUDA_GQ_LANES_H
#define CUDA_GQ_LANES_H

#include <stdint.h>

#include "cuda/gq_fence.h"

#ifdef __CUDACC__

#define GQ_LANES    32u
#define GQ_LANE_ALL 0xffffffffu

#define GQ_LANE_VAR(type, name)   type name = {0}
#define GQ_LANE_PARAM(type, name) type name
#define GQ_AT(name)               name

/* The warp meets at the end of the region; __syncwarp also orders memory among its lanes. */
#define GQ_FOR_LANES(lane)                                             \
    for (uint32_t lane = threadIdx.x % GQ_LANES, gq_once = 1; gq_once; \
         gq_once = 0, __syncwarp(GQ_LANE_ALL))

#define GQ_BALLOT(name)    __ballot_sync(GQ_LANE_ALL, (int)(name))
#define GQ_UNIFORM32(expr) __shfl_sync(GQ_LANE_ALL, (uint32_t)(expr), 0)
#define GQ_UNIFORM64(expr) __shfl_sync(GQ_LANE_ALL, (unsigned long long)(expr), 0)

#else

#ifndef GQ_LANES
#error "define GQ_LANES (1 or 32) before the protocol is included"
#endif

#define GQ_LANE_VAR(type, name)   type name[GQ_LANES] = {0}
#define GQ_LANE_PARAM(type, name) const type *name
#define GQ_AT(name)               name[lane]

#define GQ_FOR_LANES(lane) for (uint32_t lane = 0; lane < GQ_LANES; lane++)

/* Bit i: lane i's value is not zero. */
static inline uint32_t gq_ballot(const uint32_t *values)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < GQ_LANES; i++)
        mask |= (uint32_t)(values[i] != 0) << i;
    return mask;
}

#define GQ_BALLOT(name)    gq_ballot(name)
#define GQ_UNIFORM32(expr) (expr)
#define GQ_UNIFORM64(expr) (expr)

#endif

/* How many lanes, from lane 0 without a gap, have their bit set. */
GQ_FN uint32_t gq_prefix_ones(uint32_t mask)
{
#ifdef __CUDACC__
    return mask == 0xffffffffu ? 32u : (uint32_t)__ffs((int)~mask) - 1u;
#else
    return mask == 0xffffffffu ? 32u : (uint32_t)__builtin_ctz(~mask);
#endif
}

#endif
