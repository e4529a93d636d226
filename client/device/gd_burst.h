/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads by the short path of the shared queues (gd_shared.h). Each lane has one read, which is one
 * command into the staging of a CID. The group posts all commands at once in a queue in which
 * nothing is in flight. The bytes stay in the staging, from which the caller copies them:
 *
 *   gd_burst_begin    begins to claim a queue, and for each lane the CID that has its number
 *   gd_burst_claim    ends that; the caller does other work meanwhile
 *   gd_burst_read     makes and posts the commands, and polls their CQEs
 *   gd_burst_unlock   releases the queue
 *   gd_burst_release  releases the CIDs after the caller has copied the bytes
 *
 * Reads that do not fit, and those of a command that fails or takes long, end on the general path
 * (gd_burst_end).
 *
 * Every function is called by all lanes of a warp together.
 */
#ifndef CLIENT_DEVICE_GD_BURST_H
#define CLIENT_DEVICE_GD_BURST_H

#include "client/device/gd_shared_run.h"

/* Keeps the compiler from unrolling a loop, whose instructions would take time to load. */
#ifdef __CUDACC__
#define GD_ROLLED _Pragma("unroll 1")
#else
#define GD_ROLLED
#endif

/* Describes what a group has claimed. Lane 0 has found the last three words. */
struct gd_burst {
    struct gq_cids *cids; /* of the queue */
    uint32_t of;          /* bits of the CIDs that the group has claimed */
    uint32_t own;         /* a queue that is shared, for the general path */
    struct gd_times times;
    struct gd_tables tables; /* of s->file */
    GQ_LANE_MEMBER(uint32_t, lost);
    GQ_LANE_MEMBER(uint32_t, taken);
    GQ_LANE_MEMBER(uint32_t, lock);
};

/*
 * Called after gd_share_open(). Begins to claim the queue with this number, and the CIDs of the
 * lanes in `of`, unless the file's reads have to take the general path. Waits for no word.
 */
GQ_FN void gd_burst_begin(struct gd_share *s, const struct gd_known *k, struct gd_burst *b,
                          uint32_t queue, uint32_t of)
{
    struct gq_sharer *w = &s->q;

    b->of = 0;
    b->own = s->queue;
    if (s->n_shared == 0 || k->n_extents == 0 || k->sums.words)
        return;
    s->queue = queue % k->n_queues;
    gd_load_times(s, k, &b->times);
    gd_use_queue(s, k);
    gd_load_tables(s, k, &b->tables);
    s->staging = k->staging;
    b->cids = w->cids;
    b->of = of;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(b->lost) = gq_atomic_load(&w->cids->lost);
            GQ_AT(b->taken) = gq_atomic_or(&w->cids->taken[0], of);
            GQ_AT(b->lock) = gd_take_lock(s->lock);
        }
    }
}

/*
 * Ends the claim. Keeps nothing if other groups have commands in the queue or one of the CIDs, or
 * the leases have ended.
 */
GQ_FN void gd_burst_claim(struct gd_share *s, struct gd_burst *b)
{
    struct gq_sharer *w = &s->q;
    uint32_t found;
    GQ_LANE_VAR(uint32_t, word);

    if (!b->of)
        return;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t lock = GQ_AT(b->lock), bad = GQ_AT(b->lost) | (GQ_AT(b->taken) & b->of);
            bool good =
                !(bad | (lock & GD_BUSY)) &&
                !gd_shared_lease_ended(s->file, GQ_AT(b->times.now), GQ_AT(b->times.checked));

            GQ_AT(word) = good ? lock : GD_LOST;
            if (!good)
                gq_atomic_clear(&b->cids->taken[0], b->of & ~GQ_AT(b->taken));
            if (!good && !(lock & GD_TAKEN))
                gd_unlock(s->lock, lock);
        }
    }
    found = GQ_FROM32(word, 0);
    w->lead = gd_lead_of(found);
    s->leads = (found & GD_LOST) == 0;
    b->of = s->leads ? b->of : 0;
}

/* Called after the fence that orders the loads from the staging, as in gd_lone_take(). */
GQ_FN void gd_burst_release(const struct gd_share *s, struct gd_burst *b, uint32_t of)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && of)
            gq_atomic_clear(&b->cids->taken[0], of);
    }
    b->of &= ~of;
}

/*
 * Releases the queue, in which nothing is in flight. The store of the lock is that of
 * gd_lone_unlock().
 */
GQ_FN void gd_burst_unlock(struct gd_share *s)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock_fenced(s->lock, gd_word_of(&w->lead));
    }
    s->leads = false;
}

/*
 * Continues with reads of another file of the same leases. Its first read takes the general path if
 * its leases have ended.
 */
GQ_FN void gd_burst_change_file(struct gd_share *s, const struct gd_known *k, struct gd_burst *b,
                                const struct gpunvme_device_file *file)
{
    const struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, ended);

    s->file = file;
    s->sums = k->sums;
    gd_load_times(s, k, &b->times);
    gd_load_tables(s, k, &b->tables);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(ended) =
                gd_shared_lease_ended(file, GQ_AT(b->times.now), GQ_AT(b->times.checked));
    }
    if (s->leads && (GQ_FROM32(ended, 0) || k->n_extents == 0 || k->sums.words))
        gd_burst_unlock(s);
}

/*
 * Builds the commands of the lanes in `of`. Builds no command and returns false if a read is not in
 * one extent, in a hole, or longer than the staging of its CID.
 */
GQ_FN bool gd_burst_make(struct gd_share *s, const struct gd_known *k, const struct gd_tables *t,
                         uint32_t of)
{
    struct gq_sharer *w = &s->q;
    const struct gd_staging *st = &s->staging;
    GQ_LANE_VAR(struct gq_cursor, cur);
    GQ_LANE_VAR(uint32_t, fits);

    gd_find_extents(s, k, t, cur);
    GQ_FOR_LANES(lane)
    {
        const struct gd_part *p = &GQ_AT(s->part);
        uint32_t lead = (uint32_t)p->offset & (k->grain - 1);

        GQ_AT(fits) = GQ_AT(cur).lba != GQ_LBA_ZERO && p->left <= GQ_AT(cur).to - p->offset &&
                      p->left + lead <= st->bytes && lane < st->cids;
    }
    if (of & ~GQ_BALLOT(fits))
        return false;
    GQ_FOR_LANES(lane)
    {
        struct gd_part *p = &GQ_AT(s->part);
        const struct gq_cursor *c = &GQ_AT(cur);
        uint64_t first = p->offset - (p->offset & (k->grain - 1)) - c->from;

        if (of >> lane & 1u) {
            GQ_AT(w->cmd).slba = c->lba + (first >> gq_prefix_ones(k->lba_size - 1));
            GQ_AT(w->mine).cid = lane;
            GQ_AT(w->mine).stage = GQ_STAGE_READY;
            gd_make_staged(s, k, p, &GQ_AT(w->cmd), lane, p->left);
        }
    }
    return true;
}

/*
 * Posts the commands. Like in gd_lone_post(), only lane 0 fences: the end of the region before
 * orders the stores of all lanes.
 */
GQ_FN void gd_burst_post(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    w->lead.in_flight = gq_lead_post_own(w);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_fence_entries();
            gq_lead_ring(w, 0);
        }
    }
    w->lead.cq_db_pending = 0;
}

/*
 * Returns true if all commands have succeeded. The load of the CQE acquires, like that of
 * gq_lead_load(). The turns are those of gd_step(): the next one checks deadlines and leases.
 */
GQ_FN bool gd_burst_await(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;
    struct gq_lead_round r = {0};
    uint32_t n = 0;
    GQ_LANE_VAR(uint32_t, failed);

    r.peeked = w->lead.in_flight;
    GD_ROLLED
    for (s->turns = 0; n < r.peeked && s->turns < GD_TURNS - 1; s->turns++) {
        gd_idle();
        GQ_FOR_LANES(lane)
        {
            GQ_AT(r.dw3) = lane < r.peeked ? gq_load_cqe(gq_lead_cqe(w, lane)) : 0;
        }
        n = gq_lead_count(w, &r);
    }
    if (n < r.peeked)
        return false;
    w->lead.broken |= gq_lead_keep(w, &r, n) != gq_some_bits(n, 0);
    gq_lead_advance(w, n);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(failed) = w->lead.broken | GQ_AT(w->mine).status;
    }
    return !GQ_BALLOT(failed);
}

/*
 * Reads the parts of the lanes in `of`, at least one, if the group has the queue and the CIDs.
 * Returns true if the bytes of each lane are at its part's `staged`. Otherwise the parts end by
 * gd_burst_end().
 */
GQ_FN bool gd_burst_read(struct gd_share *s, const struct gd_known *k, const struct gd_burst *b,
                         uint32_t of)
{
    struct gq_sharer *w = &s->q;

    if (!s->leads || (of & ~b->of) || !gd_burst_make(s, k, &b->tables, of))
        return false;
    gd_burst_post(s);
    if (!gd_burst_await(s))
        return false;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(w->mine).stage = GQ_STAGE_NONE;
    }
    return true;
}

/*
 * Ends the parts on the general path, which releases the CIDs of commands that were posted. All
 * other CIDs are released at once, because the general path may wait for some.
 */
GQ_FN void gd_burst_end(struct gd_share *s, const struct gd_known *k, struct gd_burst *b)
{
    uint32_t used = gd_active(s);

    gq_fence_device();
    gd_burst_release(s, b, b->of & ~used);
    b->of = 0;
    if (s->leads && !used)
        gd_burst_unlock(s);
    if (gd_wanting(s)) {
        s->queue = b->own;
        s->has_queue = false;
        gd_share_begin(s, k);
    }
    gd_share_end(s);
}

#endif
