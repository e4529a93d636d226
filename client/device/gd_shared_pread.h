/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads through shared queues by warps, and by threads for themselves, for CUDA
 * only. gpunvme_device.h has the contracts.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_PREAD_H
#define CLIENT_DEVICE_GD_SHARED_PREAD_H

#ifndef __CUDACC__
#error "gd_shared_pread.h is for CUDA C++"
#endif

#include "client/device/gd_lone.h"
#include "client/device/gd_pread.h"

/*
 * Begins a read for each thread of the group. Returns its bytes; `leaves` is as
 * for gd_begin_warp().
 */
GQ_FN uint64_t gd_begin_lane(struct gd_share *s, struct gq_group group,
                             const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                             uint64_t offset, bool leaves)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;
    struct gq_sharer *w = &s->q;

    w->group = group; /* of GQ_SAME64 */
    gd_share_open(s, group, file, &k, GQ_SAME64(len));
    s->leaves = leaves;
    s->part.dst = dst;
    s->part.offset = offset;
    s->part.left = len;
    gd_share_begin(s, &k);
    return len;
}

GQ_FN int64_t gd_shared_pread_warp(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                                   uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;
    struct gd_share s;
    int err = gd_read_warp(&s, file, &k, dst, len, offset);

    return err ? err : (int64_t)len;
}

/* Reads one file by the converged threads. */
GQ_FN int64_t gd_shared_pread_lane(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                                   uint64_t offset)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)file);
    struct gd_share s;
    uint64_t len = gd_begin_lane(&s, gd_group(mask), file, dst, n, offset, false);

    gd_share_end(&s);
    return s.part.err ? s.part.err : (int64_t)len;
}

GQ_FN void gd_shared_begin_warp(struct gpunvme_ticket *t, const struct gpunvme_device_file *file,
                                uint64_t dst, uint64_t n, uint64_t offset)
{
    struct gd_share s;

    t->len = (int64_t)gd_begin_warp(&s, file, dst, n, offset, true);
    gd_share_leave(&s);
    gd_make_ticket(&s, t);
}

GQ_FN void gd_shared_begin_lane(struct gpunvme_ticket *t, const struct gpunvme_device_file *file,
                                uint64_t dst, uint64_t n, uint64_t offset)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)file);
    struct gd_share s;

    t->len = (int64_t)gd_begin_lane(&s, gd_group(mask), file, dst, n, offset, true);
    gd_share_leave(&s);
    gd_make_ticket(&s, t);
}

GQ_FN int64_t gd_shared_end_warp(const struct gpunvme_ticket *t)
{
    struct gd_share s;
    int err;

    gd_resume(&s, gq_whole_group(), t, (uint64_t)t->len);
    err = gd_first_error(&s);
    return err ? err : t->len;
}

GQ_FN int64_t gd_shared_end_lane(const struct gpunvme_ticket *t)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)t->file);
    struct gd_share s;

    mask = __match_any_sync(mask, (uint64_t)t->lease << 32 | t->queue);
    gd_resume(&s, gd_group(mask), t, (uint64_t)t->len);
    return s.part.err ? s.part.err : t->len;
}

/*
 * Reads the calling warp's part of a block's read, if it has one. Returns 0 or
 * -errno.
 */
GQ_STEP int gd_shared_part(struct gd_block block, const struct gpunvme_device_file *file,
                           uint64_t dst, uint64_t len, uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    const struct gd_dealt d = gd_deal_out(k.most, len, offset, block.groups);
    struct gd_share share, *s = &share;
    uint64_t from, bytes = gd_dealt_part(d, len, block.me / GQ_LANES, &from);

    if (bytes == 0)
        return 0;
    gd_share_open(s, gd_group_of(block), file, &k, bytes);
    gd_deal(s, k.most, dst + from, bytes, offset + from);
    gd_share_begin(s, &k);
    gd_share_end(s);
    return gd_first_error(s);
}

/*
 * Does what gd_pread_block() does, through shared queues. All threads pass the
 * same two barriers.
 */
GQ_FN int64_t gd_shared_pread_block(const struct gpunvme_device_file *file, uint64_t dst,
                                    uint64_t n, uint64_t offset)
{
    uint64_t end = gd_load64(&file->map.end), len = offset < end ? end - offset : 0;
    const struct gd_known known = gd_load_known(file);
    struct gd_block k;
    int err;

    len = n < len ? n : len;
    k = gd_block_for(known.n_queues, known.most, len);
    __syncthreads();
    err = gd_worst(k, gd_shared_part(k, file, dst, len, offset));
    return err ? err : (int64_t)len;
}

/*
 * Returns the bytes from dst to the end of the buffer that contains it, or 0 if
 * there is none. Without queues there is no limit.
 */
GQ_STEP uint64_t gd_shared_room(const struct gpunvme_device_file *file, uint64_t dst)
{
    const struct gpunvme_device_file f = gd_load_file(file);
    struct gd_reader self = {.group = gq_whole_group(), .file = &f}, *w = &self;
    struct gd_table table;
    struct gd_buffer b;

    if (f.set.n_queues == 0)
        return UINT64_MAX;
    gd_load_table(w, 0, &table);
    return gd_find_buffer(w, &table, dst, 1, &b) ? 0 : b.len - (dst - b.addr);
}

/* A list that a warp reads: each lane reads one piece at a time, and then takes the next one. */
struct gd_pieces {
    struct gq_read_desc *list;
    uint32_t n, next; /* pieces, and the first one that no lane has taken */
    uint64_t dst, room;
    bool stale; /* the leases have ended: no further piece is read */
    GQ_LANE_MEMBER(uint32_t, piece); /* GQ_NO_READ: none */
    GQ_LANE_MEMBER(int32_t, result); /* if it succeeds */
    GQ_LANE_MEMBER(uint32_t, bad);   /* the first piece of the lane with an error, or GQ_NO_READ */
    GQ_LANE_MEMBER(int32_t, err);    /* its error */
};

/* Called inside a region. Stores the result of the lane's piece, which has ended. */
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
    else if (p->room == 0 || piece.at > p->room || piece.len > p->room - piece.at)
        err = -EFAULT;
    else if (p->stale)
        err = -ESTALE;
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
 * Ends the pieces of lanes that have read all of them, and gives these lanes the next ones. Returns
 * true if a lane has a piece.
 */
GQ_STEP bool gd_next_pieces(struct gd_share *s, struct gd_pieces *p)
{
    struct gq_sharer *w = &s->q;
    uint32_t idle = ~(gd_active(s) | gd_wanting(s));
    GQ_LANE_VAR(uint32_t, has);
    GQ_LANE_VAR(uint32_t, stale);

    GQ_FOR_LANES(lane)
    {
        GQ_AT(stale) = GQ_AT(s->part).err == -ESTALE;
    }
    p->stale = p->stale || GQ_BALLOT(stale);

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

GQ_FN int gd_shared_preadv_warp(const struct gpunvme_device_file *file, uint64_t dst,
                                struct gq_read_desc *list, uint32_t n)
{
    const struct gd_known k = gd_load_known(file);
    struct gd_pieces p = {.list = list, .n = n, .dst = dst};
    struct gd_share share, *s = &share;
    const struct gq_sharer *w = &s->q;

    if (n > GD_MAX_PIECES)
        return -EINVAL;
    if (n == 0)
        return 0;
    p.room = gd_shared_room(file, dst);
    gd_share_open(s, gq_whole_group(), file, &k, list[0].len);
    GQ_FOR_LANES(lane)
    {
        GQ_AT(p.piece) = GQ_NO_READ;
        GQ_AT(p.bad) = GQ_NO_READ;
    }
    (void)gd_next_pieces(s, &p);
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
