/* SPDX-License-Identifier: BSD-2-Clause */
/* Times that a kernel takes of itself: ticks of its multiprocessor, put into microseconds later. */
#ifndef BENCH_LIB_KERNEL_TIMES_CUH
#define BENCH_LIB_KERNEL_TIMES_CUH

#include <cuda_runtime.h>
#include <errno.h>
#include <stdint.h>

/* All in device memory. */
struct kernel_times {
    unsigned n;
    unsigned long long *ticks;   /* of each of the n */
    unsigned long long *elapsed; /* nanoseconds and ticks of all together */
};

static inline int kernel_times_open(struct kernel_times *t, unsigned n)
{
    size_t bytes = (n + 2) * sizeof(*t->ticks);

    *t = {n, nullptr, nullptr};
    if (cudaMalloc((void **)&t->ticks, bytes) != cudaSuccess ||
        cudaMemset(t->ticks, 0, bytes) != cudaSuccess)
        return -ENOMEM;
    t->elapsed = t->ticks + n;
    return 0;
}

static inline void kernel_times_close(struct kernel_times *t)
{
    cudaFree(t->ticks);
}

/* n microseconds, after the kernel. */
static inline int kernel_times_take(const struct kernel_times *t, double *micros)
{
    unsigned long long elapsed[2];

    static_assert(sizeof(double) == sizeof(*t->ticks), "converted in place");
    if (cudaMemcpy(elapsed, t->elapsed, sizeof(elapsed), cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(micros, t->ticks, t->n * sizeof(*t->ticks), cudaMemcpyDeviceToHost) !=
            cudaSuccess ||
        elapsed[1] == 0)
        return -EIO;
    for (unsigned i = 0; i < t->n; i++) {
        double ticks = (double)((const unsigned long long *)micros)[i];

        micros[i] = ticks * (double)elapsed[0] / (double)elapsed[1] * 1e-3;
    }
    return 0;
}

static __device__ inline uint64_t kernel_ns()
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

struct kernel_clock {
    uint64_t ns, ticks;
};

static __device__ inline struct kernel_clock kernel_clock_start()
{
    return {kernel_ns(), (uint64_t)clock64()};
}

/* Called by one thread. */
static __device__ inline void kernel_clock_end(const struct kernel_clock &c,
                                               const struct kernel_times &t)
{
    t.elapsed[0] = kernel_ns() - c.ns;
    t.elapsed[1] = (uint64_t)clock64() - c.ticks;
}

#endif
