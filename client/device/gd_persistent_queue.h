/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The state of the persistent kernel's first warp (gd_persistent.h), and its queue: taken, given
 * up, and a command submitted to it.
 */
#ifndef CLIENT_DEVICE_GD_PERSISTENT_QUEUE_H
#define CLIENT_DEVICE_GD_PERSISTENT_QUEUE_H

#include "client/device/gd_service.h"
#include "client/device/gd_single.h"
#include "client/device/gd_timing.h"

/*
 * The longest time that the warp keeps a queue which other readers may wait for. The next queue
 * often belongs to another thread of a controller in software, which sleeps by then: one read waits
 * for it.
 */
#define GD_HOLD_NS    10000000u
#define GD_HOLD_LEAST 4u /* queues of a lease of which one is kept */

#ifdef __CUDACC__
typedef uint32_t gd_dword;
#else
typedef gq_dword gd_dword;
#endif

#define GD_PAGE_WARPS 2u /* copy a page together */

/* A page to copy; the first warp's, but between two meetings of the warps. */
struct gd_page_job {
    uint64_t dst, src; /* src 0: no page comes any more */
};

/* What warps of the block share. */
struct gd_persistent_shared {
    union gd_request request; /* of a read that is no command */
    struct gd_page_job job;
};

struct gd_persistent {
    const struct gd_service_launch *launch;
    struct gd_persistent_shared *shared;
    struct gd_reader *reader; /* owns the queue, if: */
    bool holds;
    struct gpunvme_device_file *file; /* the reader's: queues, and the leases of the last command */
    struct gq_single *single;         /* the last command; under way, if: */
    bool busy;
    uint32_t staged;              /* its bytes that are to be copied, */
    uint64_t dst;                 /* to this address */
    bool compares;                /* the block there, */
    uint64_t sum;                 /* to this word */
    uint32_t number;              /* its */
    uint32_t next;                /* that of the read which is waited for */
    uint64_t now_ns;              /* last reading of the clock */
    uint64_t since_ns, taken_ns;  /* then: the last command ended, the queue was taken */
    uint64_t until_ns;            /* when to leave, whatever comes */
    struct gd_timing read_timing; /* of the slot, after the end of a command */
    struct gd_timing page_timing; /* of the CQE of a page, after its doorbell */
    /* A lane's dword of the PRPs of two pages of the queue's staging; of lanes 6 to 9. */
    GQ_LANE_MEMBER(uint32_t, aim);
};

/* Stores the end of the read for the host. */
GQ_FN void gd_reply(const struct gd_persistent *t, int err)
{
    const struct gd_reader *w = t->reader;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_store_own_result((int64_t *)t->launch->answer, (int64_t)gd_answer(t->number, err));
    }
}

/*
 * The queue to the next, if it is the warp's: since lane 0 passed the fence in front of the last
 * doorbell, nothing was stored to it.
 */
GQ_FN void gd_let_go(struct gd_persistent *t)
{
    if (t->holds)
        gd_give_fenced(t->reader);
    t->holds = false;
}

/* Before a poll of a word: waits for the time of the first poll. */
GQ_FN void gd_persistent_time(const struct gd_persistent *t, struct gd_timing *timing)
{
    const struct gd_reader *w = t->reader;

    (void)w; /* on a host */
    while (GQ_SAME32(gd_timing_is_early(timing, gd_ticks())))
        gd_idle();
    gd_timing_poll(timing, gd_ticks());
}

/* After the report: is the queue kept for the next read? */
GQ_FN void gd_persistent_rest(struct gd_persistent *t)
{
    const struct gd_reader *w = t->reader;

    gd_timing_event(&t->read_timing, gd_ticks());
    t->busy = false;
    t->since_ns = t->now_ns;
    if (w->in_flight || w->outcome == GQ_OUT_BROKEN || t->file->set.n_queues < GD_HOLD_LEAST ||
        t->now_ns - t->taken_ns > GD_HOLD_NS)
        gd_let_go(t);
}

/* The staging of the warp's queue, for the controller. */
GQ_FN uint64_t gd_persistent_iova(const struct gd_persistent *t)
{
    const struct gd_set *set = &t->file->set;

    return set->staging.iova + gd_staging_of(set, t->reader->queue);
}

/*
 * Takes a queue and its position. The previous queue is tried last: a waiting reader has the time
 * of one failed try, a trip over the bus, to take it.
 */
GQ_FN int gd_persistent_take(struct gd_persistent *t)
{
    struct gd_reader *w = t->reader;
    int err = gd_take_from(w, w->queue + 1);

    t->holds = !err;
    t->taken_ns = t->now_ns;
    w->in_flight = 0;
    w->outcome = GQ_OUT_RUNNING;
    GQ_FOR_LANES(lane)
    {
        uint64_t page = lane < GD_REQUEST_PRP2 ? 0 : NVME_PAGE_SIZE;

        GQ_AT(t->aim) = (uint32_t)((gd_persistent_iova(t) + page) >> lane % 2 * 32);
    }
    return err;
}

/* Dwords of the command, a bit for each. */
#define GD_PRP1_DWORDS (3u << GD_REQUEST_PRP1)
#define GD_PRP2_DWORDS (3u << GD_REQUEST_PRP2)
/* With the request's own fields, where a read command has nothing. */
#define GD_OWN_DWORDS                                                                 \
    (3u << GD_REQUEST_LEASE | 3u << GD_REQUEST_CHECKED_NS | 1u << GD_REQUEST_STAGED | \
     3u << GD_REQUEST_DST)

/* Those that lanes have in `aim`: the PRPs of a staged command. */
GQ_FN uint32_t gd_aimed_dwords(const struct gd_persistent *t)
{
    return (t->staged ? GD_PRP1_DWORDS : 0) | (t->staged > NVME_PAGE_SIZE ? GD_PRP2_DWORDS : 0);
}

/* Those that are 0, unless they are aimed. */
GQ_FN uint32_t gd_empty_dwords(const struct gd_persistent *t)
{
    return GD_OWN_DWORDS | (t->staged || t->compares ? GD_PRP2_DWORDS : 0);
}

GQ_FN void gd_persistent_store(const struct gd_persistent *t, GQ_LANE_PARAM(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    const struct gq_single *s = t->single;
    gd_dword *sqe = (gd_dword *)(void *)&w->port.sq[s->at.entry];
    uint32_t aimed = gd_aimed_dwords(t), empty = gd_empty_dwords(t);

    GQ_FOR_LANES(lane)
    {
        uint32_t word = empty >> lane & 1 ? 0 : (uint32_t)GQ_AT(seen);

        if (aimed >> lane & 1)
            word = GQ_AT(t->aim);
        if (lane == 0)
            word |= gq_single_cid(s) << 16;
        if (lane < GD_REQUEST_WORDS)
            sqe[lane] = word;
        if (lane == 0)
            gq_single_ring_cq(s);
    }
}

/* Where the host, which waits for no report, finds the completion. */
GQ_FN void gd_tell_sent(const struct gd_persistent *t)
{
    const struct gq_single *s = t->single;

    if (!t->staged && !t->compares)
        gd_store_own_result((int64_t *)t->launch->sent,
                            (int64_t)gd_sent(t->number, t->reader->queue, s->at.entry,
                                             gq_single_cid(s), s->at.phase));
}

/*
 * Submits the command in `seen` to the warp's queue: 0, or -ESTALE when the leases have ended. The
 * word that reports the submission is stored after the doorbell without an order, because it is
 * complete in itself. The load of the last check of the leases overlaps the stores of the entry.
 */
GQ_FN int gd_persistent_send(struct gd_persistent *t, GQ_LANE_PARAM(uint64_t, seen))
{
    struct gd_reader *w = t->reader;
    struct gq_single *s = t->single;
    uint64_t checked;
    GQ_LANE_VAR(uint32_t, stale);

    s->at = w->position;
    checked = gd_load64(t->file->checked_ns);
    gd_persistent_store(t, seen);
    gq_single_start(s);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            gq_fence_entry();
            GQ_AT(stale) = gd_lease_ended(t->file, s->start_ns, checked);
            if (!GQ_AT(stale)) {
                gq_single_ring_sq(s);
                gd_tell_sent(t);
            }
        }
    }
    w->position.cq_db_pending = 0;
    return GQ_FROM32(stale, 0) ? -ESTALE : 0;
}

#endif
