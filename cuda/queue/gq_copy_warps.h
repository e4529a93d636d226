/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy warps: further warps of a block, which copy the staged bytes of the
 * lanes that drive its queue, so that reading, copying and posting overlap.
 *
 * Each lane has one slot, as it has one staged command at a time. The slot of a
 * read is posted when the command has succeeded, that of a write before the
 * command is posted. A copy warp serves every sixth slot.
 *
 * On a host the lanes copy.
 */
#ifndef CUDA_QUEUE_GQ_COPY_WARPS_H
#define CUDA_QUEUE_GQ_COPY_WARPS_H

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

#ifdef __CUDACC__

enum gq_copy_state {
    GQ_COPY_NONE,
    GQ_COPY_POSTED, /* by the lane, to the copy warp */
    GQ_COPY_DONE,   /* by the copy warp, or by the lane for a command that failed */
};

/* dst, src and len belong to the side that state names. */
struct gq_copy_slot {
    uint64_t dst, src;
    uint32_t len; /* bytes */
    uint32_t state;
};

/* Zeroed before use; shared memory. */
struct gq_copy_slots {
    struct gq_copy_slot slot[GQ_LANES];
    uint32_t over; /* lanes: no slot will be posted any more */
};

/* Copy warps of a block: with GQ_COPY_AHEAD they fill the link. */
#define GQ_COPY_WARPS 6u

/* By one warp, before all meet at a barrier. */
static __device__ void gq_copy_slots_clear(struct gq_copy_slots *slots)
{
    slots->slot[gq_thread()].state = GQ_COPY_NONE;
    slots->over = 0;
}

/* Sixteen bytes for each lane, times this: 4 KiB for one trip over the bus. */
#define GQ_COPY_AHEAD 8u

/*
 * By a whole warp, number `rank` of GQ_COPY_WARPS: copies until the slots are over and none
 * of its own is posted. The release of a slot orders the copied bytes before a
 * fence of the lane that acquires it, and with that before its doorbell.
 */
static __device__ void gq_copy_slots_serve(struct gq_copy_slots *slots, uint32_t rank)
{
    struct gq_copy_slot *mine = &slots->slot[gq_thread()];
    bool serves = gq_thread() % GQ_COPY_WARPS == rank;

    for (;;) {
        bool over = GQ_UNIFORM32(gq_acquire_block(&slots->over)) != 0;
        bool posted = serves && gq_acquire_block(&mine->state) == GQ_COPY_POSTED;
        uint32_t mask = __ballot_sync(GQ_LANE_ALL, posted);

        if (mask == 0 && over)
            return;
        if (mask == 0)
            __nanosleep(20);
        while (mask) {
            struct gq_copy_slot *slot = &slots->slot[gq_take_one(&mask)];

            gq_copy_ahead<GQ_COPY_AHEAD>(slot->dst, slot->src, slot->len, gq_thread(), GQ_LANES);
            __syncwarp();
            if (gq_thread() == 0)
                gq_release_block(&slot->state, GQ_COPY_DONE);
        }
    }
}

/* By all lanes: ends the copy warps. */
static __device__ void gq_copy_slots_over(struct gq_copy_slots *slots)
{
    if (gq_thread() == 0)
        gq_release_block(&slots->over, 1);
}

/* The same, and waits for the copies that are posted. */
static __device__ void gq_copy_slots_end(struct gq_copy_slots *slots)
{
    const struct gq_copy_slot *mine = &slots->slot[gq_thread()];

    gq_copy_slots_over(slots);
    while (__ballot_sync(GQ_LANE_ALL, gq_acquire_block(&mine->state) == GQ_COPY_POSTED))
        ;
}

#endif

#endif
