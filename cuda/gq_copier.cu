#include "cuda/gq_copier.h"

#include "cuda/gq_fence.h"
#include "cuda/gq_lanes.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;
constexpr unsigned kUnroll = 8;
constexpr unsigned kWords = sizeof(struct gq_copier_box) / sizeof(uint64_t);

__device__ bool is_new(uint64_t word, uint32_t fill)
{
    return word >> GQ_COPIER_TAG_SHIFT == (fill & 0x7fu);
}

/*
 * The first warp waits for the box's next filling and takes it into shared memory: the first line
 * with one load a lane, the rest once it is known how much there is. The head acquires: words
 * beyond its line, which alone may bear the tag of 128 fillings ago, are loaded after it, and so
 * are the bytes to copy, by all threads that meet this warp. False after the idle time.
 */
__device__ bool take(const struct gq_copier_box *box, uint32_t fill, uint64_t *words)
{
    const uint64_t *from = box->words;
    uint64_t since = gq_clock_ns();
    unsigned lane = threadIdx.x % GQ_LANES, wanted = GQ_COPIER_LINE;

    while (true) {
        uint64_t high = wanted > GQ_LANES && lane < wanted - GQ_LANES
                            ? gq_load_word(&from[GQ_LANES + lane])
                            : GQ_COPIER_TAG(fill);
        uint64_t low = lane < wanted ? gq_acquire_word(&from[lane]) : GQ_COPIER_TAG(fill);
        uint64_t head = GQ_UNIFORM64(low);

        if (is_new(head, fill)) {
            unsigned all = 2 + 2 * (unsigned)(head & 0xffu);

            words[lane] = low & GQ_COPIER_VALUE;
            words[GQ_LANES + lane] = high & GQ_COPIER_VALUE;
            __syncwarp();
            if (all <= wanted &&
                __all_sync(GQ_LANE_ALL, (lane >= all || is_new(low, fill)) &&
                                            (GQ_LANES + lane >= all || is_new(high, fill))))
                return true;
            wanted = all > wanted ? all : wanted;
        } else if (GQ_UNIFORM32(gq_clock_ns() - since > kIdleNs)) {
            return false;
        }
    }
}

/* All threads: the batch's bytes in units of 16, dealt in turn, kUnroll loads on their way each. */
__device__ void copy_batch(const uint64_t *words)
{
    unsigned n = (unsigned)(words[0] & 0xffu), shift = (unsigned)(words[0] >> 8 & 0xffu) - 4;
    unsigned units = n << shift, mask = (1u << shift) - 1;

    for (unsigned at = threadIdx.x; at < units; at += kUnroll * GQ_COPIER_THREADS) {
        uint4 v[kUnroll];

#pragma unroll
        for (unsigned k = 0; k < kUnroll; k++) {
            unsigned u = at + k * GQ_COPIER_THREADS;

            if (u < units)
                v[k] = __ldcv((const uint4 *)words[3 + 2 * (u >> shift)] + (u & mask));
        }
#pragma unroll
        for (unsigned k = 0; k < kUnroll; k++) {
            unsigned u = at + k * GQ_COPIER_THREADS;

            if (u < units)
                ((uint4 *)words[2 + 2 * (u >> shift)])[u & mask] = v[k];
        }
    }
}

} // namespace

/* By this name it is found in a fatbin, too: libgpunvme has it in one. */
extern "C" __global__ void __launch_bounds__(GQ_COPIER_THREADS)
    gq_copier_kernel(const __grid_constant__ struct gq_copier_launch l)
{
    __shared__ uint64_t words[kWords];
    __shared__ bool more;
    const struct gq_copier_box *boxes = l.boxes + blockIdx.x * GQ_COPIER_BOXES;
    uint32_t batch = l.first[blockIdx.x];

    if (l.launch[blockIdx.x] == 0)
        return;
    while (true) {
        if (threadIdx.x < GQ_LANES) {
            bool got = take(&boxes[batch % GQ_COPIER_BOXES], batch / GQ_COPIER_BOXES + 1, words);

            if (threadIdx.x == 0)
                more = got;
        }
        __syncthreads();
        if (!more)
            break;
        copy_batch(words);
        batch++;
        /* Everybody's bytes before the count: they met, and the thread that fences stores it. */
        __syncthreads();
        if (threadIdx.x == 0) {
            gq_fence_results();
            gq_store_sign(&l.done[blockIdx.x], batch);
        }
    }
    /*
     * The last count before the end: the keeper, who sees the end, has the next launch begin with
     * the batch that the count names. By an older one it would copy a batch again that the poster
     * may have been told is done, over bytes that have changed since.
     */
    if (threadIdx.x == 0) {
        gq_fence_results();
        gq_store_sign(&l.ended[blockIdx.x], l.launch[blockIdx.x]);
    }
}

extern "C" cudaError_t gq_copier_load(void)
{
    struct cudaFuncAttributes attr;

    return cudaFuncGetAttributes(&attr, (const void *)gq_copier_kernel);
}

extern "C" cudaError_t gq_copier_run(const struct gq_copier_launch *l, unsigned blocks,
                                     cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)gq_copier_kernel, blocks, GQ_COPIER_THREADS, args, 0,
                            stream);
}
