/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slots of a shared queue (gq_shared.h). Plain data in memory of the executor;
 * C11 and CUDA.
 */
#ifndef CUDA_QUEUE_GQ_SLOTS_H
#define CUDA_QUEUE_GQ_SLOTS_H

#include <stdint.h>

#include "cuda/queue/gq_work.h"

#define GQ_SLOT_WORDS 32u
#define GQ_MAX_SLOTS  (GQ_SLOT_WORDS * 32u)

#define GQ_SLOT_PENDING 1u
#define GQ_SLOT_POSTED  2u
#define GQ_SLOT_LEFT    3u /* the other state is GQ_ENDED | status */

/*
 * The slots of a queue, in memory of the executor. Zeroed at the start, except
 * the bits of `taken` beyond the last slot, the pointers and n_slots.
 */
struct gq_slots {
    uint32_t taken[GQ_SLOT_WORDS];   /* bit of a slot: claimed */
    uint32_t pending[GQ_SLOT_WORDS]; /* bit of a slot: to be posted */
    uint32_t lost;                   /* slots in state LEFT: if not 0, no slot is claimed */
    uint32_t n_slots;                /* at most depth - 1 and GQ_MAX_SLOTS */
    struct gq_cmd *cmds;             /* n_slots each */
    uint32_t *states;
};

#endif
