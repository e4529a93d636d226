/*
 * A second warp of a block that feeds the lanes of the first with a list of reads.
 *
 * A list may be a client's, in host memory. What a warp asks of that comes with the completions
 * it looks at, and a busy link makes a round the longer the more it asks for; results that it
 * stores there have to be through before it may ring. So the prefetch warp does both, rounds ahead:
 * it loads neighbours, a word each lane, side by side, stores them back with their results, whole
 * lines, and leaves them in a ring in the block's own memory. Where something fails later, the
 * result that says so is stored later, too.
 *
 * On a host the lanes load for themselves.
 */
#ifndef CUDA_QUEUE_GQ_PREFETCH_H
#define CUDA_QUEUE_GQ_PREFETCH_H

#include "cuda/queue/gq_lanes.h"
#include "cuda/queue/gq_reads.h"

/* A read in a list, of either kind, is three words; of the last of what was asked half counts. */
#define GQ_READ_WORDS 3u
static_assert(sizeof(struct gq_read) == GQ_READ_WORDS * sizeof(uint64_t), "of a list");
static_assert(sizeof(struct gq_read_desc) == GQ_READ_WORDS * sizeof(uint64_t), "of what was asked");

/*
 * Are reads answered before they are begun with? Not in a part of a map: what is not begun with
 * there keeps the result that it has.
 */
GQ_FN bool gq_prefetch_answers(const struct gq_reads *reads)
{
    return reads->desc && !reads->is_part;
}

#ifdef __CUDACC__

#define GQ_PREFETCH_GROUPS 8u

/* Zeroed before anybody uses it. Neighbours that are handed on together are a group. */
struct gq_prefetch {
    uint64_t words[GQ_PREFETCH_GROUPS][GQ_READ_WORDS * GQ_LANES];
    uint32_t filled; /* prefetch warp: groups, ever */
    uint32_t taken;  /* lanes: groups, ever */
    uint32_t stop;   /* lanes: no more is wanted, */
    uint32_t over;   /* prefetch warp: and nothing is stored any more */
};

/* By all lanes of a warp: has group number `group` been prefetched? Its words, and its results. */
__device__ __forceinline__ bool gq_prefetch_has(const struct gq_prefetch *prefetch, uint32_t group)
{
    bool has = GQ_UNIFORM32(gq_acquire_block(&prefetch->filled) != group);

    __syncwarp(); /* lane 0 has acquired for all */
    return has;
}

/* By one lane: read i of a group that was prefetched. */
__device__ __forceinline__ struct gq_read gq_prefetch_read(const struct gq_prefetch *prefetch,
                                                           uint32_t group, uint32_t i, bool desc)
{
    const uint64_t *words = &prefetch->words[group % GQ_PREFETCH_GROUPS][GQ_READ_WORDS * i];

    return (struct gq_read){words[0], words[1], desc ? (uint32_t)words[2] : words[2]};
}

/* By all lanes of a warp: as many groups have been taken out of the ring. */
__device__ __forceinline__ void gq_prefetch_took(struct gq_prefetch *prefetch, uint32_t groups)
{
    __syncwarp();
    if (gq_thread() == 0)
        gq_release_block(&prefetch->taken, groups);
}

/* The same: nothing is prefetched and no result stored any more. Waits for what is on its way. */
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
