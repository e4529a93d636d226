/* SPDX-License-Identifier: BSD-2-Clause */
/* A read of the direct path as a warp makes it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_single.h"

#include "tests/client/lib/direct_single_rig.h"

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
