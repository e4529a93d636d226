/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path as warps execute it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_compare.h"
#include "client/device/gd_list.h"
#include "client/device/gd_single.h"

#include "tests/client/lib/direct_rig.h"

int64_t direct_single_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                           uint64_t offset)
{
    int err = direct_part_read(f, dst, len, offset, 0, 1, NULL);

    return err ? err : (int64_t)len;
}

int direct_part_read(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                     uint64_t offset, uint32_t rank, uint32_t groups, struct gq_dealing *dealing)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = f, .dealing = dealing};
    struct gd_extents extents;
    struct gd_table table;
    struct gd_buffer b;

    gd_load_table(&self, 0, &table);
    gd_load_extents(&self, &extents);
    int err = gd_take(&self);
    if (err)
        return err;
    err = gd_find_buffer(&self, &table, dst, len, &b);
    if (err) {
        gd_give(&self);
        return err;
    }
    return gd_read(&self, &b, &extents,
                   (struct gq_read){.file_offset = offset, .at = dst - b.addr, .len = len}, rank,
                   groups);
}

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

static struct gd_reader reader_of(const struct compare_rig *r)
{
    return (struct gd_reader){.group = gq_whole_group(), .file = r->f};
}

static struct gq_read read_of(const struct compare_rig *r)
{
    struct gq_read read = r->read;

    read.at = r->dst - r->f->set.buffers[0].addr;
    return read;
}

static int64_t read_alone(struct gd_reader *self, const struct compare_rig *r)
{
    struct gd_extents extents;

    gd_load_extents(self, &extents);
    int err = gd_take(self);
    if (!err)
        err = gd_read(self, &r->f->set.buffers[0], &extents, read_of(r), 0, 1);
    return err ? err : (int64_t)r->read.len;
}

void compare_rig_read(const struct compare_rig *r)
{
    const struct gd_buffer part = gd_part_from(&r->f->set.buffers[0], r->dst);
    struct gd_reader self = reader_of(r);
    struct gd_list_share share;

    self.defers = true;
    if (!r->list) {
        r->check->bytes = read_alone(&self, r);
        return;
    }
    gd_share_list(&self, &part, r->list, r->n, 0, 1, &share);
    (void)gd_read_share(&self, &part, &share, gd_take_share(&self, &share));
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
    const struct gd_buffer part = gd_part_from(&r->f->set.buffers[0], r->dst);

    for (uint32_t rank = 0; rank < groups && r->list; rank++) {
        struct gd_reader self = reader_of(r);

        gd_conclude_list(&self, &part, r->list, r->n, rank, groups, r->check);
    }
    if (r->list)
        return 0;
    struct gd_reader self = reader_of(r);
    return gd_conclude_read(&self, &r->f->set.buffers[0], read_of(r), r->check);
}
