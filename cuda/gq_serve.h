/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements a block of a service (cuda/gq_service.h). One warp polls the words
 * of the block's slot and takes the items one after another. The kernels of the
 * daemon and of the library differ only in what they do with an item:
 *
 *   gq_serve_take    polls until an item has come or the block must leave
 *   (the kernel)     executes the item, stores its result
 *   gq_serve_touch   the idle time of all blocks begins again
 *
 * Threads claim slots in ascending order. The blocks of later slots are
 * therefore often idle. They pause between polls, because their loads would
 * delay those of busy blocks.
 *
 * Every function is called by all lanes of the warp together; they share w.
 */
#ifndef CUDA_GQ_SERVE_H
#define CUDA_GQ_SERVE_H

#include "cuda/gq_service.h"
#include "cuda/queue/gq_lanes.h"

#ifndef __CUDACC__
#include <sched.h>
#endif

#define GQ_SERVE_CLOCK_POLLS 8u /* one poll in so many reads the clock, which takes as long */
#define GQ_SERVE_BUSY_NS     50000u
#define GQ_SERVE_PAUSE_NS    8000u

/* The caller sets the first six members; the others are 0 before the first call. */
struct gq_server {
    struct gq_group group;
    const struct gq_service_launch *launch;
    struct gq_service_stay *stay;
    uint32_t slot;
    uint32_t number;   /* of the last item that was taken */
    uint64_t began_ns; /* time of gq_service_begin() */
    uint64_t now_ns;   /* last reading of the clock */
    uint64_t item_ns;  /* end of the last item, or time of the first poll */
    uint32_t polls;
    GQ_LANE_MEMBER(uint64_t, words); /* of the slot: lane i has word i % GQ_SERVICE_WORDS */
};

/*
 * Polls the slot once. Returns true if all words are of one new item. Each lane
 * acquires, so that stores of the host before the post are visible, even if the
 * cache holds words of an earlier item.
 */
GQ_FN bool gq_serve_poll(struct gq_server *w)
{
    const uint64_t *words = w->launch->memory->slots[w->slot].words;
    uint32_t number;
    GQ_LANE_VAR(uint32_t, differs);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(w->words) = gq_acquire_word(&words[lane % GQ_SERVICE_WORDS]);
    }
    number = (uint32_t)(GQ_FROM64(w->words, 0) >> 32);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(differs) = GQ_AT(w->words) >> 32 != number;
    }
    if (number == 0 || number == w->number || GQ_BALLOT(differs) != 0)
        return false;
    w->number = number;
    return true;
}

/* Returns word i of the item. */
GQ_FN uint32_t gq_serve_word(const struct gq_server *w, uint32_t i)
{
    (void)w; /* on a host */
    return GQ_FROM32(w->words, i);
}

/* Returns words i and i + 1 of the item. */
GQ_FN uint64_t gq_serve_pair(const struct gq_server *w, uint32_t i)
{
    return (uint64_t)gq_serve_word(w, i + 1) << 32 | gq_serve_word(w, i);
}

/* Returns true if the block must leave, because another one leaves or a time is over. */
GQ_FN bool gq_serve_is_over(struct gq_server *w)
{
    GQ_LANE_VAR(uint32_t, over);

    w->now_ns = GQ_SAME64(gq_clock_ns());
    w->item_ns = w->item_ns ? w->item_ns : w->now_ns;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t leaving = gq_atomic_load(&w->stay->leaving);
            uint32_t active = gq_atomic_load(&w->stay->active);
            int32_t idle = (int32_t)(GQ_SERVICE_TICKS(w->now_ns) - active);

            GQ_AT(over) = leaving || w->now_ns - w->began_ns >= GQ_SERVICE_STAY_NS ||
                          idle > (int32_t)GQ_SERVICE_TICKS(GQ_SERVICE_IDLE_NS);
            if (GQ_AT(over))
                gq_atomic_store(&w->stay->leaving, 1);
        }
    }
    return GQ_FROM32(over, 0) != 0;
}

/*
 * Pauses between two polls. The next one reads the clock if the pause was long.
 * On a host another thread may need the processor.
 */
GQ_FN void gq_serve_pause(struct gq_server *w)
{
#ifdef __CUDACC__
    if (w->slot != 0 && w->now_ns - w->item_ns > GQ_SERVE_BUSY_NS) {
        __nanosleep(GQ_SERVE_PAUSE_NS);
        w->polls |= GQ_SERVE_CLOCK_POLLS - 1;
    }
#else
    (void)w;
    sched_yield();
#endif
}

/* Returns true if an item has come, or false if it is time to leave. */
GQ_FN bool gq_serve_take(struct gq_server *w)
{
    for (;; w->polls++) {
        if (w->polls % GQ_SERVE_CLOCK_POLLS == 0 && gq_serve_is_over(w))
            return false;
        if (gq_serve_poll(w))
            return true;
        gq_serve_pause(w);
    }
}

/* Called after an item. The next poll reads no clock unless the block's time is over. */
GQ_FN void gq_serve_touch(struct gq_server *w)
{
    w->now_ns = GQ_SAME64(gq_clock_ns());
    w->item_ns = w->now_ns;
    w->polls = w->now_ns - w->began_ns < GQ_SERVICE_STAY_NS;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_service_touch(w->stay, w->now_ns);
    }
}

#endif
