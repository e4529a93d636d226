/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares a group of lanes that work in lockstep. On a GPU it is a warp, or
 * converged threads of a warp. On a host it is one thread that executes
 * GQ_LANES lanes one after the other, region by region.
 *
 * Code is written in regions, GQ_FOR_LANES(lane) { ... }. Every lane executes
 * the region, and its stores are visible to all lanes in the next one. A
 * variable that differs between lanes is declared by GQ_LANE_VAR, or as a
 * member of a struct by GQ_LANE_MEMBER. It is used inside regions, whose index
 * is always called lane, as GQ_AT(name). All other variables are the same for
 * all lanes, and are assigned outside regions from values that are.
 *
 * Loops inside a region should have the same number of iterations in every
 * lane. After a loop that did not, ptxas of CUDA 13.0 omitted the convergence
 * of the lanes in one of several kernels that had inlined it. The lane that
 * finished first continued alone and waited forever for the other lanes. If a
 * region calls a function that is not inlined, the function makes its lanes
 * converge before it returns. Otherwise ptxas takes them for converged after
 * the call: lanes that had copied fewer units gave their staging back while
 * other lanes still copied out of it.
 *
 * The group is w->group: regions need a `w` with such a member in scope.
 */
#ifndef CUDA_QUEUE_GQ_LANES_H
#define CUDA_QUEUE_GQ_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_bits.h"

#ifdef __CUDACC__

#define GQ_LANES    32u
#define GQ_LANE_ALL 0xffffffffu

/* Describes a group. Lanes are numbered from 0 in the order of the threads. */
struct gq_group {
    uint32_t mask; /* threads of the warp that belong to the group */
    uint32_t rank; /* this thread's number */
    uint32_t lanes;
};

#define GQ_LANE_VAR(type, name)    type name = {0}
#define GQ_LANE_PARAM(type, name)  type name
#define GQ_LANE_OUT(type, name)    type &name
#define GQ_LANE_MEMBER(type, name) type name
#define GQ_AT(name)                name

/*
 * The group converges at the end of the region; __syncwarp also orders memory
 * among its lanes. `lane | 1u` gives one iteration, and lets regions that do
 * not use their lane compile without a warning.
 */
#define GQ_FOR_LANES(lane)                                            \
    for (uint32_t lane = w->group.rank, gq_turn = lane | 1u; gq_turn; \
         gq_turn = 0, __syncwarp(w->group.mask))

/* Returns a whole warp. This is known at compile time and costs nothing. */
GQ_FN struct gq_group gq_whole_group(void)
{
    return (struct gq_group){GQ_LANE_ALL, gq_thread(), GQ_LANES};
}

/* Returns a mask whose bit i is set if lane i's value is true. */
GQ_FN uint32_t gq_ballot(struct gq_group g, bool value)
{
    if (g.mask == GQ_LANE_ALL)
        return __ballot_sync(GQ_LANE_ALL, value);
    return __reduce_or_sync(g.mask, value ? 1u << g.rank : 0);
}

/* Returns the thread of the warp that is the given lane. */
GQ_FN uint32_t gq_thread_of(struct gq_group g, uint32_t lane)
{
    if (lane == 0)
        return (uint32_t)__ffs((int)g.mask) - 1u;
    return g.mask == GQ_LANE_ALL ? lane : __fns(g.mask, 0, (int)lane + 1);
}

#define GQ_BALLOT(name) gq_ballot(w->group, (name) != 0)
/* Returns the least value of all lanes. */
#define GQ_MIN32(name) __reduce_min_sync(w->group.mask, (uint32_t)(name))
/* Returns the bitwise XOR of all lanes' values. */
#define GQ_XOR32(name) __reduce_xor_sync(w->group.mask, (uint32_t)(name))
/* Returns the value of lane i. i may differ between lanes. */
#define GQ_FROM32(name, i) \
    __shfl_sync(w->group.mask, (uint32_t)(name), (int)gq_thread_of(w->group, i))
#define GQ_FROM64(name, i) \
    __shfl_sync(w->group.mask, (unsigned long long)(name), (int)gq_thread_of(w->group, i))
#define GQ_PART_FROM64(name, i, part) GQ_FROM64((name).part, i)
/* Returns lane 0's value of an expression that may differ between lanes. */
#define GQ_SAME32(expr) GQ_FROM32(expr, 0)
#define GQ_SAME64(expr) GQ_FROM64(expr, 0)
/* Returns the value of lane 0 of a whole warp, without a group. */
#define GQ_UNIFORM32(expr) __shfl_sync(GQ_LANE_ALL, (uint32_t)(expr), 0)
#define GQ_UNIFORM64(expr) __shfl_sync(GQ_LANE_ALL, (unsigned long long)(expr), 0)

#else

#ifndef GQ_LANES
#error "define GQ_LANES (1 or 32) before the protocol is included"
#endif

struct gq_group {
    uint32_t lanes;
};

#define GQ_LANE_VAR(type, name)    type name[GQ_LANES] = {0}
#define GQ_LANE_PARAM(type, name)  const type *name
#define GQ_LANE_OUT(type, name)    type *name
#define GQ_LANE_MEMBER(type, name) type name[GQ_LANES]
#define GQ_AT(name)                name[lane]

#define GQ_FOR_LANES(lane) for (uint32_t lane = 0; (void)w, lane < GQ_LANES; lane++)

GQ_FN struct gq_group gq_whole_group(void)
{
    return (struct gq_group){GQ_LANES};
}

/* Returns a mask whose bit i is set if lane i's value is not zero. */
GQ_FN uint32_t gq_ballot(const uint32_t *values)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < GQ_LANES; i++)
        mask |= (uint32_t)(values[i] != 0) << i;
    return mask;
}

GQ_FN uint32_t gq_min_all(const uint32_t *values)
{
    uint32_t least = values[0];

    for (uint32_t i = 1; i < GQ_LANES; i++)
        least = values[i] < least ? values[i] : least;
    return least;
}

GQ_FN uint32_t gq_xor_all(const uint32_t *values)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < GQ_LANES; i++)
        sum ^= values[i];
    return sum;
}

#define GQ_BALLOT(name)               gq_ballot(name)
#define GQ_MIN32(name)                gq_min_all(name)
#define GQ_XOR32(name)                gq_xor_all(name)
#define GQ_FROM32(name, i)            ((uint32_t)(name)[i])
#define GQ_FROM64(name, i)            ((uint64_t)(name)[i])
#define GQ_PART_FROM64(name, i, part) ((uint64_t)(name)[i].part)
#define GQ_SAME32(expr)               (expr)
#define GQ_SAME64(expr)               (expr)

#endif

#endif
