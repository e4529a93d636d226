/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that benchmarks read to, with one way to fill, verify and copy to it. It is GPU memory, or
 * host memory for the CPU executor. Functions return 0 or -errno; -EIO means that the GPU failed.
 */
#ifndef BENCH_LIB_MEMORY_H
#define BENCH_LIB_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/lib/pattern.h"

struct bench_memory {
    bool on_gpu;
    void *addr;
    uint64_t len; /* bytes */
};

/* Returns the name of the GPU, or NULL without one. The text lives as long as the process. */
const char *bench_gpu_name(void);

/*
 * Makes the GPU with this UUID the current device of the calling thread. A UUID that is zero but
 * for its last byte is of a CPU executor, and nothing is done. Returns -ENODEV if this process does
 * not see the GPU.
 */
int bench_gpu_select(const uint8_t uuid[16]);

/* Allocates memory. addr is NULL after a failure. */
int bench_memory_alloc(struct bench_memory *m, bool on_gpu, uint64_t len);
void bench_memory_free(struct bench_memory *m);
/* Allocates zeroed host memory, pinned if a GPU is to read it. */
void *bench_host_alloc(bool gpu, size_t len);
void bench_host_free(bool gpu, void *p);

/*
 * Frees the pieces of an earlier call, and makes new ones of `bytes` bytes each, len bytes in all.
 * Before the first call *p is zero. The places of the pieces are in bytes [from, from + span) of
 * the pattern. `from` is a multiple of 8, and `span` is a multiple of `bytes`. If `random` is
 * false, the places are in order, and the place after the last one is `from`. The function reports
 * a failure on stderr.
 */
int bench_pieces_make(struct pattern_pieces *p, bool gpu, uint64_t seed, uint64_t len,
                      uint64_t bytes, uint64_t from, uint64_t span, bool random);
void bench_pieces_free(struct pattern_pieces *p, bool gpu);

/* Fills bytes [0, len) with the beginning of the pattern. */
int bench_fill(const struct bench_memory *m, uint64_t len, uint64_t seed);
int bench_poison(const struct bench_memory *m, uint64_t seed);
/*
 * Verifies that the memory begins with these pieces. Otherwise returns -EIO, and reports on stderr
 * how much differs.
 */
int bench_verify(const struct bench_memory *m, const struct pattern_pieces *p, const char *who);

/* Copies from memory of bench_host_alloc() by a plain copy. */
int bench_copy_to(const struct bench_memory *m, uint64_t offset, const void *from, size_t len);
/* Copies the pieces from memory of bench_host_alloc() that holds the pattern. */
int bench_gather(const struct bench_memory *m, const void *from, const struct pattern_pieces *p);
/* A stream with a host buffer, from which copies run asynchronously. */
struct bench_stream {
    void *buffer;
    size_t len;
    bool gpu;
    void *cuda; /* cudaStream_t */
};
int bench_stream_open(struct bench_stream *s, bool gpu, size_t len);
void bench_stream_close(struct bench_stream *s);
/* Starts to copy the first len bytes. The buffer must not change until bench_stream_wait(). */
int bench_stream_copy(struct bench_stream *s, const struct bench_memory *to, uint64_t offset,
                      size_t len);
int bench_stream_wait(struct bench_stream *s);

#endif
