/* A mount that a benchmark reads from, and a registered buffer to read to. */
#ifndef BENCH_MOUNT_H
#define BENCH_MOUNT_H

#include "bench/memory.h"
#include "bench/report.h"
#include "client/gpunvme.h"

struct bench_mount {
    struct gpunvme *g; /* NULL: the directory is on another file system */
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *buffer;
    struct bench_memory memory; /* the buffer's */
};

/* -errno, told on stderr. Either way bench_mount_close() ends it. */
int bench_mount_open(struct bench_mount *m, const char *who, const char *dir, uint64_t bytes);
void bench_mount_close(struct bench_mount *m);
/* Puts executor, tier and queues into the report. */
void bench_mount_describe(const struct bench_mount *m, struct bench_report *r);

#endif
