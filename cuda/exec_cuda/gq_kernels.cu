/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of the CUDA executor, and their launches. */
#include "cuda/exec_cuda/gq_kernels.h"

#include "cuda/exec_cuda/gq_persistent.h"
#include "cuda/exec_cuda/gq_sums.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_list_protocol.h"
#include "cuda/queue/gq_reads_protocol.h"

namespace
{

constexpr unsigned kCopyThreads = 128;
constexpr unsigned kMaxBlocks = 512;

/*
 * A block is one warp. It drives one queue until the list has ended or a
 * deadline ends it.
 */
__global__ void __launch_bounds__(GQ_LANES)
    drive_queues(const __grid_constant__ struct gq_kernel_run a)
{
    const struct gq_port port = a.ports[a.queues[blockIdx.x]];
    struct gq_worker w;

    gq_begin(&w, gq_whole_group(), &a.run, &port, &a.states[blockIdx.x], blockIdx.x);
    while (gq_round(&w) != GQ_ROUND_ENDED)
        ;
    gq_end(&w);
}

/*
 * Neighbouring reads of a list, as words that a warp loads and stores side by
 * side, each cache line once.
 */
struct neighbours {
    uint64_t *at;
    struct gq_span span;
    uint64_t words[GQ_READ_WORDS];
};

constexpr uint32_t kTurn = GQ_PREFETCH_TURN;

__device__ void load_words(struct neighbours *g)
{
#pragma unroll
    for (uint32_t k = 0; k < GQ_READ_WORDS; k++) {
        uint32_t i = k * GQ_LANES + gq_thread();

        if (i < GQ_READ_WORDS * g->span.n)
            g->words[k] = gq_load_word(&g->at[i]);
    }
}

__device__ void store_words(const struct neighbours *g, uint64_t *to)
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
__device__ void answer(const struct gq_file_map *map, const uint64_t *ring, struct neighbours *g)
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
__device__ bool has_room(const struct gq_prefetch *prefetch, uint32_t group)
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

/* Takes and loads the next groups of the list; those past its end are empty. */
__device__ void load_turn(const struct gq_worker *w, uint64_t *list, struct gq_portion *portion,
                          struct neighbours *turn)
{
#pragma unroll
    for (uint32_t k = 0; k < kTurn; k++) {
        bool ends = k && !turn[k - 1].span.n;

        turn[k].span.first = 0;
        turn[k].span.n = ends ? 0 : gq_take_neighbours(w, portion, &turn[k].span.first);
        turn[k].at = list + GQ_READ_WORDS * (uint64_t)turn[k].span.first;
        load_words(&turn[k]);
    }
}

__device__ void prefetch_group(const struct gq_reads *reads, struct gq_prefetch *prefetch,
                               uint32_t group, struct neighbours *g)
{
    uint64_t *ring = prefetch->words[group % GQ_PREFETCH_GROUPS];

    store_words(g, ring);
    if (gq_thread() == 0)
        prefetch->spans[group % GQ_PREFETCH_GROUPS] = g->span;
    __syncwarp();
    if (gq_prefetch_answers(reads)) {
        answer(&reads->map, ring, g);
        store_words(g, g->at);
        __syncwarp();
    }
    if (gq_thread() == 0)
        gq_release_block(&prefetch->filled, group + 1);
}

/*
 * Called when the prefetch warp ends: records the groups of `turn`, which were
 * taken but not passed on.
 */
__device__ void prefetch_over(struct gq_prefetch *prefetch, const struct neighbours *turn,
                              const struct gq_portion *portion)
{
    __syncwarp();
    if (gq_thread() != 0)
        return;
#pragma unroll
    for (uint32_t k = 0; k < 2 * kTurn; k++)
        prefetch->left[k] = turn[k].span;
    prefetch->left[2 * kTurn] = {portion->at, portion->end - portion->at};
    gq_release_block(&prefetch->over, 1);
}

/* Loads reads of a list in turns, each while the previous one is stored. */
__device__ void prefetch_reads(const struct gq_run *run, const struct gq_reads *reads,
                               struct gq_prefetch *prefetch)
{
    const struct gq_worker w = {.group = gq_whole_group(), .run = run};
    uint64_t *list = reads->desc ? (uint64_t *)reads->desc : (uint64_t *)reads->list;
    struct neighbours turn[2 * kTurn] = {}; /* the second half has just been loaded */
    struct gq_portion portion = {};
    uint32_t group = 0;
    bool wanted = true;

    load_turn(&w, list, &portion, turn);
    while (wanted && turn[0].span.n) {
        load_turn(&w, list, &portion, &turn[kTurn]);
#pragma unroll
        for (uint32_t k = 0; k < kTurn; k++) {
            wanted = wanted && (!turn[k].span.n || has_room(prefetch, group));
            if (wanted) {
                if (turn[k].span.n)
                    prefetch_group(reads, prefetch, group++, &turn[k]);
                turn[k] = turn[kTurn + k];
                turn[kTurn + k].span.n = 0;
            }
        }
    }
    prefetch_over(prefetch, turn, &portion);
}

/*
 * Maximum warps of a block for reads. The first warp drives the queue; the
 * prefetch warp and the copy warps follow.
 */
constexpr unsigned kMostWarps = 2 + GQ_COPY_WARPS;

__host__ __device__ unsigned prefetch_warps(const struct gq_reads *reads)
{
    return reads->list || reads->desc ? 1 : 0;
}

__host__ __device__ unsigned copy_warps(const struct gq_reads *reads)
{
    return reads->staged ? GQ_COPY_WARPS : 0;
}

/* Shared memory of a block for reads. */
struct reads_block {
    struct gq_prefetch prefetch;
    struct gq_copy_jobs copies;
};

/* Called by all threads. */
__device__ void clear_block(struct reads_block *b)
{
    if (threadIdx.x == 0)
        b->prefetch.filled = b->prefetch.taken = b->prefetch.stop = b->prefetch.over = 0;
    if (threadIdx.x < GQ_LANES)
        gq_copy_jobs_clear(&b->copies);
    __syncthreads();
}

/* Like drive_queues(), for reads. Areas of staging have the numbers of the queues. */
__global__ void __launch_bounds__(kMostWarps *GQ_LANES, 1)
    drive_reads(const __grid_constant__ struct gq_kernel_run a,
                const __grid_constant__ struct gq_reads reads)
{
    __shared__ struct reads_block block;
    const unsigned warp = threadIdx.x / GQ_LANES, first_copy = 1 + prefetch_warps(&reads);
    const uint16_t queue = a.queues[blockIdx.x];
    const struct gq_port port = a.ports[queue];
    struct gq_reader r;

    clear_block(&block);
    if (warp >= first_copy) {
        gq_copy_jobs_serve(&block.copies, warp - first_copy);
        return;
    }
    if (warp) {
        prefetch_reads(&a.run, &reads, &block.prefetch);
        return;
    }
    gq_reads_begin(&r, gq_whole_group(), &a.run, &reads, &port, &a.states[blockIdx.x], blockIdx.x,
                   queue);
    if (prefetch_warps(&reads))
        r.prefetch = &block.prefetch;
    if (copy_warps(&reads))
        r.copies = &block.copies;
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_conclude_reads(&r);
    gq_report_reads(&r);
    gq_reads_end(&r);
}

/*
 * Makes copies. Those of a failed command's staging are skipped, because the
 * staging may hold data of another transfer.
 */
__global__ void __launch_bounds__(kCopyThreads)
    make_copies(const struct gq_copy *copies, uint32_t n, const uint32_t *results)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct gq_copy copy = copies[i];

        if (copy.cmd != GQ_COPY_ALWAYS && results[copy.cmd] != GQ_ENDED)
            continue;
        if (copy.src)
            gq_copy_bytes(copy.dst, copy.src, copy.len, threadIdx.x, kCopyThreads);
        else
            gq_zero_bytes(copy.dst, copy.len, threadIdx.x, kCopyThreads);
    }
}

unsigned blocks_for(uint64_t n)
{
    return n < kMaxBlocks ? (unsigned)n : kMaxBlocks;
}

} // namespace

extern "C" cudaError_t gq_kernels_load(void)
{
    const void *kernels[] = {(const void *)drive_queues, (const void *)drive_reads,
                             (const void *)make_copies};

    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attr;
        cudaError_t err = cudaFuncGetAttributes(&attr, kernel);

        if (err != cudaSuccess)
            return err;
    }
    cudaError_t err = gq_sums_load();

    return err == cudaSuccess ? gq_persistent_load() : err;
}

/*
 * cudaLaunchKernel() returns the error of this launch only. After <<<>>> only
 * cudaGetLastError() returns it, which may report an older error of the same
 * thread.
 */
extern "C" cudaError_t gq_kernel_run(const struct gq_kernel_run *run, const struct gq_reads *reads,
                                     cudaStream_t stream)
{
    void *args[] = {(void *)run, (void *)reads};
    unsigned warps = reads ? 1 + prefetch_warps(reads) + copy_warps(reads) : 1;

    return cudaLaunchKernel(reads ? (const void *)drive_reads : (const void *)drive_queues,
                            run->run.n_queues, warps * GQ_LANES, args, 0, stream);
}

extern "C" cudaError_t gq_kernel_copies(const struct gq_copy *copies, uint32_t n,
                                        const uint32_t *results, cudaStream_t stream)
{
    void *args[] = {&copies, &n, &results};

    return cudaLaunchKernel((const void *)make_copies, blocks_for(n), kCopyThreads, args, 0,
                            stream);
}
