/* What benchmarks compare with, as kernels. Only where there is CUDA; all wait for the end. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pattern_pieces;

/* Copies the pieces out of `source`, pinned memory of the host that holds the pattern, to memory
 * of the GPU. What one launch reaches is what the bus allows for reads of that size. -EIO. */
int kernel_gather(void *memory, const void *source, const struct pattern_pieces *p);
/* Does nothing. -EIO. */
int kernel_empty(void);
/* Every multiprocessor computes, for a time that grows with `work`; stream: a cudaStream_t. -EIO.
 */
int kernel_compute(void *stream, uint64_t work);
/*
 * A kernel asks through pinned memory and the calling thread answers, one round after the other;
 * microseconds of each, as the GPU sees them. With `relay` the answer reaches the asking block in
 * memory of the GPU, by a second block that waits for it in pinned memory. -ENOMEM, -EIO.
 */
int kernel_ping_pong(bool relay, unsigned rounds, double *micros);

#ifdef __cplusplus
}
#endif

#endif
