/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements a block of a kernel that executes a list of reads. The first warp
 * drives a queue. If the list has words to load, a prefetch warp loads them
 * (gq_prefetch.h). If data is staged, copy warps copy it (gq_copy_warps.h). The
 * kernels of the daemon and of the library consist of such blocks.
 *
 * This header is for CUDA only. On a host one thread does the work of all
 * warps.
 */
#ifndef CUDA_QUEUE_GQ_LIST_BLOCK_H
#define CUDA_QUEUE_GQ_LIST_BLOCK_H

#include "cuda/queue/gq_reads_protocol.h"

#ifdef __CUDACC__

#define GQ_LIST_WARPS (2u + GQ_COPY_WARPS) /* maximum of a block */

/* Lies in the shared memory of a block. */
struct gq_list_block {
    struct gq_prefetch prefetch;
    struct gq_copy_jobs copies;
};

/*
 * Holds neighbouring reads of a list as words. A warp loads and stores the
 * words side by side, so that it accesses each cache line once.
 */
struct gq_neighbours {
    uint64_t *at;
    struct gq_span span;
    uint64_t words[GQ_READ_WORDS];
};

static __device__ __forceinline__ void gq_load_neighbours(struct gq_neighbours *g)
{
#pragma unroll
    for (uint32_t k = 0; k < GQ_READ_WORDS; k++) {
        uint32_t i = k * GQ_LANES + gq_thread();

        if (i < GQ_READ_WORDS * g->span.n)
            g->words[k] = gq_load_word(&g->at[i]);
    }
}

static __device__ __forceinline__ void gq_store_neighbours(const struct gq_neighbours *g,
                                                           uint64_t *to)
{
#pragma unroll
    for (uint32_t k = 0; k < GQ_READ_WORDS; k++) {
        uint32_t i = k * GQ_LANES + gq_thread();

        if (i < GQ_READ_WORDS * g->span.n)
            to[i] = g->words[k];
    }
}

/*
 * Writes the results of the group's reads into its words. A later error
 * replaces such a result.
 */
static __device__ __forceinline__ void gq_answer(const struct gq_file_map *map,
                                                 const uint64_t *ring, struct gq_neighbours *g)
{
    const uint64_t *mine = &ring[GQ_READ_WORDS * (gq_thread() < g->span.n ? gq_thread() : 0)];
    uint64_t result = gq_read_bytes(map, mine[0], (uint32_t)mine[2]);

#pragma unroll
    for (uint32_t k = 0; k < GQ_READ_WORDS; k++) {
        uint32_t i = k * GQ_LANES + gq_thread();
        uint64_t of_read = __shfl_sync(GQ_LANE_ALL, result, (int)(i / GQ_READ_WORDS));

        if (i % GQ_READ_WORDS == GQ_READ_WORDS - 1)
            g->words[k] = (uint32_t)g->words[k] | of_read << 32;
    }
}

/* Waits for room in the ring. Returns false if no more groups are needed. */
static __device__ __forceinline__ bool gq_prefetch_has_room(const struct gq_prefetch *prefetch,
                                                            uint32_t group)
{
    while (!GQ_UNIFORM32(gq_acquire_block(&prefetch->stop))) {
        if (GQ_UNIFORM32(group - gq_acquire_block(&prefetch->taken)) < GQ_PREFETCH_GROUPS) {
            __syncwarp(); /* lane 0 has acquired for all */
            return true;
        }
        __nanosleep(100);
    }
    return false;
}

/*
 * Takes and loads the next groups of the list. Groups past the end of the list
 * are empty.
 */
static __device__ __forceinline__ void gq_load_turn(const struct gq_worker *w, uint64_t *list,
                                                    struct gq_portion *portion,
                                                    struct gq_neighbours *turn)
{
#pragma unroll
    for (uint32_t k = 0; k < GQ_PREFETCH_TURN; k++) {
        bool ends = k && !turn[k - 1].span.n;

        turn[k].span.first = 0;
        turn[k].span.n = ends ? 0 : gq_take_neighbours(w, portion, &turn[k].span.first);
        turn[k].at = list + GQ_READ_WORDS * (uint64_t)turn[k].span.first;
        gq_load_neighbours(&turn[k]);
    }
}

static __device__ __forceinline__ void gq_prefetch_group(const struct gq_reads *reads,
                                                         struct gq_prefetch *prefetch,
                                                         uint32_t group, struct gq_neighbours *g)
{
    uint64_t *ring = prefetch->words[group % GQ_PREFETCH_GROUPS];

    gq_store_neighbours(g, ring);
    if (gq_thread() == 0)
        prefetch->spans[group % GQ_PREFETCH_GROUPS] = g->span;
    __syncwarp();
    if (gq_prefetch_answers(reads)) {
        gq_answer(&reads->map, ring, g);
        gq_store_neighbours(g, g->at);
        __syncwarp();
    }
    if (gq_thread() == 0)
        gq_release_block(&prefetch->filled, group + 1);
}

/*
 * Called when the prefetch warp ends: records the groups of `turn`, which were
 * taken but not passed on.
 */
static __device__ __forceinline__ void gq_prefetch_end(struct gq_prefetch *prefetch,
                                                       const struct gq_neighbours *turn,
                                                       const struct gq_portion *portion)
{
    __syncwarp();
    if (gq_thread() != 0)
        return;
#pragma unroll
    for (uint32_t k = 0; k < 2 * GQ_PREFETCH_TURN; k++)
        prefetch->left[k] = turn[k].span;
    prefetch->left[2 * GQ_PREFETCH_TURN] = {portion->at, portion->end - portion->at};
    gq_release_block(&prefetch->over, 1);
}

/* Loads reads of the list of group `rank` in turns, each while the previous one is stored. */
static __device__ void gq_prefetch_serve(struct gq_prefetch *prefetch, const struct gq_run *run,
                                         const struct gq_reads *reads, uint32_t rank)
{
    const struct gq_worker w = {.group = gq_whole_group(), .run = run, .rank = rank};
    uint64_t *list = (uint64_t *)reads->desc;
    struct gq_neighbours turn[2 * GQ_PREFETCH_TURN] = {}; /* the second half has just been loaded */
    struct gq_portion portion = {};
    uint32_t group = 0;
    bool wanted = true;

    gq_load_turn(&w, list, &portion, turn);
    while (wanted && turn[0].span.n) {
        gq_load_turn(&w, list, &portion, &turn[GQ_PREFETCH_TURN]);
#pragma unroll
        for (uint32_t k = 0; k < GQ_PREFETCH_TURN; k++) {
            wanted = wanted && (!turn[k].span.n || gq_prefetch_has_room(prefetch, group));
            if (wanted) {
                if (turn[k].span.n)
                    gq_prefetch_group(reads, prefetch, group++, &turn[k]);
                turn[k] = turn[GQ_PREFETCH_TURN + k];
                turn[GQ_PREFETCH_TURN + k].span.n = 0;
            }
        }
    }
    gq_prefetch_end(prefetch, turn, &portion);
}

/* Called by all threads of the block. */
static __device__ __forceinline__ void gq_list_block_clear(struct gq_list_block *b)
{
    if (threadIdx.x == 0)
        b->prefetch.filled = b->prefetch.taken = b->prefetch.stop = b->prefetch.over = 0;
    if (threadIdx.x < GQ_LANES)
        gq_copy_jobs_clear(&b->copies);
    __syncthreads();
}

#endif

#endif
