/* SPDX-License-Identifier: BSD-2-Clause */
/* A part of a long staged read as a block's warp makes it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_list.h"

#include "tests/client/lib/direct_staged_rig.h"

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
