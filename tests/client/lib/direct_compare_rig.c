/* SPDX-License-Identifier: BSD-2-Clause */
/* A check as warps run it, lane by lane. */
#define GQ_LANES 32u
#include "tests/client/lib/direct_compare_rig.h"

#include "client/device/gd_compare.h"
#include "client/device/gd_list.h"
#include "client/device/gd_single.h"

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
