/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the short path of the shared queues (gd_shared.h). It serves a read by a warp that is
 * one command of at most a page. The path uses the words and locks of all reads, but has no loops
 * and no reads of single lanes. The instructions of both take 2 us, twice a trip over the bus.
 *
 *   gd_lone_claim    claims a CID and the lead while the tables are loaded, in one trip to memory
 *                    of the GPU
 *   gd_lone_move     claims a free queue if another group leads this one
 *   gd_lone_make     builds the command from the loaded words
 *   gd_lone_post     posts the command in an idle queue: SQE, one fence, doorbells
 *   gd_lone_await    polls the CQE, and the words of pending commands
 *   gd_lone_publish  hands the command to the leader of a queue that is in use
 *   gd_lone_watch    polls the state of that command, and the lock
 *   gd_lone_take     unlocks the queue, copies the bytes, and returns the CID
 *
 * A read that the short path cannot serve returns the CID and the lead and takes the general path.
 * A command that fails or takes long continues on the general path with its CID. So does a command
 * of a group that has to lead the queue for other groups.
 *
 * Every function is called by all lanes of a warp together.
 */
#ifndef CLIENT_DEVICE_GD_LONE_H
#define CLIENT_DEVICE_GD_LONE_H

#include "client/device/gd_shared_run.h"

#define GD_LONE_BYTES NVME_PAGE_SIZE
#define GD_LONE_TURNS 256u /* polls of a state before deadline and leases: some 200 us */
#define GD_LONE_TRIES 4u   /* of free queues, which other readers may take first */
/*
 * True if a warp copies any bytes out of staging. Kernels of few registers have
 * registers only for the load of a page, so they stage whole pages.
 */
#ifdef GPUNVME_DEVICE_SMALL
#define GD_LONE_COPIES_ANY 0
#else
#define GD_LONE_COPIES_ANY 1
#endif
static_assert(GQ_LANES == 1 || /* no warp: the header compiles, nothing calls it */
                  (GQ_LANES == GQ_CID_WORDS &&
                   GD_LONE_BYTES == GQ_LANES * sizeof(struct gq_page_part)),
              "a lane has a word of pending bits, and a part of the page");

struct gd_lone {
    uint64_t dst, offset, len;
    uint64_t staged;      /* address at which the bytes arrive, to be copied; 0: at dst */
    uint32_t cid, posted; /* and, of GQ_STAGE_HIDDEN, as posted */
    enum gq_stage stage;  /* in which the command goes on; GQ_STAGE_NONE: it is to begin */
    uint32_t unlocked;    /* of a leader: the lock's word after the completion */
};

/*
 * Has no branches, because one branch takes a lone warp longer than all of
 * these comparisons.
 */
GQ_FN bool gd_lone_suits(const struct gd_known *k, uint64_t len)
{
    return (len - 1 < GD_LONE_BYTES) & (k->n_queues != 0) & (k->sums.words == NULL) &
           (k->n_extents - 1 < GQ_LANES);
}

/*
 * Claims a CID, and the lead unless another group has it, for a file whose leases were checked
 * recently. Returns false, and keeps neither, if that fails.
 */
GQ_FN bool gd_lone_claim(struct gd_share *s, const struct gd_times *t, uint32_t cid)
{
    struct gq_sharer *w = &s->q;
    uint32_t bit = gq_cid_bit(cid), *taken = &w->cids->taken[0], found;
    GQ_LANE_VAR(uint32_t, word);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t lost = gq_atomic_load(&w->cids->lost), old = gq_atomic_or(taken, bit);
            uint32_t lock = gd_take_lock(s->lock), bad = lost | (old & bit) | (lock & GD_LOST);
            bool good = (bad == 0) & gd_is_checked(GQ_AT(t->now), GQ_AT(t->checked));

            GQ_AT(word) = good ? lock : GD_LOST;
            if (!good && !(old & bit))
                gq_atomic_clear(taken, bit);
            if (!good && !(lock & GD_TAKEN))
                gd_unlock(s->lock, lock);
        }
    }
    found = GQ_FROM32(word, 0);
    w->lead = gd_lead_of(found);
    s->leads = GD_LEADS(found);
    return (found & GD_LOST) == 0;
}

/* Undoes gd_lone_claim(). */
GQ_FN void gd_lone_unclaim(struct gd_share *s, uint32_t cid)
{
    struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_release_cid(w->cids, cid);
            if (s->leads)
                gd_unlock(s->lock, gd_word_of(&w->lead));
        }
    }
    s->leads = false;
}

/* Returns true if the bytes are a whole page at multiples of 16, which the lanes load at once. */
GQ_FN bool gd_lone_is_page(const struct gd_lone *l)
{
    return (l->len == GD_LONE_BYTES) & (((l->dst | l->staged) & 15) == 0);
}

/*
 * Sets the data pointer of a command for `cover` bytes, the first `lead` of which precede the read:
 * to the buffer, whose first page is at iova, or to the staging of the CID if the drive does not
 * reach the buffer or the read is not whole LBAs to a multiple of 4. Returns false if the CID has
 * no staging for them.
 */
GQ_FN bool gd_lone_aim(const struct gd_share *s, struct gd_lone *l, uint64_t iova, uint64_t at,
                       uint32_t lead, uint32_t cover, struct gq_cmd *cmd)
{
    const struct gd_staging *st = &s->staging;
    uint64_t place = ((uint64_t)s->queue * st->cids + l->cid) * st->bytes;
    bool stages = (iova == GD_UNREACHABLE) | (cover != l->len) | ((l->dst & 3u) != 0);

    l->staged = stages ? st->base + place + lead : 0;
    cmd->prp1 = stages ? st->iova + place : iova + at;
    cmd->prp2 = stages ? gq_prp2(st->iova, 0, place, cover) : gq_prp2(iova, 0, at, cover);
    return (!stages) |
           ((cover <= st->bytes) & (l->cid < st->cids) & (GD_LONE_COPIES_ANY | gd_lone_is_page(l)));
}

/*
 * Builds the command for all LBAs that the read touches. Returns false if the bytes are in no
 * buffer of the first entries, not in one extent, or in a hole.
 */
GQ_FN bool gd_lone_make(const struct gd_share *s, const struct gd_known *k,
                        const struct gd_tables *t, struct gd_lone *l, struct gq_cmd *cmd)
{
    const struct gq_sharer *w = &s->q;
    uint32_t shift = gq_prefix_ones(k->lba_size - 1), holding, extents, b, e, next;
    uint32_t lead = (uint32_t)l->offset & (k->lba_size - 1);
    uint32_t cover = (lead + (uint32_t)l->len + k->lba_size - 1) & ~(k->lba_size - 1);
    uint64_t lba, to;
    GQ_LANE_VAR(uint64_t, at);
    GQ_LANE_VAR(uint32_t, holds);
    GQ_LANE_VAR(uint32_t, before);

    GQ_FOR_LANES(lane)
    {
        uint64_t past = l->dst - GQ_AT(t->addr), len = GQ_AT(t->len);

        GQ_AT(at) = past + GQ_AT(t->head);
        /* If addr is before the buffer, `past` is more than any len. */
        GQ_AT(holds) = (past <= len) & (l->len <= len - past);
        GQ_AT(before) = (lane < k->n_extents) & (GQ_AT(t->offset) <= l->offset);
    }
    holding = GQ_BALLOT(holds);
    extents = gq_count_ones(GQ_BALLOT(before)); /* 1 at least: the first is at 0 */
    b = holding ? gq_prefix_ones(~holding) : 0;
    e = extents ? extents - 1 : 0;
    next = extents < k->n_extents ? extents : e;
    to = GQ_FROM64(t->offset, next);
    to = next == e ? k->end : to;
    lba = GQ_FROM64(t->lba, e);
    cmd->slba = lba + ((l->offset - lead - GQ_FROM64(t->offset, e)) >> shift);
    cmd->nlb = (cover >> shift) - 1;
    return (holding != 0) & (extents != 0) & (lba != GQ_LBA_ZERO) & (l->len <= to - l->offset) &
           gd_lone_aim(s, l, GQ_FROM64(t->iova, b), GQ_FROM64(at, b), lead, cover, cmd);
}

/*
 * Posts the command; called by the leader of an idle queue. Only lane 0 fences, because it has
 * stored the SQE and claimed the CID. The fence also acquires: the CID's former owner loaded its
 * staging before it released the CID, and the command may write there.
 */
GQ_FN void gd_lone_post(struct gd_share *s, const struct gq_cmd *cmd, struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    struct gq_lead posted;
    GQ_LANE_VAR(uint32_t, cid);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(cid) = gq_lead_post(w, 0, cmd, l->cid);
            gq_fence_entries();
            gq_lead_ring(w, 1);
        }
    }
    l->posted = GQ_FROM32(cid, 0);
    w->lead.in_flight = 1;
    w->lead.cq_db_pending = 0;
    w->lead.rang = 0;
    posted = w->lead;
    gq_lead_advance(w, 1);
    l->unlocked = gd_word_of(&w->lead);
    w->lead = posted;
}

/*
 * Publishes the command for the present or the next leader. The fence is that
 * of gq_publish_cmds().
 */
GQ_FN void gd_lone_publish(const struct gd_share *s, const struct gq_cmd *cmd, uint32_t cid)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            w->cmds[cid] = *cmd;
            gq_atomic_store(&w->states[cid], GQ_CID_PENDING);
            gq_fence_device();
            gq_atomic_set(&w->cids->pending[0], gq_cid_bit(cid));
        }
    }
}

/*
 * Returns true if the command has succeeded. The fence is that of gq_poll_cmds(). A queue that has
 * no leader or is lost is left to the general path.
 */
GQ_FN bool gd_lone_watch(struct gd_share *s, uint32_t cid)
{
    struct gq_sharer *w = &s->q;

#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t i = 0; i < GD_LONE_TURNS; i++) {
        GQ_LANE_VAR(uint32_t, state);
        GQ_LANE_VAR(uint32_t, word);
        uint32_t found;

        GQ_FOR_LANES(lane)
        {
            if (lane == 0) {
                GQ_AT(state) = gq_atomic_load(&w->states[cid]);
                GQ_AT(word) = gd_load32(s->lock);
            }
        }
        found = GQ_FROM32(state, 0);
        if (found & GQ_ENDED) {
            gq_fence_device();
            return found == GQ_ENDED;
        }
        found = GQ_FROM32(word, 0);
        if (!(found & GD_TAKEN) || (found & GD_LOST))
            return false;
        gd_rest();
    }
    s->turns = GD_TURNS - 1;
    return false;
}

/*
 * Returns true if the command has succeeded. The load of the CQE acquires, like that of
 * gq_lead_load(). The turns are those of gd_step(): the next one checks deadline and leases.
 */
GQ_FN bool gd_lone_await(struct gd_share *s, const struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    const struct nvme_cqe *cqe = &w->port.cq[w->lead.head];

#ifdef __CUDACC__
#pragma unroll 1
#endif
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
            return dw3 == (w->lead.phase << 16 | l->posted);
        if (GQ_BALLOT(some))
            return false;
        gd_idle();
    }
    return false;
}

/*
 * Called by a leader. Unlocks the queue, in which nothing is in flight: its
 * last fence has ordered its stores except those to doorbells, which have
 * arrived as the completion shows. The loads of the page come afterwards,
 * because a fence behind them takes 2,500 clocks instead of 600 while a store
 * is under way.
 */
GQ_FN void gd_lone_unlock(struct gd_share *s, const struct gd_lone *l)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && s->leads)
            gd_unlock_fenced(s->lock, l->unlocked);
    }
}

/*
 * Called after the command. The fence orders the loads of staging before the
 * release of the CID, because the command of its next owner writes there. The
 * end of the previous region orders the loads of all lanes before lane 0's
 * fence. The fence stands before the stores, which do not depend on the CID:
 * the end of the last region orders them among the lanes, and the application
 * orders them for other threads.
 */
GQ_FN void gd_lone_take(struct gd_share *s, struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    bool whole = !GD_LONE_COPIES_ANY || gd_lone_is_page(l);
    GQ_LANE_VAR(struct gq_page_part, part);

    gd_lone_unlock(s, l);
    if (l->staged) {
        GQ_FOR_LANES(lane)
        {
            if (whole)
                gq_load_page(l->staged, lane, &GQ_AT(part));
            else
                gq_copy_any(l->dst, l->staged, (uint32_t)l->len);
        }
        gq_fence_device();
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_release_cid(w->cids, l->cid);
        if (l->staged && whole)
            gq_store_page(l->dst, lane, &GQ_AT(part));
    }
    s->leads = false;
}

/*
 * Submits the command and waits for it. Returns true if it has succeeded;
 * otherwise l->stage is set.
 */
GQ_FN bool gd_lone_run(struct gd_share *s, const struct gq_cmd *cmd, struct gd_lone *l)
{
    if (s->leads && s->q.lead.in_flight == 0) {
        gd_lone_post(s, cmd, l);
        l->stage = GQ_STAGE_HIDDEN;
        return gd_lone_await(s, l);
    }
    gd_lone_publish(s, cmd, l->cid);
    l->stage = GQ_STAGE_PUBLIC;
    return !s->leads && gd_lone_watch(s, l->cid);
}

#ifdef GPUNVME_DEVICE_SMALL

/* Kernels of few registers have many warps, which share queues anyway. */
GQ_FN bool gd_lone_move(struct gd_share *s, const struct gd_known *k, const struct gd_times *t,
                        uint32_t cid)
{
    (void)s;
    (void)k;
    (void)t;
    (void)cid;
    return true;
}

#else

/*
 * Returns a queue that no group has, from the reader's on, or n_queues. Also looks at the queues
 * that are not shared, because a reader of one command keeps a queue no longer than readers that
 * need one for themselves do.
 */
GQ_FN uint32_t gd_lone_find(const struct gd_share *s, const struct gd_known *k)
{
    const struct gq_sharer *w = &s->q;
    uint32_t turn = s->queue & (GQ_LANES - 1), mask;
    GQ_LANE_VAR(uint32_t, is_free);

    GQ_FOR_LANES(lane)
    {
        uint32_t at = (lane + turn) & (GQ_LANES - 1);

        GQ_AT(is_free) = at < k->n_queues && GD_FREE(gd_load32(&k->locks[at]));
    }
    mask = GQ_BALLOT(is_free);
    return mask ? (gq_prefix_ones(~mask) + turn) & (GQ_LANES - 1) : k->n_queues;
}

/*
 * Called after a claim in a queue that another group leads. Claims a free queue
 * instead, or, if there is none, the former one again. Returns false if the
 * read takes the general path.
 */
GQ_FN bool gd_lone_move(struct gd_share *s, const struct gd_known *k, const struct gd_times *t,
                        uint32_t cid)
{
    uint32_t own = s->queue;

#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t tries = 0; !s->leads; tries++) {
        uint32_t next = tries < GD_LONE_TRIES ? gd_lone_find(s, k) : own;

        next = next < k->n_queues ? next : own;
        if (next == own && s->queue == own)
            return true;
        gd_lone_unclaim(s, cid);
        s->queue = next;
        gd_use_rings(s, k);
        if (!gd_lone_claim(s, t, cid)) {
            s->queue = own;
            return false;
        }
    }
    return true;
}

#endif

/* Called after gd_share_open() for a read that suits. Returns true if the read has ended. */
GQ_FN bool gd_lone_read(struct gd_share *s, const struct gd_known *k, struct gd_lone *l)
{
    struct gd_tables tables;
    struct gd_times times;
    struct gq_cmd cmd;

    gd_load_times(s, k, &times);
    gd_use_rings(s, k);
    gd_load_tables(s, k, &tables);
    s->staging = k->staging;
    l->cid = s->seed % GD_STAGED_CIDS;
    if (!gd_lone_claim(s, &times, l->cid) || (!s->leads && !gd_lone_move(s, k, &times, l->cid))) {
        s->has_queue = false;
        return false;
    }
    gd_use_cids(s);
    if (!gd_lone_make(s, k, &tables, l, &cmd)) {
        gd_lone_unclaim(s, l->cid);
        return false;
    }
    if (!gd_lone_run(s, &cmd, l))
        return false;
    gd_lone_take(s, l);
    return true;
}

/* The command continues on the general path, as if lane 0 had prepared it. */
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
            GQ_AT(w->mine).stage = l->stage;
            GQ_AT(w->mine).status = l->posted;
            p->left = l->len;
            gd_cut(p, l->len, l->staged);
        }
    }
}

/*
 * Runs a read on the general path, from its beginning or with its command. Returns 0 or -errno.
 */
GQ_FN int gd_read_on(struct gd_share *s, const struct gd_known *k, const struct gd_lone *l)
{
    if (l->stage != GQ_STAGE_NONE) {
        gd_lone_hand_on(s, l);
    } else if (l->len) {
        gd_deal(s, k->most, l->dst, l->len, l->offset);
        gd_share_begin(s, k);
    }
    gd_share_end(s);
    return gd_first_error(s);
}

#ifdef GPUNVME_DEVICE_SMALL

/*
 * Runs a read on the general path for a caller whose words remain in registers:
 * all of them are loaded once more. `word` is the word of the lock as the caller would release
 * it, or GD_TAKEN.
 */
GQ_STEP int gd_read_anew(const struct gpunvme_device_file *file, const struct gd_lone *l,
                         uint32_t queue, uint32_t word)
{
    const struct gd_known k = gd_load_known(file);
    struct gd_share share, *s = &share;
    struct gd_times times;

    gd_share_open(s, gq_whole_group(), file, &k, l->len);
    if (l->stage != GQ_STAGE_NONE) {
        s->queue = queue;
        s->q.lead = gd_lead_of(word);
        s->leads = GD_LEADS(word);
        gd_load_times(s, &k, &times);
        gd_use_queue(s, &k);
    }
    return gd_read_on(s, &k, l);
}

GQ_FN int gd_lone_leave(const struct gd_share *s, const struct gd_known *k, const struct gd_lone *l)
{
    const struct gd_lone left = *l;

    (void)k;
    return gd_read_anew(s->file, &left, s->queue, s->leads ? gd_word_of(&s->q.lead) : GD_TAKEN);
}

#else
#define gd_lone_leave gd_read_on
#endif

/* Reads len bytes, which end before the file does, by a warp. Returns 0 or -errno. */
GQ_FN int gd_read_warp(struct gd_share *s, const struct gpunvme_device_file *file,
                       const struct gd_known *k, uint64_t dst, uint64_t len, uint64_t offset)
{
    struct gd_lone l = {.dst = dst, .offset = offset, .len = len, .stage = GQ_STAGE_NONE};

    gd_share_open(s, gq_whole_group(), file, k, len);
    if (gd_lone_suits(k, len) && gd_lone_read(s, k, &l))
        return 0;
    return gd_lone_leave(s, k, &l);
}

/* Reads n bytes by a warp, fewer at the end of the file. Returns bytes or -errno. */
GQ_FN int64_t gd_shared_pread_warp(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                                   uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;
    struct gd_share s;
    int err = gd_read_warp(&s, file, &k, dst, len, offset);

    return err ? err : (int64_t)len;
}

#endif
