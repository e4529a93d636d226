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
 * report: the warp copies the bytes before. So it does for a command whose data is compared: the
 * host reads a block that differs again, by the general path.
 *
 * A staged page takes a path of its own (gd_page_read()): the warp polls its CQE alone, copies the
 * page together with the second warp, and reports it. All other work is done before or afterwards.
 */
#ifndef CLIENT_DEVICE_GD_PERSISTENT_H
#define CLIENT_DEVICE_GD_PERSISTENT_H

#include "client/device/gd_persistent_page.h"

#define GD_PERSISTENT_NS 200000u    /* the block ends after this time without a read */
#define GD_SERVE_NS      100000000u /* and after this time with reads: see gd_persistent() */
#define GD_CLOCK_POLLS \
    8u /* one poll of so many reads the clock, which may take longer than the poll */
/* The result of a poll, a bit for each lane: the words of the next read, and: */
#define GD_SEEN_READ      ((1u << GD_REQUEST_WORDS) - 1u)
#define GD_SEEN_COMPLETED (1u << GD_REQUEST_WORDS)

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

/*
 * While no command is under way, one poll of the slot: has a read come? gd_timing_found()
 * updates read_timing when the command has been sent.
 */
GQ_FN bool gd_poll_read(struct gd_persistent *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    const uint64_t *words = t->launch->slot.slot->words;
    bool has_come;
    GQ_LANE_VAR(uint32_t, old);

    gd_persistent_time(t, &t->read_timing);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(seen) = gq_acquire_word(&words[lane % GD_REQUEST_WORDS]);
        GQ_AT(old) = GQ_AT(seen) >> 32 != t->next;
    }
    has_come = GQ_BALLOT(old) == 0;
    if (!has_come)
        gd_timing_missed(&t->read_timing, gd_ticks());
    return has_come;
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
    if (!err && t->compares && !gd_persistent_matches(t))
        err = GQ_MISMATCH;
    gd_reply(t, err);
    if (err)
        gq_fence_results();
    gd_persistent_rest(t);
}

/* Words i and i + 1 of the read. */
GQ_FN uint64_t gd_two_words(const struct gd_reader *w, GQ_LANE_PARAM(uint64_t, seen), uint32_t i)
{
    (void)w; /* on a host */
    return (uint64_t)GQ_FROM32(seen, i + 1) << 32 | GQ_FROM32(seen, i);
}

/* Begins a read of one command. Fields that the command does not need are read once it is sent. */
GQ_FN void gd_persistent_begin(struct gd_persistent *t, GQ_LANE_PARAM(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    uint32_t staged = GQ_FROM32(seen, GD_REQUEST_STAGED);
    int err = 0;

    t->staged = staged & ~GD_COMPARES;
    t->compares = (staged & GD_COMPARES) != 0;
    t->file->lease = (const uint32_t *)gd_two_words(w, seen, GD_REQUEST_LEASE);
    t->file->checked_ns = (uint64_t *)gd_two_words(w, seen, GD_REQUEST_CHECKED_NS);
    if (!t->holds)
        err = gd_persistent_take(t);
    if (!err)
        err = gd_persistent_send(t, seen);
    if (err) {
        gd_reply(t, err);
        gd_let_go(t);
        return;
    }
    gd_timing_found(&t->read_timing);
    t->dst = gd_two_words(w, seen, GD_REQUEST_DST);
    t->sum = gd_two_words(w, seen, GD_REQUEST_PRP2);
    t->busy = !gd_page_read(t);
}

/* Handles what a poll has found of the command in flight. timed: the clock was read before. */
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

/* While no command is under way, and no read has come: time to leave? */
GQ_FN bool gd_persistent_is_idle(const struct gd_persistent *t)
{
    return t->now_ns - t->since_ns > GD_PERSISTENT_NS;
}

/* One poll. True: a read has come that can be begun. timed: the clock was read before. */
GQ_FN bool gd_persistent_poll(struct gd_persistent *t, GQ_LANE_OUT(uint64_t, seen), bool timed)
{
    uint32_t news;

    if (!t->busy)
        return gd_poll_read(t, seen);
    news = gd_poll_news(t, seen);
    gd_persistent_keep_polling(t, news, seen, timed);
    return !t->busy && (news & GD_SEEN_READ) == GD_SEEN_READ;
}

/* Until a read has come that is no command: true. False: it is time to leave. */
GQ_FN bool gd_persistent_serve(struct gd_persistent *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;

    (void)w; /* on a host */
    for (uint32_t polls = 0;; polls++) {
        bool timed = polls % GD_CLOCK_POLLS == 0, has_come;

        if (timed)
            t->now_ns = GQ_SAME64(gq_clock_ns());
        has_come = gd_persistent_poll(t, seen, timed);
        if (!t->busy && t->now_ns >= t->until_ns)
            return false;
        if (!has_come) {
            if (!t->busy && gd_persistent_is_idle(t))
                return false;
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
 * for. True: a read that is no command has come, *number is its, and it is in shared->request; the
 * lanes have met. False: time to leave. No queue is the warp's then, and no page comes.
 *
 * until_ns: GD_SERVE_NS after the block has come. Calls of other threads that wait for all kernels
 * of the process, as those that free memory do, would else wait as long as reads come. A read that
 * has come by then is for the next block.
 */
GQ_FN bool gd_persistent(const struct gd_service_launch *l, uint64_t until_ns, uint32_t *number,
                         struct gd_persistent_shared *shared)
{
    struct gpunvme_device_file file = {.set = l->set};
    struct gd_reader reader = {.group = gq_whole_group(), .file = &file}, *w = &reader;
    /* While a command is in flight only the queues' lease is checked: the file may be closed. */
    const struct gq_run run = gd_run(&file, 1, 1);
    struct gq_single single = {.run = &run, .port = &reader.port};
    struct gd_persistent self = {.launch = l,
                                 .shared = shared,
                                 .reader = &reader,
                                 .file = &file,
                                 .single = &single,
                                 .next = *number,
                                 .since_ns = GQ_SAME64(gq_clock_ns()),
                                 .until_ns = GQ_SAME64(until_ns),
                                 .read_timing = gd_timing_new(),
                                 .page_timing = gd_timing_new()};
    GQ_LANE_VAR(uint64_t, seen);
    bool desc;

    reader.queue = GQ_SAME32(gd_seed());
    desc = gd_persistent_serve(&self, seen);
    gd_let_go(&self);
    gd_page_dismiss(&self);
    *number = self.number;
    if (!desc)
        return false;
    GQ_FOR_LANES(lane)
    {
        if (lane < GD_REQUEST_WORDS)
            shared->request.words[lane] = (uint32_t)GQ_AT(seen);
    }
    return true;
}

#endif
