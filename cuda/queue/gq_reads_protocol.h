/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of reads: the queue protocol (gq_protocol.h), in which the lanes cut
 * reads into commands.
 *
 * Each lane processes its own read, and prepares its next command before it can
 * be posted. The steps of a round are:
 *
 *   peek      loads the next CQEs, as for lists of commands
 *   post      posts the prepared commands, as many as there are free CIDs
 *   fetch     loads the next reads of the group, one per lane, unless the
 *             prefetch warp has done that
 *   publish   one fence, then both doorbells
 *   poll      takes CQEs; stores failures to the results
 *   prepare   each lane whose command was posted makes its next: it takes a read
 *             if it has none, finds the extent, and cuts at its end, at the
 *             maximum of a command, and at the end of a PRP list; all lanes
 *             write zeros
 *   watch     checks flags of the host and deadlines
 *
 * If all peeked commands of a round had completed and the controller has more
 * work, the next round neither peeks nor publishes: on a link full of short
 * reads a fence takes ten times as long as making commands.
 *
 * Reads, CQEs and SQEs travel over the bus while the fence waits for all of
 * them, and commands are made while the controller has work, so a round costs
 * hardly more than one trip.
 *
 * Parts of an LBA, and bytes for an address that is not a multiple of 4, are
 * read into staging, at least an LBA for each lane of the queue. After the
 * completion copy warps (gq_copy_warps.h) or all lanes copy them; the lane
 * waits for that. Only the ends of a long read are staged; all of it is if the
 * controller does not reach the target.
 *
 * Reads may be writes (gq_run.opcode) of whole LBAs without holes, to a target
 * that the controller does not reach: a lane's staging is filled before its
 * command is posted.
 *
 * With checksums (gq_reads.sums) a part of a block is staged like a part of an
 * LBA. All lanes compare staged data here; the caller compares the data of
 * other commands after the run, as gq_find_bad_block() does; part_sums are
 * stored here. Neither kind of run has copy warps.
 *
 * Unless noted otherwise, every function is called by all lanes of the group
 * together.
 */
#ifndef CUDA_QUEUE_GQ_READS_PROTOCOL_H
#define CUDA_QUEUE_GQ_READS_PROTOCOL_H

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_data_sums.h"
#include "cuda/queue/gq_reads_fetch.h"

/*
 * Starts a run. rank is the group's number among run->n_queues, and area its
 * part of the staging. run and reads must remain in place until the end.
 */
GQ_FN void gq_reads_begin(struct gq_reader *r, struct gq_group group, const struct gq_run *run,
                          const struct gq_reads *reads, const struct gq_port *port,
                          struct gq_state *state, uint32_t rank, uint32_t area)
{
    struct gq_worker *w = &r->w;
    uint32_t lba_size = reads->map.lba_size, room = reads->lane_staging;

    gq_begin(w, group, run, port, state, rank);
    w->each = GQ_EACH < 2 ? GQ_EACH : 2; /* a lane has commands of two rounds */
    w->peeks = group.lanes;
    r->reads = reads;
    r->prefetch = NULL;
    r->prefetched = 0;
    r->copies = NULL;
    r->portion = (struct gq_portion){0, 0, 0};
    r->is_dry = false;
    r->rest = GQ_READ_LOST;
    r->next = r->held_first = r->held_end = r->ahead_first = r->coming = 0;
    r->ready_lanes = r->going = r->posted = 0;
    r->holds_back = false;
    r->lba_shift = gq_prefix_ones(lba_size - 1);
    r->grain = reads->sums.table && lba_size < GQ_SUM_BLOCK ? GQ_SUM_BLOCK : lba_size;
    r->bad_block = GQ_NO_BAD_BLOCK;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->cur).left = 0;
        GQ_AT(r->cur).from = 0;
        GQ_AT(r->cur).to = 0;
        GQ_AT(r->cur).index = GQ_NO_READ;
        GQ_AT(r->lane_state) = GQ_LANE_FREE;
        GQ_AT(r->staging) =
            reads->staging.head + (uint64_t)area * reads->queue_area + (uint64_t)lane * room;
        GQ_AT(r->bad) = GQ_NO_READ;
        GQ_AT(r->status_of) = GQ_NO_READ;
        GQ_AT(r->status) = 0;
        GQ_AT(r->bytes) = 0;
    }
}

/* Posts the prepared commands. */
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
    r->posted += r->going;
}

/*
 * Called inside a region by one lane when the staged command of lane `owner`
 * has ended. A copy warp copies the bytes of a read that succeeded.
 */
GQ_FN void gq_pass_to_copy_warp(struct gq_reader *r, uint32_t owner, bool good)
{
    bool copies = good && r->w.run->opcode != NVME_IO_WRITE;

    gq_release_block(&r->copies->job[owner].state, copies ? GQ_COPY_POSTED : GQ_COPY_DONE);
}

/* Called inside a region. Frees or readies the lane if its copy has ended. */
GQ_FN void gq_take_copy(struct gq_reader *r, uint32_t lane)
{
    struct gq_copy_job *job = &r->copies->job[lane];
    uint32_t state = GQ_AT(r->lane_state);

    if (state == GQ_LANE_FREE || state == GQ_LANE_READY ||
        gq_acquire_block(&job->state) != GQ_COPY_DONE)
        return;
    job->state = GQ_COPY_NONE;
    GQ_AT(r->lane_state) = state == GQ_LANE_FILLING ? GQ_LANE_READY : GQ_LANE_FREE;
}

GQ_FN void gq_take_copies(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;

    if (!r->copies)
        return;
    GQ_FOR_LANES(lane)
    {
        gq_take_copy(r, lane);
    }
}

/*
 * Compares n staged bytes from file byte `offset` on, which are at `from`.
 * Returns false if one of their blocks does not match.
 */
GQ_FN bool gq_staged_matches(struct gq_reader *r, uint64_t offset, uint64_t from, uint32_t n)
{
    const struct gq_summer s = {.group = r->w.group, .sums = r->reads->sums};
    uint64_t bad = gq_find_bad_around(s, offset, n, from - offset % GQ_SUM_BLOCK);

    if (bad != GQ_NO_BAD_BLOCK)
        r->bad_block = bad;
    return bad == GQ_NO_BAD_BLOCK;
}

/*
 * Stores the checksum of the block at this address, which is read in part, as
 * word i of part_sums.
 */
GQ_FN void gq_store_part_sum(struct gq_reader *r, uint32_t i, uint64_t at)
{
    const struct gq_summer s = {.group = r->w.group, .sums = r->reads->sums};
    struct gq_worker *w = &r->w;
    uint32_t crc = gq_block_word(s, at);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            r->reads->part_sums[i] = crc;
    }
}

/*
 * Stores the part sums of n staged bytes of a read, from file byte `offset` on,
 * which are at `from`.
 */
GQ_FN void gq_store_part_sums(struct gq_reader *r, uint32_t index, uint64_t offset, uint64_t from,
                              uint32_t n)
{
    uint64_t lead = offset % GQ_SUM_BLOCK, first = offset / GQ_SUM_BLOCK;
    uint64_t last = (offset + n - 1) / GQ_SUM_BLOCK;

    if (lead)
        gq_store_part_sum(r, 2 * index, from - lead);
    if ((offset + n) % GQ_SUM_BLOCK && (!lead || last != first))
        gq_store_part_sum(r, 2 * index + 1, from + (last * GQ_SUM_BLOCK - offset));
}

/*
 * Handles the end of lane `owner`'s staged command. If it is a read that
 * succeeded, its bytes are copied to their destination.
 */
GQ_FN void gq_unstage(struct gq_reader *r, uint32_t owner, bool good)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint64_t, dst);
    GQ_LANE_VAR(uint64_t, src);
    GQ_LANE_VAR(uint32_t, len);
    bool matches = true;
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
    n = good && w->run->opcode != NVME_IO_WRITE ? GQ_FROM32(len, owner) : 0;
    if (n && r->reads->sums.words)
        matches = gq_staged_matches(r, GQ_PART_FROM64(r->cur, owner, offset) - n, from, n);
    else if (n && r->reads->part_sums)
        gq_store_part_sums(r, (uint32_t)GQ_PART_FROM64(r->cur, owner, index),
                           GQ_PART_FROM64(r->cur, owner, offset) - n, from, n);
    GQ_FOR_LANES(lane)
    {
        gq_copy_long(to, from, matches ? n : 0, lane, w->group.lanes);
        if (lane == owner) {
            GQ_AT(r->lane_state) = GQ_LANE_FREE;
            if (!matches)
                gq_fail_read(r, lane, GQ_AT(r->cur).index, GQ_READ_MISMATCH);
        }
    }
}

/* Assigns n completions to their reads. */
GQ_FN void gq_settle(struct gq_reader *r, GQ_LANE_PARAM(struct gq_ended, ended), uint32_t n)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, staged); /* one byte per entry: the tag, and 0x80 for a failure */
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < w->each; h++) {
            uint32_t status = GQ_AT(ended).status[h], tag = GQ_AT(ended).tag[h];

            if (h * w->group.lanes + lane >= n || GQ_AT(ended).cmd[h] >= GQ_TRACKER_FREE)
                continue;
            if (status)
                gq_refuse_read(r, lane, GQ_AT(ended).cmd[h], status);
            if (tag && r->copies)
                gq_pass_to_copy_warp(r, tag - 1, !status);
            else if (tag)
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

/* All lanes write the zeros that each of them has found. */
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

/* Prepares the next commands of free lanes. Returns true if it did something. */
GQ_FN bool gq_prepare(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, zeros);
    GQ_LANE_VAR(uint32_t, busy);
    uint32_t dealt;

    gq_take_copies(r);
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
 * Returns how many of n prepared commands are posted next. A staged read posts
 * a quarter of its lanes at once while the controller has as many commands in
 * flight, because a software controller loads the line of a doorbell again
 * after each store to it.
 */
GQ_FN uint32_t gq_batched(const struct gq_reader *r, uint32_t n)
{
    uint32_t lanes = gq_reading_lanes(r->reads);
    uint32_t batch = (r->w.group.lanes < lanes ? r->w.group.lanes : lanes) / 4;

    return r->reads->staged && n < batch && gq_in_flight(&r->w) >= batch ? 0 : n;
}

/* Returns true if reads of this group, or of the list, are not assigned to a lane yet. */
GQ_FN bool gq_reads_come(const struct gq_reader *r)
{
    return !r->is_dry || r->coming || r->next != r->held_end;
}

/*
 * Prepares the next round at the end of a round: its commands, their CIDs, and
 * whether it publishes. CIDs are loaded this early because a load that is
 * waited for between a peek and its fence also waits for the peek: loads of a
 * warp complete in order.
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
    r->going = gq_reserve(w, gq_batched(r, gq_count_ones(r->ready_lanes)));
    r->holds_back =
        !r->holds_back && w->peeks > w->group.lanes && w->sent && r->going && gq_reads_come(r);
    GQ_FOR_LANES(lane)
    {
        uint32_t i = gq_ones_before(r->ready_lanes, lane);

        if (GQ_AT(is_ready) && i < r->going)
            GQ_AT(r->ready).cid = gq_free_cid(w, i);
    }
}

/* Returns true if there are reads or commands that were not posted. */
GQ_FN bool gq_reads_left(const struct gq_reader *r)
{
    const struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, left);

    if (gq_reads_come(r))
        return true;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(left) = GQ_AT(r->lane_state) != GQ_LANE_FREE || GQ_AT(r->cur).left != 0;
    }
    return GQ_BALLOT(left) != 0;
}

/* Returns the sum over all lanes. */
GQ_FN uint64_t gq_bytes_taken(const struct gq_reader *r)
{
    const struct gq_worker *w = &r->w;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < w->group.lanes; i++)
        bytes += GQ_FROM64(r->bytes, i);
    return bytes;
}

/* Leaves the reads that the group has taken, or is to take, and has not begun. */
GQ_FN void gq_leave_rest(struct gq_reader *r, uint32_t result)
{
    struct gq_worker *w = &r->w;

    gq_leave_span(r, r->next, r->held_end, result);
    gq_leave_span(r, r->ahead_first, r->ahead_first + r->coming, result);
    gq_leave_span(r, r->portion.at, r->portion.end, result);
    gq_leave_prefetched(r, result);
    r->next = r->held_end;
    r->portion.at = r->portion.end;
    r->coming = 0;
    r->rest = result;
    while (!r->is_dry && !w->run->dealing && gq_take_portion(w, &r->portion))
        gq_leave_span(r, r->portion.at, r->portion.end, result);
    r->is_dry = true;
}

/*
 * Fails begun reads that were not posted entirely, and leaves reads that were
 * not begun; with a counter only those that the group has taken. Commands in
 * flight are not affected, including those with a waiting lane.
 */
GQ_FN void gq_drop_reads(struct gq_reader *r, uint32_t result)
{
    struct gq_worker *w = &r->w;

#ifdef __CUDACC__
    if (r->prefetch)
        gq_prefetch_stop(r->prefetch);
#endif
    GQ_FOR_LANES(lane)
    {
        uint32_t state = GQ_AT(r->lane_state);

        if (state == GQ_LANE_READY || state == GQ_LANE_FILLING || GQ_AT(r->cur).left != 0)
            gq_fail_read(r, lane, GQ_AT(r->cur).index, result);
        if (state != GQ_LANE_WAITING)
            GQ_AT(r->lane_state) = GQ_LANE_FREE;
        GQ_AT(r->cur).left = 0;
    }
    gq_leave_rest(r, result);
}

/*
 * Publishes the posted commands, and takes and settles completions; returns
 * their number.
 */
GQ_FN uint32_t gq_exchange(struct gq_reader *r, GQ_LANE_PARAM(struct gq_peek, peeked),
                           uint32_t n_peeked)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(struct gq_ended, ended);
    uint32_t n;

    n = gq_publish_and_poll(w, r->posted, peeked, n_peeked, ended);
    r->posted = 0;
    /* Loads of CQEs that have not arrived occupy the bus. */
    w->peeks = w->group.lanes * (n == n_peeked ? w->each : n / w->group.lanes + 1);
    if (n)
        gq_settle(r, ended, n);
    return n;
}

/* Ends a round. `busy` means that something was done. */
GQ_FN enum gq_round gq_watch_reads(struct gq_reader *r, bool busy)
{
    struct gq_worker *w = &r->w;
    uint64_t flags_ns = w->flags_ns;
    enum gq_round round = gq_end_round(w, gq_reads_left(r), busy);

    /*
     * The limit is checked as often as the host's flags; commands in flight end
     * as usual.
     */
    if (r->reads->most && w->flags_ns != flags_ns && w->outcome == GQ_OUT_RUNNING &&
        gq_bytes_taken(r) > r->reads->most)
        gq_drop_reads(r, GQ_READ_OVER);
    return round;
}

GQ_FN enum gq_round gq_reads_round(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(struct gq_peek, peeked);
    bool whole = !r->holds_back, sends = r->posted || r->going, made;
    uint32_t n_peeked = whole ? gq_peek(w, sends, peeked) : 0, n;
    enum gq_round round = GQ_ROUND_BUSY;

    if (r->going)
        gq_post_ready(r);
    gq_fetch(r);
    n = whole ? gq_exchange(r, peeked, n_peeked) : 0;
    made = gq_prepare(r);
    /* The first commands of a run are posted without a check of the clock. */
    if (made && w->progress == 0 && !sends)
        w->progress = 1;
    else if (whole)
        round = gq_watch_reads(r, sends || n || made);
    gq_line_up(r);
    return round;
}

/* Stores errors for reads that did not end. */
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

/*
 * Stores errors for reads without a result, after the last round. The last
 * group of a run with a counter stores those of reads that no group has taken.
 * Returns true if this was that group, which sees all results. The other groups
 * do not access the list any more.
 */
GQ_FN bool gq_conclude_reads(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    uint32_t rest;

#ifdef __CUDACC__
    if (r->copies)
        gq_copy_jobs_end(r->copies);
#endif
    if (w->outcome != GQ_OUT_DONE)
        gq_lose_reads(r);
    if (!w->run->dealing || !gq_leave_dealing(w, &rest))
        return false;
    gq_leave_span(r, rest, w->run->n_cmds, r->rest);
    return true;
}

/*
 * Ends a run of the engine after the last round. Stores its results and returns the queue to the
 * host.
 */
GQ_FN void gq_report_reads(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    uint32_t bad, status, status_of, mask;
    uint64_t bytes;
    GQ_LANE_VAR(uint32_t, has);

    (void)gq_conclude_reads(r);
    bytes = gq_bytes_taken(r);
    bad = GQ_MIN32(r->bad);
    status_of = GQ_MIN32(r->status_of);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(has) = GQ_AT(r->status) && GQ_AT(r->status_of) == status_of;
    }
    mask = GQ_BALLOT(has);
    status = mask ? GQ_FROM32(r->status, gq_prefix_ones(~mask)) : 0;
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            w->state->bytes = bytes;
            w->state->status = status;
            w->state->status_of = status_of;
            w->state->bad = bad;
        }
    }
    gq_end(w);
}

#endif
