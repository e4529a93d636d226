/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads through shared queues by single threads and by blocks, for CUDA only. The contracts are in
 * gpunvme_device.h.
 */
#ifndef CLIENT_DEVICE_GD_SHARED_PREAD_H
#define CLIENT_DEVICE_GD_SHARED_PREAD_H

#ifndef __CUDACC__
#error "gd_shared_pread.h is for CUDA C++"
#endif

#include "client/device/gd_lone.h"

/* Returns the group of the warp's threads that are in the mask. */
GQ_FN struct gq_group gd_group(uint32_t mask)
{
    return (struct gq_group){mask, (uint32_t)__popc(mask & ((1u << gq_thread()) - 1u)),
                             (uint32_t)__popc(mask)};
}

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

/* Describes a thread of a block, and the number of warps in the block that read. */
struct gd_block {
    uint32_t threads, me, groups;
};

/*
 * Returns the block for a read of len bytes. The part of each reading warp has at least
 * GD_QUEUE_COMMANDS commands of `most` bytes. Warps that poll host memory slow down the data, and
 * more than eight warps made long reads slower. A block that is smaller than a warp is one group.
 */
GQ_FN struct gd_block gd_block_for(uint32_t most, uint64_t len)
{
    uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
    uint32_t warps = threads < GQ_LANES ? 1 : threads / GQ_LANES;
    uint64_t want = (len >> gq_prefix_ones(gd_unit(most) - 1)) / GD_QUEUE_COMMANDS + 1;

    warps = warps < GD_READ_QUEUES ? warps : GD_READ_QUEUES;
    return (struct gd_block){threads,
                             threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
                             want < warps ? (uint32_t)want : warps};
}

/* Reads the calling warp's part of a block's read, if it has one. Returns 0 or -errno. */
GQ_STEP int gd_shared_part(struct gd_block block, const struct gpunvme_device_file *file,
                           uint64_t dst, uint64_t len, uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    const struct gd_dealt d = gd_deal_out(k.most, len, offset, block.groups);
    uint32_t mask = block.threads < GQ_LANES ? (1u << block.threads) - 1u : GQ_LANE_ALL;
    struct gd_share share, *s = &share;
    uint64_t from, bytes = gd_dealt_part(d, len, block.me / GQ_LANES, &from);

    if (bytes == 0)
        return 0;
    gd_share_open(s, gd_group(mask), file, &k, bytes);
    gd_deal(s, k.most, dst + from, bytes, offset + from);
    gd_share_begin(s, &k);
    gd_share_end(s);
    return gd_first_error(s);
}

/*
 * Returns the least error of all warps, after a barrier. Threads may still load errs when the
 * function returns, so the caller passes another barrier before the next call.
 */
GQ_FN int gd_worst(struct gd_block block, int err)
{
    __shared__ int errs[GD_READ_QUEUES];

    if (block.me % GQ_LANES == 0 && block.me / GQ_LANES < block.groups)
        errs[block.me / GQ_LANES] = err;
    __syncthreads();
    err = 0;
    for (uint32_t i = 0; i < block.groups; i++)
        err = errs[i] < err ? errs[i] : err;
    return err;
}

/*
 * Reads n bytes by a block, fewer at the end of the file. All threads pass two barriers. A read by
 * one whole warp may take the short path (gd_lone.h).
 */
GQ_FN int64_t gd_shared_pread_block(const struct gpunvme_device_file *file, uint64_t dst,
                                    uint64_t n, uint64_t offset)
{
    const struct gd_known k = gd_load_known(file);
    uint64_t len = offset < k.end ? (n < k.end - offset ? n : k.end - offset) : 0;
    struct gd_block block = gd_block_for(k.most, len);
    struct gd_share s;
    int err = 0;

    __syncthreads();
    if (block.groups > 1 || block.threads < GQ_LANES)
        err = gd_shared_part(block, file, dst, len, offset);
    else if (block.me < GQ_LANES)
        err = gd_read_warp(&s, file, &k, dst, len, offset);
    err = gd_worst(block, err);
    return err ? err : (int64_t)len;
}

#endif
