/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copies data out of the staging of CIDs (gd_shared_run.h). The copies of several lanes use as few
 * trips over the bus as the registers permit.
 *
 *   gd_copy_together   executes copies of a warp that can share trips: short copies and whole pages
 *   gd_copy_each       executes the other copies one after another
 *
 * Every function is called by all lanes of the group together. When it returns, all lanes have
 * loaded their units, and a fence of lane 0 orders those loads.
 */
#ifndef CLIENT_DEVICE_GD_COPY_H
#define CLIENT_DEVICE_GD_COPY_H

#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

/* Describes the copy of each lane of a group out of staging. A lane with n = 0 copies nothing. */
struct gd_copies {
    struct gq_group group;
    GQ_LANE_MEMBER(uint64_t, dst);
    GQ_LANE_MEMBER(uint64_t, src);
    GQ_LANE_MEMBER(uint32_t, n);
};

#if defined(__CUDACC__) && !defined(GPUNVME_DEVICE_SMALL)

#define GD_COPY_SHORT 512u /* bytes of copies that are made several at a time */
#define GD_COPY_AHEAD 4u   /* loads of a lane in flight, of as many copies */

/* Executes the copies of all lanes of a warp. Each copy has n units of T, at most 1 << shift. */
template <typename T>
static __device__ __forceinline__ void gd_copy_units(uint64_t dst, uint64_t src, uint32_t n,
                                                     uint32_t shift)
{
#pragma unroll 1
    for (uint32_t i = gq_thread(); i < GQ_LANES << shift; i += GD_COPY_AHEAD * GQ_LANES) {
        T unit[GD_COPY_AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < GD_COPY_AHEAD; k++) {
            uint32_t of = (i + k * GQ_LANES) >> shift,
                     at = (i + k * GQ_LANES) & ((1u << shift) - 1);
            const T *from = (const T *)__shfl_sync(GQ_LANE_ALL, src, of) + at;

            if (at < __shfl_sync(GQ_LANE_ALL, n, of) && of < GQ_LANES)
                unit[k] = __ldcv(from);
        }
#pragma unroll
        for (uint32_t k = 0; k < GD_COPY_AHEAD; k++) {
            uint32_t of = (i + k * GQ_LANES) >> shift,
                     at = (i + k * GQ_LANES) & ((1u << shift) - 1);
            T *to = (T *)__shfl_sync(GQ_LANE_ALL, dst, of) + at;

            if (at < __shfl_sync(GQ_LANE_ALL, n, of) && of < GQ_LANES)
                *to = unit[k];
        }
    }
}

/*
 * Executes the copies of a whole warp at any alignment. Each lane copies n bytes, which may be 0.
 * The longest copy has `most` bytes.
 */
GQ_CALLED_FN void gd_copy_short(uint64_t dst, uint64_t src, uint32_t n, uint32_t most)
{
    uint32_t parts = __reduce_or_sync(GQ_LANE_ALL, n ? (uint32_t)(dst | src) | n : 0);
    uint32_t shift = most > 1 ? 32u - (uint32_t)__clz((int)(most - 1)) : 0;

    if (parts % 8 == 0)
        gd_copy_units<uint2>(dst, src, n / 8, shift > 3 ? shift - 3 : 0);
    else if (parts % 4 == 0)
        gd_copy_units<uint32_t>(dst, src, n / 4, shift > 2 ? shift - 2 : 0);
    else
        gd_copy_units<unsigned char>(dst, src, n, shift);
    __syncwarp(); /* all lanes have loaded before one gives staging back */
}

/*
 * Copies whole pages by a whole warp, two pages in one trip over the bus. Returns the lanes in `of`
 * whose copies remain.
 */
GQ_CALLED_FN uint32_t gd_copy_pages(uint64_t dst, uint64_t src, uint32_t n, uint32_t of)
{
    bool is_page = n == NVME_PAGE_SIZE && ((dst | src) & 15) == 0;
    uint32_t pages = __ballot_sync(GQ_LANE_ALL, is_page), left = of & ~pages;

#pragma unroll 1
    for (pages &= of; pages & (pages - 1);) {
        uint32_t i = gq_take_one(&pages), j = gq_take_one(&pages);
        struct gq_page_part a, b;

        gq_load_page(__shfl_sync(GQ_LANE_ALL, src, i), gq_thread(), &a);
        gq_load_page(__shfl_sync(GQ_LANE_ALL, src, j), gq_thread(), &b);
        gq_store_page(__shfl_sync(GQ_LANE_ALL, dst, i), gq_thread(), &a);
        gq_store_page(__shfl_sync(GQ_LANE_ALL, dst, j), gq_thread(), &b);
    }
    __syncwarp(); /* all lanes have loaded before one gives staging back */
    return left | pages;
}

/* Executes copies of the lanes in `of` in few trips over the bus. Returns the remaining lanes. */
GQ_FN uint32_t gd_copy_together(const struct gd_copies *w, uint32_t of)
{
    uint32_t most = __reduce_max_sync(w->group.mask, w->n);

    if ((of & (of - 1)) == 0 || w->group.mask != GQ_LANE_ALL)
        return of;
    if (most > GD_COPY_SHORT)
        return gd_copy_pages(w->dst, w->src, w->n, of);
    gd_copy_short(w->dst, w->src, w->n, most);
    return 0;
}

#else

/* Kernels with few registers execute all copies one after another. */
GQ_FN uint32_t gd_copy_together(const struct gd_copies *w, uint32_t of)
{
    (void)w;
    return of;
}

#endif

/*
 * Copies n bytes with all lanes of a group. The end of the region makes the lanes converge before
 * the function returns (gq_lanes.h).
 */
GQ_CALLED_FN void gd_copy_one(struct gq_group group, uint64_t dst, uint64_t src, uint32_t n)
{
    const struct {
        struct gq_group group;
    } self = {group}, *w = &self;

    GQ_FOR_LANES(lane)
    {
        gq_copy_long(dst, src, n, lane, w->group.lanes);
    }
}

/* Executes the copies of the lanes in `of` one after another. */
GQ_FN void gd_copy_each(const struct gd_copies *w, uint32_t of)
{
    while (of) {
        uint32_t i = gq_take_one(&of);

        gd_copy_one(w->group, GQ_FROM64(w->dst, i), GQ_FROM64(w->src, i), GQ_FROM32(w->n, i));
    }
}

#endif
