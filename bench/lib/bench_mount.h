/* SPDX-License-Identifier: BSD-2-Clause */
/* A mount that a benchmark reads from, a registered buffer to read to, and files to read. */
#ifndef BENCH_LIB_BENCH_MOUNT_H
#define BENCH_LIB_BENCH_MOUNT_H

#include "bench/lib/bench_report.h"
#include "bench/lib/memory.h"
#include "client/lib/connection.h"

/* The options -q QUEUES and -d DEPTH, as bench_option(). */
bool bench_lease_option(int opt, struct direct_options *lease);

struct bench_mount {
    struct connection *g; /* NULL: the directory is on another file system */
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *buffer;
    struct bench_memory memory; /* the buffer's */
    /*
     * Where leased queues may not read to GPU memory (lease_tier 0 and 1): host
     * memory of the same length. Else NULL.
     */
    struct gpunvme_buffer *pinned;
    struct bench_memory pinned_memory;
};

/*
 * Transfers take the GPU path, however short. -errno, reported on stderr. Either way
 * bench_mount_close() ends it.
 */
int bench_mount_open(struct bench_mount *m, const char *dir, uint64_t bytes);
void bench_mount_close(struct bench_mount *m);
/*
 * Returns a report that names executor, tier and queues, or NULL if memory is
 * short.
 */
struct bench_report *bench_mount_report(const struct bench_mount *m, bool json);

/* A new file. All zero, with fd -1, before it is made; either way bench_file_close() removes it. */
struct bench_file {
    char path[4096];
    int fd; /* for reading and writing, through the page cache */
};

/* -errno, reported on stderr; so do the next ones. */
int bench_file_create(struct bench_file *f, const char *dir);
/* Its bytes [at, at + len) become the pattern from `place` on. */
int bench_file_write(const struct bench_file *f, uint64_t at, uint64_t len, uint64_t seed,
                     uint64_t place);
/* Creates it with the first `bytes` of the pattern, on the drive when this returns. */
int bench_file_make(struct bench_file *f, const char *dir, uint64_t bytes, uint64_t seed);
void bench_file_close(struct bench_file *f);

#endif
