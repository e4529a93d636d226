/* SPDX-License-Identifier: BSD-2-Clause */
/* Searches and changes the map of one group, a word at a time. */
#include <assert.h>

#include "fusefs/core/alloc/alloc.h"

/* Returns the bits of word w that lie in [bit, end). */
static uint64_t group_mask(uint32_t w, uint32_t bit, uint32_t end)
{
    uint64_t m = ~0ull;

    if (bit > w * 64)
        m &= ~0ull << (bit - w * 64);
    if (end < (w + 1) * 64)
        m &= ~0ull >> ((w + 1) * 64 - end);
    return m;
}

void ffs_map_set(uint64_t *map, uint32_t bit, uint32_t len)
{
    assert(len > 0 && bit + len <= LAY_GROUP_BLOCKS);
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++)
        map[w] |= group_mask(w, bit, bit + len);
}

void ffs_map_clear(uint64_t *map, uint32_t bit, uint32_t len)
{
    assert(len > 0 && bit + len <= LAY_GROUP_BLOCKS);
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++)
        map[w] &= ~group_mask(w, bit, bit + len);
}

bool ffs_map_all(const uint64_t *map, uint32_t bit, uint32_t len, bool value)
{
    for (uint32_t w = bit / 64; w <= (bit + len - 1) / 64; w++) {
        uint64_t m = group_mask(w, bit, bit + len);
        if ((map[w] & m) != (value ? m : 0))
            return false;
    }
    return true;
}

unsigned ffs_map_units(const uint64_t *map)
{
    const uint32_t words = LAY_GPU_ALIGN / 64;
    unsigned units = 0;

    for (uint32_t w = 0; w < FFS_GROUP_WORDS; w += words) {
        uint64_t used = 0;
        for (uint32_t i = 0; i < words; i++)
            used |= map[w + i];
        units += used == 0;
    }
    return units;
}

/*
 * Returns the first bit of the given value in [from, to), or `to` if there is
 * none.
 */
static uint32_t group_next(const uint64_t *map, uint32_t from, uint32_t to, bool value)
{
    if (from >= to)
        return to;
    uint64_t flip = value ? 0 : ~0ull;
    uint32_t w = from / 64;
    uint64_t word = (map[w] ^ flip) & group_mask(w, from, to);
    while (!word && ++w <= (to - 1) / 64)
        word = (map[w] ^ flip) & group_mask(w, from, to);
    return word ? w * 64 + (uint32_t)__builtin_ctzll(word) : to;
}

uint32_t ffs_map_zeros(const uint64_t *map, uint32_t from, uint32_t to)
{
    return group_next(map, from, to, true) - from;
}

static uint32_t group_round_up(uint32_t v, uint32_t align)
{
    return (v + align - 1) / align * align;
}

struct ffs_found ffs_map_find(const uint64_t *map, uint32_t from, uint32_t to, uint32_t want,
                              unsigned align)
{
    struct ffs_found best = {0, 0};
    uint32_t pos = from;

    while (pos < to && best.len < want) {
        uint32_t start = group_next(map, pos, to, false);
        uint32_t end = group_next(map, start, to, true);
        uint32_t aligned = group_round_up(start, align);
        uint32_t len = aligned < end ? (end - aligned) / align * align : 0;
        if (len > best.len)
            best = (struct ffs_found){aligned, len < want ? len : want};
        pos = end + 1;
    }
    return best;
}
