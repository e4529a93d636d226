/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the rounds of the leader of a shared queue (gq_shared.h). A round
 * loads the pending words and the next CQEs together, stores the statuses of
 * completions, and posts commands. A round that has posted commands fences and
 * rings the doorbells. If the previous round was full, the round finally takes
 * further CQEs, which it loaded before the fence.
 *
 * Every function is called by all lanes of the leader together.
 */
#ifndef CUDA_QUEUE_GQ_LEAD_H
#define CUDA_QUEUE_GQ_LEAD_H

#include "cuda/queue/gq_shared.h"

/* Holds the words that a round has loaded. */
struct gq_lead_round {
    GQ_LANE_MEMBER(uint32_t, pending); /* pending bits of word w->scan + lane */
    GQ_LANE_MEMBER(uint32_t, dw3);     /* last dword of the CQE number `lane` */
    GQ_LANE_MEMBER(uint32_t, next);    /* last dword of the CQE that is `lanes` behind that one */
    uint32_t words, peeked;
    uint32_t further; /* CQEs in `next`; 0 unless the previous round was full */
};

/* Called inside a region. Returns the CQE that is i behind the next one. */
GQ_FN const struct nvme_cqe *gq_lead_cqe(const struct gq_sharer *w, uint32_t i)
{
    uint32_t at = w->lead.head + i;

    return &w->port.cq[at < w->port.depth ? at : at - w->port.depth];
}

/*
 * Takes pending bits and peeks at CQEs. The load of the CQE acquires: the lanes
 * that converge see data and memory that the completion frees. It is the last
 * load, so that all are outstanding at once. gq_lead_publish() acquires for the
 * further CQEs.
 */
GQ_FN void gq_lead_load(struct gq_sharer *w, struct gq_lead_round *r)
{
    uint32_t left = gq_cid_words(w) - w->scan, n = w->lead.in_flight;
    GQ_LANE_VAR(uint32_t, lost);

    r->words = left < w->group.lanes ? left : w->group.lanes;
    r->peeked = n < w->group.lanes ? n : w->group.lanes;
    n -= r->peeked;
    r->further = !w->lead.full ? 0 : n < w->group.lanes ? n : w->group.lanes;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(lost) = gq_atomic_load(&w->cids->lost);
        GQ_AT(r->pending) =
            lane < r->words ? gq_atomic_exchange(&w->cids->pending[w->scan + lane], 0) : 0;
        GQ_AT(r->next) = lane < r->further ? gq_peek_cqe(gq_lead_cqe(w, lane + w->group.lanes)) : 0;
        GQ_AT(r->dw3) = lane < r->peeked ? gq_load_cqe(gq_lead_cqe(w, lane)) : 0;
    }
    w->lead.lost = GQ_FROM32(lost, 0);
}

/* Returns how many of the peeked CQEs are new. */
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
 * Takes the completions of the leader's own commands, which no other group
 * knows (GQ_STAGE_HIDDEN). Bit i of the result is set if completion i is one.
 * Two completions with one CID break the queue.
 */
GQ_FN uint32_t gq_lead_keep(struct gq_sharer *w, const struct gq_lead_round *r, uint32_t n)
{
    GQ_LANE_VAR(uint32_t, hidden);
    GQ_LANE_VAR(uint32_t, hits);
    GQ_LANE_VAR(uint32_t, found);
    uint32_t kept = 0;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(hidden) = GQ_AT(w->mine).stage == GQ_STAGE_HIDDEN;
    }
    if (GQ_BALLOT(hidden) == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t dw3 = GQ_FROM32(r->dw3, i);
        GQ_LANE_VAR(uint32_t, hit);

        GQ_FOR_LANES(lane)
        {
            GQ_AT(hit) = GQ_AT(hidden) && GQ_AT(w->mine).status == (dw3 & 0xffffu);
            GQ_AT(hits) += GQ_AT(hit);
            GQ_AT(found) = GQ_AT(hit) ? dw3 : GQ_AT(found);
        }
        kept |= GQ_BALLOT(hit) != 0 ? 1u << i : 0;
    }
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(hits)) {
            GQ_AT(w->mine).stage = GQ_STAGE_ENDED;
            GQ_AT(w->mine).status = NVME_STATUS(GQ_AT(found) >> 16);
        }
        GQ_AT(hits) = GQ_AT(hits) > 1;
    }
    w->lead.broken |= GQ_BALLOT(hits) != 0;
    return kept;
}

/*
 * Called inside a region. Stores the status for the owner of the CID. Returns
 * false if no command in flight has this CID.
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

/* Advances the CQ by n taken entries. */
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
 * Handles n completions. The fence makes the stores of statuses releases of
 * everything that the loads of the CQEs acquired.
 */
GQ_FN void gq_lead_complete(struct gq_sharer *w, const struct gq_lead_round *r, uint32_t n)
{
    uint32_t theirs = gq_some_bits(n, 0) & ~gq_lead_keep(w, r, n);
    GQ_LANE_VAR(uint32_t, bad);

    if (theirs) {
        gq_fence_device();
        GQ_FOR_LANES(lane)
        {
            GQ_AT(bad) = (theirs >> lane & 1u) && !gq_lead_store_status(w, GQ_AT(r->dw3));
        }
        w->lead.broken |= GQ_BALLOT(bad) != 0;
    }
    gq_lead_advance(w, n);
}

/*
 * Called inside a region. Posts the i-th command from the tail on. Returns the
 * CID as it is posted. Its number is that of the entry, plus the number of
 * entries in odd passes.
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

/* Posts the group's own commands. Returns their number. */
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

/*
 * Returns the position of the n-th set bit, counted from 0; n is below their
 * number.
 */
GQ_FN uint32_t gq_nth_one(uint32_t mask, uint32_t n)
{
    uint32_t at = 0;

    for (uint32_t half = 16; half; half /= 2) {
        uint32_t low = gq_count_ones(mask >> at & ((1u << half) - 1u));

        at += n >= low ? half : 0;
        n -= n >= low ? low : 0;
    }
    return at;
}

/*
 * Selects the CIDs of pending commands, in their order. Lane i gets the CID of
 * command first + i, or GQ_NO_CID. `words` are the words with bits. Returns the
 * number of all commands.
 */
GQ_FN uint32_t gq_lead_pick(struct gq_sharer *w, const struct gq_lead_round *r, uint32_t words,
                            uint32_t first, GQ_LANE_OUT(uint32_t, cid))
{
    GQ_LANE_VAR(uint32_t, mask);
    GQ_LANE_VAR(uint32_t, at);
    uint32_t n = 0;

    while (words) {
        uint32_t i = gq_take_one(&words), bits = GQ_FROM32(r->pending, i);

        GQ_FOR_LANES(lane)
        {
            if (first + lane - n < gq_count_ones(bits)) {
                GQ_AT(mask) = bits;
                GQ_AT(at) = first + lane - n;
                GQ_AT(cid) = (w->scan + i) * 32u;
            }
        }
        n += gq_count_ones(bits);
    }
    GQ_FOR_LANES(lane)
    {
        GQ_AT(cid) = GQ_AT(mask) ? GQ_AT(cid) + gq_nth_one(GQ_AT(mask), GQ_AT(at)) : GQ_NO_CID;
    }
    return n;
}

/*
 * Posts the commands of pending words. As many commands as there are lanes are
 * posted at a time, each loaded by one lane.
 */
GQ_FN void gq_lead_post_pending(struct gq_sharer *w, const struct gq_lead_round *r, uint32_t words)
{
    uint32_t done = 0, n, some;

    do {
        GQ_LANE_VAR(uint32_t, cid);

        n = gq_lead_pick(w, r, words, done, cid);
        GQ_FOR_LANES(lane)
        {
            uint32_t own = GQ_AT(cid);

            if (own != GQ_NO_CID) {
                struct gq_cmd cmd = w->cmds[own];
                uint32_t posted = gq_lead_post(w, lane, &cmd, own);

                gq_atomic_set(&w->states[own], GQ_CID_POSTED | posted);
            }
        }
        some = n - done < w->group.lanes ? n - done : w->group.lanes;
        w->lead.in_flight += some;
        done += some;
    } while (done < n);
}

/*
 * Posts all pending commands and returns their number. The fence acquires the
 * stores of their owners.
 */
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
    if (words) {
        gq_fence_device();
        gq_lead_post_pending(w, r, words);
    }
    w->scan = w->scan + r->words < gq_cid_words(w) ? w->scan + r->words : 0;
    return w->lead.in_flight - before;
}

/*
 * Called inside a region by lane 0 after its fence: rings the doorbells for n
 * additional commands in flight.
 */
GQ_FN void gq_lead_ring(const struct gq_sharer *w, uint32_t n)
{
    uint32_t tail = w->lead.head + w->lead.in_flight + n;

    tail -= tail >= w->port.depth ? w->port.depth : 0;
    if (w->lead.cq_db_pending)
        gq_store_doorbell(w->port.cq_doorbell, w->lead.head);
    gq_store_doorbell(w->port.sq_doorbell, tail);
}

/* Called after posts, like gq_publish(). The fence also acquires for peeked CQEs. */
GQ_FN void gq_lead_publish(struct gq_sharer *w)
{
    gq_fence_entries();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_lead_ring(w, 0);
    }
    w->lead.cq_db_pending = 0;
    w->lead.rang = 0;
}

/* Rings only the CQ doorbell, like gq_ring_cq(). */
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

/* Posts only the group's own commands, without polling, on an idle queue. */
GQ_FN void gq_lead_start(struct gq_sharer *w)
{
    w->lead.in_flight += gq_lead_post_own(w);
    gq_lead_publish(w);
}

/*
 * Takes the further CQEs that are new. Called after gq_lead_publish(), whose
 * fence acquires for them.
 */
GQ_FN void gq_lead_take_further(struct gq_sharer *w, struct gq_lead_round *r)
{
    uint32_t n;

    r->peeked = r->further;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->dw3) = GQ_AT(r->next);
    }
    n = gq_lead_count(w, r);
    if (n)
        gq_lead_complete(w, r, n);
}

/*
 * Runs a round. Returns true if something was posted or completed. A broken
 * queue posts nothing.
 */
GQ_STEP bool gq_lead_run(struct gq_sharer *w)
{
    struct gq_lead_round r;
    uint32_t n, posted = 0;

    gq_lead_load(w, &r);
    n = gq_lead_count(w, &r);
    w->lead.full = n == w->group.lanes;
    if (n)
        gq_lead_complete(w, &r, n);
    if (!w->lead.broken)
        posted = gq_lead_post_all(w, &r);
    if (posted)
        gq_lead_publish(w);
    else if (w->lead.cq_db_pending && w->lead.in_flight &&
             (n == 0 || w->lead.cq_db_pending >= w->port.depth / 2))
        gq_lead_ring_cq(w);
    if (posted && w->lead.full && r.further)
        gq_lead_take_further(w, &r);
    if (n && w->lead.lost) /* some of them may have ended */
        w->lead.lost = GQ_SAME32(gq_atomic_load(&w->cids->lost));
    return n || posted;
}

#endif
