/* SPDX-License-Identifier: BSD-2-Clause */
/* Converts a file's map to extents of the executor. */
#include "fusefs/daemon/state/gpu_extents.h"

#include <errno.h>
#include <stdlib.h>

int gpu_extents_make(const struct ffs_map *map, uint32_t lba_size, bool write,
                     struct gpu_extents *out)
{
    uint64_t expected = 0; /* device offset that continues the previous segment */

    *out = (struct gpu_extents){.extents = malloc((map->count + 1) * sizeof(out->extents[0])),
                                .end = map->start};
    if (!out->extents)
        return -ENOMEM;
    for (size_t i = 0; i < map->count; i++) {
        const struct ffs_segment *s = &map->segments[i];
        uint64_t device = s->unwritten && !write ? FFS_HOLE : s->device;
        if (i == 0 || device != expected)
            out->extents[out->count++] = (struct gq_file_extent){
                .offset = s->offset, .lba = device == FFS_HOLE ? GQ_LBA_ZERO : device / lba_size};
        expected = device == FFS_HOLE ? FFS_HOLE : device + s->len;
        out->end = s->offset + s->len;
    }
    return 0;
}
