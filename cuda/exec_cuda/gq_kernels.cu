/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of the CUDA executor, and their launches. */
#include "cuda/exec_cuda/gq_kernels.h"

#include "cuda/exec_cuda/gq_persistent.h"
#include "cuda/exec_cuda/gq_sums.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_list_block.h"
#include "cuda/queue/gq_list_protocol.h"

namespace
{

constexpr unsigned kCopyThreads = 128;
constexpr unsigned kMaxBlocks = 512;

/*
 * A block is one warp. It drives one queue until the list has ended or a
 * deadline ends it.
 */
__global__ void __launch_bounds__(GQ_LANES)
    drive_queues(const __grid_constant__ struct gq_kernel_run a)
{
    const struct gq_port port = a.ports[a.queues[blockIdx.x]];
    struct gq_worker w;

    gq_begin(&w, gq_whole_group(), &a.run, &port, &a.states[blockIdx.x], blockIdx.x);
    while (gq_round(&w) != GQ_ROUND_ENDED)
        ;
    gq_end(&w);
}

__host__ __device__ unsigned prefetch_warps(const struct gq_reads *reads)
{
    return reads->desc ? 1 : 0;
}

__host__ __device__ unsigned copy_warps(const struct gq_reads *reads)
{
    return reads->staged ? GQ_COPY_WARPS : 0;
}

/* Like drive_queues(), for reads. Areas of staging have the numbers of the queues. */
__global__ void __launch_bounds__(GQ_LIST_WARPS *GQ_LANES, 1)
    drive_reads(const __grid_constant__ struct gq_kernel_run a,
                const __grid_constant__ struct gq_reads reads)
{
    __shared__ struct gq_list_block block;
    const unsigned warp = threadIdx.x / GQ_LANES, first_copy = 1 + prefetch_warps(&reads);
    const uint16_t queue = a.queues[blockIdx.x];
    const struct gq_port port = a.ports[queue];
    struct gq_reader r;

    gq_list_block_clear(&block);
    if (warp >= first_copy) {
        gq_copy_jobs_serve(&block.copies, warp - first_copy, copy_warps(&reads));
        return;
    }
    if (warp) {
        gq_prefetch_serve(&block.prefetch, &a.run, &reads, blockIdx.x);
        return;
    }
    gq_reads_begin(&r, gq_whole_group(), &a.run, &reads, &port, &a.states[blockIdx.x], blockIdx.x,
                   queue);
    if (prefetch_warps(&reads))
        r.prefetch = &block.prefetch;
    if (copy_warps(&reads))
        r.copies = &block.copies;
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_conclude_reads(&r);
    gq_report_reads(&r);
    gq_reads_end(&r);
}

/*
 * Makes copies. Those of a failed command's staging are skipped, because the
 * staging may hold data of another transfer.
 */
__global__ void __launch_bounds__(kCopyThreads)
    make_copies(const struct gq_copy *copies, uint32_t n, const uint32_t *results)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct gq_copy copy = copies[i];

        if (copy.cmd != GQ_COPY_ALWAYS && results[copy.cmd] != GQ_ENDED)
            continue;
        if (copy.src)
            gq_copy_bytes(copy.dst, copy.src, copy.len, threadIdx.x, kCopyThreads);
        else
            gq_zero_bytes(copy.dst, copy.len, threadIdx.x, kCopyThreads);
    }
}

unsigned blocks_for(uint64_t n)
{
    return n < kMaxBlocks ? (unsigned)n : kMaxBlocks;
}

} // namespace

extern "C" cudaError_t gq_kernels_load(void)
{
    const void *kernels[] = {(const void *)drive_queues, (const void *)drive_reads,
                             (const void *)make_copies};

    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attr;
        cudaError_t err = cudaFuncGetAttributes(&attr, kernel);

        if (err != cudaSuccess)
            return err;
    }
    cudaError_t err = gq_sums_load();

    return err == cudaSuccess ? gq_persistent_load() : err;
}

/*
 * cudaLaunchKernel() returns the error of this launch only. After <<<>>> only
 * cudaGetLastError() returns it, which may report an older error of the same
 * thread.
 */
extern "C" cudaError_t gq_kernel_run(const struct gq_kernel_run *run, const struct gq_reads *reads,
                                     cudaStream_t stream)
{
    void *args[] = {(void *)run, (void *)reads};
    unsigned warps = reads ? 1 + prefetch_warps(reads) + copy_warps(reads) : 1;

    return cudaLaunchKernel(reads ? (const void *)drive_reads : (const void *)drive_queues,
                            run->run.n_queues, warps * GQ_LANES, args, 0, stream);
}

extern "C" cudaError_t gq_kernel_copies(const struct gq_copy *copies, uint32_t n,
                                        const uint32_t *results, cudaStream_t stream)
{
    void *args[] = {&copies, &n, &results};

    return cudaLaunchKernel((const void *)make_copies, blocks_for(n), kCopyThreads, args, 0,
                            stream);
}
