/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Discards that are sent to the device together.
 */
#ifndef FUSEFS_CORE_ALLOC_DISCARD_H
#define FUSEFS_CORE_ALLOC_DISCARD_H

#include <stddef.h>
#include <stdint.h>

#include "fusefs/core/state.h"

#define FFS_DISCARDS 64u

/* Starts with all zero but fs; ends with ffs_discard_submit(). Owned by one thread. */
struct ffs_discards {
    struct ffs *fs;
    struct bd_io ios[FFS_DISCARDS];
    size_t n;
};

/* Adds `len` blocks from `block` on; sends what was added before if there is no room. */
void ffs_discard_add(struct ffs_discards *b, uint64_t block, uint64_t len);
/* A discard that fails is logged: it loses no data, the device keeps blocks that it could have. */
void ffs_discard_submit(struct ffs_discards *b);

#endif
