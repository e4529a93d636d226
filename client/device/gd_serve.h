/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first warp of a block of the service: it serves reads of one command each, which the host has
 * made, one after another. Every function is called by all lanes together; variables are the same
 * for all lanes.
 *
 * The warp keeps its queue between reads for at most GD_HOLD_NS, and only in leases that have
 * GD_HOLD_LEAST queues for each block, so that other readers find one. It keeps nothing of files:
 * each command carries the state word of its extents' lease. The leases are checked at most
 * GD_CHECK_NS before the doorbell, as for all reads (gd_queue.h).
 */
#ifndef CLIENT_DEVICE_GD_SERVE_H
#define CLIENT_DEVICE_GD_SERVE_H

#include "client/device/gd_service.h"
#include "client/device/gd_single.h"

/*
 * The longest time that the warp keeps a queue for which other readers may
 * wait. The next queue often belongs to another thread of a controller in
 * software, which sleeps by then, so one read waits for that thread.
 */
#define GD_HOLD_NS     10000000u
#define GD_HOLD_LEAST  4u
#define GD_CLOCK_POLLS 8u /* one poll of a slot in so many reads the clock, which takes as long */

/* Shared memory of the warps of a block. */
struct gd_serve_shared {
    union gd_request request; /* a read of the kind GD_READ, */
    uint32_t number;          /* and its number */
};

struct gd_serve {
    const struct gd_service_launch *launch;
    struct gq_service_stay *stay;
    uint64_t *words;   /* of the slot */
    uint64_t *answer;  /* of the slot */
    uint32_t number;   /* of the last read that was taken */
    bool holds;        /* the reader owns its queue */
    uint64_t began_ns; /* when the block began */
    uint64_t now_ns;   /* last reading of the clock */
    uint64_t taken_ns; /* when the queue was taken */
    struct gd_reader *reader;
    struct gpunvme_device_file *file; /* the reader's: queues, and leases of the last command */
};

/* Stores the end of the read for the host. */
GQ_FN void gd_serve_answer(const struct gd_serve *t, int err)
{
    const struct gd_reader *w = t->reader;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gd_store_own_result((int64_t *)t->answer, (int64_t)gd_answer(t->number, err));
    }
}

/*
 * Releases the queue. Lane 0 has passed a fence since the last store to the
 * queue, before the doorbell or after a copy.
 */
GQ_FN void gd_serve_give(struct gd_serve *t)
{
    if (t->holds)
        gd_give_fenced(t->reader);
    t->holds = false;
}

/*
 * Takes a queue and its position. The previous queue is tried last: a waiting reader has the time
 * of one failed try, a trip over the bus, to take it.
 */
GQ_FN int gd_serve_take(struct gd_serve *t)
{
    struct gd_reader *w = t->reader;
    int err = gd_take_from(w, w->queue + 1);

    t->holds = !err;
    t->taken_ns = t->now_ns;
    w->in_flight = 0;
    w->outcome = GQ_OUT_RUNNING;
    return err;
}

/* Returns words i and i + 1 of the read. */
GQ_FN uint64_t gd_two_words(const struct gd_reader *w, GQ_LANE_PARAM(uint64_t, seen), uint32_t i)
{
    (void)w; /* on a host */
    return (uint64_t)GQ_FROM32(seen, i + 1) << 32 | GQ_FROM32(seen, i);
}

#define GD_WORD_OF(member) (offsetof(union gd_request, command.member) / sizeof(uint32_t))

/*
 * Returns the command in `seen`. The data pointer of a staged command is the
 * staging of the queue.
 */
GQ_FN struct gq_cmd gd_serve_command(const struct gd_serve *t, GQ_LANE_PARAM(uint64_t, seen),
                                     uint32_t staged)
{
    const struct gd_reader *w = t->reader;
    const struct gd_set *set = &t->file->set;
    uint64_t at = set->staging.iova + gd_staging_of(set, w->queue);
    struct gq_cmd cmd = {.slba = gd_two_words(w, seen, GD_WORD_OF(slba)),
                         .prp1 = gd_two_words(w, seen, GD_WORD_OF(prp1)),
                         .prp2 = gd_two_words(w, seen, GD_WORD_OF(prp2)),
                         .nlb = GQ_FROM32(seen, GD_WORD_OF(nlb))};

    if (GQ_FROM32(seen, GD_WORD_OF(kind)) == GD_COMPARED)
        cmd.prp2 = 0;
    if (staged) {
        cmd.prp1 = at;
        cmd.prp2 = staged > NVME_PAGE_SIZE ? at + NVME_PAGE_SIZE : 0;
    }
    return cmd;
}

/*
 * Submits the command. Returns 0, or -ESTALE if the leases have ended. The load
 * of their last check overlaps the stores of the entry.
 */
GQ_FN int gd_serve_send(const struct gd_serve *t, struct gq_single *s, const struct gq_cmd *cmd)
{
    const struct gd_reader *w = t->reader;
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint64_t checked = gd_load64(t->file->checked_ns);

            gq_single_start(s);
            gq_single_store(s, cmd);
            GQ_AT(stale) = gd_lease_ended(t->file, s->start_ns, checked);
            if (!GQ_AT(stale))
                gq_single_ring_sq(s);
        }
    }
    return GQ_FROM32(stale, 0) ? -ESTALE : 0;
}

/* Returns true if the block at dst matches the checksum at the address `sum`. */
GQ_FN bool gd_serve_matches(const struct gd_serve *t, uint64_t dst, uint64_t sum)
{
    const struct gq_summer summer = {
        .group = t->reader->group,
        .sums = {.words = (const uint32_t *)sum, .table = t->launch->sum_table}};

    return gq_find_bad_block(summer, 0, GQ_SUM_BLOCK, dst) == GQ_NO_BAD_BLOCK;
}

/*
 * Sends the command in `seen` and waits for its end; the warp has a queue.
 * Returns 0, -errno, or GQ_MISMATCH, after which the host reads the block by
 * the general path.
 */
GQ_FN int gd_serve_drive(struct gd_serve *t, GQ_LANE_PARAM(uint64_t, seen))
{
    struct gd_reader *w = t->reader;
    struct gq_run run = gd_run(t->file, 1, 1);
    uint32_t staged = GQ_FROM32(seen, GD_WORD_OF(staged));
    uint64_t dst = gd_two_words(w, seen, GD_WORD_OF(dst));
    struct gq_single single = {.run = &run, .port = &w->port, .at = w->position};
    struct gq_cmd cmd = gd_serve_command(t, seen, staged);
    int err;

    run.leave[1] = NULL; /* a host that no longer waits may have closed the file */
    err = gd_serve_send(t, &single, &cmd);
    w->position.cq_db_pending = 0;
    if (!err)
        err = gd_await(w, &single);
    if (!err && staged)
        gd_copy_single(w, dst, staged);
    if (!err && GQ_FROM32(seen, GD_WORD_OF(kind)) == GD_COMPARED &&
        !gd_serve_matches(t, dst, gd_two_words(w, seen, GD_WORD_OF(prp2))))
        err = GQ_MISMATCH;
    return err;
}

/* Serves a read of one command. The answer comes before the queue is returned. */
GQ_FN void gd_serve_one(struct gd_serve *t, GQ_LANE_PARAM(uint64_t, seen))
{
    struct gd_reader *w = t->reader;
    const struct gd_set *set = &t->file->set;
    int err = 0;

    t->file->lease = (const uint32_t *)gd_two_words(w, seen, GD_WORD_OF(lease));
    t->file->checked_ns = (uint64_t *)gd_two_words(w, seen, GD_WORD_OF(checked_ns));
    if (!t->holds)
        err = gd_serve_take(t);
    if (!err)
        err = gd_serve_drive(t, seen);
    gd_serve_answer(t, err);
    t->now_ns = GQ_SAME64(gq_clock_ns());
    if (err || w->in_flight || set->n_queues < GD_HOLD_LEAST * t->launch->service.slots ||
        t->now_ns - t->taken_ns > GD_HOLD_NS)
        gd_serve_give(t);
}

/* Polls the slot once. Returns true if all its words are of one new read. */
GQ_FN bool gd_serve_poll(struct gd_serve *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;
    uint32_t number;
    GQ_LANE_VAR(uint32_t, differs);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(seen) = gq_acquire_word(&t->words[lane % GD_REQUEST_WORDS]);
    }
    number = (uint32_t)(GQ_FROM64(seen, 0) >> 32);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(differs) = GQ_AT(seen) >> 32 != number;
    }
    if (number == 0 || number == t->number || GQ_BALLOT(differs) != 0)
        return false;
    t->number = number;
    return true;
}

/*
 * Returns true if the block must leave: another block leaves, or its time or
 * the idle time is over.
 */
GQ_FN bool gd_serve_is_over(struct gd_serve *t)
{
    const struct gd_reader *w = t->reader;
    GQ_LANE_VAR(uint32_t, over);

    t->now_ns = GQ_SAME64(gq_clock_ns());
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            GQ_AT(over) = gq_service_is_over(t->stay, t->began_ns, t->now_ns);
    }
    return GQ_FROM32(over, 0) != 0;
}

GQ_FN void gd_serve_touch(struct gd_serve *t)
{
    const struct gd_reader *w = t->reader;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            gq_service_touch(t->stay, t->now_ns);
    }
}

/*
 * Polls until a read of the kind GD_READ has come and returns true, or false if
 * it is time to leave.
 */
GQ_FN bool gd_serve_until_read(struct gd_serve *t, GQ_LANE_OUT(uint64_t, seen))
{
    const struct gd_reader *w = t->reader;

    (void)w; /* on a host */
    for (uint32_t polls = 0;;) {
        if (polls % GD_CLOCK_POLLS == 0 && gd_serve_is_over(t))
            return false;
        if (!gd_serve_poll(t, seen)) {
            polls++;
            gd_idle();
            continue;
        }
        /* The clock that the last command has read decides whether it is checked next. */
        polls = t->now_ns - t->began_ns < GQ_SERVICE_STAY_NS;
        if (GQ_FROM32(seen, GD_WORD_OF(kind)) == GD_READ)
            return true;
        gd_serve_one(t, seen);
        gd_serve_touch(t);
    }
}

/*
 * Serves commands from the slot until there is something for the whole block to
 * do. `number` is that of the last read of the slot that was taken, and
 * began_ns the time of gq_service_begin(). Returns true if a read of the kind
 * GD_READ has come: it is in *shared, and the lanes have met. Returns false if
 * it is time to leave; shared->number is that of the last read. The warp has no
 * queue then.
 */
GQ_FN bool gd_serve(const struct gd_service_launch *l, struct gq_service_stay *stay, uint32_t slot,
                    uint64_t began_ns, struct gd_serve_shared *shared)
{
    struct gpunvme_device_file file = {.set = l->set};
    struct gd_reader reader = {.group = gq_whole_group(), .file = &file}, *w = &reader;
    struct gd_serve self = {.launch = l,
                            .stay = stay,
                            .words = l->service.memory->slots[slot].words,
                            .answer = &l->service.memory->slots[slot].answer,
                            .number = shared->number,
                            .began_ns = began_ns,
                            .reader = &reader,
                            .file = &file};
    GQ_LANE_VAR(uint64_t, seen);
    bool has_read;

    reader.queue = GQ_SAME32(gd_seed());
    has_read = gd_serve_until_read(&self, seen);
    gd_serve_give(&self);
    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            shared->number = self.number;
        if (lane < GD_REQUEST_WORDS)
            shared->request.words[lane] = (uint32_t)GQ_AT(seen);
    }
    return has_read;
}

#endif
