/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Prefetch warp: a second warp of a block, which loads a list of reads for the
 * lanes of the first.
 *
 * A list may be in host memory. Loads of a warp arrive in order with the CQEs
 * that it peeks, and on a busy link they make a round longer; results that it
 * stores there must arrive before its doorbells. So the prefetch warp does
 * both, rounds ahead: it loads neighbours, one word for each lane, side by
 * side, stores them back with their results, as whole lines, and leaves them in
 * a ring in shared memory. Where a read fails later, its error is stored later,
 * too.
 *
 * On a host the lanes load the list.
 */
#ifndef CUDA_QUEUE_GQ_PREFETCH_H
#define CUDA_QUEUE_GQ_PREFETCH_H

#include "cuda/queue/gq_lanes.h"
#include "cuda/queue/gq_reads.h"

/*
 * A read in a list, of either kind, is three words; len and result share the
 * last word of a gq_read_desc.
 */
#define GQ_READ_WORDS 3u
static_assert(sizeof(struct gq_read) == GQ_READ_WORDS * sizeof(uint64_t), "of a list");
static_assert(sizeof(struct gq_read_desc) == GQ_READ_WORDS * sizeof(uint64_t), "of what was asked");

/*
 * Are results stored before reads are begun? Not with a part of a map: reads
 * that are not begun there keep their results.
 */
GQ_FN bool gq_prefetch_answers(const struct gq_reads *reads)
{
    return reads->desc && !reads->is_part;
}

#ifdef __CUDACC__

#define GQ_PREFETCH_GROUPS 8u
/* Groups that the prefetch warp loads in one trip over the bus. */
#define GQ_PREFETCH_TURN (GQ_PREFETCH_GROUPS / 2)
/* At its end: two turns that are not in the ring, and the rest of a portion. */
#define GQ_PREFETCH_LEFT (2 * GQ_PREFETCH_TURN + 1)

/* Neighbours of a list: its reads from number `first` on. */
struct gq_span {
    uint32_t first, n;
};

/* The words below `words` are zeroed before use. A group is a span that is passed on as a whole. */
struct gq_prefetch {
    uint64_t words[GQ_PREFETCH_GROUPS][GQ_READ_WORDS * GQ_LANES];
    struct gq_span spans[GQ_PREFETCH_GROUPS]; /* of the groups */
    struct gq_span left[GQ_PREFETCH_LEFT];    /* taken, but not filled; with `over` */
    uint32_t filled;                          /* prefetch warp: number of groups filled */
    uint32_t taken;                           /* lanes: number of groups taken */
    uint32_t stop;                            /* lanes: no more groups are needed */
    uint32_t over;                            /* prefetch warp: it stores nothing any more */
};

/* By all lanes of a warp: has the prefetch warp ended? Then no group is filled any more. */
__device__ __forceinline__ bool gq_prefetch_is_over(const struct gq_prefetch *prefetch)
{
    bool is_over = GQ_UNIFORM32(gq_acquire_block(&prefetch->over) != 0);

    __syncwarp(); /* lane 0 has acquired for all */
    return is_over;
}

/* By all lanes of a warp: are the words of group number `group`, and its results, stored? */
__device__ __forceinline__ bool gq_prefetch_has(const struct gq_prefetch *prefetch, uint32_t group)
{
    bool has = GQ_UNIFORM32(gq_acquire_block(&prefetch->filled) != group);

    __syncwarp(); /* lane 0 has acquired for all */
    return has;
}

/* By one lane: read i of a prefetched group. */
__device__ __forceinline__ struct gq_read gq_prefetch_read(const struct gq_prefetch *prefetch,
                                                           uint32_t group, uint32_t i, bool desc)
{
    const uint64_t *words = &prefetch->words[group % GQ_PREFETCH_GROUPS][GQ_READ_WORDS * i];

    return (struct gq_read){words[0], words[1], desc ? (uint32_t)words[2] : words[2]};
}

/* By all lanes of a warp: `groups` groups have been taken out of the ring. */
__device__ __forceinline__ void gq_prefetch_took(struct gq_prefetch *prefetch, uint32_t groups)
{
    __syncwarp();
    if (gq_thread() == 0)
        gq_release_block(&prefetch->taken, groups);
}

/* By all lanes of a warp: ends the prefetch warp, and waits for the stores under way. */
__device__ __forceinline__ void gq_prefetch_stop(struct gq_prefetch *prefetch)
{
    if (gq_thread() == 0)
        gq_release_block(&prefetch->stop, 1);
    while (!GQ_UNIFORM32(gq_acquire_block(&prefetch->over)))
        ;
    __syncwarp();
}

#endif

#endif
