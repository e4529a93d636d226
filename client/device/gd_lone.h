/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A read by a warp that is one command for one page at most: the short path through a shared
 * queue (gd_shared.h). Words and locks are those of all reads. Left out are loops, and lanes with
 * reads of their own: instructions for them take 2 us, twice a trip over the bus.
 *
 *   gd_lone_claim    CID and lead, beside loads of the tables: one trip to memory of the GPU
 *   gd_lone_make     the command, from the tables
 *   gd_lone_keep     is it made, and are CID and lead the group's?
 *   gd_lone_post     in an idle queue: SQE, one fence, doorbells
 *   gd_lone_await    polls the CQE, and the words of pending commands
 *   gd_lone_publish  in another one: the command is handed to the leader
 *   gd_lone_watch    polls its state, and the lock
 *   gd_lone_take     the page is copied, the lead given up, the CID given back
 *
 * A lone warp executes an instruction in some four cycles, so these are few, with few branches. A
 * read that does not fit gives back the CID and the lead and takes the general path. A command that
 * fails or takes long goes there with its CID, as does a command of a group that has to lead the
 * queue for other groups.
 *
 * Every function is called by all lanes of a warp together.
 */
#ifndef CLIENT_DEVICE_GD_LONE_H
#define CLIENT_DEVICE_GD_LONE_H

#include "client/device/gd_shared_run.h"

#define GD_LONE_BYTES NVME_PAGE_SIZE
#define GD_LONE_TURNS 256u     /* polls of a state before deadline and leases: some 200 us */
static_assert(GQ_LANES == 1 || /* no warp: the header compiles, nothing calls it */
                  (GQ_LANES == GQ_CID_WORDS &&
                   GD_LONE_BYTES == GQ_LANES * sizeof(struct gq_page_part)),
              "a lane has a word of pending bits, and a part of the page");

struct gd_lone {
    uint64_t dst, offset, len;
    uint64_t staged;      /* where the bytes arrive, to be copied; 0: at dst */
    uint32_t cid, posted; /* and, of GQ_STAGE_HIDDEN, as posted */
    enum gq_stage stage;  /* in which the command goes on; GQ_STAGE_NONE: it is to begin */
};

/* Without branches: each of them takes a lone warp longer than all comparisons. */
GQ_FN bool gd_lone_suits(const struct gd_known *k, uint64_t dst, uint64_t len, uint64_t offset)
{
    uint32_t parts = ((uint32_t)(offset | len) & (k->lba_size - 1)) | ((uint32_t)dst & 3u);

    return (parts == 0) & (len - 1 < GD_LONE_BYTES) & (len == GD_LONE_BYTES || !k->stages_all) &
           (k->n_queues != 0) & (k->sums.words == NULL) & (k->n_extents - 1 < GQ_LANES);
}

/* The words of a claim, lane 0's. */
struct gd_lone_claim {
    GQ_LANE_MEMBER(uint32_t, taken); /* the word of the CID, before it */
    GQ_LANE_MEMBER(uint32_t, lock);  /* that of the lock, before it */
    GQ_LANE_MEMBER(uint32_t, lost);
};

/*
 * Claims the CID, and the lead unless another group has it. Nothing waits for the words yet. The
 * lock is taken by a relaxed operation, which lane 0's next fence, in front of the doorbell or of
 * the pending bit, makes an acquire. Until then the lane loads nothing that other leaders store,
 * and stores an SQE at most, to an entry that the lock's word shows as free.
 */
GQ_FN void gd_lone_claim(struct gd_share *s, uint32_t cid, struct gd_lone_claim *c)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(c->taken) = gq_atomic_or(&w->cids->taken[0], gq_cid_bit(cid));
            GQ_AT(c->lock) = gq_atomic_or(s->lock, GD_TAKEN);
            GQ_AT(c->lost) = gq_atomic_load(&w->cids->lost);
        }
    }
}

/* By lane 0: what the claim has got is given back. */
GQ_FN void gd_lone_unclaim(const struct gd_share *s, uint32_t cid, uint32_t taken, uint32_t lock)
{
    if (!(taken & gq_cid_bit(cid)))
        gq_release_cid(s->q.cids, cid);
    if (!(lock & GD_TAKEN))
        gd_unlock(s->lock, lock);
}

/*
 * Waits for the words. True: the group has the CID, and leads unless another group does. False: it
 * has nothing, because one of them is not to be had or is not wanted, or because the leases were
 * not checked lately.
 */
GQ_FN bool gd_lone_keep(struct gd_share *s, const struct gd_lone_claim *c, uint32_t cid,
                        const struct gd_times *t, bool wanted)
{
    struct gq_sharer *w = &s->q;
    uint32_t found;
    GQ_LANE_VAR(uint32_t, word);

    GQ_FOR_LANES(lane)
    {
        uint32_t taken = GQ_AT(c->taken), lock = GQ_AT(c->lock);
        uint32_t bad = GQ_AT(c->lost) | (lock & GD_LOST) | (taken & gq_cid_bit(cid));
        bool good = bad == 0 && wanted && gd_is_checked(GQ_AT(t->now), GQ_AT(t->checked));

        GQ_AT(word) = good ? lock : GD_LOST;
        if (lane == 0 && !good)
            gd_lone_unclaim(s, cid, taken, lock);
    }
    found = GQ_FROM32(word, 0);
    w->lead = gd_lead_of(found);
    s->leads = GD_LEADS(found);
    return (found & GD_LOST) == 0;
}

/* What each lane knows of the read by its entries of the tables. */
struct gd_lone_view {
    GQ_LANE_MEMBER(uint64_t, prp1);     /* if the read is in the lane's buffer */
    GQ_LANE_MEMBER(uint64_t, slba);     /* if it is in the lane's extent */
    GQ_LANE_MEMBER(uint32_t, holds);    /* the buffer does */
    GQ_LANE_MEMBER(uint32_t, contains); /* the extent does, and is no hole */
    GQ_LANE_MEMBER(uint32_t, stages);   /* the controller does not reach the buffer */
};

GQ_FN void gd_lone_look(const struct gq_sharer *w, const struct gd_known *k,
                        const struct gd_tables *t, const struct gd_lone *l, struct gd_lone_view *v)
{
    uint32_t shift = gq_prefix_ones(k->lba_size - 1);

    GQ_FOR_LANES(lane)
    {
        uint32_t next = lane + 1 < k->n_extents ? lane + 1 : lane;
        uint64_t from = GQ_AT(t->offset), to = GQ_FROM64(t->offset, next);
        uint64_t past = l->dst - GQ_AT(t->addr), len = GQ_AT(t->len);

        to = next == lane ? k->end : to;
        GQ_AT(v->prp1) = GQ_AT(t->iova) + GQ_AT(t->head) + past;
        GQ_AT(v->slba) = GQ_AT(t->lba) + ((l->offset - from) >> shift);
        /* In front of addr `past` is more than any len. */
        GQ_AT(v->holds) = past <= len && l->len <= len - past;
        GQ_AT(v->contains) = lane < k->n_extents && from <= l->offset && l->offset + l->len <= to &&
                             GQ_AT(t->lba) != GQ_LBA_ZERO;
        GQ_AT(v->stages) = GQ_AT(t->iova) == GD_UNREACHABLE;
    }
}

/* Whole pages are staged, to a multiple of 16, in the part of a CID that has one. */
GQ_FN bool gd_lone_may_stage(const struct gd_share *s, const struct gd_lone *l)
{
    const struct gd_staging *st = &s->staging;

    return l->len == GD_LONE_BYTES && l->len <= st->bytes && l->dst % 16 == 0 && l->cid < st->cids;
}

/*
 * False: the bytes are in no buffer of the first entries, or not in one extent, or a hole, or
 * cannot be staged. The IOVAs of buffers and of staging begin with a page, so PRP2 follows from
 * PRP1.
 */
GQ_FN bool gd_lone_make(const struct gd_share *s, const struct gd_known *k,
                        const struct gd_tables *t, struct gd_lone *l, struct gq_cmd *cmd)
{
    const struct gq_sharer *w = &s->q;
    const struct gd_staging *st = &s->staging;
    uint32_t holding, containing, staged;
    struct gd_lone_view v;
    uint64_t at;

    gd_lone_look(w, k, t, l, &v);
    holding = GQ_BALLOT(v.holds);
    containing = GQ_BALLOT(v.contains);
    staged = GQ_BALLOT(v.stages) & holding & (0u - holding); /* of the first buffer */
    if (!holding || !containing || (staged && !gd_lone_may_stage(s, l)))
        return false;
    at = ((uint64_t)s->queue * st->cids + l->cid) * st->bytes;
    cmd->slba = GQ_FROM64(v.slba, gq_prefix_ones(~containing));
    cmd->nlb = ((uint32_t)l->len >> gq_prefix_ones(k->lba_size - 1)) - 1;
    cmd->prp1 = st->iova + at;
    cmd->prp2 = 0;
    l->staged = staged ? st->base + at : 0;
    if (!staged) {
        cmd->prp1 = GQ_FROM64(v.prp1, gq_prefix_ones(~holding));
        cmd->prp2 = gq_prp2(0, 0, cmd->prp1, l->len);
    }
    return true;
}

/* By the leader of an idle queue. */
GQ_FN void gd_lone_post(struct gd_share *s, const struct gq_cmd *cmd, struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, posted);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(posted) = gq_lead_post(w, 0, cmd, l->cid);
    }
    l->posted = GQ_FROM32(posted, 0);
    w->lead.in_flight = 1;
    gq_lead_publish(w);
}

/* For the group that leads, or will. The fence is as in gq_publish_cmds(). */
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
 * True: the command has succeeded. The fence is as in gq_poll_cmds(). A queue without a leader, or
 * that is lost, is left to the general path.
 */
GQ_FN bool gd_lone_watch(const struct gd_share *s, uint32_t cid)
{
    const struct gq_sharer *w = &s->q;

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
    return false;
}

/*
 * True: the command has succeeded. Every lane acquires the CQE for its own loads of the page. A
 * command that has failed or takes long, and those of other groups, are left to the general path.
 */
GQ_FN bool gd_lone_await(const struct gd_share *s, uint32_t posted)
{
    const struct gq_sharer *w = &s->q;
    const struct nvme_cqe *cqe = &w->port.cq[w->lead.head];
    uint32_t success = w->lead.phase << 16 | posted;

#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (uint32_t i = 0; i < GD_TURNS; i++) {
        GQ_LANE_VAR(uint32_t, some);
        GQ_LANE_VAR(uint32_t, differs);

        GQ_FOR_LANES(lane)
        {
            uint32_t pending = gq_atomic_load(&w->cids->pending[lane]), dw3 = gq_load_cqe(cqe);

            GQ_AT(differs) = dw3 != success;
            GQ_AT(some) = pending || NVME_CQE_PHASE(dw3 >> 16) == w->lead.phase;
        }
        if (!GQ_BALLOT(differs))
            return true;
        if (GQ_BALLOT(some))
            return false;
        gd_idle();
    }
    return false;
}

/*
 * The group has its page. A leader unlocks the queue, in which nothing is in flight, so that its
 * last fence has ordered all of its stores.
 */
GQ_FN void gd_lone_unlock(struct gd_share *s)
{
    struct gq_sharer *w = &s->q;

    if (!s->leads)
        return;
    gq_lead_advance(w, 1);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_unlock_fenced(s->lock, gd_word_of(&w->lead));
    }
    s->leads = false;
}

GQ_FN void gd_lone_release(const struct gd_share *s, uint32_t cid)
{
    const struct gq_sharer *w = &s->q;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_release_cid(w->cids, cid);
    }
}

/*
 * Copies the page; the queue is unlocked while the loads are under way. The fence orders the loads
 * of staging before the CID is given back: its next owner's command writes there; the end of the
 * region in front orders the loads of all lanes before lane 0's fence. The fence stands before the
 * stores, which the CID does not depend on: the end of the last region orders them among the lanes,
 * and the application for other threads.
 */
GQ_FN void gd_lone_copy(struct gd_share *s, const struct gd_lone *l)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(struct gq_page_part, part);

    GQ_FOR_LANES(lane)
    {
        gq_load_page(l->staged, lane, &GQ_AT(part));
    }
    gd_lone_unlock(s);
    gq_fence_device_release();
    gd_lone_release(s, l->cid);
    GQ_FOR_LANES(lane)
    {
        gq_store_page(l->dst, lane, &GQ_AT(part));
    }
}

/* After the command. */
GQ_FN void gd_lone_take(struct gd_share *s, const struct gd_lone *l)
{
    if (l->staged) {
        gd_lone_copy(s, l);
        return;
    }
    gd_lone_unlock(s);
    gd_lone_release(s, l->cid);
}

/* Submits the command and awaits it: whether it has succeeded, and otherwise its stage. */
GQ_FN bool gd_lone_run(struct gd_share *s, const struct gq_cmd *cmd, struct gd_lone *l)
{
    if (s->leads && s->q.lead.in_flight == 0) {
        gd_lone_post(s, cmd, l);
        l->stage = GQ_STAGE_HIDDEN;
        return gd_lone_await(s, l->posted);
    }
    gd_lone_publish(s, cmd, l->cid);
    l->stage = GQ_STAGE_PUBLIC;
    return !s->leads && gd_lone_watch(s, l->cid);
}

/* After gd_share_open(), of a read that suits: whether it has ended. */
GQ_FN bool gd_lone_read(struct gd_share *s, const struct gd_known *k, struct gd_lone *l)
{
    struct gd_tables tables;
    struct gd_times times;
    struct gd_lone_claim claim;
    struct gq_cmd cmd;
    bool made;

    s->staging = k->staging;
    l->cid = s->seed % GD_STAGED_CIDS;
    gd_load_times(s, k, &times);
    gd_use_rings(s, k);
    gd_load_tables(s, k, &tables);
    gd_lone_claim(s, l->cid, &claim);
    made = gd_lone_make(s, k, &tables, l, &cmd);
    if (!gd_lone_keep(s, &claim, l->cid, &times, made))
        return false;
    gd_use_cids(s);
    if (!gd_lone_run(s, &cmd, l))
        return false;
    gd_lone_take(s, l);
    return true;
}

/* The command goes to the general path, as if lane 0 had prepared it. */
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

/* The group goes on with its command, in the queue; word: as for gd_read_on(). */
GQ_FN void gd_lone_resume(struct gd_share *s, const struct gd_known *k, const struct gd_lone *l,
                          uint32_t queue, uint32_t word)
{
    struct gd_times times;

    s->queue = queue;
    s->q.lead = gd_lead_of(word);
    s->leads = GD_LEADS(word);
    gd_load_times(s, k, &times);
    gd_use_queue(s, k);
    gd_lone_hand_on(s, l);
}

/*
 * The general path of a read, from its beginning or with a command: its bytes or -errno. The words
 * of the file are loaded once more, so that the short path has no registers for them. word: of the
 * lock, as the caller would release it, or GD_TAKEN.
 */
GQ_STEP int64_t gd_read_on(const struct gpunvme_device_file *file, const struct gd_lone *l,
                           uint32_t queue, uint32_t word)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = l->stage == GQ_STAGE_NONE ? gd_bytes_of(&k, l->len, l->offset) : l->len;
    struct gd_share share, *s = &share;
    int err;

    gd_share_open(s, gq_whole_group(), file, &k, len);
    if (l->stage != GQ_STAGE_NONE && k.n_queues == 0)
        return -ESTALE; /* as gd_end_all() */
    if (l->stage != GQ_STAGE_NONE) {
        gd_lone_resume(s, &k, l, queue, word);
    } else if (len) {
        gd_deal(s, k.max_command, l->dst, len, l->offset);
        gd_share_begin(s, &k);
    }
    gd_share_end(s);
    err = gd_first_error(s);
    return err ? err : (int64_t)len;
}

/* The same after gd_lone_read(). */
GQ_FN int64_t gd_lone_leave(const struct gd_share *s, const struct gd_lone *l)
{
    const struct gd_lone left = *l;

    return gd_read_on(s->file, &left, s->queue, s->leads ? gd_word_of(&s->q.lead) : GD_TAKEN);
}

/* A warp's read of n bytes, or of those before the end of the file: how many, or -errno. */
GQ_FN int64_t gd_read_warp(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                           uint64_t offset)
{
    struct gd_lone l = {.dst = dst, .offset = offset, .len = n, .stage = GQ_STAGE_NONE};
    struct gd_share s = {.file = file};

    if (n <= GD_LONE_BYTES) {
        const struct gd_known k = gd_load_known(file);

        l.len = gd_bytes_of(&k, n, offset);
        gd_share_open(&s, gq_whole_group(), file, &k, l.len);
        if (gd_lone_suits(&k, dst, l.len, offset) && gd_lone_read(&s, &k, &l))
            return (int64_t)l.len;
    }
    return gd_lone_leave(&s, &l);
}

#endif
