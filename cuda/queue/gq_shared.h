/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares a queue pair that many groups of lanes share (kernels of thousands
 * of warps). One group at a time, the leader, drives it; a lock of the caller
 * decides which. The other groups pass their commands to the leader through GPU
 * memory, where each CID of the queue has a command and a state:
 *
 *   claim     a lane claims a CID
 *   publish   it stores the command at the CID's place, then the CID's bit in
 *             the pending words
 *   round     the leader takes the pending bits, posts those commands and its
 *             own, fences once and rings the doorbells; it takes the
 *             completions that have arrived and stores each status into the
 *             state of its CID
 *   poll      an owner finds the status in that state and releases the CID
 *
 * Any owner that waits may become the leader, so commands are completed while
 * at least one owner waits. The leader keeps its own commands in registers: a
 * lone reader stores neither a command nor a state.
 *
 * A queue of depth d has at most d - 1 CIDs. This bounds the commands in
 * flight, and so both rings (gq_protocol.h). Only the queue's position
 * (gq_lead) passes from leader to leader.
 *
 * The states of a CID, and the group that sets them:
 *
 *   PENDING   published, not posted           its owner
 *   POSTED    in flight, with the posted CID  the leader, which adds it to PENDING
 *   LEFT      without a waiter; added          its owner
 *   ENDED     with the status                 the leader; only from POSTED
 *
 * The CIDs above are indices. The upper bits of the posted CID hold the number
 * of the SQ's entry, as far as it fits. This distinguishes a second completion
 * from that of the next command with the same index. A completion whose CID is
 * not in flight breaks the queue. The completion of a CID that was LEFT releases
 * it.
 *
 * Every function is called by all lanes of the group together unless noted
 * otherwise; they share w.
 */
#ifndef CUDA_QUEUE_GQ_SHARED_H
#define CUDA_QUEUE_GQ_SHARED_H

#include "cuda/queue/gq_atomic.h"
#include "cuda/queue/gq_protocol.h"

#define GQ_NO_CID UINT32_MAX

/* Names the stages of a lane's command in the queue. */
enum gq_stage {
    GQ_STAGE_NONE,   /* no CID */
    GQ_STAGE_READY,  /* has a CID and a command, not submitted */
    GQ_STAGE_HIDDEN, /* posted by this group as leader; the CID's state is not set */
    GQ_STAGE_PUBLIC, /* published: the CID's state will be the status */
    GQ_STAGE_ENDED   /* the status is known; the CID is still claimed */
};

struct gq_mine {
    uint32_t cid;
    uint32_t stage;  /* enum gq_stage */
    uint32_t status; /* HIDDEN: the CID as posted; ENDED: 0 or the drive's error */
};

/* Holds the position of a shared queue. One leader passes the position to the next. */
struct gq_lead {
    uint32_t head;          /* next entry of the CQ */
    uint32_t phase;         /* phase of the next CQE */
    uint32_t cq_db_pending; /* completions since the last CQ doorbell; in a lock word 1 means any */
    uint32_t in_flight;     /* the SQ's tail is head + in_flight */
    uint32_t lost;          /* CIDs in state LEFT, as of the last round */
    uint32_t broken;        /* a completion named no command in flight */
    uint32_t rang;          /* only the CQ doorbell was stored, without a fence since */
    uint32_t full;          /* the leader's last round found a completion for each lane */
};

/* Describes a group of lanes and its place in one queue. */
struct gq_sharer {
    struct gq_group group;
    struct gq_cids *cids;
    struct gq_cmd *cmds; /* those of cids */
    uint32_t *states;
    uint32_t n_cids;
    uint32_t nsid;
    uint32_t scan; /* the word from which the next round takes pending bits */
    struct gq_port port;
    struct gq_lead lead; /* valid for the leader */
    GQ_LANE_MEMBER(struct gq_mine, mine);
    GQ_LANE_MEMBER(struct gq_cmd, cmd); /* command of a lane that is READY */
};

/* Returns the number of words of `taken` and `pending` that have CIDs. */
GQ_FN uint32_t gq_cid_words(const struct gq_sharer *w)
{
    return (w->n_cids + 31u) / 32u;
}

GQ_FN uint32_t gq_cid_bit(uint32_t cid)
{
    return 1u << (cid & 31u);
}

/* Called by one lane. Other lanes may claim the CID from here on. */
GQ_FN void gq_release_cid(struct gq_cids *s, uint32_t cid)
{
    gq_atomic_clear(&s->taken[cid / 32], gq_cid_bit(cid));
}

/* Returns the lowest n bits of a mask, or all of them if there are fewer. */
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

/*
 * Returns n neighbouring bits from bit `first` on, wrapping around the end of
 * the word.
 */
GQ_FN uint32_t gq_some_bits(uint32_t n, uint32_t first)
{
    uint32_t bits = n >= 32 ? 0xffffffffu : (1u << n) - 1u;

    return first & 31u ? bits << (first & 31u) | bits >> (32u - (first & 31u)) : bits;
}

/*
 * Called by one lane. Claims up to n CIDs of a word and returns their bits.
 * `bits` were claimed first; `old` was the word before that.
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

/* Deals the claimed CIDs of a word to the lanes in `wanting`, in turn. */
GQ_FN void gq_deal_cids(struct gq_sharer *w, uint32_t word, uint32_t got, uint32_t wanting)
{
    while (got) {
        uint32_t bit = gq_take_one(&got), to = gq_take_one(&wanting);

        GQ_FOR_LANES(lane)
        {
            if (lane == to)
                GQ_AT(w->mine).cid = word * 32u + bit;
        }
    }
}

/*
 * Stores the commands of lanes that are READY at their CIDs in memory. Called
 * before the fence of the caller.
 */
GQ_FN void gq_store_cmds(struct gq_sharer *w)
{
    GQ_FOR_LANES(lane)
    {
        const struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_READY) {
            w->cmds[m->cid] = GQ_AT(w->cmd);
            gq_atomic_store(&w->states[m->cid], GQ_CID_PENDING);
        }
    }
}

/*
 * Called by a group that does not lead. The fence orders command and state
 * before the pending bit; it pairs with the leader's fence behind its exchange.
 */
GQ_FN void gq_publish_cmds(struct gq_sharer *w)
{
    gq_store_cmds(w);
    gq_fence_device();
    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_READY) {
            gq_atomic_set(&w->cids->pending[m->cid / 32], gq_cid_bit(m->cid));
            m->stage = GQ_STAGE_PUBLIC;
        }
    }
}

/*
 * Called by a leader that leaves its own commands in flight, before it releases
 * the queue: the next leader finds them by their states. Returns true if there
 * were such commands.
 */
GQ_FN bool gq_reveal_cmds(struct gq_sharer *w)
{
    GQ_LANE_VAR(uint32_t, any);

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);

        if (m->stage == GQ_STAGE_HIDDEN) {
            gq_atomic_store(&w->states[m->cid], GQ_CID_POSTED | m->status);
            m->stage = GQ_STAGE_PUBLIC;
            GQ_AT(any) = 1;
        }
    }
    return GQ_BALLOT(any) != 0;
}

/*
 * Polls the states of the group's published commands. Returns the lanes whose
 * command has ended; the fence orders the poll before their loads of the data.
 */
GQ_FN uint32_t gq_poll_cmds(struct gq_sharer *w)
{
    GQ_LANE_VAR(uint32_t, ended);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        struct gq_mine *m = &GQ_AT(w->mine);
        uint32_t state = m->stage == GQ_STAGE_PUBLIC ? gq_atomic_load(&w->states[m->cid]) : 0;

        if (state & GQ_ENDED) {
            m->stage = GQ_STAGE_ENDED;
            m->status = state & ~GQ_ENDED;
            GQ_AT(ended) = 1;
        }
    }
    mask = GQ_BALLOT(ended);
    if (mask)
        gq_fence_device();
    return mask;
}

/*
 * Called by one lane for a published command. Returns true if no leader has
 * taken it, and none will.
 */
GQ_FN bool gq_withdraw(const struct gq_sharer *w, uint32_t cid)
{
    uint32_t bit = gq_cid_bit(cid);

    return (gq_atomic_and(&w->cids->pending[cid / 32], ~bit) & bit) != 0;
}

/*
 * Called inside a region. Abandons a command in any stage. Returns false if it
 * has ended meanwhile, and is GQ_STAGE_ENDED. Otherwise the CID is released,
 * unless the command is in flight; then its late completion releases it.
 */
GQ_FN bool gq_give_up(struct gq_sharer *w, struct gq_mine *m)
{
    uint32_t *state = &w->states[m->cid], was = 0;
    bool hidden = m->stage == GQ_STAGE_HIDDEN;
    bool in_flight = hidden || (m->stage == GQ_STAGE_PUBLIC && !gq_withdraw(w, m->cid));

    if (hidden)
        gq_atomic_store(state, GQ_CID_LEFT | GQ_CID_POSTED | m->status);
    else if (in_flight)
        was = gq_atomic_or(state, GQ_CID_LEFT);
    if (was & GQ_ENDED) {
        m->stage = GQ_STAGE_ENDED;
        m->status = was & ~GQ_ENDED;
        return false;
    }
    if (in_flight)
        gq_atomic_add(&w->cids->lost, 1);
    else
        gq_release_cid(w->cids, m->cid);
    m->stage = GQ_STAGE_NONE;
    return true;
}

#endif
