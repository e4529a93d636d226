/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of an application that reads by the direct path. */
#include "tests/client/device/test_direct_kernels.h"

#include "gpunvme/gpunvme_device.h"

namespace
{

constexpr unsigned kThreads = 128, kWarp = 32, kPage = 4096;

// Every third thread calls from a place of its own, and threads beyond the end not at all.
__global__ void by_threads(const struct gpunvme_device_file *f, struct request *r, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    if (i % 3 == 0)
        r[i].result = gpunvme_pread(f, r[i].dst, r[i].n, r[i].offset);
    else
        r[i].result = gpunvme_pread(f, r[i].dst, r[i].n, r[i].offset);
}

__global__ void by_warps(const struct gpunvme_device_file *f, struct request *r, unsigned n)
{
    unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    int64_t result;

    if (i >= n)
        return;
    result = gpunvme_pread_warp(f, r[i].dst, r[i].n, r[i].offset);
    if (threadIdx.x % kWarp == 0)
        r[i].result = result;
}

/* Of a warp's requests so many are under way at a time. */
constexpr unsigned kTickets = 4;

__global__ void by_warps_later(const struct gpunvme_device_file *f, struct request *r, unsigned n)
{
    unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp * kTickets;
    struct gpunvme_ticket tickets[kTickets];

    for (unsigned k = 0; k < kTickets && first + k < n; k++) {
        const struct request *mine = &r[first + k];

        gpunvme_pread_warp_begin(&tickets[k], f, mine->dst, mine->n, mine->offset);
    }
    for (unsigned k = 0; k < kTickets && first + k < n; k++) {
        int64_t result = gpunvme_pread_warp_end(&tickets[k]);

        if (threadIdx.x % kWarp == 0)
            r[first + k].result = result;
    }
}

__global__ void by_threads_later(const struct gpunvme_device_file *f, struct request *r, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    struct gpunvme_ticket ticket;

    if (i >= n)
        return;
    gpunvme_pread_begin(&ticket, f, r[i].dst, r[i].n, r[i].offset);
    r[i].result = gpunvme_pread_end(&ticket);
}

__global__ void by_blocks(const struct gpunvme_device_file *f, struct request *r)
{
    struct request *mine = &r[blockIdx.x];
    int64_t result = gpunvme_pread_block(f, mine->dst, mine->n, mine->offset);

    if (threadIdx.x == 0)
        mine->result = result;
}

__device__ unsigned long long count_wrong(const uint64_t *words, uint64_t first)
{
    unsigned long long wrong = 0;

    for (unsigned j = threadIdx.x % kWarp; j < kPage / 8; j += kWarp)
        wrong += words[j] != CONTENT_WORD(first + j);
    return wrong;
}

__global__ void rereads(const struct gpunvme_device_file *f, unsigned char *dst, uint64_t rounds,
                        unsigned long long *wrong, int64_t *last)
{
    unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    uint64_t *mine = (uint64_t *)(dst + (uint64_t)i * kPage);
    uint64_t pages = gpunvme_size(f) / kPage, page = i;
    unsigned long long bad = 0, before = 0;
    int64_t result = kPage;

    for (uint64_t k = 0; k < rounds && result == kPage; k++) {
        page = (page * 2654435761u + 12345) % pages;
        before += count_wrong(mine, page * (kPage / 8)); // the lines are in the cache now
        result = gpunvme_pread_warp(f, mine, kPage, page * kPage);
        if (result == kPage)
            bad += count_wrong(mine, page * (kPage / 8));
    }
    if (bad || before == 0)
        atomicAdd(wrong, bad ? bad : 1);
    if (threadIdx.x % kWarp == 0)
        last[i] = result;
}

__global__ void fill(unsigned char *dst, unsigned char value, uint64_t n)
{
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x)
        dst[i] = value;
}

__global__ void copy(unsigned char *dst, const unsigned char *src, uint64_t n)
{
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x)
        dst[i] = src[i];
}

} // namespace

extern "C" cudaError_t launch_threads(const struct gpunvme_device_file *f, struct request *r,
                                      unsigned n, cudaStream_t stream)
{
    by_threads<<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(f, r, n);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_warps(const struct gpunvme_device_file *f, struct request *r,
                                    unsigned n, cudaStream_t stream)
{
    by_warps<<<(n * kWarp + kThreads - 1) / kThreads, kThreads, 0, stream>>>(f, r, n);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_warps_later(const struct gpunvme_device_file *f, struct request *r,
                                          unsigned n, cudaStream_t stream)
{
    unsigned warps = (n + kTickets - 1) / kTickets;

    by_warps_later<<<(warps * kWarp + kThreads - 1) / kThreads, kThreads, 0, stream>>>(f, r, n);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_threads_later(const struct gpunvme_device_file *f, struct request *r,
                                            unsigned n, cudaStream_t stream)
{
    by_threads_later<<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(f, r, n);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_blocks(const struct gpunvme_device_file *f, struct request *r,
                                     unsigned n, unsigned threads, cudaStream_t stream)
{
    by_blocks<<<n, threads, 0, stream>>>(f, r);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_rereads(const struct gpunvme_device_file *f, unsigned char *dst,
                                      unsigned warps, bool hog, uint64_t rounds,
                                      unsigned long long *wrong, int64_t *last, cudaStream_t stream)
{
    int device, most = 0;
    cudaError_t err = cudaGetDevice(&device);

    if (hog && err == cudaSuccess)
        err = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (hog && err == cudaSuccess)
        err = cudaFuncSetAttribute(rereads, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    if (err != cudaSuccess)
        return err;
    rereads<<<warps, kWarp, (size_t)most, stream>>>(f, dst, rounds, wrong, last);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_fill(unsigned char *dst, unsigned char value, uint64_t n,
                                   cudaStream_t stream)
{
    fill<<<1, 1024, 0, stream>>>(dst, value, n);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_copy(unsigned char *dst, const unsigned char *src, uint64_t n,
                                   cudaStream_t stream)
{
    copy<<<1, 1024, 0, stream>>>(dst, src, n);
    return cudaGetLastError();
}
