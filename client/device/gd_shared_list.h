/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads lists by a warp through shared queues. Each lane reads a piece. When the piece has ended,
 * the lane takes the next piece of the list. Every function is called by all lanes of the warp
 * together unless noted otherwise.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_LIST_H
#define CLIENT_DEVICE_GD_SHARED_LIST_H

#include "client/device/gd_shared_run.h"
#include "cuda/queue/gq_abi.h"

/* Describes a list, and the current piece of each lane. */
struct gd_pieces {
    struct gq_read_desc *list;
    uint32_t n, next;                /* pieces, and the first one that no lane has taken */
    uint64_t dst, room;              /* pieces lie in so many bytes from dst on */
    int32_t rest;                    /* error of all pieces that have no command in flight; or 0 */
    GQ_LANE_MEMBER(uint32_t, piece); /* GQ_NO_READ: none */
    GQ_LANE_MEMBER(int32_t, result); /* if it succeeds */
    GQ_LANE_MEMBER(uint32_t, bad);   /* the first piece of the lane with an error, or GQ_NO_READ */
    GQ_LANE_MEMBER(int32_t, err);    /* its error */
};

/* Called inside a region. Stores the result of the lane's ended piece. */
GQ_FN void gd_end_piece(struct gd_share *s, struct gd_pieces *p, uint32_t lane)
{
    int err = GQ_AT(s->part).err;

    if (GQ_AT(p->piece) == GQ_NO_READ)
        return;
    p->list[GQ_AT(p->piece)].result = err ? err : GQ_AT(p->result);
    if (err && GQ_AT(p->bad) == GQ_NO_READ) {
        GQ_AT(p->bad) = GQ_AT(p->piece);
        GQ_AT(p->err) = err;
    }
    GQ_AT(p->piece) = GQ_NO_READ;
}

/* Called inside a region. Begins piece i on the lane. */
GQ_FN void gd_take_piece(struct gd_share *s, struct gd_pieces *p, uint32_t lane, uint32_t i)
{
    const struct gq_read_desc piece = p->list[i];
    uint64_t end = gd_load64(&s->file->map.end);
    uint64_t left = piece.file_offset < end ? end - piece.file_offset : 0;
    int err = 0;

    left = piece.len < left ? piece.len : left;
    if (piece.len > INT32_MAX)
        err = -EINVAL;
    else if (piece.at > p->room || piece.len > p->room - piece.at)
        err = -EFAULT;
    else
        err = p->rest;
    GQ_AT(p->piece) = i;
    GQ_AT(p->result) = (int32_t)left;
    GQ_AT(s->part).dst = p->dst + piece.at;
    GQ_AT(s->part).offset = piece.file_offset;
    GQ_AT(s->part).left = err ? 0 : left;
    GQ_AT(s->part).err = err;
    GQ_AT(s->part).again = 0;
    GQ_AT(s->part).sent_us = gd_clock_us();
}

/*
 * Ends the list if a lane has found that the leases have ended, or if a lane has waited in vain for
 * a command. In the latter case each further command might time out, too. Commands in flight end as
 * usual.
 */
GQ_STEP void gd_check_list(struct gd_share *s, struct gd_pieces *p)
{
    struct gq_sharer *w = &s->q;
    GQ_LANE_VAR(uint32_t, err);
    uint32_t mask;

    GQ_FOR_LANES(lane)
    {
        int32_t found = GQ_AT(s->part).err;

        GQ_AT(err) = found == -ESTALE || found == -ETIMEDOUT ? (uint32_t)found : 0;
    }
    mask = GQ_BALLOT(err);
    if (mask && p->rest == 0)
        p->rest = (int32_t)GQ_FROM32(err, gq_prefix_ones(~mask));
    if (p->rest)
        gd_fail(s, gd_wanting(s), p->rest);
}

/*
 * Ends the pieces that lanes have read completely, and assigns the next pieces to these lanes.
 * Returns true if a lane has a piece. A lane that gd_check_list() stops ends its piece in the next
 * turn, because gd_step() has to release the queue first.
 */
GQ_STEP bool gd_next_pieces(struct gd_share *s, struct gd_pieces *p)
{
    struct gq_sharer *w = &s->q;
    uint32_t idle = ~(gd_active(s) | gd_wanting(s));
    GQ_LANE_VAR(uint32_t, has);

    gd_check_list(s, p);
    GQ_FOR_LANES(lane)
    {
        uint32_t i = p->next + gq_count_ones(idle & ((1u << lane) - 1u));

        if (idle >> lane & 1u) {
            gd_end_piece(s, p, lane);
            if (i < p->n)
                gd_take_piece(s, p, lane, i);
        }
        GQ_AT(has) = GQ_AT(p->piece) != GQ_NO_READ;
    }
    p->next += gq_count_ones(idle);
    p->next = p->next < p->n ? p->next : p->n;
    return GQ_BALLOT(has) != 0;
}

/* Returns the error of the first piece that has one, or 0. */
GQ_FN int gd_first_bad(const struct gd_share *s, const struct gd_pieces *p)
{
    const struct gq_sharer *w = &s->q;
    uint32_t first = GQ_MIN32(p->bad);
    GQ_LANE_VAR(uint32_t, is);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(is) = first != GQ_NO_READ && GQ_AT(p->bad) == first;
    }
    uint32_t mask = GQ_BALLOT(is);
    return mask ? (int)GQ_FROM32(p->err, gq_prefix_ones(~mask)) : 0;
}

/*
 * Returns the number of bytes from dst to the end of the buffer that contains dst. Returns 0 if no
 * buffer contains dst. Without queues there is no table of buffers, and no limit.
 */
GQ_STEP uint64_t gd_room(const struct gd_share *s, const struct gd_known *k, uint64_t dst)
{
    const struct gq_sharer *w = &s->q;
    uint32_t n = k->n_queues ? GQ_SAME32(gd_load32(k->n_buffers)) : 0;
    GQ_LANE_VAR(uint64_t, room);

    for (uint32_t i = 0; i < n; i += w->group.lanes) {
        GQ_LANE_VAR(uint32_t, holds);
        uint32_t mask;

        GQ_FOR_LANES(lane)
        {
            uint64_t past = dst - gd_load64(&k->buffers[i + lane].addr);
            uint64_t len = gd_load64(&k->buffers[i + lane].len);

            GQ_AT(holds) = past < len;
            GQ_AT(room) = len - past;
        }
        mask = GQ_BALLOT(holds);
        if (mask)
            return GQ_FROM64(room, gq_prefix_ones(~mask));
    }
    return k->n_queues ? 0 : UINT64_MAX;
}

/*
 * Reads n pieces to memory that begins at dst, and stores the results of the pieces. Returns 0, or
 * the error of the first piece that has one.
 */
GQ_FN int gd_shared_preadv_warp(const struct gpunvme_device_file *file, uint64_t dst,
                                struct gq_read_desc *list, uint32_t n)
{
    struct gd_known k = gd_load_known(file);
    struct gd_pieces p = {.list = list, .n = n, .dst = dst};
    struct gd_share share, *s = &share;
    const struct gq_sharer *w = &s->q;

    if (n > GD_MAX_PIECES)
        return -EINVAL;
    if (n == 0)
        return 0;
    gd_share_open(s, gq_whole_group(), file, &k, list[0].len);
    p.room = gd_room(s, &k, dst);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(p.piece) = GQ_NO_READ;
        GQ_AT(p.bad) = GQ_NO_READ;
    }
    /* gd_share_begin() checks the leases only if a lane has bytes to read. */
    while (gd_next_pieces(s, &p) && gd_wanting(s) == 0)
        k = gd_load_known(file);
    gd_share_begin(s, &k);
    for (;;) {
        (void)gd_step(s);
        if (!gd_next_pieces(s, &p))
            break;
        gd_share_more(s);
    }
    return gd_first_bad(s, &p);
}

#endif
