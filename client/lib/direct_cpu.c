/* SPDX-License-Identifier: BSD-2-Clause */
/* The queue protocol on the thread that calls: all of it for mounts without a GPU. */
#define GQ_LANES 1
#include "client/device/gd_single.h"

#include "client/lib/direct.h"

int64_t direct_cpu_read(const struct gpunvme_device_file *f, const struct gd_buffer *b, void *dst,
                        uint64_t len, uint64_t offset)
{
    struct gq_read read = {.file_offset = offset, .at = (uintptr_t)dst - b->addr, .len = len};
    struct gd_reader self = {.group = gq_whole_group(), .file = f};
    struct gd_extents extents;

    gd_load_extents(&self, &extents);
    int err = gd_take(&self);
    if (!err)
        err = gd_read(&self, b, &extents, read, 0, 1);
    return err ? err : (int64_t)len;
}

bool direct_command(const struct gpunvme_device_file *f, const struct gq_file_map *map,
                    const struct gd_buffer *b, struct gq_read read, struct gq_cmd *out)
{
    const struct gd_set *set = &f->set;
    bool staged = GD_STAGES(b);
    struct gq_cursor cur = {.offset = read.file_offset};

    if (read.len > (staged ? set->lane_bytes : set->max_command))
        return false;
    gq_find_extent(map, &cur);
    return gq_make_single(map, staged ? &set->staging : &b->target, &cur,
                          staged ? set->staging.head : b->target.head + read.at, read.len, out);
}
