/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the block that names the age of another block, makes the contents of
 * blocks that were never written, and checks blocks (FORMAT.md 2.4, 5.1 and
 * 5.5).
 */
#include <assert.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

/* Returns the offset of an age in a naming block, which is one of a known kind. */
static size_t ages_at(const struct lay_head *name, uint64_t addr, unsigned index)
{
    switch (lay_get32(name->magic)) {
    case LAY_MAGIC_ENTRIES:
        return offsetof(struct lay_entries, ages) + index * sizeof(le32);
    case LAY_MAGIC_MAP:
        return offsetof(struct lay_map_block, slots) + index * sizeof(struct lay_slot) +
               offsetof(struct lay_slot, age);
    case LAY_MAGIC_AGES:
        return offsetof(struct lay_ages, ages) + index * sizeof(le32);
    default:
        assert(lay_get32(name->magic) == LAY_MAGIC_SUPER);
        break;
    }
    if (lay_addr_kind(addr) == LAY_KIND_MAP)
        return offsetof(struct lay_super, map_age);
    return offsetof(struct lay_super, area) + (lay_addr_kind(addr) == LAY_KIND_BITMAP
                                                   ? offsetof(struct lay_area, bitmap_age)
                                                   : offsetof(struct lay_area, sums_age));
}

uint32_t lay_named_age(const void *name, uint64_t addr, unsigned index)
{
    le32 age;

    memcpy(&age, (const uint8_t *)name + ages_at(name, addr, index), sizeof(age));
    return lay_get32(age);
}

void lay_set_named_age(void *name, uint64_t addr, unsigned index, uint32_t age)
{
    le32 value = lay_put32(age);

    memcpy((uint8_t *)name + ages_at(name, addr, index), &value, sizeof(value));
}

bool lay_is_unnamed(const void *name, uint64_t addr)
{
    const struct lay_entries *entries = name;
    unsigned i = lay_addr_index(addr);

    return lay_addr_kind(addr) == LAY_KIND_CHUNK && i != 0 && !(entries->used[i / 8] >> i % 8 & 1);
}

unsigned lay_rank(uint64_t addr)
{
    if (addr == LAY_ADDR_SUPER)
        return LAY_RANK_SUPER;
    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return lay_addr_index(addr) == 0;
    return 2 + lay_addr_level(addr);
}

static bool ages_new_bitmap(const struct lay_geometry *geo, uint64_t group, struct lay_bitmap *bm)
{
    bm->group = lay_put32((uint32_t)group);
    bm->free = lay_put32(LAY_GROUP_BLOCKS);
    return lay_range_ok(geo, group * LAY_GROUP_BLOCKS, LAY_GROUP_BLOCKS);
}

static bool ages_new_map(uint64_t index, struct lay_map_block *mb)
{
    mb->index = lay_put64(index);
    for (unsigned i = 0; i < LAY_MAP_SLOTS; i++)
        lay_slot_set(&mb->slots[i], LAY_NONE, LAY_NONE);
    return index > 0; /* chunk 0 is always mapped */
}

/* Fills a zeroed block of level 0. */
static bool ages_new_lowest(const struct lay_geometry *geo, uint64_t addr, union lay_block *block)
{
    uint64_t number = lay_addr_number(addr);

    switch (lay_addr_kind(addr)) {
    case LAY_KIND_MAP:
        return ages_new_map(number, &block->map);
    case LAY_KIND_BITMAP:
        return ages_new_bitmap(geo, number, &block->bitmap);
    default:
        block->sums.index = lay_put64(number);
        return true;
    }
}

uint32_t lay_magic_of(uint64_t addr)
{
    if (lay_addr_level(addr) > 0)
        return LAY_MAGIC_AGES;
    switch (lay_addr_kind(addr)) {
    case LAY_KIND_SUPER:
        return LAY_MAGIC_SUPER;
    case LAY_KIND_CHUNK:
        return LAY_MAGIC_ENTRIES;
    case LAY_KIND_MAP:
        return LAY_MAGIC_MAP;
    default:
        return lay_addr_kind(addr) == LAY_KIND_BITMAP ? LAY_MAGIC_BITMAP : LAY_MAGIC_SUMS;
    }
}

bool lay_new_block(const struct lay_geometry *geo, uint64_t addr, void *block)
{
    unsigned kind = lay_addr_kind(addr);

    if (kind != LAY_KIND_MAP && kind != LAY_KIND_BITMAP && kind != LAY_KIND_SUMS)
        return false;
    memset(block, 0, LAY_BLOCK_SIZE);
    if (lay_addr_level(addr) == 0 && !ages_new_lowest(geo, addr, block))
        return false;
    lay_head_init(block, lay_magic_of(addr), geo->uuid, addr, 0);
    lay_seal(block, 0);
    return true;
}

int lay_check_ages(const struct lay_geometry *geo, const struct lay_ages *ages, uint64_t addr,
                   const char **why)
{
    int err = lay_check_head(ages, LAY_MAGIC_AGES, geo->uuid, addr, 0, why);
    unsigned level = lay_addr_level(addr);

    if (err)
        return err;
    if (level == 0 || !lay_home_ok(geo, addr))
        return lay_bad(why, "level");
    if (!lay_is_zero(ages->reserved, sizeof(ages->reserved)))
        return lay_bad(why, "reserved");
    for (unsigned i = 0; i < LAY_AGES; i++) {
        uint64_t below = lay_addr_number(addr) * LAY_AGES + i;
        if (lay_get32(ages->ages[i]) != 0 &&
            !lay_home_ok(geo, LAY_ADDR_LEVEL(lay_addr_kind(addr), level - 1, below)))
            return lay_bad(why, "ages past the end");
    }
    return 0;
}

/* Returns true if blocks with this magic are those of one kind of address. */
static bool ages_magic_is_of_address(uint32_t magic)
{
    return magic == LAY_MAGIC_BITMAP || magic == LAY_MAGIC_SUMS || magic == LAY_MAGIC_MAP ||
           magic == LAY_MAGIC_ENTRIES || magic == LAY_MAGIC_AGES;
}

int lay_check_block(const struct lay_geometry *geo, uint64_t addr, const void *block,
                    const struct lay_expect *want, const char **why)
{
    uint64_t number = lay_addr_number(addr);

    /* The number of another kind of address may be beyond the area. */
    if (ages_magic_is_of_address(want->magic) && want->magic != lay_magic_of(addr))
        return lay_bad(why, "magic");
    switch (want->magic) {
    case 0:
        return lay_check_head(block, lay_get32(((const struct lay_head *)block)->magic), geo->uuid,
                              addr, LAY_ANY_OWNER, why);
    case LAY_MAGIC_BITMAP:
        return lay_check_bitmap(geo, block, number, why);
    case LAY_MAGIC_SUMS:
        return lay_check_sums(geo, block, number, why);
    case LAY_MAGIC_MAP:
        return lay_check_map_block(geo, block, number, why);
    case LAY_MAGIC_ENTRIES:
        return lay_check_entries(geo, block, lay_addr_segment(addr), why);
    case LAY_MAGIC_AGES:
        return lay_check_ages(geo, block, addr, why);
    case LAY_MAGIC_INODES:
        return lay_check_inode_block(geo, block, want->owner / LAY_INODES_PER_BLOCK, addr, why);
    case LAY_MAGIC_EXTENTS:
    case LAY_MAGIC_DIR:
        return lay_check_node(geo, block, want->magic, addr, want->owner, want->level, want->lo,
                              want->hi, why);
    case LAY_MAGIC_XATTR:
        return lay_check_xattr_block(geo, block, addr, want->owner, why);
    case LAY_MAGIC_SYMLINK:
        return lay_check_symlink_block(geo, block, addr, want->owner, why);
    default:
        return lay_bad(why, "magic");
    }
}
