/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks block bitmaps (FORMAT.md 5). */
#include <assert.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

uint32_t lay_group_blocks(const struct lay_geometry *geo, uint64_t group)
{
    assert(group < lay_groups(geo));
    uint64_t left = geo->blocks - group * LAY_GROUP_BLOCKS;
    return left < LAY_GROUP_BLOCKS ? (uint32_t)left : LAY_GROUP_BLOCKS;
}

uint32_t lay_count_ones(const uint8_t *bits, size_t len)
{
    uint32_t ones = 0;

    for (size_t i = 0; i < len; i += 8) {
        uint64_t word;
        memcpy(&word, bits + i, sizeof(word));
        ones += (uint32_t)__builtin_popcountll(word);
    }
    return ones;
}

static bool tail_is_used(const struct lay_bitmap *bm, uint32_t blocks)
{
    for (uint32_t b = blocks; b < LAY_GROUP_BLOCKS; b += 8 - b % 8) {
        if (bm->bits[b / 8] >> b % 8 != 0xff >> b % 8)
            return false;
    }
    return true;
}

int lay_check_bitmap(const struct lay_geometry *geo, const struct lay_bitmap *bm, uint64_t group,
                     const char **why)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_BITMAP, group);
    int err = lay_check_head(bm, LAY_MAGIC_BITMAP, geo->uuid, addr, 0, why);

    if (err)
        return err;
    if (lay_get32(bm->group) != group || group >= lay_groups(geo))
        return lay_bad(why, "group");
    if (lay_get64(bm->reserved) != 0)
        return lay_bad(why, "reserved");
    if (!tail_is_used(bm, lay_group_blocks(geo, group)))
        return lay_bad(why, "bits past the end");
    static_assert(LAY_PAYLOAD % 8 == 0, "bits are counted by words");
    if (lay_get32(bm->free) != LAY_GROUP_BLOCKS - lay_count_ones(bm->bits, sizeof(bm->bits)))
        return lay_bad(why, "free");
    return 0;
}

/* Returns the number of entries that represent blocks of the file system. */
static uint64_t entries_of(const struct lay_geometry *geo, uint64_t index)
{
    uint64_t left = geo->blocks - index * LAY_SUMS_ENTRIES;

    return left < LAY_SUMS_ENTRIES ? left : LAY_SUMS_ENTRIES;
}

int lay_check_sums(const struct lay_geometry *geo, const struct lay_sums *sums, uint64_t index,
                   const char **why)
{
    uint64_t addr = LAY_ADDR(LAY_KIND_SUMS, index);
    int err = lay_check_head(sums, LAY_MAGIC_SUMS, geo->uuid, addr, 0, why);

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
