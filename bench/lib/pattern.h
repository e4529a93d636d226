/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * File contents that host and GPU can compute for any byte, so that a benchmark verifies every
 * byte it moved without a second copy of it. All counts are of bytes, multiples of eight.
 */
#ifndef BENCH_LIB_PATTERN_H
#define BENCH_LIB_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PATTERN_FN static __host__ __device__ inline
#else
#define PATTERN_FN static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the eight bytes at offset 8 * index. */
PATTERN_FN uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed + index * 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Pieces of the pattern that lie one after another in memory. */
struct pattern_pieces {
    uint64_t seed;
    uint64_t bytes;       /* of one piece */
    uint64_t n;           /* number of pieces */
    uint64_t *places;     /* start of each piece in the pattern */
    uint64_t *gpu_places; /* copy of places in GPU memory, if there is a GPU */
};

/*
 * Writes the pattern from byte `place` on. With `poison` it writes words that are nowhere the
 * pattern.
 */
void pattern_host_write(void *memory, uint64_t bytes, uint64_t seed, uint64_t place, bool poison);
/* Returns the number of words that differ from the pieces. */
uint64_t pattern_host_count_wrong(const void *memory, const struct pattern_pieces *p);

/*
 * These functions exist only with CUDA. They write and compare GPU memory, as
 * pattern_host_write() and pattern_host_count_wrong() write and compare host memory. They return 0
 * or -EIO.
 */
int pattern_gpu_write(void *memory, uint64_t bytes, uint64_t seed, uint64_t place, bool poison);
int pattern_gpu_count_wrong(const void *memory, const struct pattern_pieces *p, uint64_t *wrong);

#ifdef __cplusplus
}
#endif

#endif
