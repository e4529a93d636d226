/* SPDX-License-Identifier: BSD-2-Clause */
/* Dealing of lists, a portion at a time, as C++ tests call it. */
#include "tests/cuda/queue/gq_dealing_rig.h"

#define GQ_LANES 32u
#include "cuda/queue/gq_dealing.h"

bool dealing_rig_take(struct dealing_rig *rig, uint32_t rank, uint32_t *first, uint32_t *end)
{
    const struct gq_worker w = {.group = gq_whole_group(), .run = &rig->run, .rank = rank};
    struct gq_portion p = {.seen = rig->seen[rank]};
    bool taken = gq_take_portion(&w, &p);

    *first = p.at;
    *end = p.end;
    rig->seen[rank] = p.seen;
    return taken;
}

bool dealing_rig_leave(struct dealing_rig *rig, uint32_t rank, uint32_t *rest)
{
    const struct gq_worker w = {.group = gq_whole_group(), .run = &rig->run, .rank = rank};

    return gq_leave_dealing(&w, rest);
}
