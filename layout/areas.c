/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Translates logical addresses, and checks the fixed areas of a file system
 * (labels, superblock, chunk map, bitmaps, checksums, log) and ranges outside
 * them.
 */
#include "layout/check.h"
#include "layout/layout.h"

static bool areas_overlaps(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
    return b_len > 0 && a < b + b_len && b < a + a_len;
}

bool lay_range_ok(const struct lay_geometry *geo, uint64_t block, uint64_t len)
{
    if (len == 0 || block <= LAY_MMP_BLOCK || block >= geo->blocks || len > geo->blocks - block)
        return false;
    if (areas_overlaps(block, len, LAY_LABEL_SECOND, 1) ||
        areas_overlaps(block, len, geo->map_start, geo->map_len) ||
        areas_overlaps(block, len, geo->bitmap_start, geo->bitmap_blocks) ||
        areas_overlaps(block, len, geo->log_start, geo->log_blocks) ||
        areas_overlaps(block, len, geo->sums_start, geo->sums_blocks))
        return false;
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (areas_overlaps(block, len, geo->supers[i], 1))
            return false;
    }
    return true;
}

int lay_check_areas(const struct lay_geometry *geo, const char **why)
{
    /* Each area is checked without itself; the label has checked log and superblocks. */
    struct lay_geometry others = *geo;

    others.map_len = 0;
    if (!lay_range_ok(&others, geo->map_start, geo->map_len))
        return lay_bad(why, "map");
    others.map_len = geo->map_len;
    others.bitmap_blocks = 0;
    if (!lay_range_ok(&others, geo->bitmap_start, geo->bitmap_blocks))
        return lay_bad(why, "bitmaps");
    others.bitmap_blocks = geo->bitmap_blocks;
    others.sums_blocks = 0;
    if (geo->sums_blocks != 0 && !lay_range_ok(&others, geo->sums_start, geo->sums_blocks))
        return lay_bad(why, "sums");
    /* The file system may be smaller than the member. */
    if (geo->log_start + geo->log_blocks > geo->blocks)
        return lay_bad(why, "blocks: the log lies past the end");
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (geo->supers[i] >= geo->blocks)
            return lay_bad(why, "blocks: the superblock lies past the end");
    }
    return 0;
}

bool lay_chunk_addr_ok(const struct lay_geometry *geo, uint64_t addr)
{
    return lay_addr_kind(addr) == LAY_KIND_CHUNK && lay_addr_index(addr) != 0 &&
           lay_addr_segment(addr) < lay_segments(geo);
}

bool lay_home_ok(const struct lay_geometry *geo, uint64_t addr)
{
    uint64_t number = lay_addr_number(addr);

    switch (lay_addr_kind(addr)) {
    case LAY_KIND_SUPER:
        return number == 0;
    case LAY_KIND_MAP:
        return number < (geo->map_blocks ? geo->map_blocks : lay_map_blocks(LAY_MAX_SEGMENTS));
    case LAY_KIND_CHUNK:
        return number / LAY_SEGMENT_BLOCKS < lay_segments(geo);
    case LAY_KIND_BITMAP:
        return number < lay_groups_of(geo->blocks);
    case LAY_KIND_SUMS:
        return (geo->incompat & LAY_INCOMPAT_DATA_CSUM) && number < lay_sums_blocks(geo->blocks);
    default:
        return false;
    }
}

static unsigned areas_place(uint64_t start, uint64_t len, uint64_t number, uint64_t places[2])
{
    places[0] = start + number;
    return number < len ? 1 : 0;
}

/* Stores two blocks for a number that must be 0. */
static unsigned areas_pair(uint64_t first, uint64_t second, uint64_t number, uint64_t places[2])
{
    places[0] = first;
    places[1] = second;
    return number == 0 ? 2 : 0;
}

unsigned lay_places(const struct lay_geometry *geo, uint64_t addr, uint64_t places[2])
{
    uint64_t number = lay_addr_number(addr);

    switch (lay_addr_kind(addr)) {
    case LAY_KIND_LABEL:
        return areas_pair(0, LAY_LABEL_SECOND, number, places);
    case LAY_KIND_MMP:
        return areas_place(LAY_MMP_BLOCK, 1, number, places);
    case LAY_KIND_SUPER:
        return areas_pair(geo->supers[0], geo->supers[1], number, places);
    case LAY_KIND_MAP:
        return areas_place(geo->map_start, geo->map_blocks, number, places);
    case LAY_KIND_BITMAP:
        return areas_place(geo->bitmap_start, geo->bitmap_blocks, number, places);
    case LAY_KIND_SUMS:
        return areas_place(geo->sums_start, geo->sums_blocks, number, places);
    case LAY_KIND_LOG:
        return areas_place(geo->log_start, geo->log_blocks, number, places);
    default:
        return 0;
    }
}
