/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of many warps, each of which reads for itself. */
#include "bench/lib/direct_kernels.h"
#include "bench/lib/pattern.h"

#include <cuda_runtime.h>
#include <errno.h>

#include "gpunvme/gpunvme_device.h"

namespace
{

/*
 * Maximum threads of a block. Kernels of 1,024 threads have 64 registers and spill the rest of a
 * read's state; those of 128 threads have 168.
 */
constexpr unsigned kWarp = 32, kSmall = 128, kMost = 1024;
constexpr unsigned kFewWarps = 512;
constexpr unsigned kTickets = 4; /* of a warp at a time */

/* The result of the first reported read that was not served whole. */
__device__ long long failed;

__device__ void tell(int64_t got)
{
    atomicCAS((unsigned long long *)&failed, 0ull, (unsigned long long)got);
}

struct share {
    uint64_t first, step;
};

__device__ struct share of_warp()
{
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;

    return {((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp, threads / kWarp};
}

/* Reports a read of no byte as well, because no result is 0. */
__device__ void check(int64_t got, uint64_t bytes)
{
    if (got != (int64_t)bytes)
        tell(got ? got : -ENODATA);
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

} // namespace

extern "C" int kernel_warps(enum warps_way way, const struct gpunvme_device_file *file,
                            const struct pattern_pieces *p, void *to, unsigned warps,
                            unsigned block, int64_t *result)
{
    static const kernel kernels[2][WARPS_WAYS] = {
        {read_shared<kSmall>, read_threads<kSmall>, read_tickets<kSmall>},
        {read_shared<kMost>, read_threads<kMost>, read_tickets<kMost>}};
    kernel k = kernels[warps > kFewWarps || block * kWarp > kSmall][way];
    long long first = 0;

    *result = 0;
    if (cudaMemcpyToSymbol(failed, &first, sizeof(first)) != cudaSuccess)
        return -EIO;
    k<<<(warps + block - 1) / block, block * kWarp>>>(file, *p, (char *)to);
    if (cudaGetLastError() != cudaSuccess || cudaStreamSynchronize(0) != cudaSuccess ||
        cudaMemcpyFromSymbol(&first, failed, sizeof(first)) != cudaSuccess)
        return -EIO;
    *result = first;
    return first ? -EIO : 0;
}
