/* SPDX-License-Identifier: BSD-2-Clause */
/* A list of the direct path as a warp reads it, and words of launches, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_list.h"

#include "tests/client/lib/direct_list_rig.h"

int direct_list_read(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n, uint32_t rank, uint32_t groups, struct gd_parts *parts)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = f};
    const struct gd_buffer b = gd_part_from(&f->set.buffers[0], dst);
    struct gd_list_share share;

    gd_share_list(&self, &b, list, n, rank, groups, &share);
    gd_set_parts(&share, parts);
    int err = gd_read_share(&self, &b, &share, gd_take_share(&self, &share)), of_all = err;
    (void)gd_end_share(&self, NULL, &share, &of_all);
    return err;
}

struct gd_parts *parts_rig_take(const struct gpunvme_device_file *f, struct gd_parts_table *table,
                                uint64_t number)
{
    const struct gd_reader self = {.group = gq_whole_group(), .file = f};

    return gd_parts_of(&self, table, number);
}

bool parts_rig_leave(struct gd_parts_table *table, struct gd_parts *parts, uint32_t groups,
                     int *err)
{
    const struct gd_reader self = {.group = gq_whole_group()};

    return gd_leave_parts(&self, table, parts, groups, err);
}
