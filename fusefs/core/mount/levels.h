/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes the levels of ages of an area that gets a new place (FORMAT.md 5.5).
 * Private to the changes of size.
 */
#ifndef FUSEFS_CORE_MOUNT_LEVELS_H
#define FUSEFS_CORE_MOUNT_LEVELS_H

#include "fusefs/core/storage.h"

/* The levels of one area, built from the ages of its level 0 in ascending order. */
struct ffs_levels {
    struct ffs *fs;
    const struct lay_geometry *geo; /* says where the area is */
    enum lay_kind kind;
    uint64_t tid;                          /* of the blocks */
    uint64_t blocks;                       /* of level 0 */
    uint64_t added[LAY_MAX_LEVELS];        /* blocks of each level whose ages are known */
    struct lay_ages *open[LAY_MAX_LEVELS]; /* block of each level that is not complete, or NULL */
    uint32_t top;                          /* the age of the top when all ages have been added */
};

void ffs_levels_begin(struct ffs_levels *l, struct ffs *fs, const struct lay_geometry *geo,
                      enum lay_kind kind, uint64_t blocks, uint64_t tid);
/*
 * Adds the age of the next block of level 0. Each block of a higher level that is
 * complete then is written durably and read back, unless all its ages are 0.
 * Returns -ENOMEM, -EUCLEAN if a block does not read back as written, or the
 * device's error.
 */
int ffs_levels_add(struct ffs_levels *l, uint32_t age);
void ffs_levels_end(struct ffs_levels *l);

#endif
