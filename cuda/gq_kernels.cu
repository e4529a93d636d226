#include "cuda/gq_kernels.h"

#include "cuda/gq_bytes.h"
#include "cuda/gq_copier.h"
#include "cuda/gq_list_protocol.h"
#include "cuda/gq_reads_protocol.h"
#include "cuda/gq_resident.h"

namespace
{

constexpr unsigned kCopyThreads = 128;
constexpr unsigned kMaxBlocks = 512;

/* A block is one warp, and drives one queue until the list is done or a deadline ends it. */
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

/* The same for reads. The areas of staging are the queues' own. */
__global__ void __launch_bounds__(GQ_LANES, 1)
    drive_reads(const __grid_constant__ struct gq_kernel_run a,
                const __grid_constant__ struct gq_reads reads)
{
    const uint16_t queue = a.queues[blockIdx.x];
    const struct gq_port port = a.ports[queue];
    struct gq_reader r;

    gq_reads_begin(&r, gq_whole_group(), &a.run, &reads, &port, &a.states[blockIdx.x], blockIdx.x,
                   queue);
    while (gq_reads_round(&r) != GQ_ROUND_ENDED)
        ;
    gq_tell_reads(&r);
    gq_reads_end(&r);
}

/* Copies of a failed command's staging are left out: they would hand on somebody else's bytes. */
__global__ void __launch_bounds__(kCopyThreads)
    move_pieces(const struct gq_piece *pieces, uint32_t n, const uint32_t *results)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct gq_piece piece = pieces[i];

        if (piece.cmd != GQ_PIECE_ALWAYS && results[piece.cmd] != GQ_ENDED)
            continue;
        if (piece.src)
            gq_copy_bytes(piece.dst, piece.src, piece.len, threadIdx.x, kCopyThreads);
        else
            gq_zero_bytes(piece.dst, piece.len, threadIdx.x, kCopyThreads);
    }
}

__global__ void __launch_bounds__(kCopyThreads) gather(const struct gq_gather *copies, uint32_t n)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct gq_gather copy = copies[i];

        gq_copy_bytes(copy.dst, copy.src, copy.len, threadIdx.x, kCopyThreads);
    }
}

__global__ void __launch_bounds__(kCopyThreads) fill_zero(uint64_t dst, uint64_t len)
{
    gq_zero_bytes(dst, len, (uint64_t)blockIdx.x * kCopyThreads + threadIdx.x,
                  (uint64_t)gridDim.x * kCopyThreads);
}

unsigned blocks_for(uint64_t n)
{
    return n < kMaxBlocks ? (unsigned)n : kMaxBlocks;
}

} // namespace

extern "C" cudaError_t gq_kernels_load(void)
{
    const void *kernels[] = {(const void *)drive_queues, (const void *)drive_reads,
                             (const void *)move_pieces, (const void *)gather,
                             (const void *)fill_zero};

    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attr;
        cudaError_t err = cudaFuncGetAttributes(&attr, kernel);

        if (err != cudaSuccess)
            return err;
    }
    cudaError_t err = gq_resident_load();

    return err == cudaSuccess ? gq_copier_load() : err;
}

/*
 * By cudaLaunchKernel(), whose answer is about this launch alone. After <<<>>> only
 * cudaGetLastError() tells, and that may be an older error of the same thread.
 */
extern "C" cudaError_t gq_kernel_run(const struct gq_kernel_run *run, const struct gq_reads *reads,
                                     cudaStream_t stream)
{
    void *args[] = {(void *)run, (void *)reads};

    return cudaLaunchKernel(reads ? (const void *)drive_reads : (const void *)drive_queues,
                            run->run.n_queues, GQ_LANES, args, 0, stream);
}

extern "C" cudaError_t gq_kernel_pieces(const struct gq_piece *pieces, uint32_t n,
                                        const uint32_t *results, cudaStream_t stream)
{
    void *args[] = {&pieces, &n, &results};

    return cudaLaunchKernel((const void *)move_pieces, blocks_for(n), kCopyThreads, args, 0,
                            stream);
}

extern "C" cudaError_t gq_kernel_gather(const struct gq_gather *copies, uint32_t n,
                                        cudaStream_t stream)
{
    void *args[] = {&copies, &n};

    return cudaLaunchKernel((const void *)gather, blocks_for(n), kCopyThreads, args, 0, stream);
}

extern "C" cudaError_t gq_kernel_fill(uint64_t dst, uint64_t len, cudaStream_t stream)
{
    void *args[] = {&dst, &len};

    return cudaLaunchKernel((const void *)fill_zero, blocks_for(len / 4096 + 1), kCopyThreads, args,
                            0, stream);
}
