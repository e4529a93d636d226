/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where benchmarks read to, filled, verified and copied to in one way: memory of the GPU, or of the
 * host for the CPU executor. 0 or -errno; -EIO: the GPU failed.
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

/* NULL without a GPU. Lives as long as the process. */
const char *bench_gpu_name(void);

/* addr is NULL after a failure. */
int bench_memory_alloc(struct bench_memory *m, bool on_gpu, uint64_t len);
void bench_memory_free(struct bench_memory *m);
/* Memory of the host, pinned where there is a GPU to read it. Zeroed. */
void *bench_host_alloc(bool gpu, size_t len);
void bench_host_free(bool gpu, void *p);

/*
 * Makes len bytes as pieces of places below `span`, a multiple of `bytes`: random ones, or if the
 * state is 0 those in order, from 0 again after the last one. Advances the state.
 */
int bench_pieces_make(struct pattern_pieces *p, bool gpu, uint64_t seed, uint64_t len,
                      uint64_t bytes, uint64_t span, uint64_t *state);
/* The same with places that begin at byte `from` of the pattern, a multiple of 8. */
int bench_rows_make(struct pattern_pieces *p, bool gpu, uint64_t seed, uint64_t len, uint64_t bytes,
                    uint64_t from, uint64_t span, uint64_t *state);
void bench_pieces_free(struct pattern_pieces *p, bool gpu);

/* Bytes [0, len) become the pattern from its start on. */
int bench_fill(const struct bench_memory *m, uint64_t len, uint64_t seed);
int bench_poison(const struct bench_memory *m, uint64_t seed);
/* Does the memory begin with these pieces? -EIO, and says on stderr how much does not. */
int bench_verify(const struct bench_memory *m, const struct pattern_pieces *p, const char *who);

/* A plain copy of memory from bench_host_alloc(). */
int bench_copy_to(const struct bench_memory *m, uint64_t offset, const void *from, size_t len);
/* The pieces, out of memory from bench_host_alloc() that holds the pattern. */
int bench_gather(const struct bench_memory *m, const void *from, const struct pattern_pieces *p);
/* A stream with a buffer of the host: copies out of it go on by themselves. */
struct bench_stream {
    void *buffer;
    size_t len;
    bool gpu;
    void *cuda; /* cudaStream_t */
};
int bench_stream_open(struct bench_stream *s, bool gpu, size_t len);
void bench_stream_close(struct bench_stream *s);
/* Starts to copy the first len bytes; the buffer must stay as it is until bench_stream_wait(). */
int bench_stream_copy(struct bench_stream *s, const struct bench_memory *to, uint64_t offset,
                      size_t len);
int bench_stream_wait(struct bench_stream *s);

#endif
