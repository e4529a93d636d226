/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes lists of prepared commands by the queue protocol (gq_protocol.h), on
 * CUDA only. A round posts and completes up to GQ_EACH commands per lane, as
 * fast as the protocol can.
 *
 * Every function is called by all lanes of the group together.
 */
#ifndef BENCH_LIB_BARE_LIST_H
#define BENCH_LIB_BARE_LIST_H

#include "cuda/queue/gq_protocol.h"

/* A group's share of a list. */
struct bare_list {
    struct gq_worker w;
    const struct gq_cmd *cmds;
    uint32_t *results; /* of each command: GQ_ENDED | status */
    uint32_t fetched;  /* number of commands of the share that were loaded */
    /* The commands of the lane to be posted next, and their CIDs. */
    struct gq_cmd next[GQ_EACH];
    uint32_t cid[GQ_EACH];
};

/*
 * Commands are assigned to the entries of the lanes in turn. Returns the
 * distance from w->sent to the entry's current or next command, counted within
 * the share.
 */
GQ_FN uint32_t bare_turn_of(const struct gq_worker *w, uint32_t place)
{
    uint32_t places = GQ_EACH * w->group.lanes;

    return (place + places - w->sent % places) % places;
}

/*
 * Loads the next command of entries whose command was posted; the loads
 * complete by the end of the round.
 */
GQ_FN void bare_fetch_cmds(struct bare_list *b)
{
    const struct gq_worker *w = &b->w;
    uint32_t left = w->share - w->sent, places = GQ_EACH * w->group.lanes;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < left && w->sent + i >= b->fetched)
                b->next[h] = b->cmds[gq_stripe(w, w->sent + i)];
        }
    }
    b->fetched = w->sent + (left < places ? left : places);
}

/*
 * Loads CIDs for the next commands, at the end of a round. This is early,
 * because a load that is waited for between a peek and its fence may also wait
 * for the peek: a GPU counts outstanding loads with few counters.
 */
GQ_FN void bare_fetch_cids(struct bare_list *b)
{
    const struct gq_worker *w = &b->w;
    uint32_t n = gq_reserve(w, b->fetched - w->sent);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                b->cid[h] = gq_free_cid(w, i);
        }
    }
}

/* Writes the SQEs of the next n commands. */
GQ_FN void bare_post_cmds(struct bare_list *b, uint32_t n)
{
    struct gq_worker *w = &b->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = bare_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                gq_post(w, i, b->cid[h], &b->next[h], gq_stripe(w, w->sent + i), 0);
        }
    }
    gq_advance(w, n);
}

/* Stores the results of n completions. */
GQ_FN void bare_store_results(struct bare_list *b, GQ_LANE_PARAM(struct gq_ended, ended),
                              uint32_t n)
{
    const struct gq_worker *w = &b->w;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            if (h * w->group.lanes + lane < n && GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE)
                b->results[GQ_AT(ended).cmd[h]] = GQ_ENDED | GQ_AT(ended).status[h];
        }
    }
}

/* Runs a round of a list of commands. The first round only fetches. */
GQ_FN enum gq_round bare_round(struct bare_list *b)
{
    struct gq_worker *w = &b->w;
    GQ_LANE_VAR(struct gq_peek, peeked);
    GQ_LANE_VAR(struct gq_ended, ended);
    uint32_t sent, n_peeked, n;

    if (b->fetched == 0 && w->share) {
        bare_fetch_cmds(b);
        bare_fetch_cids(b);
        return GQ_ROUND_BUSY;
    }
    sent = gq_reserve(w, b->fetched - w->sent);
    n_peeked = gq_peek(w, sent != 0, peeked);
    if (sent) {
        bare_post_cmds(b, sent);
        bare_fetch_cmds(b);
    }
    n = gq_publish_and_poll(w, sent, peeked, n_peeked, ended);
    bare_fetch_cids(b);
    bare_store_results(b, ended, n);
    return gq_end_round(w, w->sent < w->share, sent || n);
}

#endif
