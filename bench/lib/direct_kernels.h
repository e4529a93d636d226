/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads of the direct path from inside kernels of the benchmark's. */
#ifndef BENCH_LIB_DIRECT_KERNELS_H
#define BENCH_LIB_DIRECT_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;
struct pattern_pieces;

/*
 * One warp reads the pieces, one after the other, to memory of a registered buffer: microseconds of
 * each, as the GPU sees them. -EIO: a read failed; -ENOMEM.
 */
int kernel_direct_reads(const struct gpunvme_device_file *file, const struct pattern_pieces *p,
                        void *to, double *micros);

/*
 * The first `bytes` of the file to memory of a registered buffer, by so many blocks of 256 threads:
 * gpunvme_pread_block() of `part` bytes after another. Blocks until all are read. 0, or -errno of a
 * read; -ENODATA: a read was short; -EIO also: the GPU failed.
 */
int kernel_block_reads(const struct gpunvme_device_file *file, void *to, uint64_t bytes,
                       uint64_t part, unsigned blocks);

/* How a warp reads its pieces. */
enum warps_way {
    WARPS_SHARED,  /* one after another: gpunvme_pread_warp() */
    WARPS_THREADS, /* one for each thread at a time: gpunvme_pread() */
    WARPS_TICKETS, /* the next ones begun before one ends: gpunvme_pread_warp_begin(), _end() */
    WARPS_WAYS
};

/*
 * `warps` warps, in blocks of `block` of them, share the pieces and read them to memory of a
 * registered buffer. Returns when all are read. -EIO means that a read failed, and *result is that
 * of the first such read, or that the GPU failed, and *result is 0.
 */
int kernel_warps(enum warps_way way, const struct gpunvme_device_file *file,
                 const struct pattern_pieces *p, void *to, unsigned warps, unsigned block,
                 int64_t *result);

#ifdef __cplusplus
}
#endif

#endif
