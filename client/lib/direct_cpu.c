/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Executes reads on the calling thread, which stands for all lanes of a warp, on mounts without a
 * GPU. Also makes the commands that the host passes to the service.
 */
#define GQ_LANES 32u
#include "client/device/gd_lone.h"
#include "cuda/queue/gq_single.h"

#include "client/lib/direct.h"

int64_t direct_cpu_read(const struct gd_launch *l)
{
    return gd_shared_pread_warp(l->file_at, l->addr, l->len, l->offset);
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
