/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes reads of lists, a round or a portion at a time, for tests in C++: the code is C11. */
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

#define DEALING_RIG_GROUPS 8u

struct dealing_rig {
    struct gq_run run;
    struct gq_dealing dealing;
    uint32_t seen[DEALING_RIG_GROUPS]; /* of each group, zeroed at the start */
};

/* Group `rank` takes [*first, *end). False: nothing is left for it. */
bool dealing_rig_take(struct dealing_rig *rig, uint32_t rank, uint32_t *first, uint32_t *end);
/* True for the last group, with the first read that no group has taken. */
bool dealing_rig_leave(struct dealing_rig *rig, uint32_t rank, uint32_t *rest);

#endif
