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

bool direct_command(const struct gq_file_map *map, const struct gd_buffer *b, uint64_t at,
                    uint64_t len, uint64_t offset, uint32_t max_command, struct gq_cmd *out)
{
    struct gq_cursor cur = {.offset = offset};

    if (len > max_command || b->target.iova == GD_UNREACHABLE)
        return false;
    gq_find_extent(map, &cur);
    return gq_make_single(map, &b->target, &cur, b->target.head + at, len, out);
}
