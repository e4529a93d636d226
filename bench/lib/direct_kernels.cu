/* SPDX-License-Identifier: BSD-2-Clause */
/* These kernels read by the direct path: one has a warp, others have blocks or many warps. */
#include "bench/lib/direct_kernels.h"
#include "bench/lib/kernel_times.cuh"
#include "bench/lib/pattern.h"
#include "gpunvme/gpunvme_device.h"

namespace
{

/*
 * The kernels are compiled for blocks of at most kSmall threads, and again for blocks of at most
 * kMost threads. A thread has up to 168 registers in the first case, and 64 in the second. With 64
 * registers the compiler spills a part of the state of a read.
 */
constexpr unsigned kWarp = 32, kSmall = 128, kMost = 1024;
constexpr unsigned kBlock = 256; /* threads of a block that reads as one */
constexpr unsigned kFewWarps = 512;
constexpr unsigned kTickets = 4; /* of a warp at a time */

/* Holds the result of the first reported read that was not served whole. */
__device__ long long failed;

/*
 * One warp, one read after another, whose place is in registers when its time begins. *wrong: how
 * many were not served whole.
 */
__global__ void __launch_bounds__(kWarp)
    read_pieces(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to,
                struct kernel_times times, unsigned *wrong)
{
    struct kernel_clock clock = kernel_clock_start();
    unsigned bad = 0;

    for (unsigned i = 0; i < p.n; i++) {
        uint64_t place = p.gpu_places[i], asked;
        int64_t got = 0;

        if (place != UINT64_MAX) { /* waits for the load of the place */
            asked = (uint64_t)clock64();
            got = gpunvme_pread_warp(file, to + i * p.bytes, p.bytes, place);
            if (threadIdx.x == 0)
                times.ticks[i] = (uint64_t)clock64() - asked;
        }
        bad += got != (int64_t)p.bytes;
    }
    if (threadIdx.x == 0) {
        kernel_clock_end(clock, times);
        *wrong = bad;
    }
}

int run(const struct gpunvme_device_file *file, const struct pattern_pieces *p, void *to,
        const struct kernel_times *times, unsigned *wrong, double *micros)
{
    unsigned bad = 0;

    read_pieces<<<1, kWarp>>>(file, *p, (char *)to, *times, wrong);
    if (cudaGetLastError() != cudaSuccess || cudaStreamSynchronize(0) != cudaSuccess ||
        cudaMemcpy(&bad, wrong, sizeof(bad), cudaMemcpyDeviceToHost) != cudaSuccess || bad)
        return -EIO;
    return kernel_times_take(times, micros);
}

/* Reports a read of no byte as well, because no result is 0. */
__device__ void check(int64_t got, uint64_t bytes)
{
    if (got != (int64_t)bytes)
        atomicCAS((unsigned long long *)&failed, 0ull, (unsigned long long)(got ? got : -ENODATA));
}

struct share {
    uint64_t first, step;
};

__device__ struct share of_warp()
{
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;

    return {((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp, threads / kWarp};
}

__global__ void __launch_bounds__(kBlock)
    read_in_parts(const struct gpunvme_device_file *file, char *to, uint64_t bytes, uint64_t part)
{
    for (uint64_t at = blockIdx.x * part; at < bytes; at += gridDim.x * part) {
        uint64_t n = part < bytes - at ? part : bytes - at;
        int64_t got = gpunvme_pread_block(file, to + at, n, at);

        if (threadIdx.x == 0)
            check(got, n);
    }
}

template <unsigned most>
__global__ void __launch_bounds__(most)
    read_shared(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to)
{
    struct share s = of_warp();

    for (uint64_t i = s.first; i < p.n; i += s.step)
        check(gpunvme_pread_warp(file, to + i * p.bytes, p.bytes, p.gpu_places[i]), p.bytes);
}

template <unsigned most>
__global__ void __launch_bounds__(most)
    read_threads(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += step)
        check(gpunvme_pread(file, to + i * p.bytes, p.bytes, p.gpu_places[i]), p.bytes);
}

template <unsigned most>
__global__ void __launch_bounds__(most)
    read_tickets(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to)
{
    struct share s = of_warp();
    struct gpunvme_ticket tickets[kTickets];

    for (uint64_t i = s.first; i < p.n; i += kTickets * s.step) {
#pragma unroll
        for (unsigned k = 0; k < kTickets; k++) {
            uint64_t at = i + k * s.step;

            if (at < p.n)
                gpunvme_pread_warp_begin(&tickets[k], file, to + at * p.bytes, p.bytes,
                                         p.gpu_places[at]);
        }
#pragma unroll
        for (unsigned k = 0; k < kTickets; k++) {
            if (i + k * s.step < p.n)
                check(gpunvme_pread_warp_end(&tickets[k]), p.bytes);
        }
    }
}

using kernel = void (*)(const struct gpunvme_device_file *file, struct pattern_pieces p, char *to);

/* Waits for the kernel, and stores the first failed read. Returns 0 or -EIO. */
int finish(int64_t *first)
{
    static_assert(sizeof(*first) == sizeof(failed), "copied as it is");

    return cudaGetLastError() == cudaSuccess && cudaStreamSynchronize(0) == cudaSuccess &&
                   cudaMemcpyFromSymbol(first, failed, sizeof(failed)) == cudaSuccess
               ? 0
               : -EIO;
}

int clear_failed()
{
    const long long none = 0;

    return cudaMemcpyToSymbol(failed, &none, sizeof(none)) == cudaSuccess ? 0 : -EIO;
}

} // namespace

extern "C" int kernel_direct_reads(const struct gpunvme_device_file *file,
                                   const struct pattern_pieces *p, void *to, double *micros)
{
    struct kernel_times times;
    unsigned *wrong = nullptr;
    int err = kernel_times_open(&times, (unsigned)p->n);

    if (!err && cudaMalloc((void **)&wrong, sizeof(*wrong)) != cudaSuccess)
        err = -ENOMEM;
    if (!err)
        err = run(file, p, to, &times, wrong, micros);
    cudaFree(wrong);
    kernel_times_close(&times);
    return err;
}

extern "C" int kernel_block_reads(const struct gpunvme_device_file *file, void *to, uint64_t bytes,
                                  uint64_t part, unsigned blocks)
{
    int64_t first = 0;

    if (clear_failed())
        return -EIO;
    read_in_parts<<<blocks, kBlock>>>(file, (char *)to, bytes, part);
    return finish(&first) ? -EIO : first > 0 ? -ENODATA : (int)first;
}

extern "C" int kernel_warps(enum warps_way way, const struct gpunvme_device_file *file,
                            const struct pattern_pieces *p, void *to, unsigned warps,
                            unsigned block, int64_t *result)
{
    static const kernel kernels[2][WARPS_WAYS] = {
        {read_shared<kSmall>, read_threads<kSmall>, read_tickets<kSmall>},
        {read_shared<kMost>, read_threads<kMost>, read_tickets<kMost>}};
    kernel k = kernels[warps > kFewWarps || block * kWarp > kSmall][way];

    *result = 0;
    if (clear_failed())
        return -EIO;
    k<<<(warps + block - 1) / block, block * kWarp>>>(file, *p, (char *)to);
    return finish(result) || *result ? -EIO : 0;
}
