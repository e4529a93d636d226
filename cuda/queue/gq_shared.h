/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A queue pair shared by many groups of lanes (kernels of thousands of warps).
 * One group at a time, the leader, drives it; a lock of the caller decides
 * which. The other groups hand their commands to the leader through slots:
 *
 *   claim     a lane claims a slot; the number of the slot is the command's CID
 *   publish   command into the slot, then the slot's bit into the pending words
 *   round     the leader takes the pending bits, posts those commands and its
 *             own, one fence, doorbells; it takes the completions that have
 *             arrived and stores each status into the slot that the CID names
 *   poll      an owner finds the status in its slot, and frees the slot
 *
 * Any owner that waits may become the leader, so commands are completed while
 * anyone waits for one. The leader keeps its own commands in registers: a lone
 * reader stores nothing to a slot.
 *
 * A queue of depth d has at most d - 1 slots. That bounds the commands in
 * flight, and so both rings (gq_protocol.h). Of the queue itself only its
 * position (gq_lead) passes from leader to leader.
 *
 * States of a slot, and the group that changes them:
 *
 *   PENDING   published, not posted       its owner
 *   POSTED    in flight                   the leader; only from PENDING
 *   LEFT      in flight, without a waiter its owner, by exchange
 *   ENDED     with the status             the leader; only from POSTED
 *
 * A completion whose CID names a slot in another state, or none, means that
 * controller and queue disagree. A completion of a slot that was LEFT frees the
 * slot.
 *
 * Every function is called by all lanes of the group together unless noted
 * otherwise; w is shared by them.
 */
#ifndef CUDA_QUEUE_GQ_SHARED_H
#define CUDA_QUEUE_GQ_SHARED_H

#include "cuda/queue/gq_atomic.h"
#include "cuda/queue/gq_protocol.h"
#include "cuda/queue/gq_slots.h"

#define GQ_NO_SLOT UINT32_MAX

/* Stages of a lane's command; after its end GQ_ENDED | status. */
#define GQ_STAGE_NONE   0u /* the lane has no command, and no slot unless it has just claimed it */
#define GQ_STAGE_READY  1u /* not submitted */
#define GQ_STAGE_HIDDEN 2u /* posted by this group as leader; the slot's state is not set */
#define GQ_STAGE_PUBLIC 3u /* published: the slot tells the status */

/* What a lane has in the queue. */
struct gq_mine {
    uint32_t slot; /* or GQ_NO_SLOT */
    uint32_t stage;
};

#define GQ_LEAD_PHASE  1u /* of the next CQE */
#define GQ_LEAD_BROKEN 2u /* a completion named no command in flight */
#define GQ_LEAD_RANG   4u /* the CQ doorbell was stored alone, and no fence since */
#define GQ_LEAD_LOST   8u /* some slots were LEFT at the last look */

/* Position of a shared queue, from one leader to the next. */
struct gq_lead {
    uint32_t head;          /* next entry of the CQ */
    uint32_t in_flight;     /* the SQ's tail is head + in_flight */
    uint32_t cq_db_pending; /* completions taken since the last CQ doorbell; or not 0: some */
    uint32_t flags;         /* GQ_LEAD_* */
};

/* A group of lanes and its place in one queue. */
struct gq_sharer {
    struct gq_group group;
    struct gq_slots *slots;
    uint32_t n_slots;
    uint32_t nsid;
    uint32_t scan; /* the word from which the next round takes pending bits */
    struct gq_port port;
    struct gq_lead lead; /* of the leader */
    GQ_LANE_MEMBER(struct gq_mine, mine);
};

/* Words of taken and pending that have slots. */
GQ_FN uint32_t gq_slot_words(const struct gq_sharer *w)
{
    return (w->n_slots + 31u) / 32u;
}

GQ_FN uint32_t gq_slot_bit(uint32_t slot)
{
    return 1u << (slot & 31u);
}

/* By one lane: any lane may claim the slot. */
GQ_FN void gq_free_slot(struct gq_slots *s, uint32_t slot)
{
    gq_atomic_clear(&s->taken[slot / 32], gq_slot_bit(slot));
}

/* The lowest n bits of a mask that has at least one; all of it if it has fewer. */
GQ_FN uint32_t gq_lowest_bits(uint32_t mask, uint32_t n)
{
    uint32_t picked = 0;

    for (uint32_t i = 0; i < n && mask; i++) {
        uint32_t rest = mask & (mask - 1u);

        picked |= mask ^ rest;
        mask = rest;
    }
    return picked;
}

/* The number of the i-th bit that is set in a mask with more than i. */
GQ_FN uint32_t gq_nth_one(uint32_t mask, uint32_t i)
{
    uint32_t at = 0;

    for (uint32_t half = 16; half; half /= 2) {
        uint32_t low = gq_count_ones(mask >> at & ((1u << half) - 1u));

        if (i >= low) {
            i -= low;
            at += half;
        }
    }
    return at;
}

/* n neighbouring bits, from bit `first` on, around the end of the word. */
GQ_FN uint32_t gq_some_bits(uint32_t n, uint32_t first)
{
    uint32_t bits = n >= 32 ? 0xffffffffu : (1u << n) - 1u;

    return first & 31u ? bits << (first & 31u) | bits >> (32u - (first & 31u)) : bits;
}

/*
 * By one lane. Claims up to n slots of a word: `bits` were claimed first, with
 * `old` as the word before.
 */
GQ_FN uint32_t gq_claim_more(uint32_t *word, uint32_t bits, uint32_t old, uint32_t n)
{
    uint32_t got = bits & ~old;

    old |= bits;
    while (gq_count_ones(got) < n && old != 0xffffffffu) {
        uint32_t more = gq_lowest_bits(~old, n - gq_count_ones(got)), was;

        was = gq_atomic_or(word, more);
        got |= more & ~was;
        old = was | more;
    }
    return got;
}

/* Deals the claimed slots of a word to the lanes in `wanting`, in turn. */
GQ_FN void gq_deal_slots(struct gq_sharer *w, uint32_t word, uint32_t got, uint32_t wanting)
{
    while (got) {
        uint32_t bit = gq_take_one(&got), to = gq_take_one(&wanting);

        GQ_FOR_LANES(lane)
        {
            if (lane == to)
                GQ_AT(w->mine).slot = word * 32u + bit;
        }
    }
}

/*
 * Publishes the commands of lanes that are READY. The fence orders command and
 * state before the pending bit; the leader's fence behind its exchange pairs
 * with it.
 */
GQ_FN void gq_publish_slots(struct gq_sharer *w, GQ_LANE_PARAM(struct gq_cmd, cmd))
{
    GQ_FOR_LANES(lane)
    {
        uint32_t slot = GQ_AT(w->mine).slot;

        if (GQ_AT(w->mine).stage == GQ_STAGE_READY) {
            w->slots->cmds[slot] = GQ_AT(cmd);
            gq_atomic_store(&w->slots->states[slot], GQ_SLOT_PENDING);
        }
    }
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_READY) {
            gq_atomic_set(&w->slots->pending[m->slot / 32], gq_slot_bit(m->slot));
            m->stage = GQ_STAGE_PUBLIC;
        }
    }
}

/*
 * By a leader that leaves commands of its own in flight, before it releases the
 * queue: the next leader finds them in their slots.
 */
GQ_FN bool gq_reveal_slots(struct gq_sharer *w)
{
    GQ_LANE_VAR(uint32_t, any);

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_HIDDEN) {
            gq_atomic_store(&w->slots->states[m->slot], GQ_SLOT_POSTED);
            m->stage = GQ_STAGE_PUBLIC;
            GQ_AT(any) = 1;
        }
    }
    return GQ_BALLOT(any) != 0;
}

/*
 * Looks at the slots of the group's published commands. The fence orders that
 * look before loads of the data. Returns whether one has ended.
 */
GQ_FN bool gq_poll_slots(struct gq_sharer *w)
{
    GQ_LANE_VAR(uint32_t, ended);

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_PUBLIC) {
            uint32_t state = gq_atomic_load(&w->slots->states[m->slot]);

            GQ_AT(ended) = state & GQ_ENDED;
            m->stage = GQ_AT(ended) ? state : m->stage;
        }
    }
    if (!GQ_BALLOT(ended))
        return false;
    gq_fence_device();
    return true;
}

/*
 * By one lane, of a published command: true if it was not taken up by a leader,
 * and will not be.
 */
GQ_FN bool gq_withdraw(const struct gq_sharer *w, uint32_t slot)
{
    uint32_t bit = gq_slot_bit(slot);

    return (gq_atomic_and(&w->slots->pending[slot / 32], ~bit) & bit) != 0;
}

/*
 * Inside a region: gives up a command that is HIDDEN or PUBLIC. False: it has
 * ended meanwhile. Otherwise the lane has no slot; that of a command in flight
 * is freed by its late completion.
 */
GQ_FN bool gq_give_up(struct gq_sharer *w, struct gq_mine *m)
{
    bool hidden = m->stage == GQ_STAGE_HIDDEN;

    if (!hidden && gq_withdraw(w, m->slot)) {
        gq_free_slot(w->slots, m->slot);
    } else {
        uint32_t was = gq_atomic_exchange(&w->slots->states[m->slot], GQ_SLOT_LEFT);

        if (!hidden && was & GQ_ENDED) {
            m->stage = was;
            return false;
        }
        gq_atomic_add(&w->slots->lost, 1);
    }
    m->slot = GQ_NO_SLOT;
    m->stage = GQ_STAGE_NONE;
    return true;
}

#endif
