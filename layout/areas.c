/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the fixed areas of a file system (bitmap, journal, checksums,
 * superblock copies), and ranges outside them.
 */
#include "layout/check.h"
#include "layout/layout.h"

static bool areas_overlaps(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
    return a < b + b_len && b < a + a_len;
}

static bool areas_inside(uint64_t start, uint64_t len, uint64_t blocks)
{
    return start >= 1 && start < blocks && len <= blocks - start;
}

bool lay_range_ok(const struct lay_geometry *geo, uint64_t block, uint64_t len)
{
    if (len == 0 || !areas_inside(block, len, geo->blocks))
        return false;
    if (areas_overlaps(block, len, geo->bitmap_start, geo->bitmap_blocks) ||
        areas_overlaps(block, len, geo->journal_start, geo->journal_blocks) ||
        areas_overlaps(block, len, geo->sums_start, geo->sums_blocks))
        return false;
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (areas_overlaps(block, len, geo->copies[i], 1))
            return false;
    }
    return true;
}

/* Checks that the checksum area covers all blocks if there is one. */
static int check_sums_area(const struct lay_geometry *geo, const char **why)
{
    uint64_t start = geo->sums_start, len = geo->sums_blocks;

    if (!(geo->incompat & LAY_INCOMPAT_DATA_CSUM))
        return start == 0 && len == 0 ? 0 : lay_bad(why, "sums_start");
    if (len != lay_sums_blocks(geo->blocks))
        return lay_bad(why, "sums_blocks");
    if (!areas_inside(start, len, geo->blocks) ||
        areas_overlaps(start, len, geo->bitmap_start, geo->bitmap_blocks) ||
        areas_overlaps(start, len, geo->journal_start, geo->journal_blocks))
        return lay_bad(why, "sums_start");
    return 0;
}

int lay_check_areas(const struct lay_geometry *geo, const char **why)
{
    if (geo->bitmap_blocks != (geo->blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS)
        return lay_bad(why, "bitmap_blocks");
    if (!areas_inside(geo->bitmap_start, geo->bitmap_blocks, geo->blocks))
        return lay_bad(why, "bitmap_start");
    if (geo->journal_blocks < LAY_MIN_JOURNAL || geo->journal_blocks > LAY_MAX_JOURNAL)
        return lay_bad(why, "journal_blocks");
    if (!areas_inside(geo->journal_start, geo->journal_blocks, geo->blocks) ||
        areas_overlaps(geo->journal_start, geo->journal_blocks, geo->bitmap_start,
                       geo->bitmap_blocks))
        return lay_bad(why, "journal_start");
    int err = check_sums_area(geo, why);
    if (err)
        return err;
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        uint64_t copy = geo->copies[i];
        if (!areas_inside(copy, 1, geo->blocks) || (i > 0 && copy == geo->copies[i - 1]) ||
            areas_overlaps(copy, 1, geo->bitmap_start, geo->bitmap_blocks) ||
            areas_overlaps(copy, 1, geo->journal_start, geo->journal_blocks) ||
            areas_overlaps(copy, 1, geo->sums_start, geo->sums_blocks))
            return lay_bad(why, "copies");
    }
    return 0;
}
