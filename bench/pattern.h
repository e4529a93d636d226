/*
 * File contents that host and GPU can compute for any byte, so that a benchmark verifies every
 * byte it moved without a second copy of it.
 */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

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

/* The eight bytes at offset 8 * index. */
PATTERN_FN uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = seed + index * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* On the device: how many of `words` words at `addr` (device memory) differ from the pattern. */
int pattern_count_wrong(const void *addr, uint64_t words, uint64_t seed, uint64_t *wrong);
/* On the device: overwrites the words with something that is not the pattern. */
int pattern_poison(void *addr, uint64_t words, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
