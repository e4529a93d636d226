/*
 * The queue protocol compiled for a host thread: included once for each number of lanes, with
 * GQ_LANES and GQ_CPU_DRIVE (the name of the function it defines) set.
 */
#include <sched.h>

#include "cuda/gq_cpu.h"
#include "cuda/gq_protocol.h"

/*
 * One thread drives ranks first, first + step, ... below n: each has a turn of one round, so that
 * all queues stay busy. With nothing to do anywhere the thread yields, for the controller may
 * need this very core. Every worker ends by its deadlines, and so does the loop.
 */
void GQ_CPU_DRIVE(const struct gq_cpu_drive *d, unsigned first, unsigned step)
{
    struct gq_worker workers[GQ_MAX_QUEUES];
    bool ended[GQ_MAX_QUEUES] = {false};
    unsigned running = 0;

    for (unsigned i = first; i < d->n; i += step) {
        gq_begin(&workers[i], gq_whole_group(), d->run, d->ports[i], &d->states[i], i);
        running++;
    }
    while (running) {
        bool idle = true;

        for (unsigned i = first; i < d->n; i += step) {
            enum gq_round round = ended[i] ? GQ_ROUND_IDLE : gq_round(&workers[i]);

            if (round == GQ_ROUND_ENDED) {
                gq_end(&workers[i]);
                ended[i] = true;
                running--;
            }
            idle = idle && round == GQ_ROUND_IDLE;
        }
        if (idle)
            sched_yield();
    }
}
