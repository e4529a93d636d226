/* SPDX-License-Identifier: BSD-2-Clause */
/* A single read as C++ tests call it. */
#include <sched.h>

#define GQ_LANES 1u
#include "cuda/queue/gq_single.h"

#include "tests/cuda/queue/gq_single_rig.h"

void single_rig_command(struct single_rig *r, const struct gq_cmd *cmd)
{
    struct gq_single s = {
        .run = &r->run,
        .port = &r->port,
        .at = {.entry = r->entry, .phase = r->phase, .cq_db_pending = r->cq_db_pending}};

    gq_single_start(&s);
    gq_single_store(&s, cmd);
    gq_single_ring_sq(&s);
    while (gq_single_poll(&s) == GQ_OUT_RUNNING)
        sched_yield();
    r->entry = s.at.entry;
    r->phase = s.at.phase;
    r->cq_db_pending = s.at.cq_db_pending;
    r->outcome = s.outcome;
    r->status = s.status;
}

bool single_rig_make(const struct gq_file_map *map, const struct gq_target *target,
                     const uint64_t extent[2], uint64_t lba, const struct gq_read *read,
                     struct gq_cmd *cmd)
{
    const struct gq_cursor cur = {
        .offset = read->file_offset, .from = extent[0], .to = extent[1], .lba = lba};

    return gq_make_single(map, target, &cur, read->at, read->len, cmd);
}
