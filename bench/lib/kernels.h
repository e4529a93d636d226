/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that benchmarks compare with, only with CUDA. All functions wait for the end of the
 * kernel.
 */
#ifndef BENCH_LIB_KERNELS_H
#define BENCH_LIB_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pattern_pieces;

/*
 * Copies the pieces from `source`, pinned host memory that holds the pattern, to GPU memory. The
 * rate of one launch is what the bus allows for reads of that size. Pieces are multiples of 256
 * bytes, at multiples of 8; those of 512 are faster at multiples of 16. Returns -EIO if the GPU
 * failed.
 */
int kernel_gather(void *memory, const void *source, const struct pattern_pieces *p);
/* Does nothing. Returns 0 or -EIO. */
int kernel_empty(void);
/*
 * Lets every multiprocessor compute for a time that grows with `work`, in this cudaStream_t.
 * Returns -EIO if the GPU failed.
 */
int kernel_compute(void *stream, uint64_t work);
#ifdef __cplusplus
}
#endif

#endif
