/* SPDX-License-Identifier: BSD-2-Clause */
/* A mount that a benchmark reads from, a registered buffer to read to, and files to read. */
#ifndef BENCH_LIB_BENCH_MOUNT_H
#define BENCH_LIB_BENCH_MOUNT_H

#include "bench/lib/bench_report.h"
#include "bench/lib/memory.h"
#include "client/lib/connection.h"

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
 * reports an error on stderr and returns -errno. The caller ends it with
 * bench_mount_close() in both cases.
 */
int bench_mount_open(struct bench_mount *m, const char *dir, uint64_t bytes);
/*
 * Allocates host memory to which leased queues read if they may not read to GPU
 * memory (lease_tier 0 and 1), otherwise nothing. Returns 0, or reports an error
 * on stderr and returns -EIO.
 */
int bench_mount_open_pinned(struct bench_mount *m, uint64_t bytes);
/* Lets transfers take a path (GPUNVME_PATH_*, 0: the library chooses). Returns 0 or -EIO. */
int bench_mount_take_path(const struct bench_mount *m, uint32_t path);
void bench_mount_close(struct bench_mount *m);
/*
 * Reads bytes of the file at fd from `place` on to byte `at` of the buffer. Returns 0, or reports
 * an error and returns -EIO. A read that is short or took another path than this one is an error.
 * If `commands` is not NULL, the function stores the number of commands there.
 */
int bench_mount_read(const struct bench_mount *m, int fd, uint64_t at, uint64_t place, uint64_t len,
                     uint32_t path, uint64_t *commands);
/* Writes the first bytes of the buffer to the beginning of the file, with the same results. */
int bench_mount_write(const struct bench_mount *m, int fd, uint64_t len, uint32_t path);

/*
 * Describes a file that the benchmark creates. The caller sets fd to -1 and all
 * else to zero first. bench_file_close() then removes the file, if there is one.
 */
struct bench_file {
    char path[4096];
    int fd; /* for reading and writing, through the page cache; see bench_file_seal() */
};

/*
 * Creates the file. This function and the following ones return 0, or report an
 * error on stderr and return -errno.
 */
int bench_file_create(struct bench_file *f, const char *dir);
/*
 * Moves the bytes to the drive and opens the file again for reading only, like
 * a program that reads a finished file. While a file is open for writing, the
 * daemon drops the kernel's pages of its range before each READ.
 */
int bench_file_seal(struct bench_file *f);
/* Creates the file with the first `bytes` of the pattern, and seals it. */
int bench_file_make(struct bench_file *f, const char *dir, uint64_t bytes, uint64_t seed);
void bench_file_close(struct bench_file *f);

/* Kernels of the benchmark's own process read by this direct path of a mount. */
struct bench_direct {
    struct gpunvme_direct *d; /* NULL: not open */
    struct leased_file *file;
    struct bench_stream stream; /* the stream of reads; its buffer takes their results */
};

/*
 * Opens the direct path for the file that is open at fd. NULL stands for the
 * default options. Returns 0, or reports an error on stderr and returns -errno.
 * The caller calls bench_direct_close(), also after an error.
 */
int bench_direct_open(struct bench_direct *p, const struct bench_mount *m, int fd,
                      const struct direct_options *options);
void bench_direct_close(struct bench_direct *p);
/*
 * Reads n bytes at offset to memory of the mount's buffer, and waits until they
 * are there. Returns 0, or reports an error on stderr and returns -EIO.
 */
int bench_direct_read(struct bench_direct *p, void *to, uint64_t n, uint64_t offset);
/*
 * Reads like bench_direct_read(), but uses no stream, so several threads may call it at a time.
 */
int bench_direct_read_wait(const struct bench_direct *p, void *to, uint64_t n, uint64_t offset);

/* This struct lists pieces of a file, which reads store one after another in the mount's buffer. */
struct bench_list {
    size_t n;
    struct gpunvme_piece *pieces;     /* in memory of the library */
    struct gpunvme_buffer *on_device; /* a copy for the direct path, or NULL */
};

/*
 * Makes the list of the pieces p, with a copy if the mount lends the direct path. This function
 * and the following ones return 0, or report an error and return -EIO. The caller frees the list
 * with bench_list_free(), also after an error.
 */
int bench_list_make(struct bench_list *l, const struct bench_mount *m,
                    const struct pattern_pieces *p);
void bench_list_free(struct bench_list *l, const struct bench_mount *m);
/* Clears the results of all pieces before a run, and if `direct` is true, those of the copy. */
int bench_list_prepare(struct bench_list *l, bool direct);
/* Verifies that every piece was read completely. */
int bench_list_check(struct bench_list *l, bool direct);
/* Reads the list, `batch` pieces in a call, by READV that takes this path. */
int bench_list_read(const struct bench_list *l, const struct bench_mount *m, int fd, size_t batch,
                    uint32_t path);
/* Reads the list by the direct path. */
int bench_list_read_direct(const struct bench_list *l, struct bench_direct *p, void *to,
                           size_t batch);

/*
 * Programs share these options and objects. Each program keeps its own options in
 * a static struct.
 */
struct bench {
    uint64_t size; /* bytes of the file */
    uint64_t seed; /* of its contents */
    unsigned repeats, warm_ups;
    bool json;
    struct direct_options lease;
    const char *dir;
    struct bench_mount mount;
    struct bench_file file;
    void *host; /* the bytes of the file, pinned if there is a GPU, or NULL */
    struct bench_direct direct;
    struct pattern_pieces pieces; /* what one run reads or writes */
    struct bench_report *report;
};

#define BENCH_SIZE_MOST ((uint64_t)1 << 40)
/* clang-format off */
#define BENCH_LEASE_OPTIONS(b)                                      \
    {'q', BENCH_UNSIGNED, &(b).lease.queues, 0, UINT32_MAX},        \
    {'d', BENCH_UNSIGNED, &(b).lease.depth, 0, UINT32_MAX}
/* clang-format on */

/*
 * Returns a report with the seed and the mount's executor, tiers and queues, or
 * NULL if memory is short.
 */
struct bench_report *bench_mount_report(const struct bench *b, const struct bench_mount *m);
/*
 * Opens the mount at b->dir with a buffer of `buffer` bytes, and the report.
 * Returns 0, or reports an error on stderr and returns -errno. The caller calls
 * bench_end(), also after an error.
 */
int bench_begin(struct bench *b, uint64_t buffer);
/* Calls bench_begin(), and requires a gpunvmefs mount. */
int bench_begin_mounted(struct bench *b, uint64_t buffer);
/* Calls bench_begin(), and requires GPU memory and the direct path. */
int bench_begin_direct(struct bench *b, uint64_t buffer);
/* Allocates b->host and fills it with the bytes of the file. */
int bench_host_fill(struct bench *b);
/* Reports the share of hits of all reads of the cache, in percent of the lines asked for. */
int bench_report_hits(struct bench *b, struct gpunvme_cache *c, const char *name);
/*
 * Prints the report unless err is set, closes all that is open, and returns the
 * exit status.
 */
int bench_end(struct bench *b, int err);

#endif
