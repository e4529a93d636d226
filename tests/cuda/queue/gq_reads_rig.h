/* SPDX-License-Identifier: BSD-2-Clause */
/* cuda/gq_reads_protocol.h for tests, a round at a time: the header itself is C11. */
#ifndef TESTS_CUDA_QUEUE_GQ_READS_RIG_H
#define TESTS_CUDA_QUEUE_GQ_READS_RIG_H

#include <stdbool.h>

#include "cuda/queue/gq_reads.h"

#define READS_RIG_LANES 32u

struct reads_rig {
    struct gq_run run;
    struct gq_reads reads;
    struct gq_port port;
    struct gq_state state;
    void (*after)(struct reads_rig *rig); /* each round; it left: */
    uint32_t cq_head;
    bool holds_back; /* the next round publishes nothing */
};

/*
 * The only group, until it ends; state.outcome is GQ_OUT_RUNNING if it has not in so many rounds.
 */
void reads_rig_run(struct reads_rig *rig, unsigned rounds);

#endif
