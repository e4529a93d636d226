/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the ids of a gather, and finds the places of their rows in files (gd_table.h). */
#ifndef CLIENT_DEVICE_GD_TABLE_PLACE_H
#define CLIENT_DEVICE_GD_TABLE_PLACE_H

#include "client/device/gd_table_launch.h"
#include "cuda/queue/gq_bytes.h"
#include "cuda/queue/gq_lanes.h"

/* Describes one group of lanes. `groups` groups execute a pass together. */
struct gd_table_worker {
    struct gq_group group;
    const struct gd_table_launch *l;
    uint32_t rank, groups;
};

/* Describes the copies of the lanes. Each lane copies a row or a part of a row. */
struct gd_table_copies {
    GQ_LANE_MEMBER(uint64_t, to);
    GQ_LANE_MEMBER(uint64_t, from);
    GQ_LANE_MEMBER(uint32_t, len);
};

/*
 * Executes the copies of the lanes in `of`. All lanes execute each copy together. Eight copies are
 * loaded at a time if each has at most 256 bytes, and addresses and lengths are multiples of 8.
 */
#ifdef __CUDACC__
GQ_FN void gd_table_copy(const struct gd_table_worker *w, const struct gd_table_copies *c,
                         uint32_t of)
{
    const uint32_t lane = w->group.rank;
    const bool is_short = c->len <= 256 && ((c->to | c->from | c->len) & 7) == 0;
    const bool fit = (of & ~GQ_BALLOT(is_short)) == 0;

    while (fit && of) {
        uint32_t rest = of;
        uint2 v[8];

#pragma unroll
        for (uint32_t k = 0; k < 8 && rest; k++, rest &= rest - 1) {
            uint32_t i = (uint32_t)__ffs((int)rest) - 1u;
            const uint2 *from = (const uint2 *)GQ_FROM64(c->from, i);

            if (lane * sizeof(*v) < GQ_FROM32(c->len, i))
                v[k] = __ldcv(from + lane);
        }
#pragma unroll
        for (uint32_t k = 0; k < 8 && of; k++) {
            uint32_t i = gq_take_one(&of);
            uint2 *to = (uint2 *)GQ_FROM64(c->to, i);

            if (lane * sizeof(*v) < GQ_FROM32(c->len, i))
                to[lane] = v[k];
        }
    }
    while (of) {
        uint32_t i = gq_take_one(&of);

        gq_copy_warp<4>(GQ_FROM64(c->to, i), GQ_FROM64(c->from, i), GQ_FROM32(c->len, i));
    }
}
#else
GQ_FN void gd_table_copy(const struct gd_table_worker *w, const struct gd_table_copies *c,
                         uint32_t of)
{
    GQ_FOR_LANES(lane)
    {
        if (of >> lane & 1u)
            gq_copy_bytes(GQ_AT(c->to), GQ_AT(c->from), GQ_AT(c->len), 0, 1);
    }
}
#endif

GQ_FN int64_t gd_table_id(const struct gd_table_launch *l, uint32_t i)
{
    return l->wide ? ((const int64_t *)l->ids)[i] : ((const int32_t *)l->ids)[i];
}

/*
 * Returns the segment of a row by bisection. The number of steps depends only
 * on the table, so all lanes make the same number.
 */
GQ_FN uint32_t gd_table_segment_of(const struct gd_row_table *t, uint64_t row)
{
    uint32_t low = 0;

    for (uint32_t n = t->n_segments; n > 1; n -= n / 2) {
        if (t->segments[low + n / 2].first_row <= row)
            low += n / 2;
    }
    return low;
}

/*
 * Returns the offset of a row in its file, and stores the number of the file.
 */
GQ_FN uint64_t gd_table_offset(const struct gd_row_table *t, uint64_t row, uint32_t *file)
{
    struct gd_table_segment s = t->only;

    if (t->n_segments > 1)
        s = t->segments[gd_table_segment_of(t, row)];
    *file = s.file;
    return s.offset + (row - s.first_row) * t->stride;
}

GQ_FN uint32_t gd_table_file(uint64_t key)
{
    return (uint32_t)(key >> GD_TABLE_UNIT_BITS) & ((1u << GD_TABLE_FILE_BITS) - 1);
}

#endif
