/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A controller that completes every command at once and moves nothing, on threads of the CPU: what
 * is left of a queue protocol's time when the drive takes none. It parses no more than it must.
 */
#ifndef BENCH_LIB_NULL_CTRLR_H
#define BENCH_LIB_NULL_CTRLR_H

#include <stdint.h>

#include "blockdev/nvme/nvme_spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The caller fills in the first five; each has a cache line to itself. */
struct null_queue {
    const struct nvme_sqe *sq;
    struct nvme_cqe *cq;
    volatile uint32_t *sq_doorbell, *cq_doorbell;
    uint32_t depth;
    uint32_t head, tail, phase; /* the controller's: 0, 0 and 1 for a fresh queue */
    uint64_t served, lba_sum;   /* how many commands, and the sum of their CDW10 */
} __attribute__((aligned(128)));

struct null_ctrlr;

/* Threads that serve the queues, by turns, until null_ctrlr_stop(). 0 or -errno. */
int null_ctrlr_start(struct null_queue *queues, unsigned n_queues, unsigned n_threads,
                     struct null_ctrlr **out);
void null_ctrlr_stop(struct null_ctrlr *c);

#ifdef __cplusplus
}
#endif

#endif
