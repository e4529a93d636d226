/* SPDX-License-Identifier: BSD-2-Clause */
/* Computes the sizes of areas, of chunks and of their map (FORMAT.md 4.6, 5.5 and 5.6). */
#include "layout/layout.h"

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
