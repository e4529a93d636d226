/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Distributes the portions (gq_dealing.h) of a list of reads. Neighbouring
 * reads are loaded together, one per lane, and assigned to lanes without a
 * read. The lanes load reads while earlier reads are assigned. If there is a
 * prefetch warp (gq_prefetch.h), it takes the portions and loads the reads
 * instead. At the end of a list of staged reads, idle lanes take halves of the
 * reads of busy lanes.
 *
 * Unless noted otherwise, every function is called by all lanes of the group
 * together.
 */
#ifndef CUDA_QUEUE_GQ_READS_FETCH_H
#define CUDA_QUEUE_GQ_READS_FETCH_H

#include "cuda/queue/gq_reads_cut.h"

/*
 * Takes the next neighbours, at most one per lane, from the portion or the next
 * one. Returns their number, 0 at the end of the list. *first is the number of
 * the first.
 */
GQ_FN uint32_t gq_take_neighbours(const struct gq_worker *w, struct gq_portion *p, uint32_t *first)
{
    uint32_t n;

    if (p->at == p->end && !gq_take_portion(w, p))
        return 0;
    n = p->end - p->at < w->group.lanes ? p->end - p->at : w->group.lanes;
    *first = p->at;
    p->at += n;
    return n;
}

/* Loads the next neighbours, unless they are being loaded or prefetched. */
GQ_FN void gq_fetch(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;

    if (r->coming || r->is_dry || r->prefetch)
        return;
    r->coming = gq_take_neighbours(w, &r->portion, &r->ahead_first);
    r->is_dry = r->coming == 0;
    GQ_FOR_LANES(lane)
    {
        if (lane < r->coming)
            GQ_AT(r->ahead) = gq_load_read(r->reads, r->ahead_first + lane);
    }
}

/*
 * Makes the loaded neighbours the held ones. Returns false if they have not
 * arrived or none are left.
 */
GQ_FN bool gq_turn_over(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;

#ifdef __CUDACC__
    if (r->prefetch)
        gq_take_prefetched(r);
#endif
    if (!r->coming)
        return false;
    GQ_FOR_LANES(lane)
    {
        GQ_AT(r->held) = GQ_AT(r->ahead);
    }
    r->held_first = r->next = r->ahead_first;
    r->held_end = r->held_first + r->coming;
    r->coming = 0;
    return true;
}

/*
 * Called inside a region by all lanes. Returns number j of the list if it is
 * held; j differs between lanes.
 */
GQ_FN struct gq_read gq_held(const struct gq_reader *r, uint32_t j)
{
    const struct gq_worker *w = &r->w;
    uint32_t i = j - r->held_first, from = i < w->group.lanes ? i : 0;

    return (struct gq_read){GQ_PART_FROM64(r->held, from, file_offset),
                            GQ_PART_FROM64(r->held, from, at), GQ_PART_FROM64(r->held, from, len)};
}

/* Called inside a region. True if the lane takes a read. */
GQ_FN bool gq_wants_read(const struct gq_reader *r, uint32_t lane)
{
    (void)lane;
    return lane < gq_reading_lanes(r->reads) && GQ_AT(r->lane_state) == GQ_LANE_FREE &&
           GQ_AT(r->cur).left == 0;
}

/* Assigns held reads to lanes without one; returns their number. */
GQ_FN uint32_t gq_hand_out(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, wants);
    uint32_t mask, n;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(wants) = gq_wants_read(r, lane);
    }
    mask = GQ_BALLOT(wants);
    n = gq_count_ones(mask);
    n = n < r->held_end - r->next ? n : r->held_end - r->next;
    if (n == 0)
        return 0;
    GQ_FOR_LANES(lane)
    {
        uint32_t i = gq_ones_before(mask, lane);
        struct gq_read read = gq_held(r, r->next + i);

        if (GQ_AT(wants) && i < n)
            gq_take_read(r, lane, &read, r->next + i);
    }
    r->next += n;
    return n;
}

/*
 * Gives lane `to` the upper half of the rest of lane `from`. The boundary is a
 * multiple of a lane's staging in the file, so it divides no LBA and no block
 * with a checksum.
 */
GQ_FN void gq_halve(struct gq_reader *r, uint32_t from, uint32_t to)
{
    struct gq_worker *w = &r->w;
    uint64_t offset = GQ_PART_FROM64(r->cur, from, offset);
    uint64_t left = GQ_PART_FROM64(r->cur, from, left), at = GQ_PART_FROM64(r->cur, from, at);
    uint64_t room = r->reads->lane_staging;
    uint64_t keeps = ((offset + left / 2 + room - 1) & ~(room - 1)) - offset;
    uint32_t index = (uint32_t)GQ_PART_FROM64(r->cur, from, index);

    GQ_FOR_LANES(lane)
    {
        if (lane == from)
            GQ_AT(r->cur).left = keeps;
        if (lane == to) {
            GQ_AT(r->cur).offset = offset + keeps;
            GQ_AT(r->cur).at = at + keeps;
            GQ_AT(r->cur).left = left - keeps;
            GQ_AT(r->cur).index = index;
        }
    }
}

/*
 * At the end of staged reads: lanes without a read take halves of reads with
 * several commands left, because each lane has one command at a time. Returns
 * the number of lanes that did.
 */
GQ_FN uint32_t gq_halve_last(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, wants);
    GQ_LANE_VAR(uint32_t, has);
    uint32_t takers, givers, n = 0;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(wants) = gq_wants_read(r, lane);
        GQ_AT(has) = GQ_AT(r->cur).left >= 2 * (uint64_t)r->reads->lane_staging;
    }
    takers = GQ_BALLOT(wants);
    givers = GQ_BALLOT(has);
    for (; takers && givers; n++) {
        uint32_t from = gq_take_one(&givers);

        gq_halve(r, from, gq_take_one(&takers));
    }
    return n;
}

/*
 * Assigns all reads that are held or have just arrived, or else halves of reads
 * of busy lanes. Returns the number of lanes that got one.
 */
GQ_FN uint32_t gq_deal(struct gq_reader *r)
{
    uint32_t n = gq_hand_out(r);

    if (r->next != r->held_end)
        return n;
    if (gq_turn_over(r))
        return n + gq_hand_out(r);
    return r->reads->staged && r->is_dry ? n + gq_halve_last(r) : n;
}

#endif
