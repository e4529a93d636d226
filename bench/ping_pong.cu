#include "bench/kernel_times.cuh"
#include "bench/kernels.h"

#include <time.h>

namespace
{

constexpr uint64_t kLimitNs = 5000000000u; /* of all rounds: nobody waits for ever */

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

/* The CPU's side. */
bool answer(struct words *w, unsigned rounds)
{
    time_t limit = time(nullptr) + (time_t)(kLimitNs / 1000000000u) + 1;

    for (uint32_t i = 1; i <= rounds; i++) {
        for (unsigned looks = 1; w->ping != i; looks++) {
            if (looks % (1u << 20) == 0 && time(nullptr) > limit)
                return false;
        }
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
