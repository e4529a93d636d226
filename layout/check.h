/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the lay_check_* functions share. Private to the folder.
 */
#ifndef LAYOUT_CHECK_H
#define LAYOUT_CHECK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "layout/layout.h"

/* Names the field that is wrong; the value of every failing check. */
static inline int lay_bad(const char **why, const char *what)
{
    if (why)
        *why = what;
    return -EUCLEAN;
}

bool lay_is_zero(const void *data, size_t len);
bool lay_time_ok(struct lay_time t);
/* `count` extents in order, without overlap, all within file blocks [lo, hi]. */
int lay_check_extents(const struct lay_geometry *geo, const struct lay_extent *extents,
                      unsigned count, uint64_t lo, uint64_t hi, const char **why);
/* The records of a directory's leaf, `used` bytes; the head and the counts are checked. */
int lay_check_dirents(const struct lay_geometry *geo, const struct lay_node *leaf, uint64_t lo,
                      uint64_t hi, const char **why);

/* Do the areas lie inside the file system and apart from each other? 0 or -EUCLEAN. */
int lay_check_areas(const struct lay_geometry *geo, const char **why);

#endif
