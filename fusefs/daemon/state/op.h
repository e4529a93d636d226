/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The record of one operation that moves bytes. It begins where the request
 * arrives, and ends once. STATS, Prometheus, `gpunvme top` and the trace take
 * their data about operations from these records.
 */
#ifndef FUSEFS_DAEMON_STATE_OP_H
#define FUSEFS_DAEMON_STATE_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpunvme/gpunvme_ioctl.h"

struct activity;

/*
 * Sums over all operations. Accesses are relaxed, since each counter is
 * independent and orders no other memory.
 */
struct op_totals {
    _Atomic uint64_t requests; /* requests of the kernel */
    struct {
        _Atomic uint64_t ns, buckets[GPUNVME_LATENCY_BUCKETS];
    } latency[3][3]; /* [GPUNVME_OP_*][GPUNVME_PATH_* - 1] */
    _Atomic uint64_t fallbacks[8];
    _Atomic uint64_t bounce_transfers;
    _Atomic uint64_t bounce_bytes[2]; /* read, written */
};

/*
 * Further kinds in addition to GPUNVME_OP_*: requests of the kernel, which have
 * no latency in STATS.
 */
#define OP_KERNEL_READ  3u
#define OP_KERNEL_WRITE 4u

struct op {
    struct op_totals *totals;
    struct activity *activity; /* that of the open file, or NULL */
    unsigned kind;             /* GPUNVME_OP_* or OP_KERNEL_* */
    uint64_t ino, offset, len;
    uint64_t begun_ns;
    /* These are set before the end. */
    uint64_t bytes;    /* bytes moved */
    uint64_t bounced;  /* part of them that moved through host memory */
    uint64_t commands; /* NVMe commands of the executor */
    uint32_t path;     /* GPUNVME_PATH_*; 0 if no byte was moved */
    int error;         /* 0 or -errno */
};

void op_begin(struct op *op);
void op_end(struct op *op);
/* Returns the latency bucket of an operation: the least i with ns < 2^(i + 1) us, or the last. */
unsigned op_bucket(uint64_t ns);
/*
 * Counts a transfer that left the GPU path because of err. 0 means that its
 * buffer never had that path.
 */
void op_fell_back(struct op *op, int err);
/* Sets the latencies, fallbacks, requests and bounce counters of out. */
void op_totals_fill(struct op_totals *totals, struct gpunvme_ioc_stats *out);

#endif
