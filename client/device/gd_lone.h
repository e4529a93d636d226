/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A read of one page by a warp that finds its queue idle, where data is staged: the shortest way
 * through a shared queue (gd_shared.h). Words and locks are those of all reads. Left out are loops,
 * and lanes with reads of their own: instructions for them take 2 us, twice a trip over the bus.
 *
 *   gd_lone_claim   CID and lead, and the tables are loaded, in one trip to memory of the GPU
 *   gd_lone_make    the command, from the loaded words
 *   gd_lone_post    SQE, one fence, doorbells
 *   gd_lone_await   looks at the CQE, and at the pending words, until one has something
 *   gd_lone_take    the lead is given up, the page copied, the CID given back
 *
 * A read that does not fit gives back the CID and the lead and goes the general way. A command
 * that fails, takes long, or is under way when another group submits becomes one of the leader's
 * own (GQ_STAGE_HIDDEN), and gd_share_end() goes on with it.
 *
 * Every function is called by all lanes of a warp together.
 */
#ifndef CLIENT_DEVICE_GD_LONE_H
#define CLIENT_DEVICE_GD_LONE_H

#include "client/device/gd_shared_run.h"

#define GD_LONE_BYTES NVME_PAGE_SIZE
static_assert(GQ_LANES == 1 || /* no warp: the header compiles, nothing calls it */
                  (GQ_LANES == GQ_CID_WORDS &&
                   GD_LONE_BYTES == GQ_LANES * sizeof(struct gq_page_part)),
              "a lane has a word of pending bits, and a part of the page");

struct gd_lone {
    uint32_t cid;
    uint64_t dst, offset;
    uint64_t staged; /* where the bytes arrive, to be copied; 0: at dst */
    struct gq_cmd cmd;
};

GQ_FN bool gd_lone_suits(const struct gd_known *k, uint64_t dst, uint64_t len, uint64_t offset)
{
    return len == GD_LONE_BYTES && k->stages_all && k->n_queues && !k->sums.words &&
           k->lba_size <= GD_LONE_BYTES && (offset & (k->lba_size - 1)) == 0 && dst % 16 == 0 &&
           k->n_extents - 1 < GQ_LANES;
}

/*
 * The CID and the lead of an idle queue, for a file whose leases were looked at lately: all of
 * them, or nothing is kept.
 */
GQ_FN bool gd_lone_claim(struct gd_share *s, const struct gd_times *t, uint32_t cid)
{
    struct gq_sharer *w = &s->q;
    uint32_t bit = gq_cid_bit(cid), *taken = &w->cids->taken[0];
    GQ_LANE_VAR(uint32_t, word);
    GQ_LANE_VAR(uint32_t, good);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t lost = gq_atomic_load(&w->cids->lost), old = gq_atomic_or(taken, bit);

            GQ_AT(word) = gd_take_lock(s->lock);
            GQ_AT(good) = GD_FREE(GQ_AT(word)) && !lost && !(old & bit) &&
                          GQ_AT(t->now) - GQ_AT(t->checked) < GD_CHECK_NS;
            if (!GQ_AT(good) && !(old & bit))
                gq_atomic_clear(taken, bit);
            if (!GQ_AT(good) && !(GQ_AT(word) & GD_TAKEN))
                gd_unlock(s->lock, GQ_AT(word));
        }
    }
    w->lead = gd_lead_of(GQ_FROM32(word, 0));
    s->leads = GQ_FROM32(good, 0) != 0;
    return s->leads;
}

/* After gd_lone_claim(), of a read that is not one command. */
GQ_FN void gd_lone_unclaim(struct gd_share *s, uint32_t cid)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_release_cid(w->cids, cid);
            gd_unlock(s->lock, gd_word_of(&w->lead));
        }
    }
    s->leads = false;
}

/* The address of the page for the command: in the buffer, or in the staging of the CID. */
GQ_FN void gd_lone_aim(const struct gd_share *s, struct gd_lone *l, uint64_t iova, uint64_t at)
{
    const struct gd_staging *st = &s->staging;

    l->staged = 0;
    if (iova == GD_UNREACHABLE) {
        iova = st->iova;
        at = ((uint64_t)s->queue * st->cids + l->cid) * st->bytes;
        l->staged = st->base + at;
    }
    l->cmd.prp1 = iova + at;
    l->cmd.prp2 = gq_prp2(iova, 0, at, GD_LONE_BYTES);
}

/* False: the page is in no buffer of the first entries, or not in one extent, or a hole. */
GQ_FN bool gd_lone_make(const struct gd_share *s, const struct gd_known *k,
                        const struct gd_tables *t, struct gd_lone *l)
{
    const struct gq_sharer *w = &s->q;
    uint32_t shift = gq_prefix_ones(k->lba_size - 1), holding, b, e;
    uint64_t from, lba, to;
    GQ_LANE_VAR(uint64_t, at);
    GQ_LANE_VAR(uint32_t, holds);
    GQ_LANE_VAR(uint32_t, before);

    GQ_FOR_LANES(lane)
    {
        uint64_t past = l->dst - GQ_AT(t->addr), len = GQ_AT(t->len);

        GQ_AT(at) = past + GQ_AT(t->head);
        GQ_AT(holds) = l->dst >= GQ_AT(t->addr) && past <= len && GD_LONE_BYTES <= len - past;
        GQ_AT(before) = lane < k->n_extents && GQ_AT(t->offset) <= l->offset;
    }
    holding = GQ_BALLOT(holds);
    e = gq_count_ones(GQ_BALLOT(before)); /* the first is at 0 */
    if (holding == 0 || e == 0)
        return false;
    b = gq_prefix_ones(~holding);
    from = GQ_FROM64(t->offset, e - 1);
    lba = GQ_FROM64(t->lba, e - 1);
    to = e < k->n_extents ? GQ_FROM64(t->offset, e) : k->end;
    if (lba == GQ_LBA_ZERO || to - l->offset < GD_LONE_BYTES)
        return false;
    l->cmd.slba = lba + ((l->offset - from) >> shift);
    l->cmd.nlb = (GD_LONE_BYTES >> shift) - 1;
    gd_lone_aim(s, l, GQ_FROM64(t->iova, b), GQ_FROM64(at, b));
    return true;
}

GQ_FN void gd_lone_post(struct gd_share *s, const struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_lead_post(w, 0, &l->cmd, l->cid);
    }
    w->lead.in_flight = 1;
    gq_lead_publish(w);
}

/*
 * True: the command has succeeded. The load of the CQE acquires, as in gq_lead_load(). The turns
 * are those of gd_step(): the next one looks after deadline and leases.
 */
GQ_FN bool gd_lone_await(struct gd_share *s, uint32_t cid)
{
    struct gq_sharer *w = &s->q;
    const struct nvme_cqe *cqe = &w->port.cq[w->lead.head];

    for (; s->turns < GD_TURNS - 1; s->turns++) {
        GQ_LANE_VAR(uint32_t, some);
        GQ_LANE_VAR(uint32_t, last);
        uint32_t dw3;

        GQ_FOR_LANES(lane)
        {
            GQ_AT(some) = gq_atomic_load(&w->cids->pending[lane]);
            if (lane == 0)
                GQ_AT(last) = gq_load_cqe(cqe);
        }
        dw3 = GQ_FROM32(last, 0);
        if (NVME_CQE_PHASE(dw3 >> 16) == w->lead.phase)
            return dw3 == (w->lead.phase << 16 | cid);
        if (GQ_BALLOT(some))
            return false;
        gd_idle();
    }
    return false;
}

/*
 * After the command. The fence orders the loads of staging before the CID is given back: its next
 * owner's command writes there; the end of the region in front orders the loads of all lanes before
 * lane 0's fence. The fence stands before the stores, which the CID does not depend on: the end
 * of the last region orders them among the lanes, and the application for other threads.
 */
GQ_FN void gd_lone_take(struct gd_share *s, const struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(struct gq_page_part, part);

    gq_lead_advance(w, 1);
    gd_stop_leading(s);
    if (l->staged) {
        GQ_FOR_LANES(lane)
        {
            gq_load_page(l->staged, lane, &GQ_AT(part));
        }
        gq_fence_device();
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_release_cid(w->cids, l->cid);
        if (l->staged)
            gq_store_page(l->dst, lane, &GQ_AT(part));
    }
}

/* The command becomes one of the leader's own, as if lane 0 had prepared it. */
GQ_FN void gd_lone_hand_on(struct gd_share *s, const struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        struct gd_part *p = &GQ_AT(s->part);

        p->dst = l->dst;
        p->offset = l->offset;
        if (lane == 0) {
            GQ_AT(w->mine).cid = l->cid;
            GQ_AT(w->mine).stage = GQ_STAGE_HIDDEN;
            p->left = GD_LONE_BYTES;
            gd_cut(p, GD_LONE_BYTES, l->staged);
        }
    }
}

enum gd_lone_end { GD_LONE_NOT, GD_LONE_POSTED, GD_LONE_DONE };

/* After gd_share_open(), of a read that suits. */
GQ_FN enum gd_lone_end gd_lone_read(struct gd_share *s, const struct gd_known *k, struct gd_lone *l)
{
    struct gd_tables tables;
    struct gd_times times;

    gd_load_times(s, k, &times);
    gd_use_queue(s, k);
    gd_load_tables(s, k, &tables);
    s->staging = k->staging;
    l->cid = s->seed % GD_STAGED_CIDS;
    if (!gd_lone_claim(s, &times, l->cid))
        return GD_LONE_NOT;
    if (!gd_lone_make(s, k, &tables, l)) {
        gd_lone_unclaim(s, l->cid);
        return GD_LONE_NOT;
    }
    gd_lone_post(s, l);
    if (!gd_lone_await(s, l->cid)) {
        gd_lone_hand_on(s, l);
        return GD_LONE_POSTED;
    }
    gd_lone_take(s, l);
    return GD_LONE_DONE;
}

/* A warp's read, len bytes that end before the file does: 0 or -errno. */
GQ_FN int gd_read_warp(struct gd_share *s, const struct gpunvme_device_file *file,
                       const struct gd_known *k, uint64_t dst, uint64_t len, uint64_t offset)
{
    struct gd_lone lone = {.dst = dst, .offset = offset};
    enum gd_lone_end end = GD_LONE_NOT;

    gd_share_open(s, gq_whole_group(), file, k, len);
    if (gd_lone_suits(k, dst, len, offset))
        end = gd_lone_read(s, k, &lone);
    if (end == GD_LONE_DONE)
        return 0;
    if (end == GD_LONE_NOT && len) {
        gd_deal(s, k->max_command, dst, len, offset);
        gd_share_begin(s, k);
    }
    gd_share_end(s);
    return gd_first_error(s);
}

#endif
