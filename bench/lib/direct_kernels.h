/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads of the direct path from inside a kernel of the benchmark's. */
#ifndef BENCH_LIB_DIRECT_KERNELS_H
#define BENCH_LIB_DIRECT_KERNELS_H

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

#ifdef __cplusplus
}
#endif

#endif
