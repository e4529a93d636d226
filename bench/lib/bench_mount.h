/* SPDX-License-Identifier: BSD-2-Clause */
/* A mount that a benchmark reads from, a registered buffer to read to, and files to read. */
#ifndef BENCH_LIB_BENCH_MOUNT_H
#define BENCH_LIB_BENCH_MOUNT_H

#include "bench/lib/bench_report.h"
#include "bench/lib/memory.h"
#include "client/lib/connection.h"

/* Takes the options -q QUEUES and -d DEPTH, like bench_option(). */
bool bench_lease_option(int opt, struct direct_options *lease);

struct bench_mount {
    struct connection *g; /* NULL: the directory is on another file system */
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *buffer;
    struct bench_memory memory; /* the buffer's */
    /* bench_mount_open_pinned() sets it; otherwise NULL. */
    struct gpunvme_buffer *pinned;
    struct bench_memory pinned_memory;
};

/*
 * Opens the mount. Transfers take the GPU path at any length. Returns 0, or
 * -errno, which is reported on stderr. The caller ends it with
 * bench_mount_close() in both cases.
 */
int bench_mount_open(struct bench_mount *m, const char *dir, uint64_t bytes);
/*
 * Allocates host memory to which leased queues read if they may not read to GPU
 * memory (lease_tier 0 and 1), otherwise nothing. Returns 0, or -EIO, which is
 * reported on stderr.
 */
int bench_mount_open_pinned(struct bench_mount *m, uint64_t bytes);
void bench_mount_close(struct bench_mount *m);
/*
 * Returns a report that names executor, tier and queues, or NULL if memory is
 * short.
 */
struct bench_report *bench_mount_report(const struct bench_mount *m, bool json);

/*
 * A new file. Before it is made, the struct is zero with fd -1.
 * bench_file_close() removes the file in any state.
 */
struct bench_file {
    char path[4096];
    int fd; /* for reading and writing, through the page cache; see bench_file_seal() */
};

/*
 * Creates the file. Like the following functions, returns 0, or -errno, which
 * is reported on stderr.
 */
int bench_file_create(struct bench_file *f, const char *dir);
/* Sets the bytes [at, at + len) of the file to the pattern from `place` on. */
int bench_file_write(const struct bench_file *f, uint64_t at, uint64_t len, uint64_t seed,
                     uint64_t place);
/*
 * Moves the bytes to the drive and opens the file again for reading only, like
 * a program that reads a finished file. While a file is open for writing, the
 * daemon drops the kernel's pages of its range before each READ.
 */
int bench_file_seal(struct bench_file *f);
/* Creates the file with the first `bytes` of the pattern, and seals it. */
int bench_file_make(struct bench_file *f, const char *dir, uint64_t bytes, uint64_t seed);
void bench_file_close(struct bench_file *f);

#endif
