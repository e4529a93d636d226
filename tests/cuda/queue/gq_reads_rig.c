/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads of lists, a round at a time, as C++ tests call them. */
#include "tests/cuda/queue/gq_reads_rig.h"

#define GQ_LANES READS_RIG_LANES
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
