/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the ids of a gather, and finds the places of their rows in files (gd_table.h). */
#ifndef CLIENT_DEVICE_GD_TABLE_PLACE_H
#define CLIENT_DEVICE_GD_TABLE_PLACE_H

#include "client/device/gd_table_launch.h"
#include "cuda/queue/gq_lanes.h"

/* This struct describes one group of lanes. `groups` groups execute a pass together. */
struct gd_table_worker {
    struct gq_group group;
    const struct gd_table_launch *l;
    uint32_t rank, groups;
};

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
    const struct gd_table_segment *s = &t->segments[gd_table_segment_of(t, row)];

    *file = s->file;
    return s->offset + (row - s->first_row) * t->stride;
}

GQ_FN uint32_t gd_table_file(uint64_t key)
{
    return (uint32_t)(key >> GD_TABLE_UNIT_BITS) & ((1u << GD_TABLE_FILE_BITS) - 1);
}

#endif
