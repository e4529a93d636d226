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

/* Adds a range unless it is empty. */
static void areas_add(struct lay_range *areas, unsigned *n, uint64_t start, uint64_t len)
{
    if (len > 0)
        areas[(*n)++] = (struct lay_range){start, len};
}

/* Adds an area, and its copy if it has one. */
static void areas_add_both(struct lay_range *areas, unsigned *n, uint64_t start, uint64_t copy,
                           uint64_t len)
{
    areas_add(areas, n, start, len);
    areas_add(areas, n, copy, copy ? len : 0);
}

unsigned lay_areas(const struct lay_geometry *geo, struct lay_range areas[LAY_AREAS])
{
    unsigned n = 0;

    areas_add(areas, &n, 0, LAY_MMP_BLOCK + 1);
    areas_add(areas, &n, LAY_LABEL_SECOND, 1);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        areas_add(areas, &n, geo->supers[i], 1);
    areas_add_both(areas, &n, geo->log_start, geo->log_copy, geo->log_blocks);
    areas_add_both(areas, &n, geo->map_start, geo->map_copy, geo->map_len);
    areas_add_both(areas, &n, geo->bitmap_start, geo->bitmap_copy, geo->bitmap_len);
    areas_add_both(areas, &n, geo->sums_start, geo->sums_copy, geo->sums_len);
    return n;
}

static bool areas_is_inside(const struct lay_geometry *geo, uint64_t block, uint64_t len)
{
    return len > 0 && block < geo->blocks && len <= geo->blocks - block;
}

/* Returns how many areas overlap the range of blocks. */
static unsigned areas_count(const struct lay_geometry *geo, uint64_t block, uint64_t len)
{
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(geo, areas), count = 0;

    for (unsigned i = 0; i < n; i++)
        count += areas_overlaps(block, len, areas[i].start, areas[i].len);
    return count;
}

bool lay_range_ok(const struct lay_geometry *geo, uint64_t block, uint64_t len)
{
    return areas_is_inside(geo, block, len) && areas_count(geo, block, len) == 0;
}

/*
 * Returns true if an area, and its copy if it has one, are on the device and
 * overlap no other area.
 */
static bool areas_ok(const struct lay_geometry *geo, uint64_t start, uint64_t copy, uint64_t len)
{
    return areas_is_inside(geo, start, len) && areas_count(geo, start, len) == 1 &&
           (copy == 0 || (areas_is_inside(geo, copy, len) && areas_count(geo, copy, len) == 1));
}

int lay_check_areas(const struct lay_geometry *geo, const char **why)
{
    if (!areas_ok(geo, geo->map_start, geo->map_copy, geo->map_len))
        return lay_bad(why, "map");
    if (!areas_ok(geo, geo->bitmap_start, geo->bitmap_copy, geo->bitmap_len))
        return lay_bad(why, "bitmaps");
    if (geo->sums_len != 0 && !areas_ok(geo, geo->sums_start, geo->sums_copy, geo->sums_len))
        return lay_bad(why, "sums");
    /*
     * The check of the label covered the logs and superblocks, but the file
     * system may end before them.
     */
    for (unsigned i = 0; i < lay_logs(geo); i++) {
        if (lay_log_block(geo, i, geo->log_blocks) > geo->blocks)
            return lay_bad(why, "blocks: the log lies past the end");
    }
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
 * Returns the number of level-0 blocks of the area that this kind of address
 * belongs to. If the geometry is only that of the label, returns the largest
 * possible number.
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

/* Stores the places of a block of an area, which may have a copy. */
static unsigned areas_place(const struct lay_geometry *geo, uint64_t start, uint64_t copy,
                            uint64_t addr, uint64_t places[2])
{
    uint64_t lowest = areas_lowest(geo, lay_addr_kind(addr)), at = lay_addr_number(addr);
    unsigned level = lay_addr_level(addr);

    if (!lay_home_ok(geo, addr))
        return 0;
    for (unsigned l = 0; l < level; l++)
        at += lay_level_blocks(lowest, l);
    places[0] = start + at;
    if (copy)
        places[1] = copy + at;
    return copy ? 2 : 1;
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
        return areas_place(geo, geo->map_start, geo->map_copy, addr, places);
    case LAY_KIND_BITMAP:
        return areas_place(geo, geo->bitmap_start, geo->bitmap_copy, addr, places);
    case LAY_KIND_SUMS:
        return areas_place(geo, geo->sums_start, geo->sums_copy, addr, places);
    case LAY_KIND_LOG:
        for (unsigned i = 0; i < lay_logs(geo); i++)
            places[i] = lay_log_block(geo, i, lay_addr_number(addr));
        return lay_addr_level(addr) == 0 && lay_addr_number(addr) < geo->log_blocks ? lay_logs(geo)
                                                                                    : 0;
    default:
        return 0;
    }
}

/* --- Sizes ------------------------------------------------------------------------------------ */

#define SIZES_PART    8u /* all chunks together can have at least an eighth of the space */
#define SIZES_RESERVE (1ull << 24) /* a chunk is reserved for each 64 GiB: blocks */

uint64_t lay_level_blocks(uint64_t n, unsigned level)
{
    for (; level > 0; level--)
        n = n > 1 ? (n + LAY_AGES - 1) / LAY_AGES : 0;
    return n;
}

uint64_t lay_area_blocks(uint64_t n)
{
    uint64_t sum = 0;

    for (; n > 0; n = lay_level_blocks(n, 1))
        sum += n;
    return sum;
}

void lay_size_areas(struct lay_geometry *geo)
{
    bool sums = geo->incompat & LAY_INCOMPAT_DATA_CSUM;

    geo->map_len = lay_area_blocks(geo->map_blocks);
    geo->bitmap_blocks = lay_groups_of(geo->blocks);
    geo->bitmap_len = lay_area_blocks(geo->bitmap_blocks);
    geo->sums_blocks = sums ? lay_sums_blocks(geo->blocks) : 0;
    geo->sums_len = lay_area_blocks(geo->sums_blocks);
}

uint32_t lay_chunk_shift(uint64_t blocks)
{
    const uint64_t all = (uint64_t)LAY_MAX_CHUNKS * LAY_SEGMENT_BLOCKS * SIZES_PART;
    uint32_t shift = 0;

    while (shift < LAY_MAX_CHUNK_SHIFT && all << shift < blocks)
        shift++;
    return shift;
}

uint32_t lay_reserve(uint64_t blocks)
{
    uint64_t chunks = blocks / SIZES_RESERVE;

    if (chunks > LAY_MAX_RESERVE)
        return LAY_MAX_RESERVE;
    return chunks == 0 ? 1 : (uint32_t)chunks;
}

uint64_t lay_map_slots(uint64_t blocks, uint32_t chunk_shift)
{
    uint64_t slots = blocks / LAY_SEGMENT_BLOCKS, most = (uint64_t)LAY_MAX_CHUNKS << chunk_shift;

    return slots < most ? slots : most;
}

uint64_t lay_segments(const struct lay_geometry *geo)
{
    uint64_t slots = geo->map_blocks * LAY_MAP_SLOTS;
    uint64_t most = (uint64_t)LAY_MAX_CHUNKS << geo->chunk_shift;

    if (geo->map_blocks == 0)
        return LAY_MAX_SEGMENTS;
    return (slots < most ? slots : most) & ~(uint64_t)(lay_chunk_segments(geo) - 1);
}
