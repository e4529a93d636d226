/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the prefetch warp, the second warp of a block, which loads a list
 * of reads for the lanes of the first warp.
 *
 * A list may be in host memory. If the first warp loaded the list, its loads
 * would complete in order with its loads of CQEs, and on a busy link they would
 * lengthen a round. Results that it stored would have to arrive before its
 * doorbells. So the prefetch warp loads reads and stores results, several
 * rounds ahead. It loads neighbouring reads, one word per lane, stores them
 * back with their results as whole lines, and passes them on in a ring in
 * shared memory. If a read fails, its error replaces the stored result later.
 *
 * On a host the lanes load the list; gq_reader.prefetch is NULL there.
 */
#ifndef CUDA_QUEUE_GQ_PREFETCH_H
#define CUDA_QUEUE_GQ_PREFETCH_H

#include "cuda/queue/gq_lanes.h"
#include "cuda/queue/gq_reads.h"

/* Number of words of a read in a list. len and result share the last word. */
#define GQ_READ_WORDS 3u
static_assert(sizeof(struct gq_read_desc) == GQ_READ_WORDS * sizeof(uint64_t), "of a list");

/*
 * Returns true if results are stored before reads begin. This is not done with
 * a part of a map, where reads that are not begun keep their results.
 */
GQ_FN bool gq_prefetch_answers(const struct gq_reads *reads)
{
    return reads->desc && !reads->is_part;
}

#define GQ_PREFETCH_GROUPS 8u
/* Groups that the prefetch warp loads in one trip over the bus. */
#define GQ_PREFETCH_TURN (GQ_PREFETCH_GROUPS / 2)
/*
 * Spans left at its end: two turns that are not in the ring, and the rest of a
 * portion.
 */
#define GQ_PREFETCH_LEFT (2 * GQ_PREFETCH_TURN + 1)

/* Describes n neighbouring reads of a list, from index `first` on. */
struct gq_span {
    uint32_t first, n;
};

/*
 * The words below `words` and the spans are zeroed before use. A group is a
 * span that is passed on as a whole.
 */
struct gq_prefetch {
    uint64_t words[GQ_PREFETCH_GROUPS][GQ_READ_WORDS * GQ_LANES];
    struct gq_span spans[GQ_PREFETCH_GROUPS]; /* one per group */
    struct gq_span left[GQ_PREFETCH_LEFT];    /* taken but not filled; valid with `over` */
    uint32_t filled; /* number of groups filled; set by the prefetch warp */
    uint32_t taken;  /* number of groups taken; set by the lanes */
    uint32_t stop;   /* no more groups are needed; set by the lanes */
    uint32_t over;   /* the prefetch warp, which sets it, has ended its stores */
};

#ifdef __CUDACC__

/*
 * Called by all lanes of a warp. True if the prefetch warp has ended; then no
 * further group is filled.
 */
__device__ __forceinline__ bool gq_prefetch_is_over(const struct gq_prefetch *prefetch)
{
    bool is_over = GQ_UNIFORM32(gq_acquire_block(&prefetch->over) != 0);

    __syncwarp(); /* lane 0 has acquired for all */
    return is_over;
}

/*
 * Called by all lanes of a warp. True if the words of group number `group`, and
 * its results, are stored.
 */
__device__ __forceinline__ bool gq_prefetch_has(const struct gq_prefetch *prefetch, uint32_t group)
{
    bool has = GQ_UNIFORM32(gq_acquire_block(&prefetch->filled) != group);

    __syncwarp(); /* lane 0 has acquired for all */
    return has;
}

/* Called by one lane. Returns read i of a prefetched group. */
__device__ __forceinline__ struct gq_read gq_prefetch_read(const struct gq_prefetch *prefetch,
                                                           uint32_t group, uint32_t i)
{
    const uint64_t *words = &prefetch->words[group % GQ_PREFETCH_GROUPS][GQ_READ_WORDS * i];

    return (struct gq_read){words[0], words[1], (uint32_t)words[2]};
}

/*
 * Called by all lanes of a warp when `groups` groups have been taken out of the
 * ring.
 */
__device__ __forceinline__ void gq_prefetch_took(struct gq_prefetch *prefetch, uint32_t groups)
{
    __syncwarp();
    if (gq_thread() == 0)
        gq_release_block(&prefetch->taken, groups);
}

/*
 * Called by all lanes of a warp: ends the prefetch warp and waits for its
 * stores in progress.
 */
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
