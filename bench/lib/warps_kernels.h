/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels of many warps that read for themselves. */
#ifndef BENCH_LIB_WARPS_KERNELS_H
#define BENCH_LIB_WARPS_KERNELS_H

#include "bench/lib/pattern.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpunvme_device_file;

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
