/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads that stand for warps over shared queues. */
#define GQ_LANES 32u
#include "client/device/gd_lone.h"
#include "client/device/gd_shared_list.h"

#include <stdlib.h>

#include "tests/client/lib/direct_rig.h"

struct shared_ticket {
    struct gpunvme_ticket ticket;
    uint64_t len;
};

int64_t shared_read_warp(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                         uint64_t offset)
{
    return gd_shared_pread_warp(f, dst, len, offset);
}

int shared_read_list(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n)
{
    return gd_shared_preadv_warp(f, dst, list, n);
}

enum shared_path shared_read_lone(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                                  uint64_t offset, int *result)
{
    const struct gd_known k = gd_load_known(f);
    struct gd_lone l = {.dst = dst, .offset = offset, .len = len};
    struct gd_share s;

    *result = 0;
    gd_share_open(&s, gq_whole_group(), f, &k, len);
    if (gd_lone_suits(&k, len) && gd_lone_read(&s, &k, &l))
        return SHARED_LONE;
    if (l.stage == GQ_STAGE_NONE)
        return SHARED_OTHER;
    *result = gd_lone_leave(&s, &k, &l);
    return SHARED_HANDED_ON;
}

void shared_read_lanes(const struct gpunvme_device_file *f, struct shared_read *reads)
{
    const struct gd_known k = gd_load_known(f);
    struct gd_share s;

    gd_share_open(&s, gq_whole_group(), f, &k, reads[0].len);
    for (uint32_t i = 0; i < SHARED_LANES; i++) {
        s.part[i].dst = reads[i].dst;
        s.part[i].offset = reads[i].offset;
        s.part[i].left = gq_read_bytes(&f->map, reads[i].offset, reads[i].len);
        reads[i].result = (int64_t)s.part[i].left;
    }
    gd_share_begin(&s, &k);
    gd_share_end(&s);
    for (uint32_t i = 0; i < SHARED_LANES; i++)
        reads[i].result = s.part[i].err ? s.part[i].err : reads[i].result;
}

uint32_t shared_claim(const struct gpunvme_device_file *f, uint32_t lanes, uint32_t tries)
{
    const struct gd_known k = gd_load_known(f);
    struct gd_share s;
    uint32_t word, got;

    gd_share_open(&s, gq_whole_group(), f, &k, SHARED_LANES);
    gd_use_queue(&s, &k);
    s.tries = tries;
    got = gd_claim(&s, lanes < 32 ? (1u << lanes) - 1u : UINT32_MAX, &word);
    for (uint32_t left = got; left;)
        gq_release_cid(s.q.cids, word * 32u + gq_take_one(&left));
    if (s.leads)
        gd_stop_leading(&s);
    return gq_count_ones(got);
}

uint32_t shared_place(uint32_t n, uint32_t inverse, uint32_t *seed)
{
    struct gd_share s = {.seed = *seed};

    gd_share_place(&s, n, inverse);
    *seed = s.seed;
    return s.queue;
}

uint32_t shared_word_after_late_completion(bool second, bool *released)
{
    enum { LOST_CID, LIVE_CID, CIDS, DEPTH, NUMBER }; /* NUMBER: 1 in the upper bits of a CID */
    static uint32_t doorbells[2];
    struct gq_cmd cmds[CIDS] = {{0}};
    uint32_t before = LOST_CID + NUMBER, lost = before + NUMBER;
    uint32_t states[CIDS] = {
        [LOST_CID] = GQ_CID_LEFT | GQ_CID_POSTED | lost, [LIVE_CID] = GQ_CID_POSTED | LIVE_CID};
    struct gq_cids cids = {.taken = {3}, .lost = 1, .n_cids = CIDS};
    struct nvme_sqe sq[DEPTH] = {{0}};
    struct nvme_cqe cq[DEPTH] = {{.cid = (uint16_t)(second ? before : lost), .status = 1}};
    struct gq_sharer w = {.group = gq_whole_group(),
                          .cids = &cids,
                          .cmds = cmds,
                          .states = states,
                          .n_cids = CIDS,
                          .port = {.sq = sq,
                                   .cq = cq,
                                   .sq_doorbell = &doorbells[0],
                                   .cq_doorbell = &doorbells[1],
                                   .depth = DEPTH},
                          .lead = {.phase = 1, .in_flight = 2}};

    (void)gq_lead_run(&w);
    *released = !(cids.taken[0] & 1u << LOST_CID);
    return gd_word_of(&w.lead);
}

void shared_lead(struct shared_queue *q, unsigned rounds, void (*before)(struct shared_queue *q))
{
    struct gq_sharer w = {.group = gq_whole_group(),
                          .cids = &q->cids,
                          .cmds = q->cmds,
                          .states = q->states,
                          .n_cids = SHARED_DEPTH - 1,
                          .port = {.sq = q->sq,
                                   .cq = q->cq,
                                   .sq_doorbell = &q->doorbells[0],
                                   .cq_doorbell = &q->doorbells[1],
                                   .depth = SHARED_DEPTH},
                          .lead = {.phase = 1, .in_flight = q->in_flight}};

    for (uint32_t i = 0; i < q->in_flight; i++)
        q->states[i] = i < q->own ? 0 : GQ_CID_POSTED | i;
    for (uint32_t i = 0; i < q->own; i++)
        w.mine[i] = (struct gq_mine){i, GQ_STAGE_HIDDEN, i};
    for (unsigned i = 0; i < rounds; i++) {
        before(q);
        (void)gq_lead_run(&w);
    }
    q->in_flight = w.lead.in_flight;
    q->head = w.lead.head;
    q->broken = w.lead.broken != 0;
    for (uint32_t i = 0; i < q->own; i++)
        q->ended |= (uint32_t)(w.mine[i].stage == GQ_STAGE_ENDED) << i;
}

struct shared_ticket *shared_begin(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                                   uint64_t offset)
{
    struct shared_ticket *t = calloc(1, sizeof(*t));
    struct gd_share s;

    if (t) {
        t->len = gd_begin_warp(&s, f, dst, len, offset, true);
        gd_share_leave(&s);
        gd_make_ticket(&s, &t->ticket);
    }
    return t;
}

int64_t shared_end(struct shared_ticket *t)
{
    struct gd_share s;

    gd_resume(&s, gq_whole_group(), &t->ticket, t->len);
    int err = gd_first_error(&s);
    int64_t result = err ? err : (int64_t)t->len;
    free(t);
    return result;
}
