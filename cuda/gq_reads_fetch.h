/*
 * How a group of lanes gets at its share of a list of reads: neighbours are loaded together, one
 * for each lane, while those before them are handed out.
 *
 * A list may lie in host memory. A GPU fetches a line of that for one load after the other, so that
 * lanes which loaded their reads field by field, 24 bytes apart, would wait for three trips over
 * the bus and, where the link is busy, take a multiple of the time of a round. Hence lanes load
 * words side by side, each line once, and get their reads out of each other's words.
 *
 * Every function is called by all lanes of the group together, but where it says otherwise.
 */
#ifndef CUDA_GQ_READS_FETCH_H
#define CUDA_GQ_READS_FETCH_H

#include <stddef.h>
#include <string.h>

#include "cuda/gq_reads_cut.h"

static_assert(offsetof(struct gq_asked, file_offset) == 0 && offsetof(struct gq_asked, at) == 8 &&
                  offsetof(struct gq_asked, len) == 16,
              "a read of either kind is three words, of the last of which only half may count");

/* By anybody: word i of a list. */
GQ_FN uint64_t gq_list_word(const void *list, uint64_t i)
{
#ifdef __CUDACC__
    return gq_load_word((const uint64_t *)list + i);
#else
    uint64_t word;

    memcpy(&word, (const unsigned char *)list + i * sizeof(word), sizeof(word));
    return word;
#endif
}

/* How many reads from number `first` of the share on are neighbours, a lane each at most. */
GQ_FN uint32_t gq_neighbours(const struct gq_worker *w, uint32_t first)
{
    uint32_t size = 1u << w->run->group_shift, n = size - (first & (size - 1));

    n = n < w->group.lanes ? n : w->group.lanes;
    return n < w->share - first ? n : w->share - first;
}

/* Loads the neighbours that come next, unless some are on their way. */
GQ_FN void gq_fetch(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    const void *list = gq_reads_list(r->reads);
    uint32_t words;
    uint64_t at;

    if (r->coming || r->held_end == w->share)
        return;
    r->coming = gq_neighbours(w, r->held_end);
    if (!list)
        return;
    words = GQ_READ_WORDS * r->coming;
    at = GQ_READ_WORDS * (uint64_t)gq_stripe(w, r->held_end);
    GQ_FOR_LANES(lane)
    {
        uint32_t second = w->group.lanes + lane, third = 2 * w->group.lanes + lane;

        if (lane < words)
            GQ_AT(r->words).first = gq_list_word(list, at + lane);
        if (second < words)
            GQ_AT(r->words).second = gq_list_word(list, at + second);
        if (third < words)
            GQ_AT(r->words).third = gq_list_word(list, at + third);
    }
}

/* Inside a region, by all lanes: word i of those that were loaded together, another for each. */
GQ_FN uint64_t gq_word_of(const struct gq_reader *r, uint32_t i)
{
    const struct gq_worker *w = &r->w;
    uint32_t from = i % w->group.lanes, turn = i / w->group.lanes;
    uint64_t first = GQ_PART_FROM64(r->words, from, first);
    uint64_t second = GQ_PART_FROM64(r->words, from, second);
    uint64_t third = GQ_PART_FROM64(r->words, from, third);

    return turn == 0 ? first : turn == 1 ? second : third;
}

/* What was on its way is held: each lane has one of the reads. */
GQ_FN void gq_turn_over(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    const struct gq_reads *reads = r->reads;

    GQ_FOR_LANES(lane)
    {
        if (gq_reads_list(reads)) {
            uint64_t offset = gq_word_of(r, GQ_READ_WORDS * lane);
            uint64_t at = gq_word_of(r, GQ_READ_WORDS * lane + 1);
            uint64_t len = gq_word_of(r, GQ_READ_WORDS * lane + 2);

            GQ_AT(r->held) = (struct gq_read){offset, at, reads->list ? len : (uint32_t)len};
        } else if (lane < r->coming) {
            GQ_AT(r->held) = gq_unit(reads, gq_stripe(w, r->held_end + lane));
        }
    }
    r->held_first = r->held_end;
    r->held_end += r->coming;
    r->coming = 0;
}

/* Inside a region, by all lanes: number j of the share, if it is held, another for each. */
GQ_FN struct gq_read gq_held(const struct gq_reader *r, uint32_t j)
{
    const struct gq_worker *w = &r->w;
    uint32_t i = j - r->held_first, from = i < w->group.lanes ? i : 0;

    return (struct gq_read){GQ_PART_FROM64(r->held, from, file_offset),
                            GQ_PART_FROM64(r->held, from, at), GQ_PART_FROM64(r->held, from, len)};
}

/* Gives lanes without a read one, as far as they are held. How many. */
GQ_FN uint32_t gq_hand_out(struct gq_reader *r)
{
    struct gq_worker *w = &r->w;
    GQ_LANE_VAR(uint32_t, wants);
    uint32_t mask, n;

    GQ_FOR_LANES(lane)
    {
        GQ_AT(wants) = GQ_AT(r->lane_state) == GQ_LANE_FREE && GQ_AT(r->cur).left == 0;
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
            gq_take_read(r, lane, &read, gq_stripe(w, r->next + i));
    }
    r->next += n;
    return n;
}

/* The same of all that is there, held or just come. */
GQ_FN uint32_t gq_deal(struct gq_reader *r)
{
    uint32_t n = gq_hand_out(r);

    if (r->next != r->held_end || !r->coming)
        return n;
    gq_turn_over(r);
    return n + gq_hand_out(r);
}

#endif
