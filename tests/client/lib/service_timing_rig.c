/* SPDX-License-Identifier: BSD-2-Clause */
/* The delay of polls (gd_timing.h) on a clock that the rig moves. */
#define GQ_LANES 1
#include "client/device/gd_timing.h"

#include "tests/client/lib/service_timing_rig.h"

#include <stdlib.h>

struct timing_rig {
    struct gd_timing timing;
    uint64_t now;
};

struct timing_rig *timing_rig_new(void)
{
    struct timing_rig *r = calloc(1, sizeof(*r));

    if (r)
        r->timing = gd_timing_new();
    return r;
}

void timing_rig_free(struct timing_rig *r)
{
    free(r);
}

uint64_t timing_rig_await(struct timing_rig *r, uint64_t late)
{
    uint64_t due = r->now + late, sampled;

    gd_timing_event(&r->timing, r->now);
    do {
        while (gd_timing_is_early(&r->timing, r->now))
            r->now++;
        gd_timing_poll(&r->timing, r->now);
        sampled = r->now + TIMING_RIG_POLL / 2;
        r->now += TIMING_RIG_POLL;
        if (sampled < due)
            gd_timing_missed(&r->timing, r->now);
    } while (sampled < due);
    gd_timing_found(&r->timing);
    return sampled - due;
}

uint64_t timing_rig_delay(const struct timing_rig *r)
{
    struct gd_timing timing = r->timing;
    uint64_t ticks = 0;

    gd_timing_event(&timing, 0);
    while (gd_timing_is_early(&timing, ticks))
        ticks++;
    return ticks;
}

void timing_rig_hold_up(struct timing_rig *r, uint64_t ticks)
{
    gd_timing_event(&r->timing, r->now);
    gd_timing_poll(&r->timing, r->now);
    r->now += ticks;
    gd_timing_missed(&r->timing, r->now);
}

void timing_rig_find_otherwise(struct timing_rig *r)
{
    gd_timing_event(&r->timing, r->now);
    gd_timing_found(&r->timing);
}

void timing_rig_hand_on(struct timing_rig *r)
{
    r->timing = gd_timing_of(gd_timing_word(&r->timing));
}
