/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rounds of the leader of a shared queue (gq_shared.h). A round loads the
 * pending words and the next CQEs together, stores the statuses of completions,
 * posts commands, and ends with one fence and the doorbells if it has posted.
 *
 * Every function is called by all lanes of the leader together.
 */
#ifndef CUDA_QUEUE_GQ_LEAD_H
#define CUDA_QUEUE_GQ_LEAD_H

#include "cuda/queue/gq_shared.h"

/* The words that a round has loaded. */
struct gq_lead_round {
    GQ_LANE_MEMBER(uint32_t, pending); /* of word w->scan + lane */
    GQ_LANE_MEMBER(uint32_t, dw3);     /* of CQE lane */
    GQ_LANE_MEMBER(uint32_t, mine);    /* completion `lane` belongs to this group */
    uint32_t words, peeked;
};

/*
 * Takes pending bits and peeks CQEs. The load of the CQE acquires: data and
 * memory that the completion frees are seen by the lanes that converge. It is
 * last, so that both are outstanding at once.
 */
GQ_FN void gq_lead_load(struct gq_sharer *w, struct gq_lead_round *r)
{
    const struct gq_port *p = &w->port;
    uint32_t left = gq_cid_words(w) - w->scan, n = w->lead.in_flight;
    GQ_LANE_VAR(uint32_t, lost);

    r->words = left < w->group.lanes ? left : w->group.lanes;
    r->peeked = n < w->group.lanes ? n : w->group.lanes;
    GQ_FOR_LANES(lane)
    {
        uint32_t at = w->lead.head + lane;

        if (lane == 0)
            GQ_AT(lost) = gq_atomic_load(&w->cids->lost);
        GQ_AT(r->pending) =
            lane < r->words ? gq_atomic_exchange(&w->cids->pending[w->scan + lane], 0) : 0;
        GQ_AT(r->dw3) =
            lane < r->peeked ? gq_load_cqe(&p->cq[at < p->depth ? at : at - p->depth]) : 0;
        GQ_AT(r->mine) = 0;
    }
    w->lead.lost = GQ_FROM32(lost, 0);
}

/* How many of the peeked CQEs are new. */
GQ_FN uint32_t gq_lead_count(const struct gq_sharer *w, const struct gq_lead_round *r)
{
    GQ_LANE_VAR(uint32_t, is_new);

    GQ_FOR_LANES(lane)
    {
        uint32_t phase = w->lead.head + lane < w->port.depth ? w->lead.phase : w->lead.phase ^ 1;

        GQ_AT(is_new) = lane < r->peeked && NVME_CQE_PHASE(GQ_AT(r->dw3) >> 16) == phase;
    }
    return gq_prefix_ones(GQ_BALLOT(is_new));
}

/*
 * Takes the completions of the leader's own commands, of which no other group knows
 * (GQ_STAGE_HIDDEN). Two completions with one CID break the queue.
 */
GQ_FN void gq_lead_keep(struct gq_sharer *w, struct gq_lead_round *r, uint32_t n)
{
    GQ_LANE_VAR(uint32_t, hidden);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(hidden) = GQ_AT(w->mine).stage == GQ_STAGE_HIDDEN;
    }
    mask = GQ_BALLOT(hidden);
    while (mask) {
        uint32_t of = gq_take_one(&mask), hits, dw3, cid;
        GQ_LANE_VAR(uint32_t, posted);
        GQ_LANE_VAR(uint32_t, hit);

        GQ_FOR_LANES(lane)
        {
            GQ_AT(posted) = GQ_AT(w->mine).status;
        }
        cid = GQ_FROM32(posted, of);
        GQ_FOR_LANES(lane)
        {
            GQ_AT(hit) = lane < n && (GQ_AT(r->dw3) & 0xffffu) == cid;
            GQ_AT(r->mine) |= GQ_AT(hit);
        }
        hits = GQ_BALLOT(hit);
        if (hits == 0)
            continue;
        w->lead.broken |= (hits & (hits - 1u)) != 0;
        dw3 = GQ_FROM32(r->dw3, gq_prefix_ones(~hits));
        GQ_FOR_LANES(lane)
        {
            if (lane == of) {
                GQ_AT(w->mine).stage = GQ_STAGE_ENDED;
                GQ_AT(w->mine).status = NVME_STATUS(dw3 >> 16);
            }
        }
    }
}

/*
 * Inside a region: stores the status for the owner of the CID. False: no
 * command in flight has this CID.
 */
GQ_FN bool gq_lead_store_status(struct gq_sharer *w, uint32_t dw3)
{
    uint32_t posted = GQ_CID_POSTED | (dw3 & 0xffffu), left = GQ_CID_LEFT | posted, was;
    uint32_t cid = gq_cid_index(&w->port, dw3);

    if (cid >= w->n_cids)
        return false;
    was = gq_atomic_replace(&w->states[cid], posted, GQ_ENDED | NVME_STATUS(dw3 >> 16));
    if (was == left) {
        gq_atomic_replace(&w->states[cid], left, GQ_ENDED);
        gq_atomic_add(&w->cids->lost, UINT32_MAX);
        gq_release_cid(w->cids, cid);
    }
    return was == posted || was == left;
}

/* n CQEs have been taken. */
GQ_FN void gq_lead_advance(struct gq_sharer *w, uint32_t n)
{
    w->lead.head += n;
    if (w->lead.head >= w->port.depth) {
        w->lead.head -= w->port.depth;
        w->lead.phase ^= 1;
    }
    w->lead.in_flight -= n;
    w->lead.cq_db_pending += n;
}

/*
 * n completions. The fence makes the stores of statuses releases of what the
 * loads of the CQEs acquired.
 */
GQ_FN void gq_lead_complete(struct gq_sharer *w, struct gq_lead_round *r, uint32_t n)
{
    GQ_LANE_VAR(uint32_t, theirs);
    GQ_LANE_VAR(uint32_t, bad);

    gq_lead_keep(w, r, n);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(theirs) = lane < n && !GQ_AT(r->mine);
    }
    if (GQ_BALLOT(theirs)) {
        gq_fence_device();
        GQ_FOR_LANES(lane)
        {
            GQ_AT(bad) = GQ_AT(theirs) && !gq_lead_store_status(w, GQ_AT(r->dw3));
        }
        w->lead.broken |= GQ_BALLOT(bad) != 0;
    }
    gq_lead_advance(w, n);
}

/*
 * Inside a region: the i-th command from the tail on. Returns the CID as it is posted. Its number
 * is that of the entry, and in odd passes a number of entries more.
 */
GQ_FN uint32_t gq_lead_post(const struct gq_sharer *w, uint32_t i, const struct gq_cmd *cmd,
                            uint32_t cid)
{
    const struct gq_run run = {.nsid = w->nsid, .opcode = NVME_IO_READ};
    uint32_t depth = w->port.depth, at = w->lead.head + w->lead.in_flight + i;
    uint32_t wraps = at >= depth;

    at -= wraps ? depth : 0;
    cid = gq_next_cid(&w->port, cid, at + (w->lead.phase != wraps ? 0 : depth));
    gq_store_sqe(&w->port.sq[at], &run, cmd, cid);
    return cid;
}

/* The group's own commands. */
GQ_FN uint32_t gq_lead_post_own(struct gq_sharer *w)
{
    GQ_LANE_VAR(uint32_t, ready);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(ready) = GQ_AT(w->mine).stage == GQ_STAGE_READY;
    }
    mask = GQ_BALLOT(ready);
    if (mask == 0)
        return 0;
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(ready)) {
            GQ_AT(w->mine).status =
                gq_lead_post(w, gq_ones_before(mask, lane), &GQ_AT(w->cmd), GQ_AT(w->mine).cid);
            GQ_AT(w->mine).stage = GQ_STAGE_HIDDEN;
        }
    }
    return gq_count_ones(mask);
}

/* The commands of one word's CIDs: bits of `mask`. */
GQ_FN void gq_lead_post_word(struct gq_sharer *w, uint32_t word, uint32_t mask)
{
    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < 32; first += w->group.lanes) {
            uint32_t bit = first + lane, cid = word * 32u + bit;

            if (bit < 32 && mask >> bit & 1u) {
                struct gq_cmd cmd = w->cmds[cid];
                uint32_t posted = gq_lead_post(w, gq_ones_before(mask, bit), &cmd, cid);

                gq_atomic_set(&w->states[cid], GQ_CID_POSTED | posted);
            }
        }
    }
    w->lead.in_flight += gq_count_ones(mask);
}

/* Posts all that is pending; returns how many. The fence acquires the stores of their owners. */
GQ_FN uint32_t gq_lead_post_all(struct gq_sharer *w, const struct gq_lead_round *r)
{
    uint32_t before = w->lead.in_flight, words;
    GQ_LANE_VAR(uint32_t, some);

    w->lead.in_flight += gq_lead_post_own(w);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(some) = GQ_AT(r->pending) != 0;
    }
    words = GQ_BALLOT(some);
    if (words)
        gq_fence_device();
    while (words) {
        uint32_t i = gq_take_one(&words);

        gq_lead_post_word(w, w->scan + i, GQ_FROM32(r->pending, i));
    }
    w->scan = w->scan + r->words < gq_cid_words(w) ? w->scan + r->words : 0;
    return w->lead.in_flight - before;
}

/* After posts; as gq_publish(). */
GQ_FN void gq_lead_publish(struct gq_sharer *w)
{
    uint32_t tail = w->lead.head + w->lead.in_flight;

    tail -= tail >= w->port.depth ? w->port.depth : 0;
    gq_fence_entries();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            if (w->lead.cq_db_pending)
                gq_store_doorbell(w->port.cq_doorbell, w->lead.head);
            gq_store_doorbell(w->port.sq_doorbell, tail);
        }
    }
    w->lead.cq_db_pending = 0;
    w->lead.rang = 0;
}

/* The CQ doorbell alone, as gq_ring_cq(). */
GQ_FN void gq_lead_ring_cq(struct gq_sharer *w)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_store_doorbell(w->port.cq_doorbell, w->lead.head);
    }
    w->lead.cq_db_pending = 0;
    w->lead.rang = 1;
}

/* Posts the group's own commands alone, without polling: for an idle queue. */
GQ_FN void gq_lead_start(struct gq_sharer *w)
{
    w->lead.in_flight += gq_lead_post_own(w);
    gq_lead_publish(w);
}

/* A round. Returns whether something was posted or completed. A broken queue posts nothing. */
GQ_STEP bool gq_lead_run(struct gq_sharer *w)
{
    struct gq_lead_round r;
    uint32_t n, posted = 0;

    gq_lead_load(w, &r);
    n = gq_lead_count(w, &r);
    if (n)
        gq_lead_complete(w, &r, n);
    if (n && w->lead.lost) /* some of them have ended, perhaps */
        w->lead.lost = GQ_SAME32(gq_atomic_load(&w->cids->lost));
    if (!w->lead.broken)
        posted = gq_lead_post_all(w, &r);
    if (posted)
        gq_lead_publish(w);
    else if (w->lead.cq_db_pending && w->lead.in_flight &&
             (n == 0 || w->lead.cq_db_pending >= w->port.depth / 2))
        gq_lead_ring_cq(w);
    return n || posted;
}

#endif
