/*
 * Reads by a group of lanes: the queue protocol (gq_protocol.h) with the work of cutting reads into
 * commands done by the lanes.
 *
 * Each lane works at a read of its own, and has the next command of it ready before it can go. A
 * round:
 *
 *   peeked     the next CQEs are loaded, as for lists of commands
 *   put      the ready commands go to the ring, as many as there are free CIDs
 *   fetch    the next reads of the group's share are loaded, one for each lane, unless another
 *            warp has done that
 *   publish  one fence, then both doorbells
 *   harvest  CQEs; failures go to the results
 *   prepare  each lane whose command went makes its next: gets a read if it has none, finds the
 *            extent, cuts at its end, at what a command carries, and where a list of PRPs must end;
 *            zeros are written by all
 *   watch    flags of the host, deadlines
 *
 * Where all that a round n_peeked at had ended, and the controller has more to do, the next one
 * does not peeked and publishes nothing: on a link that is full of short reads a fence takes ten
 * times as long as making commands does.
 *
 * Reads, CQEs and SQEs are on their way over the bus while the fence waits for all of them, and
 * commands are made while the controller has work, so a round costs hardly more than one trip.
 *
 * What has no whole LBA, or goes to an address that is no multiple of 4, is read into staging, an
 * LBA for each lane of the queue, and copied by all lanes once its completion was seen; its lane
 * waits for that. A long read sends only its ends that way.
 *
 * Every function is called by all lanes of the group together, but where it says otherwise.
 */
#ifndef CUDA_QUEUE_GQ_READS_PROTOCOL_H
#define CUDA_QUEUE_GQ_READS_PROTOCOL_H

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_reads_fetch.h"

/*
 * rank: of run->n_queues groups; area: of the staging, which nobody else uses meanwhile. run and
 * reads stay where they are until the end.
 */
GQ_FN void gq_reads_begin(struct gq_reader *r, struct gq_group group, const struct gq_run *run,
                          const struct gq_reads *reads, const struct gq_port *port,
                          struct gq_state *state, uint32_t rank, uint32_t area)
{
    struct gq_worker *w = &r->w;
    uint32_t lba_size = reads->map.lba_size;

    gq_begin(w, group, run, port, state, rank);
    w->each = GQ_EACH < 2 ? GQ_EACH : 2; /* one of the round before, one of this */
    w->peeks = group.lanes;
    r->reads = reads;
#ifdef __CUDACC__
    r->prefetch = NULL;
    r->prefetched = 0;
#endif
    r->next = r->held_first = r->held_end = r->coming = 0;
    r->ready_lanes = r->going = r->put = 0;
    r->holds_back = false;
    r->lba_shift = gq_prefix_ones(lba_size - 1);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->cur).left = 0;
        GQ_AT(r->cur).from = 0;
        GQ_AT(r->cur).to = 0;
        GQ_AT(r->cur).index = GQ_NO_READ;
        GQ_AT(r->lane_state) = GQ_LANE_FREE;
        GQ_AT(r->staging) = ((uint64_t)area * GQ_STAGING_LBAS + lane) << r->lba_shift;
        GQ_AT(r->bad) = GQ_NO_READ;
        GQ_AT(r->status_of) = GQ_NO_READ;
        GQ_AT(r->status) = 0;
        GQ_AT(r->bytes) = 0;
    }
}

/* Writes the SQEs of the commands that go. */
GQ_FN void gq_post_ready(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;

    GQ_FOR_LANES(lane)
    {
        uint32_t i = gq_ones_before(r->ready_lanes, lane);

        if (r->ready_lanes >> lane & 1 && i < r->going) {
            uint32_t staged = GQ_AT(r->ready).staged;

            gq_post(w, i, GQ_AT(r->ready).cid, &GQ_AT(r->ready).cmd, GQ_AT(r->cur).index,
                    staged ? lane + 1 : 0);
            GQ_AT(r->lane_state) = staged ? GQ_LANE_WAITING : GQ_LANE_FREE;
        }
    }
    gq_advance(w, r->going);
    r->put += r->going;
}

/* The staged command of lane `owner` has ended; its bytes go where they belong if it went well. */
GQ_FN void gq_unstage(struct gq_reader *r, uint32_t owner, bool good)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint64_t, dst);
    GQ_LANE_VAR(uint64_t, src);
    GQ_LANE_VAR(uint32_t, len);
    uint64_t to, from;
    uint32_t n;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(dst) = GQ_AT(r->ready).dst;
        GQ_AT(src) = GQ_AT(r->ready).src;
        GQ_AT(len) = GQ_AT(r->ready).staged;
    }
    to = GQ_FROM64(dst, owner);
    from = GQ_FROM64(src, owner);
    n = good ? GQ_FROM32(len, owner) : 0;
    GQ_FOR_LANES(lane)
    {
        gq_copy_bytes(to, from, n, lane, w->group.lanes);
        if (lane == owner)
            GQ_AT(r->lane_state) = GQ_LANE_FREE;
    }
}

/* What n completions mean to their reads. */
GQ_FN void gq_settle(struct gq_reader *r, GQ_LANE_PARAM(struct gq_ended, ended), uint32_t n)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, staged); /* a byte for each place: the tag, and 0x80 when it failed */
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            uint32_t status = GQ_AT(ended).status[h], tag = GQ_AT(ended).tag[h];

            if (h * w->group.lanes + lane >= n || GQ_AT(ended).cmd[h] >= GQ_TRACKER_FREE)
                continue;
            if (status)
                gq_refuse_read(r, lane, GQ_AT(ended).cmd[h], status);
            if (tag)
                GQ_AT(staged) |= (status ? tag | 0x80u : tag) << 8 * h;
        }
    }
    for (mask = GQ_BALLOT(staged); mask; mask = GQ_BALLOT(staged)) {
        uint32_t i = gq_take_one(&mask), of_lane = GQ_FROM32(staged, i);
        uint32_t shift = gq_prefix_ones(~of_lane) & ~7u, one = of_lane >> shift & 0xffu;

        gq_unstage(r, (one & 0x7fu) - 1, !(one & 0x80u));
        GQ_FOR_LANES(lane)
        {
            if (lane == i)
                GQ_AT(staged) &= ~(0xffu << shift);
        }
    }
}

/* All lanes write what each of them has found to be zeros. */
GQ_FN void gq_write_zeros(struct gq_reader *r, GQ_LANE_PARAM(uint32_t, zeros))
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint64_t, dst);
    uint32_t mask = GQ_BALLOT(zeros);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(dst) = GQ_AT(r->ready).dst;
    }
    while (mask) {
        uint32_t i = gq_take_one(&mask);
        uint64_t to = GQ_FROM64(dst, i);
        uint32_t n = GQ_FROM32(zeros, i);

        GQ_FOR_LANES(lane)
        {
            gq_zero_bytes(to, n, lane, w->group.lanes);
        }
    }
}

/* Gives lanes that are free their next commands. Returns whether it did something. */
GQ_FN bool gq_prepare(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, zeros);
    GQ_LANE_VAR(uint32_t, busy);
    uint32_t dealt;

    if (w->outcome != GQ_OUT_RUNNING)
        return false;
    dealt = gq_deal(r);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->ready).zeros = 0;
        if (GQ_AT(r->lane_state) == GQ_LANE_FREE && GQ_AT(r->cur).left != 0) {
            gq_make_ready(r, lane);
            GQ_AT(busy) = 1;
        }
        GQ_AT(zeros) = GQ_AT(r->ready).zeros;
    }
    gq_write_zeros(r, zeros);
    return dealt || GQ_BALLOT(busy) != 0;
}

/*
 * At the end of a round: what goes in the next, whether that is a whole one, and by which CIDs.
 * They are loaded that early since a load that is waited for between a peeked and its fence waits
 * for the peeked as well: what a warp has asked for comes in that order.
 */
GQ_FN void gq_line_up(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, is_ready);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(is_ready) = GQ_AT(r->lane_state) == GQ_LANE_READY;
    }
    r->ready_lanes = GQ_BALLOT(is_ready);
    r->going = gq_reserve(w, gq_count_ones(r->ready_lanes));
    r->holds_back =
        !r->holds_back && w->peeks > w->group.lanes && w->sent && r->going && r->next != w->share;
    GQ_FOR_LANES(lane)
    {
        uint32_t i = gq_ones_before(r->ready_lanes, lane);

        if (GQ_AT(is_ready) && i < r->going)
            GQ_AT(r->ready).cid = gq_free_cid(w, i);
    }
}

/* Is there something that has not been sent? */
GQ_FN bool gq_reads_left(const struct gq_reader *r)
{
    const struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, left);

    if (r->next < w->share)
        return true;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(left) = GQ_AT(r->lane_state) != GQ_LANE_FREE || GQ_AT(r->cur).left != 0;
    }
    return GQ_BALLOT(left) != 0;
}

/* Of all lanes. */
GQ_FN uint64_t gq_bytes_taken(const struct gq_reader *r)
{
    const struct gq_worker *w = &r->w;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < w->group.lanes; i++)
        bytes += GQ_FROM64(r->bytes, i);
    return bytes;
}

/*
 * What was begun with and has not been sent fails, what was not begun with is left. What is in
 * flight, also for a lane that waits for it, is neither.
 */
GQ_FN void gq_drop_reads(struct gq_reader *r, uint32_t result)
{
    struct gq_worker *w = &r->w;

    gq_stop_prefetch(r);
    GQ_FOR_LANES(lane)
    {
        if (GQ_AT(r->lane_state) == GQ_LANE_READY || GQ_AT(r->cur).left != 0)
            gq_fail_read(r, lane, GQ_AT(r->cur).index, result);
        for (uint32_t first = r->next; first < w->share; first += w->group.lanes) {
            if (first + lane < w->share)
                gq_leave_read(r, lane, gq_stripe(w, first + lane), result);
        }
        if (GQ_AT(r->lane_state) == GQ_LANE_READY)
            GQ_AT(r->lane_state) = GQ_LANE_FREE;
        GQ_AT(r->cur).left = 0;
    }
    r->next = r->held_end = w->share;
    r->coming = 0;
}

/* Tells the controller what was put, takes and settles what has ended: how many. */
GQ_FN uint32_t gq_exchange(struct gq_reader *r, GQ_LANE_PARAM(struct gq_peek, peeked),
                           uint32_t n_peeked)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(struct gq_ended, ended);
    uint32_t n;

    n = gq_publish_and_poll(w, r->put, peeked, n_peeked, ended);
    r->put = 0;
    /* What a peeked in vain brings over the bus is no data. */
    w->peeks = w->group.lanes * (n == n_peeked ? w->each : n / w->group.lanes + 1);
    if (n)
        gq_settle(r, ended, n);
    return n;
}

/* The end of a round. busy: something was done. */
GQ_FN enum gq_round gq_watch_reads(struct gq_reader *r, bool busy)
{
    struct gq_worker *w = &r->w;
    uint64_t flags_ns = w->flags_ns;
    enum gq_round round = gq_end_round(w, gq_reads_left(r), busy);

    /* As often as the host's flags are n_peeked at, and what is in flight ends as always. */
    if (r->reads->most && w->flags_ns != flags_ns && w->outcome == GQ_OUT_RUNNING &&
        gq_bytes_taken(r) > r->reads->most)
        gq_drop_reads(r, GQ_READ_OVER);
    return round;
}

GQ_FN enum gq_round gq_reads_round(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(struct gq_peek, peeked);
    bool whole = !r->holds_back, sends = r->put || r->going, made;
    uint32_t n_peeked = whole ? gq_peek(w, sends, peeked) : 0, n;
    enum gq_round round = GQ_ROUND_BUSY;

    if (r->going)
        gq_post_ready(r);
    gq_fetch(r);
    n = whole ? gq_exchange(r, peeked, n_peeked) : 0;
    made = gq_prepare(r);
    /* The first commands of a run wait for no peeked at the clock: what was made goes first. */
    if (made && w->progress == 0 && !sends)
        w->progress = 1;
    else if (whole)
        round = gq_watch_reads(r, sends || n || made);
    gq_line_up(r);
    return round;
}

/* Reads that did not end. */
GQ_FN void gq_lose_reads(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t first = 0; first < w->port->depth - 1; first += w->group.lanes) {
            uint32_t cid = first + lane;

            if (cid < w->port->depth - 1 && w->port->trackers[cid].cmd < GQ_TRACKER_FREE)
                gq_fail_read(r, lane, w->port->trackers[cid].cmd, GQ_READ_LOST);
        }
        if (GQ_AT(r->lane_state) == GQ_LANE_WAITING)
            gq_fail_read(r, lane, GQ_AT(r->cur).index, GQ_READ_LOST);
    }
    gq_drop_reads(r, GQ_READ_LOST);
}

/* What the state tells of reads, for a host that asks: before gq_reads_end(), by a whole group. */
GQ_FN void gq_report_reads(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    uint32_t bad = GQ_NO_READ, status_of = GQ_NO_READ, status = 0, mask;
    uint64_t bytes = gq_bytes_taken(r);
    GQ_LANE_VAR(uint32_t, failed);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(failed) = GQ_AT(r->bad) != GQ_NO_READ;
    }
    mask = GQ_BALLOT(failed);
    while (mask) {
        uint32_t i = gq_take_one(&mask), index = GQ_FROM32(r->status_of, i);
        uint32_t bad_of_lane = GQ_FROM32(r->bad, i), status_of_lane = GQ_FROM32(r->status, i);

        bad = bad_of_lane < bad ? bad_of_lane : bad;
        status = index < status_of ? status_of_lane : status;
        status_of = index < status_of ? index : status_of;
    }
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            w->state->bytes = bytes;
            w->state->status = status;
            w->state->status_of = status_of;
            w->state->bad = bad;
        }
    }
}

/*
 * Hands the queue back with all results written: the lowest index of a read or unit of this group
 * that is not GQ_READ_OK; GQ_NO_READ: none.
 */
GQ_FN uint32_t gq_reads_end(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    uint32_t bad = GQ_NO_READ, mask;
    GQ_LANE_VAR(uint32_t, failed);

    if (w->outcome != GQ_OUT_DONE)
        gq_lose_reads(r);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(failed) = GQ_AT(r->bad) != GQ_NO_READ;
    }
    mask = GQ_BALLOT(failed);
    while (mask) {
        uint32_t of_lane = GQ_FROM32(r->bad, gq_take_one(&mask));

        bad = of_lane < bad ? of_lane : bad;
    }
    gq_end(w);
    return bad;
}

#endif
