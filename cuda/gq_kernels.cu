#include "cuda/gq_kernels.h"

#include "cuda/gq_copier.h"
#include "cuda/gq_protocol.h"

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

    gq_begin(&w, &a.run, &port, &a.states[blockIdx.x], blockIdx.x);
    while (gq_round(&w) != GQ_ROUND_ENDED)
        ;
    gq_end(&w, &a.states[blockIdx.x]);
}

/*
 * The threads of a block copy len bytes in units of T; both addresses are aligned to it. The
 * source may be host memory, so four loads are on their way at a time.
 */
template <typename T> __device__ void copy_units(uint64_t dst, uint64_t src, uint64_t n)
{
    const T *from = (const T *)src;
    T *to = (T *)dst;
    uint64_t i = threadIdx.x;

    for (; i + 3 * kCopyThreads < n; i += 4 * kCopyThreads) {
        T v[4];
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            v[k] = __ldcv(&from[i + k * kCopyThreads]);
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            to[i + k * kCopyThreads] = v[k];
    }
    for (; i < n; i += kCopyThreads)
        to[i] = __ldcv(&from[i]);
}

/* Bytes up to an aligned address, units, bytes after the last: src and dst are congruent. */
template <typename T> __device__ void copy_congruent(uint64_t dst, uint64_t src, uint64_t len)
{
    uint64_t head = (sizeof(T) - dst % sizeof(T)) % sizeof(T);
    uint64_t units;

    head = head < len ? head : len;
    units = (len - head) / sizeof(T);
    copy_units<unsigned char>(dst, src, head);
    copy_units<T>(dst + head, src + head, units);
    head += units * sizeof(T);
    copy_units<unsigned char>(dst + head, src + head, len - head);
}

__device__ void copy_block(uint64_t dst, uint64_t src, uint64_t len)
{
    if (((dst ^ src) & 15) == 0)
        copy_congruent<uint4>(dst, src, len);
    else if (((dst ^ src) & 3) == 0)
        copy_congruent<unsigned int>(dst, src, len);
    else
        copy_units<unsigned char>(dst, src, len);
}

/* `threads` threads, numbered from `first`, write zeros. */
__device__ void zero_bytes(uint64_t dst, uint64_t len, uint64_t first, uint64_t threads)
{
    uint64_t head = (16 - dst % 16) % 16;
    uint64_t units, tail;

    head = head < len ? head : len;
    units = (len - head) / 16;
    tail = head + units * 16;
    for (uint64_t i = first; i < head; i += threads)
        ((unsigned char *)dst)[i] = 0;
    for (uint64_t i = first; i < units; i += threads)
        ((uint4 *)(dst + head))[i] = make_uint4(0, 0, 0, 0);
    for (uint64_t i = tail + first; i < len; i += threads)
        ((unsigned char *)dst)[i] = 0;
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
            copy_block(piece.dst, piece.src, piece.len);
        else
            zero_bytes(piece.dst, piece.len, threadIdx.x, kCopyThreads);
    }
}

__global__ void __launch_bounds__(kCopyThreads) gather(const struct gq_gather *copies, uint32_t n)
{
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct gq_gather copy = copies[i];

        copy_block(copy.dst, copy.src, copy.len);
    }
}

__global__ void __launch_bounds__(kCopyThreads) fill_zero(uint64_t dst, uint64_t len)
{
    zero_bytes(dst, len, (uint64_t)blockIdx.x * kCopyThreads + threadIdx.x,
               (uint64_t)gridDim.x * kCopyThreads);
}

unsigned blocks_for(uint64_t n)
{
    return n < kMaxBlocks ? (unsigned)n : kMaxBlocks;
}

} // namespace

extern "C" cudaError_t gq_kernels_load(void)
{
    const void *kernels[] = {(const void *)drive_queues, (const void *)move_pieces,
                             (const void *)gather, (const void *)fill_zero};

    for (const void *kernel : kernels) {
        struct cudaFuncAttributes attr;
        cudaError_t err = cudaFuncGetAttributes(&attr, kernel);

        if (err != cudaSuccess)
            return err;
    }
    return gq_copier_load();
}

/*
 * By cudaLaunchKernel(), whose answer is about this launch alone. After <<<>>> only
 * cudaGetLastError() tells, and that may be an older error of the same thread.
 */
extern "C" cudaError_t gq_kernel_run(const struct gq_kernel_run *run, cudaStream_t stream)
{
    void *args[] = {(void *)run};

    return cudaLaunchKernel((const void *)drive_queues, run->run.n_queues, GQ_LANES, args, 0,
                            stream);
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
