/* SPDX-License-Identifier: BSD-2-Clause */
/* Helpers that the lay_check_* functions share; private to this folder. */
#ifndef LAYOUT_CHECK_H
#define LAYOUT_CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "layout/layout.h"

/* Names the wrong field in *why. Returns -EUCLEAN. */
static inline int lay_bad(const char **why, const char *what)
{
    if (why)
        *why = what;
    return -EUCLEAN;
}

/* Returns true if the nanoseconds are in range. */
bool lay_time_ok(struct lay_time t);
/* Returns the one bits in len bytes, a multiple of 8. */
uint32_t lay_count_ones(const uint8_t *bits, size_t len);
/* Returns true if a writer may have made this incarnation. */
bool lay_incarnation_ok(const struct lay_incarnation *incarnation);
/* Checks that extents of an inode are valid, ordered, and within blocks [lo, hi]. */
int lay_check_extents(const struct lay_geometry *geo, uint64_t ino,
                      const struct lay_extent *extents, unsigned count, uint64_t lo, uint64_t hi,
                      const char **why);
/* Checks a leaf's records; head, level and `used` are checked already. */
int lay_check_dirents(const struct lay_geometry *geo, const struct lay_node *leaf, uint64_t lo,
                      uint64_t hi, const char **why);
/* Returns true if this is a type of file (DT_*). */
bool lay_type_ok(unsigned type);
/* Checks that no area overlaps another one or leaves the file system. */
int lay_check_areas(const struct lay_geometry *geo, const char **why);

#endif
