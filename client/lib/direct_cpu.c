/* SPDX-License-Identifier: BSD-2-Clause */
/* Runs the queue protocol on the calling thread, for mounts without a GPU. */
#define GQ_LANES 1
#include "client/device/gd_compare.h"
#include "client/device/gd_single.h"

#include "client/lib/direct.h"

static struct gq_read read_of(const struct gd_launch *l)
{
    return (struct gq_read){
        .file_offset = l->offset, .at = l->addr - l->buffer.addr, .len = l->len};
}

int64_t direct_cpu_read(const struct gd_launch *l)
{
    struct gd_reader self = {
        .group = gq_whole_group(), .file = &l->file, .defers = l->check != NULL};
    struct gd_extents extents;

    gd_load_extents(&self, &extents);
    int err = gd_take(&self);
    if (!err)
        err = gd_read(&self, &l->buffer, &extents, read_of(l), 0, 1);
    return err ? err : (int64_t)l->len;
}

void direct_cpu_compare(const struct gd_compare_launch *l)
{
    const struct gq_summer self = {.group = gq_whole_group(), .sums = l->sums};

    gd_compare(&self, l, 0, 1);
}

int64_t direct_cpu_conclude(const struct gd_launch *l)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = &l->file};

    return gd_conclude_read(&self, &l->buffer, read_of(l), l->check);
}

bool direct_command(const struct gpunvme_device_file *f, const struct gq_file_map *map,
                    const struct gd_buffer *b, struct gq_read read, struct gq_cmd *out)
{
    const struct gd_set *set = &f->set;
    bool staged = GD_STAGES(b);
    struct gq_cursor cur = {.offset = read.file_offset};

    bool compares = f->sums.words;

    if (read.len > (staged ? set->lane_bytes : set->max_command))
        return false;
    if (compares && (read.len != GQ_SUM_BLOCK || read.file_offset % GQ_SUM_BLOCK))
        return false;
    gq_find_extent(map, &cur);
    return gq_make_single(map, staged ? &set->staging : &b->target, &cur,
                          staged ? set->staging.head : b->target.head + read.at, read.len, out) &&
           !(compares && out->prp2);
}
