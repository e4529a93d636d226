/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libgpunvme in kernels: a thread, a warp or a block reads from a file, while the kernel runs,
 * without the CPU. For CUDA C++ (compute capability 8.0 or newer), header only.
 *
 *     // host: d by gpunvme_direct_open(), the buffer around dst by gpunvme_register()
 *     gpunvme_file_open(d, fd, &f);
 *     kernel<<<blocks, threads, 0, stream>>>(gpunvme_file_device(f), dst);
 *
 *     // device
 *     int64_t got = gpunvme_pread_warp(file, dst, 65536, offset);
 *
 * What all of them share:
 *  - n bytes at offset of the file go to dst, memory inside one registered buffer. Any alignment;
 *    whole blocks of 4 KiB to addresses that are multiples of 4 are fastest.
 *  - The result is the number of bytes, less than n only at the end of the file, or -errno:
 *      -EFAULT     dst is not inside a registered buffer that the drive reaches
 *      -EIO        the drive could not read, or a block does not match its checksum
 *      -ESTALE     the leases have ended: gpunvme_direct_renew(), after the kernel
 *      -ETIMEDOUT  a command was lost, or no queue was free, for as long as a command may take
 *    After an error dst holds some of the bytes, or none; a command that was lost may still write
 *    to it until the leases are renewed or ended.
 *  - The callers see the bytes when the function returns, by ordinary loads; not by __ldg() or
 *    through const __restrict__ pointers, for which memory must not change while the kernel runs.
 *    So do threads that synchronise with them afterwards, by __syncthreads() for example.
 *  - Reads by threads and warps share the queues; those by blocks, and lists, need queues for
 *    themselves as long as they last, and wait if all are taken. Callers may hold locks of their
 *    own, but no more warps should wait than are resident.
 *  - No function is called from a kernel of another context than the device's primary one.
 *  - A kernel that calls them takes 164 to 208 registers a thread (sm_90; with lists or reads by
 *    blocks 255), which blocks of up to 256 threads always have. With __launch_bounds__ the
 *    compiler leaves it 168 for 128 threads, 128 for 256, and 64 for more, and reads by threads and
 *    warps spill some 35 and 100 words, a read by a block 230. That is less than the stack of 1,024
 *    bytes that CUDA allocates for any kernel.
 *  - Kernels of larger blocks are compiled with GPUNVME_DEVICE_SMALL defined before this header is
 *    included. They take 90 to 105 registers, and with the 64 that a block of 1,024 threads has no
 *    function spills more than 8 words. A read of at most a page by a warp has its state in
 *    registers all the same; all other reads are made of called functions with their state in the
 *    stack, and take longer (docs/direct.md). Reads by blocks, and lists, share the queues, too.
 */
#ifndef GPUNVME_DEVICE_H
#define GPUNVME_DEVICE_H

#ifndef __CUDACC__
#error "gpunvme_device.h is for CUDA C++"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gpunvme_device.h needs compute capability 8.0: compile with nvcc -arch=sm_80 or newer"
#endif

#include "client/device/gd_list.h"
#include "client/device/gd_pread.h"
#include "client/device/gd_shared_pread.h"

/*
 * Called by one thread, or by any of a warp at a time, each for itself: those that arrive together
 * are served together.
 */
static inline __device__ __noinline__ int64_t gpunvme_pread(const struct gpunvme_device_file *file,
                                                            void *dst, uint64_t n, uint64_t offset)
{
    return gd_shared_pread_lane(file, (uint64_t)dst, n, offset);
}

/* Called by all threads of a warp, for one read: the same arguments, and the same result. */
static inline __device__ __noinline__ int64_t
gpunvme_pread_warp(const struct gpunvme_device_file *file, void *dst, uint64_t n, uint64_t offset)
{
    return gd_shared_pread_warp(file, (uint64_t)dst, n, offset);
}

/*
 * Called by all threads of a block, for one read: the same arguments, and the same result. Long
 * reads go through several queues, one for each of the first eight warps, which also copy the bytes
 * where data is staged: blocks of 256 threads are fastest then. 272 bytes of shared memory. With
 * GPUNVME_DEVICE_SMALL the warps share queues instead, and 32 bytes suffice. A barrier for the
 * block, before and after.
 */
static inline __device__ __noinline__ int64_t
gpunvme_pread_block(const struct gpunvme_device_file *file, void *dst, uint64_t n, uint64_t offset)
{
#ifdef GPUNVME_DEVICE_SMALL
    return gd_shared_pread_block(file, (uint64_t)dst, n, offset);
#else
    __shared__ struct gpunvme_device_file f;

    gd_share_file(file, &f);
    return gd_pread_block(&f, {NULL, (uint64_t)dst, n, offset, false});
#endif
}

/*
 * Called by all threads of a warp, with the same arguments: many reads, one after the other as far
 * as the queue's depth allows, through one queue. Places in the buffer (buffer_offset) are counted
 * from dst; all pieces lie between it and the end of the one buffer around it. Each gets its own
 * result, which stands when the function has returned: -EINVAL for a length of 2^31 or more, else
 * as above. Returns 0, or the error of the first piece that has one. n is below 2^31.
 *
 * struct gpunvme_piece { uint64_t file_offset, buffer_offset; uint32_t len; int32_t result; }
 */
static inline __device__ __noinline__ int
gpunvme_preadv_warp(const struct gpunvme_device_file *file, void *dst, struct gpunvme_piece *pieces,
                    uint32_t n)
{
#ifdef GPUNVME_DEVICE_SMALL
    return gd_shared_preadv_warp(file, (uint64_t)dst, (struct gq_read_desc *)pieces, n);
#else
    return gd_preadv_warp(file, (uint64_t)dst, (struct gq_read_desc *)pieces, n);
#endif
}

/*
 * The same reads in two steps, for warps that compute meanwhile, or have several reads under way.
 * begin() submits what the queue has room for, and never waits for the drive; end() waits for the
 * bytes and returns the result. Each ticket is ended once, by the threads that began it and that
 * come together as they did then; tickets of a warp best in the order in which they were begun,
 * because each holds places in a queue. The time limit of a command counts from end(). The forms
 * with _warp are called by all threads of a warp, for one read, with a ticket of each thread's own.
 */
static inline __device__ __noinline__ void
gpunvme_pread_begin(struct gpunvme_ticket *ticket, const struct gpunvme_device_file *file,
                    void *dst, uint64_t n, uint64_t offset)
{
    *ticket = gd_shared_begin_lane(file, (uint64_t)dst, n, offset);
}

static inline __device__ __noinline__ int64_t gpunvme_pread_end(const struct gpunvme_ticket *ticket)
{
    return gd_shared_end_lane(ticket);
}

static inline __device__ __noinline__ void
gpunvme_pread_warp_begin(struct gpunvme_ticket *ticket, const struct gpunvme_device_file *file,
                         void *dst, uint64_t n, uint64_t offset)
{
    *ticket = gd_shared_begin_warp(file, (uint64_t)dst, n, offset);
}

static inline __device__ __noinline__ int64_t
gpunvme_pread_warp_end(const struct gpunvme_ticket *ticket)
{
    return gd_shared_end_warp(ticket);
}

/* Bytes of the file, as it was leased. */
static inline __device__ uint64_t gpunvme_size(const struct gpunvme_device_file *file)
{
    return file->map.end;
}

#endif
