/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of benchmarks that read by the direct path. */
#include "bench/lib/direct_kernels.h"
#include "bench/lib/kernel_times.cuh"
#include "bench/lib/pattern.h"
#include "gpunvme/gpunvme_device.h"

namespace
{

constexpr unsigned kWarp = 32;

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
