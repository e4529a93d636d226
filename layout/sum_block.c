/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks checksum blocks (FORMAT.md 5.4). */
#include "layout/check.h"
#include "layout/layout.h"

/* Returns the number of entries that represent blocks of the file system. */
static uint64_t entries_of(const struct lay_geometry *geo, uint64_t index)
{
    uint64_t left = geo->blocks - index * LAY_SUMS_ENTRIES;

    return left < LAY_SUMS_ENTRIES ? left : LAY_SUMS_ENTRIES;
}

int lay_check_sums(const struct lay_geometry *geo, const struct lay_sums *sums, uint64_t index,
                   const char **why)
{
    if (lay_is_zero(sums, sizeof(*sums)))
        return 0;
    int err = lay_check_head(sums, LAY_MAGIC_SUMS, geo->uuid, geo->sums_start + index, 0, why);
    if (err)
        return err;
    if (lay_get64(sums->index) != index)
        return lay_bad(why, "index");
    if (lay_get64(sums->reserved) != 0)
        return lay_bad(why, "reserved");
    uint64_t n = entries_of(geo, index);
    return lay_is_zero(&sums->sums[n], (LAY_SUMS_ENTRIES - n) * sizeof(sums->sums[0]))
               ? 0
               : lay_bad(why, "entries past the end");
}
