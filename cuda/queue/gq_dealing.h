/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Deals a list of reads to the queues of a run. Each group takes portions of
 * the list. With gq_run.dealing, groups take portions from a shared counter, so
 * that a queue with slower commands gets fewer reads and all queues end
 * together. Without gq_run.dealing, each group takes every n_queues-th portion.
 *
 * A portion from the counter is 1 << group_shift reads. Portions shrink towards
 * the end of the list, because no other group can take the reads that a group
 * has loaded ahead (gq_reads_fetch.h).
 *
 * Every function is called by all lanes of the group together.
 */
#ifndef CUDA_QUEUE_GQ_DEALING_H
#define CUDA_QUEUE_GQ_DEALING_H

#include "cuda/queue/gq_atomic.h"
#include "cuda/queue/gq_protocol.h"

/* A portion is at most this fraction of an even share of the remaining reads. */
#define GQ_PORTIONS_OF_SHARE 8u
#define GQ_LEAST_PORTION     8u /* in reads; used if gq_run.least_portion is 0 */

/* Holds the portion that a group took last. All fields are initially zero. */
struct gq_portion {
    uint32_t at, end; /* reads of the list */
    uint32_t seen;    /* end of the last portion with a counter; else the number taken */
};

/* Returns the number of reads to take next from the counter. */
GQ_FN uint32_t gq_portion_size(const struct gq_run *run, uint32_t seen)
{
    uint32_t size = 1u << run->group_shift, left = run->n_cmds - seen;
    uint32_t least = run->least_portion ? run->least_portion : GQ_LEAST_PORTION;

    while (size > least && left < size * run->n_queues * GQ_PORTIONS_OF_SHARE)
        size /= 2;
    return size;
}

/* Takes the group's next portion without a counter. Returns its first read. */
GQ_FN uint32_t gq_take_in_turn(const struct gq_worker *w, struct gq_portion *p)
{
    uint32_t turn = p->seen++;

    return (turn * w->run->n_queues + w->rank) << w->run->group_shift;
}

GQ_FN uint32_t gq_take_from_counter(const struct gq_worker *w, struct gq_portion *p, uint32_t size)
{
    GQ_LANE_VAR(uint32_t, at);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(at) = gq_atomic_fetch_add(&w->run->dealing->next, size);
    }
    p->seen = GQ_FROM32(at, 0) + size;
    return p->seen - size;
}

/*
 * Takes the next portion. Returns false if none is left. It must not be called
 * again after that, so that the counter, which stays below 2^31 plus one
 * portion per group, does not wrap.
 */
GQ_FN bool gq_take_portion(const struct gq_worker *w, struct gq_portion *p)
{
    const struct gq_run *run = w->run;
    uint32_t size = 1u << run->group_shift;

    if (run->dealing && p->seen >= run->n_cmds) {
        p->at = run->n_cmds;
    } else if (run->dealing) {
        size = gq_portion_size(run, p->seen);
        p->at = gq_take_from_counter(w, p, size);
    } else {
        p->at = gq_take_in_turn(w, p);
    }
    if (p->at >= run->n_cmds) {
        p->at = p->end = 0;
        return false;
    }
    p->end = size < run->n_cmds - p->at ? p->at + size : run->n_cmds;
    return true;
}

/*
 * Called when the group takes no more portions. Returns true if it was the last
 * group; *rest is then the first read that no group has taken, and the words
 * are ready for the next run.
 */
GQ_FN bool gq_leave_dealing(const struct gq_worker *w, uint32_t *rest)
{
    struct gq_dealing *d = w->run->dealing;
    GQ_LANE_VAR(uint32_t, left);
    GQ_LANE_VAR(uint32_t, next);

    gq_fence_device(); /* orders this group's results before those that the last group stores */
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(left) = gq_atomic_fetch_add(&d->left, 1) + 1;
            gq_fence_device();
            GQ_AT(next) = gq_atomic_load(&d->next);
        }
    }
    *rest = GQ_FROM32(next, 0);
    if (GQ_FROM32(left, 0) != w->run->n_queues)
        return false;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_atomic_store(&d->next, 0);
            gq_atomic_store(&d->left, 0);
            gq_fence_device(); /* the words are zero before the run counts as ended */
            gq_atomic_add(&d->runs, 1);
        }
    }
    return true;
}

#endif
