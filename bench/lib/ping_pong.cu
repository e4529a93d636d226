/* SPDX-License-Identifier: BSD-2-Clause */
/* Round trips of words between a GPU and a processor. */
#include "bench/lib/kernel_times.cuh"
#include "bench/lib/kernels.h"
#include "cuda/queue/gq_fence.h"

#include <string.h>
#include <time.h>

namespace
{

constexpr uint64_t kLimitNs = 5000000000u; /* of all rounds */
constexpr unsigned kMovers = 256;
constexpr size_t kPage = kMovers * sizeof(uint4); /* of a round: one load a thread */

/* Words that one side writes and the other reads, on lines of their own. */
struct words {
    alignas(128) volatile uint32_t ping;
    alignas(128) volatile uint32_t pong;
};

struct board {
    struct words *host;         /* pinned: the GPU asks, the CPU answers */
    volatile uint32_t *relayed; /* device memory: the answer, handed on */
    struct kernel_times times;  /* of each round */
};

/* False when the limit has passed; reading the clock takes longer than a look. */
__device__ bool wait_for(const volatile uint32_t *word, uint32_t value, uint64_t limit)
{
    for (unsigned looks = 1; *word != value; looks++) {
        if (looks % 1024 == 0 && kernel_ns() > limit)
            return false;
    }
    return true;
}

__device__ void hand_on(const struct board &b, uint64_t limit)
{
    for (uint32_t i = 1; i <= b.times.n && wait_for(&b.host->pong, i, limit); i++)
        *b.relayed = i;
}

/* Block 0 asks. With a second block, that one takes the answer from the host and hands it on. */
__global__ void ping_pong(struct board b)
{
    struct kernel_clock clock = kernel_clock_start();
    uint64_t limit = clock.ns + kLimitNs;
    const volatile uint32_t *answer = gridDim.x > 1 ? b.relayed : &b.host->pong;

    if (blockIdx.x == 1) {
        hand_on(b, limit);
        return;
    }
    for (uint32_t i = 1; i <= b.times.n; i++) {
        uint64_t asked = (uint64_t)clock64();

        b.host->ping = i;
        if (!wait_for(answer, i, limit))
            return;
        b.times.ticks[i - 1] = (uint64_t)clock64() - asked;
    }
    kernel_clock_end(clock, b.times);
}

/* The CPU's side, until `limit`. Acquire: later loads see the stores before the word. */
bool seen(const volatile uint32_t *word, uint32_t value, time_t limit)
{
    for (unsigned looks = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; looks++) {
        if (looks % (1u << 20) == 0 && time(nullptr) > limit)
            return false;
    }
    return true;
}

time_t host_limit()
{
    return time(nullptr) + (time_t)(kLimitNs / 1000000000u) + 1;
}

bool answer(struct words *w, unsigned rounds)
{
    time_t limit = host_limit();

    for (uint32_t i = 1; i <= rounds; i++) {
        if (!seen(&w->ping, i, limit))
            return false;
        w->pong = i;
    }
    return true;
}

int play(const struct board *b, bool relay, double *micros)
{
    bool answered;

    ping_pong<<<relay ? 2 : 1, 1>>>(*b);
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    answered = answer(b->host, b->times.n);
    if (cudaStreamSynchronize(0) != cudaSuccess || !answered)
        return -EIO;
    return kernel_times_take(&b->times, micros);
}

/* The words between the two sides of a read, in pinned memory; each side writes its own lines. */
struct path {
    alignas(128) uint64_t request; /* of the reader on the host */
    alignas(128) uint4 entry[4];
    alignas(128) volatile uint32_t doorbell;
    alignas(128) uint64_t order; /* to the block that moves pages */
    alignas(128) uint32_t moved; /* by it */
    alignas(128) uint64_t completion;
};

struct bare_reads {
    struct path *path;
    const char *source; /* pinned, a page for each round */
    char *to;           /* memory of the GPU for as many, or pinned memory */
    bool by_host;       /* it asks for each, and waits for the end itself */
    struct kernel_times times;
};

/* As wait_for(). Acquire: later loads see the stores before the word, as after a completion. */
__device__ bool wait_acquire(const uint64_t *word, uint64_t value, uint64_t limit)
{
    for (unsigned looks = 1; gq_acquire_word(word) != value; looks++) {
        if (looks % 1024 == 0 && kernel_ns() > limit)
            return false;
    }
    return true;
}

__device__ void ask_for_pages(const struct bare_reads &b, uint64_t limit)
{
    struct kernel_clock clock = kernel_clock_start();

    for (uint32_t i = 1; i <= b.times.n; i++) {
        uint64_t asked = (uint64_t)clock64();

        if (b.by_host && !wait_acquire(&b.path->request, i, limit))
            return;
        for (unsigned k = 0; k < 4; k++)
            b.path->entry[k] = make_uint4(i, i, i, i);
        gq_fence_entries(); /* the entry before its doorbell */
        gq_store_doorbell(&b.path->doorbell, i);
        if (!b.by_host && !wait_acquire(&b.path->completion, i, limit))
            return;
        b.times.ticks[i - 1] = (uint64_t)clock64() - asked;
    }
    kernel_clock_end(clock, b.times);
}

/* As the copy kernel of a simulated drive: all threads, one page for each order. */
__device__ void move_pages(const struct bare_reads &b, uint64_t limit)
{
    __shared__ bool ordered;

    for (uint32_t i = 1; i <= b.times.n; i++) {
        size_t at = (i - 1) * kPage + threadIdx.x * sizeof(uint4);

        if (threadIdx.x == 0)
            ordered = wait_acquire(&b.path->order, i, limit);
        __syncthreads();
        if (!ordered)
            return;
        *(uint4 *)(b.to + at) = __ldcv((const uint4 *)(b.source + at));
        __syncthreads();
        if (threadIdx.x == 0) {
            gq_fence_results(); /* the bytes of all threads before the word */
            gq_store_relaxed(&b.path->moved, i);
        }
    }
}

/* Block 0 reads. The second one, if any, moves the bytes. */
__global__ void __launch_bounds__(kMovers) read_bare(const __grid_constant__ struct bare_reads b)
{
    uint64_t limit = kernel_ns() + kLimitNs;

    if (blockIdx.x == 1)
        move_pages(b, limit);
    else if (threadIdx.x == 0)
        ask_for_pages(b, limit);
}

double host_micros()
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* The thread of a drive that makes only the necessary steps of a read, and the reader. */
bool serve(const struct bare_reads &b, bool dma_engine, double *micros)
{
    struct path *r = b.path;
    time_t limit = host_limit();

    for (uint32_t i = 1; i <= b.times.n; i++) {
        size_t at = (i - 1) * kPage;
        double asked = host_micros();

        __atomic_store_n(&r->request, i, __ATOMIC_RELEASE);
        if (!seen(&r->doorbell, i, limit) || r->entry[0].x != i || r->entry[3].w != i)
            return false;
        if (dma_engine) {
            __atomic_store_n(&r->order, i, __ATOMIC_RELEASE);
            if (!seen(&r->moved, i, limit))
                return false;
        } else {
            memcpy(b.to + at, b.source + at, kPage);
        }
        __atomic_store_n(&r->completion, i, __ATOMIC_RELEASE); /* after the bytes */
        micros[i - 1] = host_micros() - asked;
    }
    return true;
}

int read_and_serve(const struct bare_reads &b, bool dma_engine, double *micros)
{
    bool served;

    read_bare<<<dma_engine ? 2 : 1, kMovers>>>(b);
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    served = serve(b, dma_engine, micros);
    if (cudaStreamSynchronize(0) != cudaSuccess || !served)
        return -EIO;
    return b.by_host ? 0 : kernel_times_take(&b.times, micros);
}

} // namespace

extern "C" int kernel_ping_pong(bool relay, unsigned rounds, double *micros)
{
    struct board b = {};
    int err = kernel_times_open(&b.times, rounds);

    if (!err &&
        (cudaHostAlloc((void **)&b.host, sizeof(*b.host), cudaHostAllocDefault) != cudaSuccess ||
         cudaMalloc((void **)&b.relayed, sizeof(*b.relayed)) != cudaSuccess ||
         cudaMemset((void *)b.relayed, 0, sizeof(*b.relayed)) != cudaSuccess))
        err = -ENOMEM;
    if (!err) {
        b.host->ping = b.host->pong = 0;
        err = play(&b, relay, micros);
    }
    kernel_times_close(&b.times);
    cudaFree((void *)b.relayed);
    cudaFreeHost(b.host);
    return err;
}

extern "C" int kernel_bare_reads(const void *source, void *to, bool on_gpu, bool by_host,
                                 unsigned rounds, double *micros)
{
    struct bare_reads b = {nullptr, (const char *)source, (char *)to, by_host, {}};
    int err = kernel_times_open(&b.times, rounds);

    if (!err &&
        cudaHostAlloc((void **)&b.path, sizeof(*b.path), cudaHostAllocDefault) != cudaSuccess)
        err = -ENOMEM;
    if (!err) {
        memset((void *)b.path, 0, sizeof(*b.path));
        err = read_and_serve(b, on_gpu, micros);
    }
    kernel_times_close(&b.times);
    cudaFreeHost(b.path);
    return err;
}
