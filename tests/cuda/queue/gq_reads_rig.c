/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes reads of lists, a round or a portion at a time, for tests in C++. */
#include "tests/cuda/queue/gq_reads_rig.h"

#define GQ_LANES READS_RIG_LANES
#include "cuda/queue/gq_dealing.h"
#include "cuda/queue/gq_reads_protocol.h"

void reads_rig_run(struct reads_rig *rig, unsigned rounds)
{
    struct gq_reader r;
    enum gq_round round = GQ_ROUND_BUSY;

    gq_reads_begin(&r, gq_whole_group(), &rig->run, &rig->reads, &rig->port, &rig->state, 0, 0);
    for (unsigned i = 0; i < rounds && round != GQ_ROUND_ENDED; i++) {
        round = gq_reads_round(&r);
        rig->cq_head = r.w.cq_head;
        rig->holds_back = r.holds_back;
        rig->after(rig);
    }
    gq_report_reads(&r);
}

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
