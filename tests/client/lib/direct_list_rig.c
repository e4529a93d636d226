/* SPDX-License-Identifier: BSD-2-Clause */
/* A list of the direct path as a warp reads it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_list.h"

#include "tests/client/lib/direct_list_rig.h"

int direct_list_read(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n, uint32_t rank, uint32_t groups, struct gq_dealing *dealing)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = f};
    const struct gd_buffer part = gd_part_from(&f->set.buffers[0], dst);

    return gd_read_share(&self, &part, list, n, rank, groups, dealing);
}
