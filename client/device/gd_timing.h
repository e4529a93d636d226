/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The time of the first poll of a word of host memory that is stored some time after an event: a
 * completion after its doorbell, a read after the answer to the one before.
 *
 * A poll is a load of more than a microsecond, which returns what memory holds halfway through it,
 * and the next poll begins when the load has returned. A word that is stored as late after each
 * event waits for the same part of a poll each time. The first poll is therefore delayed, by less
 * than one poll. The delay is learned: a step less after each word that the expected poll, or one
 * before it, has returned; GD_TIMING_MISS steps more after each other word. One word of sixteen
 * then waits for another poll. Words that are stored at random times wait as long as without a
 * delay.
 *
 * On a host gd_ticks() is 0, and no poll is delayed.
 */
#ifndef CLIENT_DEVICE_GD_TIMING_H
#define CLIENT_DEVICE_GD_TIMING_H

#include "client/device/gd_sync.h"

#define GD_TIMING_STEPS   128u /* of a poll */
#define GD_TIMING_MISS    15u
#define GD_TIMING_POLLS   32u   /* nothing is learned from a word that takes more polls */
#define GD_TIMING_LONGEST 4000u /* ticks: the upper limit of the length of a poll */

struct gd_timing {
    uint32_t steps;        /* from the event to the poll that is expected to return the word */
    uint32_t polls;        /* begun since the event */
    uint32_t event, begun; /* ticks at the event, and at the begin of the last poll */
    uint32_t least;        /* ticks of the shortest poll so far: one that nothing delayed */
};

GQ_FN struct gd_timing gd_timing_new(void)
{
    return (struct gd_timing){.least = GD_TIMING_LONGEST};
}

/*
 * What is learned, as a word that readers of a queue share (gq_cids.poll_timing); 0: nothing is.
 * Each stores it whole, so the last one's counts.
 */
GQ_FN uint32_t gd_timing_word(const struct gd_timing *a)
{
    return a->steps << 16 | a->least;
}

GQ_FN struct gd_timing gd_timing_of(uint32_t word)
{
    return word ? (struct gd_timing){.steps = word >> 16, .least = word & 0xffffu}
                : gd_timing_new();
}
static_assert((GD_TIMING_POLLS + 1) * GD_TIMING_STEPS <= UINT16_MAX &&
                  GD_TIMING_LONGEST <= UINT16_MAX,
              "the halves of a word");

GQ_FN void gd_timing_event(struct gd_timing *a, uint32_t now)
{
    a->event = now;
    a->polls = 0;
}

/* Is the first poll still to be delayed? Any later poll begins after the delay. */
GQ_FN bool gd_timing_is_early(const struct gd_timing *a, uint32_t now)
{
    return now - a->event < a->steps % GD_TIMING_STEPS * a->least / GD_TIMING_STEPS;
}

GQ_FN void gd_timing_poll(struct gd_timing *a, uint32_t now)
{
    a->polls++;
    a->begun = now;
}

/* The poll has ended without the word. */
GQ_FN void gd_timing_missed(struct gd_timing *a, uint32_t now)
{
    if (now - a->begun < a->least)
        a->least = now - a->begun;
}

/*
 * The word has been returned: by the last poll, or by another load where no poll was begun. Called
 * before the next event, and after the loads that wait for the word were begun.
 */
GQ_FN void gd_timing_found(struct gd_timing *a)
{
    if (a->polls == 0 || a->polls > GD_TIMING_POLLS)
        return;
    if (a->polls > a->steps / GD_TIMING_STEPS + 1)
        a->steps += GD_TIMING_MISS;
    else if (a->steps > 0)
        a->steps--;
}

#endif
