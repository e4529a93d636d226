/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks block bitmaps (FORMAT.md 5), the chunk map and blocks of entries (5.6, 5.7). */
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

void lay_slot_set(struct lay_slot *slot, uint64_t block, uint64_t copy)
{
    *slot = (struct lay_slot){.places = {lay_put64(block), lay_put64(copy)}};
}

unsigned lay_slot_places(const struct lay_slot *slot, uint64_t addr, uint64_t places[2])
{
    unsigned n = 0;

    for (; n < 2 && lay_get64(slot->places[n]) != LAY_NONE; n++)
        places[n] = lay_get64(slot->places[n]) + lay_addr_index(addr);
    return n;
}

bool lay_slots_follow(const struct lay_slot *slot, const struct lay_slot *next)
{
    if (!lay_slot_mapped(slot) || !lay_slot_mapped(next))
        return lay_slot_mapped(slot) == lay_slot_mapped(next);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t place = lay_get64(slot->places[i]);
        uint64_t behind = place == LAY_NONE ? LAY_NONE : place + LAY_SEGMENT_BLOCKS;
        if (lay_get64(next->places[i]) != behind)
            return false;
    }
    return true;
}

/* Returns true if a segment can be at this block. */
static bool map_block_place_ok(const struct lay_geometry *geo, uint64_t block)
{
    return block % LAY_SEGMENT_BLOCKS == 0 && lay_range_ok(geo, block, LAY_SEGMENT_BLOCKS);
}

static int map_block_slot(const struct lay_geometry *geo, const struct lay_slot *slot,
                          uint64_t segment, const char **why)
{
    uint64_t block = lay_get64(slot->places[0]), copy = lay_get64(slot->places[1]);

    if (copy != LAY_NONE && (!lay_has_copies(geo) || !lay_slot_mapped(slot)))
        return lay_bad(why, "slot.places");
    if (lay_get32(slot->reserved) != 0)
        return lay_bad(why, "slot.reserved");
    if (!lay_slot_mapped(slot) && lay_get32(slot->age) != 0)
        return lay_bad(why, "slot.age");
    if (!lay_slot_mapped(slot))
        return segment == 0 ? lay_bad(why, "slot: chunk 0 is not mapped") : 0;
    if (segment >= lay_segments(geo))
        return lay_bad(why, "slot: behind the last chunk");
    if (!map_block_place_ok(geo, block) ||
        (copy != LAY_NONE && (copy == block || !map_block_place_ok(geo, copy))))
        return lay_bad(why, "slot.places");
    return 0;
}

int lay_check_map_block(const struct lay_geometry *geo, const struct lay_map_block *mb,
                        uint64_t index, const char **why)
{
    int err = lay_check_head(mb, LAY_MAGIC_MAP, geo->uuid, LAY_ADDR(LAY_KIND_MAP, index), 0, why);

    if (err)
        return err;
    if (lay_get64(mb->index) != index)
        return lay_bad(why, "index");
    if (lay_get64(mb->reserved) != 0)
        return lay_bad(why, "reserved");
    for (unsigned i = 0; i < LAY_MAP_SLOTS && !err; i++) {
        uint64_t segment = index * LAY_MAP_SLOTS + i;
        err = map_block_slot(geo, &mb->slots[i], segment, why);
        if (!err && i > 0 && segment % lay_chunk_segments(geo) != 0 &&
            !lay_slots_follow(&mb->slots[i - 1], &mb->slots[i]))
            err = lay_bad(why, "slot: not behind the other segments of its chunk");
    }
    return err;
}

/* Returns true if only blocks in use have an age and the block of entries itself has none. */
static bool map_block_ages_ok(const struct lay_entries *entries)
{
    if (lay_get32(entries->ages[0]) != 0)
        return false;
    for (unsigned b = 1; b < LAY_SEGMENT_BLOCKS; b++) {
        if (lay_get32(entries->ages[b]) != 0 && !(entries->used[b / 8] >> b % 8 & 1))
            return false;
    }
    return true;
}

int lay_check_entries(const struct lay_geometry *geo, const struct lay_entries *entries,
                      uint64_t segment, const char **why)
{
    uint64_t addr = LAY_ADDR_CHUNK(segment, 0);
    int err = lay_check_head(entries, LAY_MAGIC_ENTRIES, geo->uuid, addr, 0, why);

    if (err)
        return err;
    if (!(entries->used[0] & 1))
        return lay_bad(why, "used: block 0 is free");
    uint32_t ones = lay_count_ones(entries->used, sizeof(entries->used));
    if (lay_get32(entries->free) != LAY_SEGMENT_BLOCKS - ones)
        return lay_bad(why, "free");
    if (!map_block_ages_ok(entries))
        return lay_bad(why, "ages");
    if (lay_get32(entries->reserved) != 0 || lay_get64(entries->reserved2) != 0 ||
        !lay_is_zero(entries->reserved3, sizeof(entries->reserved3)))
        return lay_bad(why, "reserved");
    return 0;
}
