/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements a growing list of ranges of blocks. */
#ifndef FUSEFS_CORE_BASE_RANGES_H
#define FUSEFS_CORE_BASE_RANGES_H

#include <stddef.h>
#include <stdint.h>

struct ffs_range {
    uint64_t block, len;
};

struct ffs_ranges {
    struct ffs_range *v;
    size_t n, cap;
};

/* Makes room for `more` further ranges, so that adding them cannot fail. */
int ffs_ranges_reserve(struct ffs_ranges *r, size_t more);
/* Appends, or extends the last range; the room is reserved. */
void ffs_ranges_add(struct ffs_ranges *r, uint64_t block, uint64_t len);
/* Appends all of `from`; the room is reserved. */
void ffs_ranges_join(struct ffs_ranges *r, const struct ffs_ranges *from);
void ffs_ranges_free(struct ffs_ranges *r);

#endif
