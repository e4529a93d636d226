/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of the benchmarks that read files by the direct path. */
#ifndef BENCH_LIB_DIRECT_KERNELS_H
#define BENCH_LIB_DIRECT_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;
struct pattern_pieces;

/*
 * Reads the pieces by one warp, one after the other, to memory of a registered
 * buffer. Stores the microseconds of each, as measured by the GPU. Returns 0,
 * -EIO if a read failed, or -ENOMEM.
 */
int kernel_direct_reads(const struct gpunvme_device_file *file, const struct pattern_pieces *p,
                        void *to, double *micros);

/*
 * Reads the first `bytes` of the file to memory of a registered buffer. The grid has `blocks`
 * blocks of 256 threads. Each block calls gpunvme_pread_block() for one piece of
 * `part` bytes after another. Returns when all pieces are read: 0, -errno of a
 * read, -ENODATA if a read was short, or -EIO if the GPU failed.
 */
int kernel_block_reads(const struct gpunvme_device_file *file, void *to, uint64_t bytes,
                       uint64_t part, unsigned blocks);

/* The functions by which a warp reads its pieces. */
enum warps_way {
    WARPS_SHARED,  /* one piece after another: gpunvme_pread_warp() */
    WARPS_THREADS, /* a piece for each thread: gpunvme_pread() */
    WARPS_TICKETS, /* several pieces in flight: gpunvme_pread_warp_begin(), _end() */
    WARPS_WAYS
};

/*
 * Lets `warps` warps, in blocks of `block` warps, share the pieces and read
 * them to memory of a registered buffer. Returns when all are read. If a read
 * fails, returns -EIO and stores the result of the first failed read in
 * *result. If the GPU fails, returns -EIO and stores 0 there.
 */
int kernel_warps(enum warps_way way, const struct gpunvme_device_file *file,
                 const struct pattern_pieces *p, void *to, unsigned warps, unsigned block,
                 int64_t *result);

#ifdef __cplusplus
}
#endif

#endif
