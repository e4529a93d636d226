/*
 * A group of lanes that work in step: a warp on a GPU, or the threads of one that came together; on
 * a host, one thread that plays GQ_LANES lanes one after the other, region by region.
 *
 * Code that uses it is written in regions, GQ_FOR_LANES(lane) { ... }: every lane runs the region,
 * and what it stored is seen by all lanes in the next one. A variable that differs from lane to
 * lane is declared by GQ_LANE_VAR, or as a member of a struct by GQ_LANE_MEMBER, and used inside
 * regions, whose index is always called lane, as GQ_AT(name). All other variables are the same for
 * all lanes, and are assigned outside regions from values that are.
 *
 * Loops inside a region make the same number of turns in every lane where they can: behind one that
 * did not, ptxas of CUDA 13.0 left out, in one of several kernels that had it inlined, that the
 * lanes meet. The lane that was through first went on alone and waited for the others for ever.
 *
 * The group itself is w->group: regions stand where a w with such a member is in scope.
 */
#ifndef CUDA_QUEUE_GQ_LANES_H
#define CUDA_QUEUE_GQ_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_fence.h"

#ifdef __CUDACC__

#define GQ_LANES    32u
#define GQ_LANE_ALL 0xffffffffu

/* Lanes are numbered from 0 in the order of the threads. */
struct gq_group {
    uint32_t mask; /* of the threads of the warp that are in it */
    uint32_t rank; /* this thread's number */
    uint32_t lanes;
};

#define GQ_LANE_VAR(type, name)    type name = {0}
#define GQ_LANE_PARAM(type, name)  type name
#define GQ_LANE_OUT(type, name)    type &name
#define GQ_LANE_MEMBER(type, name) type name
#define GQ_AT(name)                name

/*
 * The group meets at the end of the region; __syncwarp also orders memory among its lanes. (lane |
 * 1: one turn, and regions that have no use for their lane do without a warning.)
 */
#define GQ_FOR_LANES(lane)                                            \
    for (uint32_t lane = w->group.rank, gq_turn = lane | 1u; gq_turn; \
         gq_turn = 0, __syncwarp(w->group.mask))

/* Of a whole warp: known when it is compiled, and costs nothing. */
GQ_FN struct gq_group gq_whole_group(void)
{
    return (struct gq_group){GQ_LANE_ALL, gq_thread(), GQ_LANES};
}

/* Bit i: lane i's value is true. */
GQ_FN uint32_t gq_ballot(struct gq_group g, bool value)
{
    if (g.mask == GQ_LANE_ALL)
        return __ballot_sync(GQ_LANE_ALL, value);
    return __reduce_or_sync(g.mask, value ? 1u << g.rank : 0);
}

/* The thread of the warp that plays a lane. */
GQ_FN uint32_t gq_thread_of(struct gq_group g, uint32_t lane)
{
    if (lane == 0)
        return (uint32_t)__ffs((int)g.mask) - 1u;
    return g.mask == GQ_LANE_ALL ? lane : __fns(g.mask, 0, (int)lane + 1);
}

#define GQ_BALLOT(name) gq_ballot(w->group, (name) != 0)
/* What lane i has; i may differ from lane to lane. */
#define GQ_FROM32(name, i) \
    __shfl_sync(w->group.mask, (uint32_t)(name), (int)gq_thread_of(w->group, i))
#define GQ_FROM64(name, i) \
    __shfl_sync(w->group.mask, (unsigned long long)(name), (int)gq_thread_of(w->group, i))
#define GQ_PART_FROM64(name, i, part) GQ_FROM64((name).part, i)
/* An expression that may come out differently for each lane: lane 0's. */
#define GQ_SAME32(expr) GQ_FROM32(expr, 0)
#define GQ_SAME64(expr) GQ_FROM64(expr, 0)
/* The same for a whole warp, without a group. */
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

/* Bit i: lane i's value is not zero. */
GQ_FN uint32_t gq_ballot(const uint32_t *values)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < GQ_LANES; i++)
        mask |= (uint32_t)(values[i] != 0) << i;
    return mask;
}

#define GQ_BALLOT(name)               gq_ballot(name)
#define GQ_FROM32(name, i)            ((uint32_t)(name)[i])
#define GQ_FROM64(name, i)            ((uint64_t)(name)[i])
#define GQ_PART_FROM64(name, i, part) ((uint64_t)(name)[i].part)
#define GQ_SAME32(expr)               (expr)
#define GQ_SAME64(expr)               (expr)

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

/* How many lanes have their bit set. */
GQ_FN uint32_t gq_count_ones(uint32_t mask)
{
#ifdef __CUDACC__
    return (uint32_t)__popc(mask);
#else
    return (uint32_t)__builtin_popcount(mask);
#endif
}

/* The number of this lane among those whose bit is set. */
GQ_FN uint32_t gq_ones_before(uint32_t mask, uint32_t lane)
{
    return gq_count_ones(mask & ((1u << lane) - 1u));
}

/* Takes the lowest bit off the mask, which is not 0: its lane. */
GQ_FN uint32_t gq_take_one(uint32_t *mask)
{
    uint32_t lane = gq_prefix_ones(~*mask);

    *mask &= *mask - 1u;
    return lane;
}

#endif
