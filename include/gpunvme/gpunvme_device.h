/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares libgpunvme for kernels. A thread, a warp or a block reads from a
 * file while its kernel runs, without the CPU. The functions require CUDA C++
 * and compute capability 8.0 or newer. All code is in headers.
 *
 *     // host: g by gpunvme_open(), the memory around dst by gpunvme_register()
 *     gpunvme_file_open(g, fd, GPUNVME_FILE_DIRECT, &f);
 *     kernel<<<blocks, threads, 0, stream>>>(gpunvme_file_device(f), dst);
 *
 *     // device
 *     int64_t got = gpunvme_pread_warp(file, dst, 65536, offset);
 *
 * All functions follow these rules:
 *  - They read n bytes at offset of the file to dst, inside one registered
 *    buffer, at any alignment. Whole blocks of 4 KiB to addresses that are
 *    multiples of 4 are fastest.
 *  - They return -errno or the number of bytes, which is less than n only at
 *    the end of the file. The errors are:
 *      -EFAULT     dst is not inside a registered buffer that the drive reaches
 *      -EIO        the drive could not read, or a checksum does not match
 *      -ESTALE     the leases have ended: call gpunvme_file_renew() after the kernel
 *      -ETIMEDOUT  a command was lost, or no queue became free within the
 *                  deadline of a command
 *    After an error dst holds some of the bytes, or none. A lost command may
 *    still write to dst until the leases are renewed or ended.
 *  - The bytes are visible to the callers when the function returns, and to
 *    threads that synchronise with them afterwards, for example by
 *    __syncthreads(). They must be loaded by ordinary loads: __ldg() and
 *    const __restrict__ pointers assume that memory does not change while the
 *    kernel runs.
 *  - All reads share the queues. Callers may hold locks of their own, but no more warps should wait
 *    than are resident.
 *  - Kernels must run in the primary context of the device.
 *  - A kernel that calls them uses 164 to 226 registers per thread on sm_90, so blocks of up to 256
 *    threads always have enough. With __launch_bounds__ the compiler uses 168 for blocks of 128
 *    threads, 128 for 256, and 64 for more. Reads then spill 140 to 210 words, which fit into the
 *    stack of 1,024 bytes that CUDA allocates for any kernel.
 *  - Kernels with larger blocks define GPUNVME_DEVICE_SMALL before they include this header. The
 *    functions then use 80 to 105 registers, and with the 64 of a block of 1,024 threads none
 *    spills more than 9 words. A read of at most a page by a warp keeps its state in registers. All
 *    other reads call functions with their state on the stack and take longer (docs/direct.md).
 */
#ifndef GPUNVME_DEVICE_H
#define GPUNVME_DEVICE_H

#ifndef __CUDACC__
#error "gpunvme_device.h is for CUDA C++"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gpunvme_device.h needs compute capability 8.0: compile with nvcc -arch=sm_80 or newer"
#endif

#include "client/device/gd_shared_list.h"
#include "client/device/gd_shared_pread.h"

/*
 * Called by any threads of a warp, each for a read of its own. Threads that
 * call together are served together.
 */
static inline __device__ __noinline__ int64_t gpunvme_pread(const struct gpunvme_device_file *file,
                                                            void *dst, uint64_t n, uint64_t offset)
{
    return gd_shared_pread_lane(file, (uint64_t)dst, n, offset);
}

/*
 * Called by all threads of a warp with the same arguments, for one read.
 * Returns the same result to all of them.
 */
static inline __device__ __noinline__ int64_t
gpunvme_pread_warp(const struct gpunvme_device_file *file, void *dst, uint64_t n, uint64_t offset)
{
    return gd_shared_pread_warp(file, (uint64_t)dst, n, offset);
}

/*
 * Called by all threads of a block with the same arguments, for one read. Returns the same result
 * to all of them. Each of the first eight warps reads a part of a long read through a queue, so
 * long reads are fastest in blocks of 256 threads. The call uses 32 bytes of shared memory. It
 * contains a barrier of the block before and after the read.
 */
static inline __device__ __noinline__ int64_t
gpunvme_pread_block(const struct gpunvme_device_file *file, void *dst, uint64_t n, uint64_t offset)
{
    return gd_shared_pread_block(file, (uint64_t)dst, n, offset);
}

/*
 * Called by all threads of a warp with the same arguments, for n reads. Each thread has one read in
 * flight. n is below 2^31. The buffer_offset of a piece is relative to dst. All pieces lie between
 * dst and the end of the buffer that contains dst. When the function returns, each piece has its
 * own result as above. The result is -EINVAL for a length of 2^31 or more. Returns 0, or the error
 * of the first piece that has one.
 *
 * struct gpunvme_piece { uint64_t file_offset, buffer_offset; uint32_t len; int32_t result; }
 */
static inline __device__ __noinline__ int
gpunvme_preadv_warp(const struct gpunvme_device_file *file, void *dst, struct gpunvme_piece *pieces,
                    uint32_t n)
{
    return gd_shared_preadv_warp(file, (uint64_t)dst, (struct gq_read_desc *)pieces, n);
}

/*
 * The same reads in two steps, for warps that compute in between or have
 * several reads in flight. begin() submits as much as the queue has room for
 * and never waits for the drive. end() waits for the bytes and returns the
 * result. Each ticket is ended once, by the same threads that began it
 * together. A warp should end its tickets in the order in which it began them,
 * since each holds places in a queue. The time limit of a command starts at
 * end(). The _warp forms are called by all threads of a warp for one read; each
 * thread has a ticket of its own.
 */
static inline __device__ __noinline__ void
gpunvme_pread_begin(struct gpunvme_ticket *ticket, const struct gpunvme_device_file *file,
                    void *dst, uint64_t n, uint64_t offset)
{
    gd_shared_begin_lane(ticket, file, (uint64_t)dst, n, offset);
}

static inline __device__ __noinline__ int64_t gpunvme_pread_end(const struct gpunvme_ticket *ticket)
{
    return gd_shared_end_lane(ticket);
}

static inline __device__ __noinline__ void
gpunvme_pread_warp_begin(struct gpunvme_ticket *ticket, const struct gpunvme_device_file *file,
                         void *dst, uint64_t n, uint64_t offset)
{
    gd_shared_begin_warp(ticket, file, (uint64_t)dst, n, offset);
}

static inline __device__ __noinline__ int64_t
gpunvme_pread_warp_end(const struct gpunvme_ticket *ticket)
{
    return gd_shared_end_warp(ticket);
}

/* Returns the size of the file in bytes, as it was leased. */
static inline __device__ uint64_t gpunvme_size(const struct gpunvme_device_file *file)
{
    return file->map.end;
}

#endif
