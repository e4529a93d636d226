/* SPDX-License-Identifier: BSD-2-Clause */
/* Converts a file's map to extents of the executor. */
#ifndef FUSEFS_DAEMON_STATE_GPU_EXTENTS_H
#define FUSEFS_DAEMON_STATE_GPU_EXTENTS_H

#include "cuda/gq.h"
#include "fusefs/core/ffs.h"

struct gpu_extents {
    struct gq_file_extent *extents; /* ascending, without gaps; freed by the caller */
    size_t count;
    uint64_t end; /* end of the last extent, file bytes */
};

/*
 * Merges segments that are adjacent on the device. Unwritten segments become
 * zeros, except for writes. Returns 0 or -ENOMEM.
 */
int gpu_extents_make(const struct ffs_map *map, uint32_t lba_size, bool write,
                     struct gpu_extents *out);

#endif
