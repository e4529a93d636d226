/* SPDX-License-Identifier: BSD-2-Clause */
/* A part of a long staged read as a block's warp makes it, on a host thread. */
#define GQ_LANES 32u
#include "client/device/gd_staged.h"

#include "tests/client/lib/direct_staged_rig.h"

bool direct_staged_rig_read(const struct direct_staged_rig *r, uint32_t rank, int *err)
{
    struct gd_reader self = {.group = gq_whole_group(), .file = r->file};
    const struct gd_buffer *b = &r->file->set.buffers[0];
    const struct gd_staged s = {
        .buffer = b,
        .read = {.file_offset = r->offset, .at = r->dst - b->addr, .len = r->len},
        .parts = r->parts,
        .cancel = r->cancel,
        .groups = r->groups,
        .unit = r->unit,
    };

    return gd_read_staged(&self, &s, rank, err);
}
