/* SPDX-License-Identifier: BSD-2-Clause */
// Kernels of a program that has only the installed headers of gpunvme.
#include <gpunvme/gpunvme.h>
#include <gpunvme/gpunvme_device.h>

__global__ void each_thread(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    results[i] = gpunvme_pread(file, to + i * 4096ull, 4096, i * 8192ull);
}

__global__ void each_warp(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    results[threadIdx.x / 32] = gpunvme_pread_warp(file, to, 65536, threadIdx.x / 32);
}

__global__ void each_block(const struct gpunvme_device_file *file, char *to, int64_t *results)
{
    results[blockIdx.x] = gpunvme_pread_block(file, to, gpunvme_size(file), 0);
}

__global__ void each_list(const struct gpunvme_device_file *file, char *to,
                          struct gpunvme_piece *pieces, int *errors)
{
    errors[blockIdx.x] = gpunvme_preadv_warp(file, to, pieces + blockIdx.x * 1000ull, 1000);
}
