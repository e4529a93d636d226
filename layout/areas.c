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
        areas_overlaps(block, len, geo->bitmap_start, geo->bitmap_len) ||
        areas_overlaps(block, len, geo->log_start, geo->log_blocks) ||
        areas_overlaps(block, len, geo->sums_start, geo->sums_len))
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
    others.bitmap_len = 0;
    if (!lay_range_ok(&others, geo->bitmap_start, geo->bitmap_len))
        return lay_bad(why, "bitmaps");
    others.bitmap_len = geo->bitmap_len;
    others.sums_len = 0;
    if (geo->sums_len != 0 && !lay_range_ok(&others, geo->sums_start, geo->sums_len))
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
    return lay_addr_kind(addr) == LAY_KIND_CHUNK && lay_addr_level(addr) == 0 &&
           lay_addr_index(addr) != 0 && lay_addr_segment(addr) < lay_segments(geo);
}

/*
 * Returns the blocks of level 0 of the area that a kind of address belongs to.
 * The geometry may be that of the label alone; then it is the largest number.
 */
static uint64_t areas_lowest(const struct lay_geometry *geo, unsigned kind)
{
    switch (kind) {
    case LAY_KIND_MAP:
        return geo->map_blocks ? geo->map_blocks : lay_map_blocks(LAY_MAX_SEGMENTS);
    case LAY_KIND_BITMAP:
        return lay_groups_of(geo->blocks);
    case LAY_KIND_SUMS:
        return geo->incompat & LAY_INCOMPAT_DATA_CSUM ? lay_sums_blocks(geo->blocks) : 0;
    default:
        return 0;
    }
}

bool lay_home_ok(const struct lay_geometry *geo, uint64_t addr)
{
    unsigned kind = lay_addr_kind(addr), level = lay_addr_level(addr);
    uint64_t number = lay_addr_number(addr);

    if (kind == LAY_KIND_SUPER || kind == LAY_KIND_CHUNK) {
        uint64_t most = kind == LAY_KIND_SUPER ? 1 : lay_segments(geo) * LAY_SEGMENT_BLOCKS;
        return level == 0 && number < most;
    }
    return level < LAY_MAX_LEVELS && number < lay_level_blocks(areas_lowest(geo, kind), level);
}

uint64_t lay_name_of(const struct lay_geometry *geo, uint64_t addr, unsigned *index)
{
    unsigned kind = lay_addr_kind(addr), level = lay_addr_level(addr);
    uint64_t number = lay_addr_number(addr);

    *index = lay_addr_index(addr);
    if (kind == LAY_KIND_CHUNK && *index != 0)
        return addr - *index;
    if (kind == LAY_KIND_CHUNK) {
        *index = (unsigned)(lay_addr_segment(addr) % LAY_MAP_SLOTS);
        return LAY_ADDR(LAY_KIND_MAP, lay_addr_segment(addr) / LAY_MAP_SLOTS);
    }
    if (kind != LAY_KIND_MAP && kind != LAY_KIND_BITMAP && kind != LAY_KIND_SUMS)
        return LAY_NONE;
    *index = (unsigned)(number % LAY_AGES);
    if (lay_level_blocks(areas_lowest(geo, kind), level) == 1)
        return LAY_ADDR_SUPER;
    return LAY_ADDR_LEVEL(kind, level + 1, number / LAY_AGES);
}

/* Stores the place of a block of an area. */
static unsigned areas_place(const struct lay_geometry *geo, uint64_t start, uint64_t addr,
                            uint64_t places[2])
{
    uint64_t lowest = areas_lowest(geo, lay_addr_kind(addr));
    unsigned level = lay_addr_level(addr);

    if (!lay_home_ok(geo, addr))
        return 0;
    places[0] = start + lay_addr_number(addr);
    for (unsigned l = 0; l < level; l++)
        places[0] += lay_level_blocks(lowest, l);
    return 1;
}

/* Stores one or two blocks for a number that must be 0. */
static unsigned areas_fixed(uint64_t first, uint64_t second, unsigned n, uint64_t addr,
                            uint64_t places[2])
{
    places[0] = first;
    if (n > 1)
        places[1] = second;
    return lay_addr_number(addr) == 0 && lay_addr_level(addr) == 0 ? n : 0;
}

unsigned lay_places(const struct lay_geometry *geo, uint64_t addr, uint64_t places[2])
{
    switch (lay_addr_kind(addr)) {
    case LAY_KIND_LABEL:
        return areas_fixed(0, LAY_LABEL_SECOND, 2, addr, places);
    case LAY_KIND_MMP:
        return areas_fixed(LAY_MMP_BLOCK, 0, 1, addr, places);
    case LAY_KIND_SUPER:
        return areas_fixed(geo->supers[0], geo->supers[1], 2, addr, places);
    case LAY_KIND_MAP:
        return areas_place(geo, geo->map_start, addr, places);
    case LAY_KIND_BITMAP:
        return areas_place(geo, geo->bitmap_start, addr, places);
    case LAY_KIND_SUMS:
        return areas_place(geo, geo->sums_start, addr, places);
    case LAY_KIND_LOG:
        places[0] = geo->log_start + lay_addr_number(addr);
        return lay_addr_level(addr) == 0 && lay_addr_number(addr) < geo->log_blocks ? 1 : 0;
    default:
        return 0;
    }
}
