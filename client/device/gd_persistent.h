/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first warp of the persistent kernel's block, for a series of reads of one command each. The
 * host has made the command; the warp stores it to the ring as received, rings the doorbell, and
 * polls its completion and the next read together, in one trip over the bus. Every function is
 * called by all lanes together; variables are the same for all.
 *
 * The warp keeps its queue between reads for at most GD_HOLD_NS, and only in leases of
 * GD_HOLD_LEAST queues or more, so that other readers find one. Of files the warp keeps nothing:
 * each command carries the state word of its extents' lease. The leases are checked at most
 * GD_CHECK_NS before the doorbell, as for all reads (gd_queue.h).
 *
 * The host receives the address of the completion and polls it as well, so it does not wait for the
 * warp's report. The warp therefore reads no data, and once a completion may be present it touches
 * nothing of the file, which may be closed already. Of a staged command the host waits for the
 * report: the warp copies the bytes before. So it does of one that is compared: a block that
 * differs is the host's to read by the general path.
 */
#ifndef CLIENT_DEVICE_GD_PERSISTENT_H
#define CLIENT_DEVICE_GD_PERSISTENT_H

#include "client/device/gd_service.h"
#include "client/device/gd_single.h"

#define GD_PERSISTENT_NS 200000u /* without a read, and the block leaves */
#define GD_SERVE_NS \
    100000000u /* with reads that come without a pause, likewise: see gd_persistent() */
/*
 * The longest time that the warp keeps a queue which other readers may wait for. The next queue
 * mostly belongs to another thread of the simulated controller, which sleeps by then, as does the
 * copy kernel behind it: one read waits for both.
 */
#define GD_HOLD_NS    10000000u
#define GD_HOLD_LEAST 4u /* queues of a lease of which one is kept */
#define GD_CLOCK_LOOKS \
    8u /* one poll of so many reads the clock, which may take longer than the poll */

/* The result of a poll, a bit for each lane: the words of the next read, and: */
#define GD_SEEN_READ      ((1u << GD_REQUEST_WORDS) - 1u)
#define GD_SEEN_COMPLETED (1u << GD_REQUEST_WORDS)

#ifdef __CUDACC__
typedef uint32_t gd_dword;
#else
typedef gq_dword gd_dword;
#endif

struct gd_persistent {
    const struct gd_service_launch *launch;
    struct gd_reader *reader; /* owns the queue, if: */
    bool holds;
    struct gpunvme_device_file *file; /* the reader's: queues, and the leases of the last command */
    struct gq_single *single;         /* the last command; under way, if: */
    bool busy;
    uint32_t staged;             /* its bytes that are to be copied, */
    uint64_t dst;                /* to this address */
    uint64_t sum;                /* the word of the block that is compared there, or 0 */
    uint32_t number;             /* its */
    uint32_t next;               /* that of the read which is waited for */
    uint64_t now_ns;             /* last reading of the clock */
    uint64_t since_ns, taken_ns; /* then: the last command ended, the queue was taken */
    uint64_t until_ns;           /* when to leave, whatever comes */
};

/*
 * A word of the slot, or the half of a CQE with CID and status; the upper half tells new from old.
 */
GQ_FN uint64_t gd_load_news(const uint64_t *words, const struct nvme_cqe *cqe, uint32_t lane)
{
#ifdef __CUDACC__
    /* One load for all: as two the second would wait for the first, for both acquire. */
    return gq_acquire_word(lane < GD_REQUEST_WORDS ? &words[lane]
                                                   : (const uint64_t *)&cqe->sq_head);
#else
    return lane < GD_REQUEST_WORDS ? gq_acquire_word(&words[lane])
                                   : (uint64_t)gq_load_cqe(cqe) << 32;
#endif
}

/* One poll of slot and CQE: GD_SEEN_*, and the words that the lanes have loaded. */
GQ_FN uint32_t gd_poll_news(const struct gd_persistent *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    const struct gq_position *at = &t->single->at;
    const struct nvme_cqe *cqe = t->busy ? &w->port.cq[at->entry] : NULL;
    GQ_LANE_VAR(uint32_t, fresh);

    GQ_FOR_LANES(lane)
    {
        if (lane < GD_REQUEST_WORDS + t->busy)
            GQ_AT(seen) = gd_load_news(t->launch->slot.slot->words, cqe, lane);
        if (lane < GD_REQUEST_WORDS)
            GQ_AT(fresh) = GQ_AT(seen) >> 32 == t->next;
        else if (lane == GD_REQUEST_WORDS)
            GQ_AT(fresh) = t->busy && NVME_CQE_PHASE(GQ_AT(seen) >> 48) == at->phase;
    }
    return GQ_BALLOT(fresh);
}

/* Stores the end of the read for the host. */
GQ_FN void gd_reply(const struct gd_persistent *t, int err)
{
    const struct gd_reader *w = t->reader;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_store_own_result((int64_t *)t->launch->answer,
                                (int64_t)((uint64_t)t->number << 32 | (uint32_t)err));
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

/* Is the block of the command that has completed the one of the checksum? */
GQ_FN bool gd_persistent_matches(const struct gd_persistent *t)
{
    const struct gq_summer summer = {
        .group = t->reader->group,
        .sums = {.words = (const uint32_t *)t->sum, .table = t->launch->sum_table}};

    return gq_find_bad_block(summer, 0, GQ_SUM_BLOCK, t->dst) == GQ_NO_BAD_BLOCK;
}

/*
 * The command under way has completed or is lost. A failure is reported before the queue is given
 * up: the next owner may wrap around the ring and have a completion in the same entry, which the
 * host would take for a success of this command.
 */
GQ_FN void gd_persistent_ended(struct gd_persistent *t)
{
    struct gd_reader *w = t->reader;
    int err = gd_ended(w, t->single);

    if (!err && t->staged)
        gd_copy_single(w, t->dst, t->staged);
    if (!err && t->sum && !gd_persistent_matches(t))
        err = GQ_MISMATCH;
    gd_reply(t, err);
    if (err)
        gq_fence_results();
    t->busy = false;
    t->since_ns = t->now_ns;
    if (w->in_flight || w->outcome == GQ_OUT_BROKEN || t->file->set.n_queues < GD_HOLD_LEAST ||
        t->now_ns - t->taken_ns > GD_HOLD_NS)
        gd_let_go(t);
}

/*
 * Dword i of the command. Dwords that carry the request's own fields become 0.
 */
GQ_FN uint32_t gd_command_dword(const struct gd_persistent *t, uint32_t i, uint32_t word)
{
    bool own = (i >= GD_REQUEST_LEASE && i < GD_REQUEST_CHECKED_NS + 2) || i >= GD_REQUEST_STAGED ||
               (t->sum && i >= GD_REQUEST_PRP2 && i < GD_REQUEST_PRP2 + 2);

    if (i == 0)
        return word | gq_single_cid(t->single) << 16;
    return own ? 0 : word;
}

/* The same of a staged command, which aims at two pages of the queue's staging at most. */
GQ_FN uint32_t gd_staged_dword(const struct gd_persistent *t, uint32_t i, uint32_t word)
{
    const struct gd_set *set = &t->file->set;
    uint64_t prp1 = set->staging.iova + gd_staging_of(set, t->reader->queue);
    uint64_t prp2 = t->staged > NVME_PAGE_SIZE ? prp1 + NVME_PAGE_SIZE : 0;

    if (i >= GD_REQUEST_PRP1 && i < GD_REQUEST_PRP2)
        return (uint32_t)(prp1 >> (i - GD_REQUEST_PRP1) * 32);
    if (i >= GD_REQUEST_PRP2 && i < GD_REQUEST_PRP2 + 2)
        return (uint32_t)(prp2 >> (i - GD_REQUEST_PRP2) * 32);
    return gd_command_dword(t, i, word);
}

/*
 * Submits the command in `seen` to the warp's queue: 0, or -ESTALE when the leases have ended. The
 * word that reports the submission is stored after the doorbell without an order, because it is
 * complete in itself. The loads of the clock and of the last check of the leases overlap the fence.
 */
GQ_FN int gd_persistent_send(struct gd_persistent *t, GQ_LANE_PARAM(uint64_t, seen))
{
    struct gd_reader *w = t->reader;
    struct gq_single *s = t->single;
    gd_dword *sqe = (gd_dword *)(void *)&w->port.sq[w->position.entry];
    uint64_t checked;
    GQ_LANE_VAR(uint32_t, stale);

    s->at = w->position;
    gq_single_start(s);
    GQ_FOR_LANES(lane)
    {
        if (lane < GD_REQUEST_WORDS)
            sqe[lane] = t->staged ? gd_staged_dword(t, lane, (uint32_t)GQ_AT(seen))
                                  : gd_command_dword(t, lane, (uint32_t)GQ_AT(seen));
        if (lane == 0)
            gq_single_ring_cq(s);
    }
    checked = gd_load64(t->file->checked_ns);
    gq_fence_entries();
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            GQ_AT(stale) = gd_lease_ended(t->file, s->start_ns, checked);
            if (!GQ_AT(stale)) {
                gq_single_ring_sq(s);
                gd_store_own_result((int64_t *)t->launch->sent,
                                    (int64_t)gd_sent(t->number, w->queue, s->at.entry,
                                                     gq_single_cid(s), s->at.phase));
            }
        }
    }
    w->position.cq_db_pending = 0;
    return GQ_FROM32(stale, 0) ? -ESTALE : 0;
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
    return err;
}

/* Words i and i + 1 of the read. */
GQ_FN uint64_t gd_two_words(const struct gd_reader *w, GQ_LANE_PARAM(uint64_t, seen), uint32_t i)
{
    (void)w; /* on a host */
    return (uint64_t)GQ_FROM32(seen, i + 1) << 32 | GQ_FROM32(seen, i);
}

/* A read of one command has come. */
GQ_FN void gd_persistent_begin(struct gd_persistent *t, GQ_LANE_PARAM(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    uint32_t staged = GQ_FROM32(seen, GD_REQUEST_STAGED);
    int err = 0;

    t->staged = staged & ~GD_COMPARES;
    t->sum = staged & GD_COMPARES ? gd_two_words(w, seen, GD_REQUEST_PRP2) : 0;
    t->dst = gd_two_words(w, seen, GD_REQUEST_DST);
    t->file->lease = (const uint32_t *)gd_two_words(w, seen, GD_REQUEST_LEASE);
    t->file->checked_ns = (uint64_t *)gd_two_words(w, seen, GD_REQUEST_CHECKED_NS);
    if (!t->holds)
        err = gd_persistent_take(t);
    if (!err)
        err = gd_persistent_send(t, seen);
    t->busy = !err;
    if (err) {
        gd_reply(t, err);
        gd_let_go(t);
    }
}

/* What a look has found of the command under way. timed: the clock was looked at before. */
GQ_FN void gd_persistent_keep_polling(struct gd_persistent *t, uint32_t news,
                                      GQ_LANE_PARAM(uint64_t, seen), bool timed)
{
    const struct gd_reader *w = t->reader;
    struct gq_single *s = t->single;

    if (news & GD_SEEN_COMPLETED) {
        gq_single_take_cqe(s, (uint32_t)(GQ_FROM64(seen, GD_REQUEST_WORDS) >> 32));
    } else if (timed) {
        GQ_FOR_LANES(lane)
        {
            if (lane == 0)
                gq_single_watch(s, t->now_ns);
        }
        s->outcome = GQ_SAME32(s->outcome);
    }
    if (s->outcome != GQ_OUT_RUNNING)
        gd_persistent_ended(t);
}

/* While no command is under way, and news is what a look has found: time to leave? */
GQ_FN bool gd_persistent_is_over(const struct gd_persistent *t, uint32_t news)
{
    bool desc = (news & GD_SEEN_READ) == GD_SEEN_READ;

    return t->now_ns >= t->until_ns || (!desc && t->now_ns - t->since_ns > GD_PERSISTENT_NS);
}

/* Until a read has come that is no command: true. False: it is time to leave. */
GQ_FN bool gd_persistent_serve(struct gd_persistent *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;

    (void)w; /* on a host */
    for (uint32_t looks = 0;; looks++) {
        bool timed = looks % GD_CLOCK_LOOKS == 0;
        uint32_t news;

        if (timed)
            t->now_ns = GQ_SAME64(gq_clock_ns());
        news = gd_poll_news(t, seen);
        if (t->busy)
            gd_persistent_keep_polling(t, news, seen, timed);
        if (!t->busy && gd_persistent_is_over(t, news))
            return false;
        if (t->busy || (news & GD_SEEN_READ) != GD_SEEN_READ) {
            gd_idle();
            continue;
        }
        t->number = t->next;
        t->next = gq_tagged_slot_next(t->next);
        if (GQ_FROM32(seen, 0) == 0)
            return true;
        gd_persistent_begin(t, seen);
    }
}

/*
 * Serves commands until there is something for the block to do. *number: of the read that is waited
 * for. True: a read that is no command has come, *number is its, and it is in out; the lanes have
 * met. False: time to leave. No queue is the warp's then.
 *
 * until_ns: GD_SERVE_NS after the block has come. Calls of other threads that wait for all kernels
 * of the process, as those that free memory do, would else wait as long as reads come. A read that
 * has come by then is for the next block.
 */
GQ_FN bool gd_persistent(const struct gd_service_launch *l, uint64_t until_ns, uint32_t *number,
                         union gd_request *out)
{
    struct gpunvme_device_file file = {.set = l->set};
    struct gd_reader reader = {.group = gq_whole_group(), .file = &file}, *w = &reader;
    /* While a command is under way only the queues' lease is looked at: the file may be closed. */
    const struct gq_run run = gd_run(&file, 1, 1);
    struct gq_single single = {.run = &run, .port = &reader.port};
    struct gd_persistent self = {.launch = l,
                                 .reader = &reader,
                                 .file = &file,
                                 .single = &single,
                                 .next = *number,
                                 .since_ns = GQ_SAME64(gq_clock_ns()),
                                 .until_ns = GQ_SAME64(until_ns)};
    GQ_LANE_VAR(uint64_t, seen);
    bool desc;

    reader.queue = GQ_SAME32(gd_seed());
    desc = gd_persistent_serve(&self, seen);
    gd_let_go(&self);
    *number = self.number;
    if (!desc)
        return false;
    GQ_FOR_LANES(lane)
    {
        if (lane < GD_REQUEST_WORDS)
            out->words[lane] = (uint32_t)GQ_AT(seen);
    }
    return true;
}

#endif
