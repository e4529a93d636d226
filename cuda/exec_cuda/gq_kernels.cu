/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements and launches the kernels of the CUDA executor. */
#include "cuda/exec_cuda/gq_kernels.h"

#include "cuda/exec_cuda/gq_persistent.h"
#include "cuda/queue/gq_list_block.h"

namespace
{

__host__ __device__ unsigned prefetch_warps(const struct gq_reads *reads)
{
    return reads->desc ? 1 : 0;
}

__host__ __device__ unsigned copy_warps(const struct gq_reads *reads)
{
    return reads->staged ? GQ_COPY_WARPS : 0;
}

/*
 * The first warp of a block drives one queue until the list has ended or a
 * deadline ends it. Areas of staging have the numbers of the queues.
 */
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
    gq_report_reads(&r);
}

} // namespace

extern "C" cudaError_t gq_kernels_load(void)
{
    struct cudaFuncAttributes attr;
    cudaError_t err = cudaFuncGetAttributes(&attr, (const void *)drive_reads);

    if (err == cudaSuccess)
        err = gq_sums_load();
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
    unsigned warps = 1 + prefetch_warps(reads) + copy_warps(reads);

    return cudaLaunchKernel((const void *)drive_reads, run->run.n_queues, warps * GQ_LANES, args, 0,
                            stream);
}
