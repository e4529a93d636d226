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
 * of the GPU. What one launch reaches is what the bus allows for reads of that size. -EIO. */
int kernel_gather(void *memory, const void *source, const struct pattern_pieces *p);
/*
 * The same with all else that such reads bring over the bus, and no protocol: for each piece a word
 * of 16 bytes out of a slot, one of a CQE, an SQE written, and of a list, unless that is NULL, 24
 * bytes read and written. What one launch reaches is what reads through queues may come near. The
 * number of pieces is a multiple of 32, rings has KERNEL_RINGS_BYTES, zeroed, list 24 bytes for
 * each piece, zeroed, both pinned. -EIO.
 */
int kernel_traffic(void *memory, const void *source, const struct pattern_pieces *p, void *rings,
                   void *list);
#define KERNEL_RINGS_BYTES (4u << 20)
#define KERNEL_LIST_BYTES  24u /* for each piece */
/* Does nothing. -EIO. */
int kernel_empty(void);
/*
 * Every multiprocessor computes, for a time that grows with `work`; stream: a cudaStream_t. -EIO.
 */
int kernel_compute(void *stream, uint64_t work);
/*
 * A kernel asks through pinned memory and the calling thread answers, one round after the other;
 * microseconds of each, as the GPU sees them. With `relay` the answer reaches the asking block in
 * memory of the GPU, by a second block that waits for it in pinned memory. -ENOMEM, -EIO.
 */
int kernel_ping_pong(bool relay, unsigned rounds, double *micros);
/*
 * What a read of 4 KiB that a thread of the host serves cannot do without, and nothing else: a
 * kernel stores an entry of 64 bytes and its doorbell, the calling thread sees them, page i of
 * `source` is copied to page i of `to`, the thread stores a completion, the kernel sees it. To
 * memory of the GPU the copy is made by a second block, which is told and tells by words in pinned
 * memory; to pinned memory by the calling thread. source is pinned memory; both have `rounds`
 * pages. Microseconds of each round, as the GPU sees them. With `by_host` the thread first tells
 * the kernel to begin, which need not see the end; microseconds as the thread sees them. -ENOMEM,
 * -EIO.
 */
int kernel_bare_reads(const void *source, void *to, bool on_gpu, bool by_host, unsigned rounds,
                      double *micros);

#ifdef __cplusplus
}
#endif

#endif
