/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads through shared queues by warps, and by threads for themselves: CUDA only. Contracts:
 * gpunvme_device.h.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_PREAD_H
#define CLIENT_DEVICE_GD_SHARED_PREAD_H

#ifndef __CUDACC__
#error "gd_shared_pread.h is for CUDA C++"
#endif

#include "client/device/gd_lone.h"
#include "client/device/gd_pread.h"

/* Of a thread: a read that was begun. */
struct gpunvme_ticket {
    const struct gpunvme_device_file *file;
    struct gd_part part;
    struct gq_mine mine;
    uint32_t queue;
    int64_t len; /* bytes of the read */
};

/* A warp's read begins. leaves: of a ticket. Returns its bytes. */
GQ_FN uint64_t gd_begin_warp(struct gd_share *s, const struct gpunvme_device_file *file,
                             uint64_t dst, uint64_t n, uint64_t offset, bool leaves)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;

    gd_share_open(s, gq_whole_group(), file, &k, len);
    s->leaves = leaves;
    if (len) {
        gd_deal(s, k.max_command, dst, len, offset);
        gd_share_begin(s, &k);
    }
    return len;
}

/* The same of a read for each of the threads in the group. */
GQ_FN uint64_t gd_begin_lane(struct gd_share *s, struct gq_group group,
                             const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                             uint64_t offset, bool leaves)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;
    struct gq_sharer *w = &s->q;

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

/* The converged threads, of one file. */
GQ_FN int64_t gd_shared_pread_lane(const struct gpunvme_device_file *file, uint64_t dst, uint64_t n,
                                   uint64_t offset)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)file);
    struct gd_share s;
    uint64_t len = gd_begin_lane(&s, gd_group(mask), file, dst, n, offset, false);

    gd_share_end(&s);
    return s.part.err ? s.part.err : (int64_t)len;
}

GQ_FN struct gpunvme_ticket gd_ticket(const struct gd_share *s, uint64_t len)
{
    return (struct gpunvme_ticket){s->file, s->part, s->q.mine, s->queue, (int64_t)len};
}

GQ_FN struct gpunvme_ticket gd_shared_begin_warp(const struct gpunvme_device_file *file,
                                                 uint64_t dst, uint64_t n, uint64_t offset)
{
    struct gd_share s;
    uint64_t len = gd_begin_warp(&s, file, dst, n, offset, true);

    gd_share_leave(&s);
    return gd_ticket(&s, len);
}

GQ_FN struct gpunvme_ticket gd_shared_begin_lane(const struct gpunvme_device_file *file,
                                                 uint64_t dst, uint64_t n, uint64_t offset)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)file);
    struct gd_share s;
    uint64_t len = gd_begin_lane(&s, gd_group(mask), file, dst, n, offset, true);

    gd_share_leave(&s);
    return gd_ticket(&s, len);
}

/* The group goes on with reads that were begun in one queue. Deadlines count from now. */
GQ_FN void gd_resume(struct gd_share *s, struct gq_group group, const struct gpunvme_ticket *t)
{
    const struct gd_known k = gd_load_known(t->file);

    gd_share_open(s, group, t->file, &k, (uint64_t)t->len);
    s->queue = t->queue;
    s->part = t->part;
    s->part.sent_us = gd_clock_us();
    s->q.mine = t->mine;
    if (k.n_queues == 0)
        gd_end_all(s);
    else if (gd_active(s))
        gd_use_queue(s, &k);
    gd_share_end(s);
}

GQ_FN int64_t gd_shared_end_warp(const struct gpunvme_ticket *t)
{
    struct gd_share s;
    int err;

    gd_resume(&s, gq_whole_group(), t);
    err = gd_first_error(&s);
    return err ? err : t->len;
}

GQ_FN int64_t gd_shared_end_lane(const struct gpunvme_ticket *t)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)t->file);
    struct gd_share s;

    mask = __match_any_sync(mask, t->queue);
    gd_resume(&s, gd_group(mask), t);
    return s.part.err ? s.part.err : t->len;
}

#endif
