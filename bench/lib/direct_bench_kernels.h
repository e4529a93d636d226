/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path of a mount: reads by kernels of the benchmark's own process. */
#ifndef BENCH_LIB_DIRECT_BENCH_KERNELS_H
#define BENCH_LIB_DIRECT_BENCH_KERNELS_H

#include "bench/lib/bench_mount.h"

struct bench_direct {
    struct gpunvme_direct *d; /* NULL: not open */
    struct leased_file *file;
    struct bench_stream stream; /* the stream of reads; its buffer takes their results */
};

/*
 * Opens the direct path for the file that is open at fd. NULL stands for the
 * default options. Returns 0, or -errno, which is reported on stderr. The caller
 * ends it with bench_direct_close() in both cases.
 */
int bench_direct_open(struct bench_direct *p, const struct bench_mount *m, int fd,
                      const struct direct_options *options);
void bench_direct_close(struct bench_direct *p);
/*
 * Reads n bytes at offset to memory of the mount's buffer, and waits for the
 * end. Returns 0, or -EIO, which is reported.
 */
int bench_direct_read(struct bench_direct *p, void *to, uint64_t n, uint64_t offset);

#endif
