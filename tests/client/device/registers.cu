/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of an application, of which registers_test.py reads what the compiler gave them. */
#include "gpunvme/gpunvme_device.h"

#define PAGE 4096u

__device__ static uint64_t warp()
{
    return ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

__device__ static uint64_t thread()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

extern "C" __global__ void __launch_bounds__(1024)
    full_block_warps(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    results[warp()] = gpunvme_pread_warp(file, to + warp() * PAGE, PAGE, warp() * PAGE);
}

extern "C" __global__ void __launch_bounds__(1024)
    full_block_threads(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    results[thread()] = gpunvme_pread(file, to + thread() * PAGE, PAGE, thread() * PAGE);
}

extern "C" __global__ void __launch_bounds__(1024)
    full_block_tickets(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    struct gpunvme_ticket ticket;

    gpunvme_pread_begin(&ticket, file, to + thread() * PAGE, PAGE, thread() * PAGE);
    results[thread()] = gpunvme_pread_end(&ticket);
    gpunvme_pread_warp_begin(&ticket, file, to + warp() * PAGE, PAGE, warp() * PAGE);
    results[thread()] += gpunvme_pread_warp_end(&ticket);
}

extern "C" __global__ void any_block(const struct gpunvme_device_file *file, char *to,
                                     int64_t *results)
{
    results[thread()] = gpunvme_pread(file, to + thread() * PAGE, PAGE, thread() * PAGE);
    results[thread()] += gpunvme_pread_warp(file, to + warp() * PAGE, PAGE, warp() * PAGE);
}

extern "C" __global__ void __launch_bounds__(1024)
    full_block_lists(const struct gpunvme_device_file *file, char *to, struct gpunvme_piece *pieces,
                     int *errors)
{
    errors[warp()] = gpunvme_preadv_warp(file, to, pieces + warp() * 100, 100);
}

extern "C" __global__ void __launch_bounds__(1024)
    full_block(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    results[blockIdx.x] = gpunvme_pread_block(file, to, gpunvme_size(file), 0);
}
