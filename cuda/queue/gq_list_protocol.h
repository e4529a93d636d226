/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of commands: the queue protocol (gq_protocol.h) with commands that the
 * host has made. A round posts and completes up to GQ_EACH commands per lane.
 *
 * Every function is called by all lanes of the group together.
 */
#ifndef CUDA_QUEUE_GQ_LIST_PROTOCOL_H
#define CUDA_QUEUE_GQ_LIST_PROTOCOL_H

#include "cuda/queue/gq_protocol.h"

/*
 * Commands are assigned to the entries of the lanes in turn. Returns the
 * distance from w->sent to the entry's current or next command, counted within
 * the share.
 */
GQ_FN uint32_t gq_turn_of(const struct gq_worker *w, uint32_t place)
{
    uint32_t places = GQ_EACH * w->group.lanes;

    return (place + places - w->sent % places) % places;
}

/*
 * Loads the next command of entries whose command was posted; the loads
 * complete by the end of the round.
 */
GQ_FN void gq_fetch_cmds(struct gq_worker *w)
{
    uint32_t left = w->share - w->sent, places = GQ_EACH * w->group.lanes;

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = gq_turn_of(w, h * w->group.lanes + lane);

            if (i < left && w->sent + i >= w->fetched)
                GQ_AT(w->next).cmd[h] = w->run->cmds[gq_stripe(w, w->sent + i)];
        }
    }
    w->fetched = w->sent + (left < places ? left : places);
}

/*
 * Loads CIDs for the next commands, at the end of a round. This is early,
 * because a load that is waited for between a peek and its fence may also wait
 * for the peek: a GPU counts outstanding loads with few counters.
 */
GQ_FN void gq_fetch_cids(struct gq_worker *w)
{
    uint32_t n = gq_reserve(w, w->fetched - w->sent);

    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = gq_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                GQ_AT(w->next).cid[h] = gq_free_cid(w, i);
        }
    }
}

/* Writes the SQEs of the next n commands. */
GQ_FN void gq_post_cmds(struct gq_worker *w, uint32_t n)
{
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            uint32_t i = gq_turn_of(w, h * w->group.lanes + lane);

            if (i < n)
                gq_post(w, i, GQ_AT(w->next).cid[h], &GQ_AT(w->next).cmd[h],
                        gq_stripe(w, w->sent + i), 0);
        }
    }
    gq_advance(w, n);
}

/* Stores the results of n completions. */
GQ_FN void gq_store_results(struct gq_worker *w, GQ_LANE_PARAM(struct gq_ended, ended), uint32_t n)
{
    GQ_FOR_LANES(lane)
    {
        for (uint32_t h = 0; h < GQ_EACH; h++) {
            if (h * w->group.lanes + lane < n && GQ_AT(ended).cmd[h] < GQ_TRACKER_FREE)
                w->run->results[GQ_AT(ended).cmd[h]] = GQ_ENDED | GQ_AT(ended).status[h];
        }
    }
}

/* Runs a round of a list of commands. The first round only fetches. */
GQ_FN enum gq_round gq_round(struct gq_worker *w)
{
    GQ_LANE_VAR(struct gq_peek, peeked);
    GQ_LANE_VAR(struct gq_ended, ended);
    uint32_t sent, n_peeked, n;

    if (w->fetched == 0 && w->share) {
        gq_fetch_cmds(w);
        gq_fetch_cids(w);
        return GQ_ROUND_BUSY;
    }
    sent = gq_reserve(w, w->fetched - w->sent);
    n_peeked = gq_peek(w, sent != 0, peeked);
    if (sent) {
        gq_post_cmds(w, sent);
        gq_fetch_cmds(w);
    }
    n = gq_publish_and_poll(w, sent, peeked, n_peeked, ended);
    gq_fetch_cids(w);
    gq_store_results(w, ended, n);
    return gq_end_round(w, w->sent < w->share, sent || n);
}

#endif
