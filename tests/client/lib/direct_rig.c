/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path as warps execute it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_compare.h"
#include "client/device/gd_list.h"

#include "tests/client/lib/direct_rig.h"

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

bool direct_staged_rig_read(const struct direct_staged_rig *r, uint32_t rank, int *err)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = r->file};
    const struct gd_buffer *b = &r->file->set.buffers[0];
    const struct gq_read read = {.file_offset = r->offset, .at = r->dst - b->addr, .len = r->len};
    struct gd_list_share share;

    gd_share_read(&self, b, read, r->unit, r->cancel, rank, r->groups, &share);
    gd_set_parts(&share, r->parts);
    *err = gd_read_share(&self, b, &share, gd_take_share(&self, &share));
    return gd_end_share(&self, NULL, &share, err);
}

void compare_rig_read(const struct compare_rig *r)
{
    const struct gd_buffer *all = &r->f->set.buffers[0], part = gd_part_from(all, r->dst);
    const struct gq_read read = {
        .file_offset = r->read.file_offset, .at = r->dst - all->addr, .len = r->read.len};
    struct gd_reader self = {.group = gq_whole_group(), .file = r->f, .defers = true};
    struct gd_list_share share;

    if (r->list)
        gd_share_list(&self, &part, r->list, r->n, 0, 1, &share);
    else
        gd_share_read(&self, all, read, GD_STAGED_ALL, NULL, 0, 1, &share);
    int err = gd_read_share(&self, r->list ? &part : all, &share, gd_take_share(&self, &share));
    if (!r->list)
        r->check->bytes = err ? err : (int64_t)r->read.len;
}

void compare_rig_compare(const struct compare_rig *r, uint32_t groups)
{
    const struct gq_summer self = {.group = gq_whole_group(), .sums = r->f->sums};
    const struct gd_compare_launch l = {.sums = r->f->sums,
                                        .addr = r->dst,
                                        .list = r->list,
                                        .n = r->n,
                                        .read = r->read,
                                        .check = r->check};

    for (uint32_t rank = 0; rank < groups; rank++)
        gd_compare(&self, &l, rank, groups);
}

int64_t compare_rig_conclude(const struct compare_rig *r, uint32_t groups)
{
    const struct gd_concluder self = {gq_whole_group(), r->f, r->check};

    for (uint32_t rank = 0; rank < groups && r->list; rank++)
        gd_conclude_list(&self, r->dst, r->list, r->n, rank, groups);
    return r->list ? 0 : gd_conclude_read(&self, r->dst, r->read.file_offset, r->read.len);
}
