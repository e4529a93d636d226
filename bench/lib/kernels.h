/* SPDX-License-Identifier: BSD-2-Clause */
/* What benchmarks compare with, as kernels. Only where there is CUDA; all wait for the end. */
#ifndef BENCH_LIB_KERNELS_H
#define BENCH_LIB_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pattern_pieces;

/* Copies the pieces out of `source`, pinned memory of the host that holds the pattern, to memory
 * of the GPU. What one launch reaches is what the bus allows for reads of that size. Pieces are
 * multiples of 256 bytes, at multiples of 8; those of 512 are faster at multiples of 16. Returns
 * -EIO if the GPU failed. */
int kernel_gather(void *memory, const void *source, const struct pattern_pieces *p);
/* Does nothing. -EIO. */
int kernel_empty(void);
/*
 * Every multiprocessor computes, for a time that grows with `work`; stream: a cudaStream_t. -EIO.
 */
int kernel_compute(void *stream, uint64_t work);
#ifdef __cplusplus
}
#endif

#endif
