/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A warp of the copy block: a persistent kernel of one block, which makes copies of a few KiB. A
 * copy by the copy engine takes calls of the driver, which threads make one after another.
 *
 * The block ends when no warp has had a copy for GD_COPIES_IDLE_NS, or after GD_COPIES_STAY_NS,
 * because calls of the application that wait for all kernels wait for it. A copy that is submitted
 * while the block ends may or may not be made; if not, the next block makes it only if the slot
 * still has its words.
 */
#ifndef CLIENT_DEVICE_GD_COPY_WARP_H
#define CLIENT_DEVICE_GD_COPY_WARP_H

#include "client/device/gd_copies.h"
#include "client/device/gd_sync.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

#define GD_COPIES_IDLE_NS 100000u
#define GD_COPIES_STAY_NS 20000000u
#define GD_COPIES_POLLS   8u /* one poll in so many reads the clock */

/* Shared memory of the block. */
struct gd_copies_block {
    uint32_t served;  /* changes with every copy */
    uint32_t leaving; /* 1: no warp begins another one */
};

struct gd_copy_warp {
    struct gq_group group;
    const struct gd_copies_launch *launch;
    struct gd_copies_block *block;
    uint32_t slot;
    uint32_t next;     /* number of the copy that the warp waits for */
    uint32_t served;   /* the block's, at since_ns */
    uint64_t since_ns; /* when `served` was seen to change */
    uint64_t until_ns; /* when to end in any case */
};

/* Loads the words of the slot. True: they are those of the next copy. */
GQ_FN bool gd_copies_poll(const struct gd_copy_warp *w, GQ_LANE_OUT(uint64_t, seen))
{
    const uint64_t *words = w->launch->copies->slots[w->slot].words;
    GQ_LANE_VAR(uint32_t, old);

    GQ_FOR_LANES(lane)
    {
        if (lane < GD_COPY_WORDS) {
            GQ_AT(seen) = gq_acquire_word(&words[lane]);
            GQ_AT(old) = GQ_AT(seen) >> 32 != w->next;
        }
    }
    return GQ_BALLOT(old) == 0;
}

/* Makes the copy. The fence orders the stores of all lanes, which converged, before the number. */
GQ_FN void gd_copies_make(struct gd_copy_warp *w, GQ_LANE_PARAM(uint64_t, seen))
{
    uint64_t dst = (uint64_t)GQ_FROM32(seen, 1) << 32 | GQ_FROM32(seen, 0);
    uint64_t src = w->launch->staging + (uint64_t)w->slot * GD_COPIES_STAGING + GQ_FROM32(seen, 2);
    uint32_t len = GQ_FROM32(seen, 3);

    GQ_FOR_LANES(lane)
    {
        gq_copy_4k(dst, src, len, lane, GQ_LANES);
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_fence_results();
            gd_store_own_result((int64_t *)&w->launch->copies->done[w->slot].value, w->next);
            gq_release_block(&w->block->served, w->next);
        }
    }
    w->next = gq_tagged_slot_next(w->next);
}

/*
 * Whether the block has to leave: another warp has set `leaving`, or its time or GD_COPIES_IDLE_NS
 * without a copy is over. The first warp that sees the latter sets `leaving`.
 */
GQ_FN bool gd_copies_is_over(struct gd_copy_warp *w)
{
    uint64_t now_ns = GQ_SAME64(gq_clock_ns());
    uint32_t served = GQ_SAME32(gq_acquire_block(&w->block->served));

    if (served != w->served) {
        w->served = served;
        w->since_ns = now_ns;
    }
    if (now_ns < w->until_ns && now_ns - w->since_ns <= GD_COPIES_IDLE_NS)
        return false;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_release_block(&w->block->leaving, 1);
    }
    return true;
}

/* One warp, until the block leaves. */
GQ_FN void gd_copies_serve(const struct gd_copies_launch *l, struct gd_copies_block *block,
                           uint32_t slot)
{
    struct gd_copy_warp warp = {
        .group = gq_whole_group(), .launch = l, .block = block, .slot = slot};
    struct gd_copy_warp *w = &warp;
    GQ_LANE_VAR(uint64_t, seen);

    w->next =
        gq_tagged_slot_next((uint32_t)GQ_SAME64(gq_acquire_word(&l->copies->done[slot].value)));
    w->since_ns = GQ_SAME64(gq_clock_ns());
    w->until_ns = w->since_ns + GD_COPIES_STAY_NS;
    for (uint32_t polls = 1; !GQ_SAME32(gq_acquire_block(&block->leaving)); polls++) {
        if (gd_copies_poll(w, seen))
            gd_copies_make(w, seen);
        else if (polls % GD_COPIES_POLLS == 0 && gd_copies_is_over(w))
            break;
        else
            gd_idle();
    }
}

#endif
