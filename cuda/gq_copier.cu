#include "cuda/gq_copier.h"

#include "cuda/gq_fence.h"
#include "cuda/gq_lanes.h"

namespace
{

constexpr uint64_t kIdleNs = 200000;
constexpr uint64_t kStayNs = 100000000; /* calls like cudaFree() wait for all kernels */
constexpr unsigned kUnroll = 8;
constexpr unsigned kCopying = GQ_COPIER_THREADS - GQ_LANES; /* the last warp takes */
constexpr unsigned kBarrier = 1;                            /* of those who copy */

__device__ bool is_new(uint64_t word, uint32_t fill)
{
    return word >> GQ_COPIER_TAG_SHIFT == (fill & 0x7fu);
}

__device__ unsigned words_of(uint64_t head)
{
    return 2 + 2 * (unsigned)(head & 0xffu);
}

/*
 * A warp waits for the box's next filling and takes it into shared memory: with one trip over the
 * bus if it is there and has no more than `wanted` words, for as many are loaded at once; otherwise
 * the first line is looked at, and the rest loaded once it is known how much there is. Each word
 * says whether it is new, and the head acquires: the bytes are loaded after it by all threads that
 * meet this warp. False after the idle time, and when it is time to leave.
 */
__device__ bool take(const struct gq_copier_box *box, uint32_t fill, unsigned wanted,
                     uint64_t leave_ns, uint64_t *words)
{
    const uint64_t *from = box->words;
    uint64_t since = gq_clock_ns();
    unsigned lane = threadIdx.x % GQ_LANES;

    if (GQ_UNIFORM32(since > leave_ns))
        return false;
    while (true) {
        uint64_t high = wanted > GQ_LANES && lane < wanted - GQ_LANES
                            ? gq_load_word(&from[GQ_LANES + lane])
                            : GQ_COPIER_TAG(fill);
        uint64_t low = lane < wanted ? gq_acquire_word(&from[lane]) : GQ_COPIER_TAG(fill);
        uint64_t head = GQ_UNIFORM64(low);

        if (is_new(head, fill)) {
            unsigned all = words_of(head);

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
        } else {
            wanted = GQ_COPIER_LINE;
        }
    }
}

/* By kCopying threads: the batch's bytes in units of 16, dealt in turn, each kUnroll at once. */
__device__ void copy_batch(const uint64_t *words)
{
    unsigned n = (unsigned)(words[0] & 0xffu), shift = (unsigned)(words[0] >> 8 & 0xffu) - 4;
    unsigned units = n << shift, mask = (1u << shift) - 1;

    for (unsigned at = threadIdx.x; at < units; at += kUnroll * kCopying) {
        uint4 v[kUnroll];

#pragma unroll
        for (unsigned k = 0; k < kUnroll; k++) {
            unsigned u = at + k * kCopying;

            if (u < units)
                v[k] = __ldcv((const uint4 *)words[3 + 2 * (u >> shift)] + (u & mask));
        }
#pragma unroll
        for (unsigned k = 0; k < kUnroll; k++) {
            unsigned u = at + k * kCopying;

            if (u < units)
                ((uint4 *)words[2 + 2 * (u >> shift)])[u & mask] = v[k];
        }
    }
}

/* A batch that was taken; count: batches done with it. */
__device__ void copy_and_count(const uint64_t *words, uint32_t *done, uint32_t count)
{
    copy_batch(words);
    /* Everybody's bytes before the count: they met, and the thread that fences stores it. */
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kCopying) : "memory");
    if (threadIdx.x == 0) {
        gq_fence_results();
        gq_store_sign(done, count);
    }
}

} // namespace

/*
 * A batch is copied while the next, of the same size as a rule, is taken: a trip over the bus in
 * which the block would ask for nothing else. All meet between two batches. The end is a turn in
 * which there was none to copy and none came.
 *
 * By this name it is found in a fatbin, too: libgpunvme has it in one.
 */
extern "C" __global__ void __launch_bounds__(GQ_COPIER_THREADS)
    gq_copier_kernel(const __grid_constant__ struct gq_copier_launch l)
{
    __shared__ uint64_t slots[2][GQ_COPIER_WORDS];
    const struct gq_copier_box *boxes = l.boxes + blockIdx.x * GQ_COPIER_BOXES;
    const bool takes = threadIdx.x >= kCopying;
    const uint64_t leave_ns = gq_clock_ns() + kStayNs;
    uint32_t batch = l.first[blockIdx.x];
    bool copies, taken = false; /* batch number `batch` */

    if (l.launch[blockIdx.x] == 0)
        return;
    do {
        const uint64_t *words = slots[batch % 2];
        uint32_t next = batch + taken;
        bool came = false;

        copies = taken;
        if (takes)
            came = take(&boxes[next % GQ_COPIER_BOXES], next / GQ_COPIER_BOXES + 1,
                        copies ? words_of(words[0]) : GQ_COPIER_LINE, leave_ns, slots[next % 2]);
        else if (copies)
            copy_and_count(words, &l.done[blockIdx.x], next);
        batch = next;
        taken = __syncthreads_or(came);
    } while (copies || taken);
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
