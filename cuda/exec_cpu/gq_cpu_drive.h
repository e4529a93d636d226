/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compiles the queue protocol for a host thread. It is included once for each
 * number of lanes, with GQ_LANES and GQ_CPU_DRIVE (the name of the function it
 * defines) set.
 */
#include <sched.h>
#include <time.h>

#include "cuda/exec_cpu/gq_cpu.h"
#include "cuda/queue/gq_reads_protocol.h"

static enum gq_round turn_of_rank(struct gq_reader *r)
{
    enum gq_round round = gq_reads_round(r);

    if (round == GQ_ROUND_ENDED)
        gq_report_reads(r);
    return round;
}

/*
 * Pauses between two idle rounds and counts them in *idle. It yields, because
 * the controller may need this core. After a thousand in succession it sleeps,
 * because a command that takes so long may be lost.
 */
static void pause_idle(unsigned *idle)
{
    const struct timespec ts = {.tv_nsec = 50000};

    if (++*idle < 1000)
        sched_yield();
    else
        nanosleep(&ts, NULL);
}

/*
 * Drives ranks first, first + step, ... below n in one thread, one round of
 * each in turn, so that all queues stay busy. Every worker ends by its
 * deadlines, and so does the loop.
 */
void GQ_CPU_DRIVE(const struct gq_cpu_drive *d, unsigned first, unsigned step)
{
    struct gq_reader readers[GQ_MAX_QUEUES];
    bool ended[GQ_MAX_QUEUES] = {false};
    unsigned running = 0, idle = 0;

    for (unsigned i = first; i < d->n; i += step) {
        gq_reads_begin(&readers[i], gq_whole_group(), d->run, d->reads, d->ports[i], &d->states[i],
                       i, d->areas[i]);
        running++;
    }
    while (running) {
        bool busy = false;

        for (unsigned i = first; i < d->n; i += step) {
            enum gq_round round = ended[i] ? GQ_ROUND_IDLE : turn_of_rank(&readers[i]);

            if (round == GQ_ROUND_ENDED) {
                ended[i] = true;
                running--;
            }
            busy = busy || round != GQ_ROUND_IDLE;
        }
        if (busy)
            idle = 0;
        else
            pause_idle(&idle);
    }
}
