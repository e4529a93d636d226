/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the kernels that copy small pieces for a simulated drive. */
#include "sim/gpu/sim_copy_kernel.h"

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_fence.h"
#include "cuda/queue/gq_lanes.h"

namespace
{

constexpr uint64_t kRestNs = 1000000; /* minimum idle time after many batches */
constexpr uint32_t kMany = 64;
constexpr uint64_t kStayNs = 100000000; /* limit, as calls like cudaFree() wait for all kernels */
constexpr unsigned kNapNs = 32;
constexpr unsigned kUnroll = 8;
constexpr unsigned kAhead = 4; /* batches taken before the first of them is counted */
/* One warp takes batches, another warp counts them, and the other warps copy. */
constexpr unsigned kCopyWarps = SIM_COPY_KERNEL_THREADS / GQ_LANES - 2;
constexpr unsigned kCopying = kCopyWarps * GQ_LANES;

/*
 * Lies in the shared memory of a block. Batches are numbered. A batch without
 * copies is the last batch. Numbers are stored with release and loaded with
 * acquire.
 */
struct desk {
    uint64_t words[kAhead][SIM_COPY_KERNEL_WORDS];
    uint32_t taken;              /* number of batches taken */
    uint32_t copied[kCopyWarps]; /* by warp: number of batches of which it has copied its part */
    uint32_t counted;            /* number of batches copied by all warps */
};

__device__ bool is_new(uint64_t word, uint32_t fill)
{
    return word >> SIM_COPY_KERNEL_TAG_SHIFT == (fill & 0x7fu);
}

__device__ unsigned copies_of(uint64_t head)
{
    return min((unsigned)(head & 0xffu), SIM_COPY_KERNEL_BATCH);
}

/* Returns false if the slot is empty or the batch is the last one. */
__device__ bool is_batch(uint64_t head)
{
    return copies_of(head) != 0;
}

__device__ unsigned words_of(uint64_t head)
{
    return 2 + 2 * copies_of(head);
}

/*
 * Called by a whole warp. Waits until all numbers, one for each lane, have
 * reached `wanted`.
 */
__device__ void await(const uint32_t *number, uint32_t wanted)
{
    while (__any_sync(GQ_LANE_ALL, (int32_t)(gq_acquire_block(number) - wanted) < 0))
        __nanosleep(kNapNs);
}

/*
 * Called by a whole warp. Stores the number after the stores of all lanes have
 * become visible.
 */
__device__ void announce(uint32_t *number, uint32_t value)
{
    __syncwarp();
    if (gq_thread() == 0)
        gq_release_block(number, value);
}

/*
 * Called by a whole warp. Waits for the next filling of the slot and copies it
 * to shared memory. *wanted words are loaded at once, so that a filling of at
 * most that size takes one round trip on the bus; the rest of a longer one is
 * loaded after its length is known. The tag of each word shows whether the word
 * is new. The load of the head acquires: threads that are notified of the batch
 * load its bytes afterwards. Returns false if the idle time or the time limit
 * has passed.
 */
__device__ bool take(const struct sim_copy_slot *slot, uint32_t fill, unsigned *wanted,
                     uint64_t idle_ns, uint64_t leave_ns, uint64_t *words)
{
    const uint64_t *from = slot->words;
    uint64_t since = gq_clock_ns(), now = since;
    unsigned lane = gq_thread();

    while (GQ_UNIFORM32(now <= leave_ns && now - since <= idle_ns)) {
        unsigned n = *wanted;
        uint64_t high = n > GQ_LANES && lane < n - GQ_LANES ? gq_load_word(&from[GQ_LANES + lane])
                                                            : SIM_COPY_KERNEL_TAG(fill);
        uint64_t low = lane < n ? gq_acquire_word(&from[lane]) : SIM_COPY_KERNEL_TAG(fill);
        uint64_t head = GQ_UNIFORM64(low);
        bool has_batch = is_new(head, fill) && is_batch(head);
        unsigned all = has_batch ? words_of(head) : SIM_COPY_KERNEL_LINE;

        *wanted = all;
        if (has_batch && all > n)
            continue; /* loads the rest at once, without a check of the clock */
        if (has_batch &&
            __all_sync(GQ_LANE_ALL, (lane >= all || is_new(low, fill)) &&
                                        (GQ_LANES + lane >= all || is_new(high, fill)))) {
            words[lane] = low & SIM_COPY_KERNEL_VALUE;
            words[GQ_LANES + lane] = high & SIM_COPY_KERNEL_VALUE;
            return true;
        }
        now = gq_clock_ns();
    }
    return false;
}

/*
 * Called by a whole warp. Takes batches from number `first` on until the idle
 * time has passed.
 */
__device__ void take_all(struct desk *d, const struct sim_copy_slot *slots, uint32_t first,
                         uint64_t idle_ns)
{
    const uint64_t leave_ns = gq_clock_ns() + kStayNs;
    unsigned wanted = SIM_COPY_KERNEL_LINE;
    uint32_t batch = first;
    bool came;

    do {
        uint64_t *words = d->words[batch % kAhead];

        await(&d->counted, batch + 1 - kAhead);
        came =
            take(&slots[batch % SIM_COPY_KERNEL_SLOTS], batch / SIM_COPY_KERNEL_SLOTS + 1, &wanted,
                 batch - first > kMany ? max(idle_ns, kRestNs) : idle_ns, leave_ns, words);
        if (!came && GQ_UNIFORM32(gq_acquire_block(&d->counted)) != batch) {
            came = true; /* the idle time begins when all batches are copied */
            continue;
        }
        if (!came && gq_thread() == 0)
            words[0] = 0;
        announce(&d->taken, ++batch);
    } while (came);
}

/*
 * Called by kCopying threads. Copies the bytes of the batch in units of 16,
 * which the threads take in turn, kUnroll at once.
 */
__device__ void copy_batch(const uint64_t *words)
{
    unsigned n = copies_of(words[0]), shift = (unsigned)(words[0] >> 8 & 0xffu) - 4;
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

/* Called by each copying warp. Warps do not wait for one another. */
__device__ void copy_all(struct desk *d, uint32_t batch)
{
    bool more;

    do {
        const uint64_t *words = d->words[batch % kAhead];

        await(&d->taken, ++batch);
        more = is_batch(words[0]);
        copy_batch(words);
        announce(&d->copied[threadIdx.x / GQ_LANES], batch);
    } while (more);
}

/*
 * Called by a whole warp. Counts the batches that all warps have copied. The
 * fence covers the bytes of all warps: a warp's stores precede its
 * announcement, and the fencing thread stores the count after it. After the
 * last batch `ended` is stored, behind the last count. The keeper that sees it
 * starts the next launch with the batch of that count. An older count would
 * make the kernel copy a batch again whose end the poster may have seen, over
 * bytes that have changed since.
 */
__device__ void count_all(struct desk *d, uint32_t batch, uint32_t *done, uint32_t *ended,
                          uint32_t launch)
{
    unsigned lane = gq_thread() < kCopyWarps ? gq_thread() : 0;
    bool more;

    do {
        const uint64_t *words = d->words[batch % kAhead];

        await(&d->copied[lane], ++batch);
        more = is_batch(words[0]);
        __syncwarp();
        if (gq_thread() == 0) {
            gq_fence_results();
            gq_store_relaxed(more ? done : ended, more ? batch : launch);
        }
        announce(&d->counted, batch);
    } while (more);
}

/*
 * Batches are taken ahead, copied and counted by different warps, so that three
 * latencies overlap: the round trip for a slot, the bytes of the batch before,
 * and the fence of the batch before that.
 */
__global__ void __launch_bounds__(SIM_COPY_KERNEL_THREADS)
    copy_kernel(const __grid_constant__ struct sim_copy_kernel_launch l)
{
    __shared__ struct desk d;
    const uint32_t launch = l.launch[blockIdx.x], first = l.first[blockIdx.x];
    const unsigned warp = threadIdx.x / GQ_LANES;

    if (launch == 0)
        return;
    if (threadIdx.x < kCopyWarps)
        d.copied[threadIdx.x] = first;
    if (threadIdx.x == 0)
        d.taken = d.counted = first;
    __syncthreads();
    if (warp < kCopyWarps)
        copy_all(&d, first);
    else if (warp == kCopyWarps)
        take_all(&d, l.slots + blockIdx.x * SIM_COPY_KERNEL_SLOTS, first, l.idle_ns);
    else
        count_all(&d, first, &l.done[blockIdx.x], &l.ended[blockIdx.x], launch);
}

constexpr unsigned kGatherThreads = 128;
constexpr unsigned kMaxBlocks = 512;

/* Makes copies of any size and alignment. One launch executes one list of copies. */
__global__ void __launch_bounds__(kGatherThreads)
    gather(const struct sim_gather *copies, uint32_t n)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct sim_gather copy = copies[i];

        gq_copy_bytes(copy.dst, copy.src, copy.len, threadIdx.x, kGatherThreads);
    }
}

} // namespace

extern "C" cudaError_t sim_copy_kernel_load(void)
{
    struct cudaFuncAttributes attr;
    cudaError_t err = cudaFuncGetAttributes(&attr, (const void *)copy_kernel);

    return err == cudaSuccess ? cudaFuncGetAttributes(&attr, (const void *)gather) : err;
}

extern "C" cudaError_t sim_copy_kernel_run(const struct sim_copy_kernel_launch *l, unsigned blocks,
                                           cudaStream_t stream)
{
    void *args[] = {(void *)l};

    return cudaLaunchKernel((const void *)copy_kernel, blocks, SIM_COPY_KERNEL_THREADS, args, 0,
                            stream);
}

extern "C" cudaError_t sim_gather_run(const struct sim_gather *copies, uint32_t n,
                                      cudaStream_t stream)
{
    void *args[] = {&copies, &n};

    return cudaLaunchKernel((const void *)gather, n < kMaxBlocks ? n : kMaxBlocks, kGatherThreads,
                            args, 0, stream);
}
