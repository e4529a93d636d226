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

/* Of the file open at fd: -errno, reported on stderr. Either way bench_direct_close() ends it. */
int bench_direct_open(struct bench_direct *p, const struct bench_mount *m, int fd);
/* The same with queues as they are asked for. */
int bench_direct_open_with(struct bench_direct *p, const struct bench_mount *m, int fd,
                           const struct direct_options *options);
void bench_direct_close(struct bench_direct *p);
/* n bytes at offset to memory of the mount's buffer, and the wait for its end. -EIO, reported. */
int bench_direct_read(struct bench_direct *p, void *to, uint64_t n, uint64_t offset);

#endif
