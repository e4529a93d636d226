/* SPDX-License-Identifier: BSD-2-Clause */
/* cuda/queue/gq_dealing.h for tests: the header itself is C11. */
#ifndef TESTS_CUDA_QUEUE_GQ_DEALING_RIG_H
#define TESTS_CUDA_QUEUE_GQ_DEALING_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/queue/gq_work.h"

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
