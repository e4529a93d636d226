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

#ifdef GPUNVME_DEVICE_SMALL

/*
 * Reads the calling warp's part of a block's read, if it has one. Returns 0 or
 * -errno.
 */
GQ_STEP int gd_shared_part(struct gd_block block, const struct gpunvme_device_file *file,
                           uint64_t dst, uint64_t len, uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    const struct gd_dealt d = gd_deal_out(k.max_command, len, offset, block.groups);
    struct gd_share share, *s = &share;
    uint64_t from, bytes = gd_dealt_part(d, len, block.me / GQ_LANES, &from);

    if (bytes == 0)
        return 0;
    gd_share_open(s, gd_group_of(block), file, &k, bytes);
    gd_deal(s, k.max_command, dst + from, bytes, offset + from);
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
    struct gd_block k;
    int err;

    len = n < len ? n : len;
    k = gd_block_for(gd_load32(&file->set.n_queues), gd_load32(&file->set.max_command), len);
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

/*
 * Reads the lanes' pieces of a list, from `first` on, to the memory from dst
 * on. Returns 0, or the error of the first piece that has one.
 */
GQ_STEP int gd_shared_pieces(const struct gpunvme_device_file *file, uint64_t dst, uint64_t room,
                             struct gq_read_desc *list, uint32_t n, uint32_t first)
{
    uint32_t i = first + gq_thread();
    struct gq_read_desc piece = {0};
    struct gd_share share, *s = &share;
    int err = 0;

    if (i < n)
        piece = list[i];
    if (piece.len > INT32_MAX)
        err = -EINVAL;
    else if (room == 0 || piece.at > room || piece.len > room - piece.at)
        err = -EFAULT;
    piece.result = (int32_t)gd_begin_lane(s, gq_whole_group(), file, dst + piece.at,
                                          err ? 0 : piece.len, piece.file_offset, false);
    gd_share_end(s);
    if (err)
        s->part.err = err;
    if (i < n)
        list[i].result = s->part.err ? s->part.err : piece.result;
    return gd_first_error(s);
}

/* Does what gd_preadv_warp() does, through shared queues. */
GQ_FN int gd_shared_preadv_warp(const struct gpunvme_device_file *file, uint64_t dst,
                                struct gq_read_desc *list, uint32_t n)
{
    uint64_t room;
    int err = 0;

    if (n > GD_MAX_PIECES)
        return -EINVAL;
    room = gd_shared_room(file, dst);
    for (uint32_t i = 0; i < n; i += GQ_LANES) {
        int found = gd_shared_pieces(file, dst, room, list, n, i);

        err = err ? err : found;
    }
    return err;
}

#endif

#endif
