/* SPDX-License-Identifier: BSD-2-Clause */
/* Sizes of areas and of the chunk map, addresses of blocks in chunks, and blocks of the map. */
#include <errno.h>
#include <string.h>

#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

#include "layout/layout.h"
#include "tests/layout/objects.h"

namespace
{

constexpr uint64_t TIB = uint64_t{1} << 28; // blocks

TEST(Levels, NameTheBlocksOfTheLevelBelow)
{
    EXPECT_EQ(lay_level_blocks(5, 0), 5u);
    EXPECT_EQ(lay_level_blocks(1, 1), 0u) << "a level of one block is the top";
    EXPECT_EQ(lay_level_blocks(2, 1), 1u);
    EXPECT_EQ(lay_level_blocks(LAY_AGES, 1), 1u);
    EXPECT_EQ(lay_level_blocks(LAY_AGES + 1, 1), 2u);
    EXPECT_EQ(lay_level_blocks(LAY_AGES + 1, 2), 1u);
    EXPECT_EQ(lay_level_blocks(LAY_AGES + 1, 3), 0u);
    EXPECT_EQ(lay_area_blocks(0), 0u);
    EXPECT_EQ(lay_area_blocks(1), 1u);
    EXPECT_EQ(lay_area_blocks(2), 3u);
}

/* Levels above the first one. */
unsigned levels(uint64_t n)
{
    unsigned level = 0;
    while (lay_level_blocks(n, level + 1) > 0)
        level++;
    return level;
}

/* The table of what mkfs chooses: of all members together, and of one of them. */
struct Sizes {
    uint64_t blocks, member;
    uint32_t shift, reserve;
    uint64_t map, bitmaps, sums;
    unsigned bitmap_levels, sums_levels;
};

const Sizes sizes[] = {
    {4096, 4096, 0, 1, 1, 1, 6, 0, 1},
    {TIB, TIB, 0, 16, 3126, 8333, 266572, 2, 2},
    {256 * TIB, 16 * TIB, 2, 64, 99966, 133287, 4265115, 2, 3},
};

TEST(Sizes, AreThoseOfTheTable)
{
    for (const Sizes &s : sizes) {
        SCOPED_TRACE(s.blocks);
        EXPECT_EQ(lay_chunk_shift(s.blocks), s.shift);
        EXPECT_EQ(lay_reserve(s.blocks), s.reserve);
        uint64_t map = lay_map_blocks(lay_map_slots(s.blocks, s.shift));
        EXPECT_EQ(lay_area_blocks(map), s.map);
        EXPECT_EQ(lay_area_blocks(lay_groups_of(s.member)), s.bitmaps);
        EXPECT_EQ(lay_area_blocks(lay_sums_blocks(s.member)), s.sums);
        EXPECT_EQ(levels(lay_groups_of(s.member)), s.bitmap_levels);
        EXPECT_EQ(levels(lay_sums_blocks(s.member)), s.sums_levels);
    }
}

TEST(Sizes, OfChunksGrowFrom64TiBOnUpToTheLimit)
{
    EXPECT_EQ(lay_chunk_shift(64 * TIB), 0u);
    EXPECT_EQ(lay_chunk_shift(64 * TIB + 1), 1u);
    EXPECT_EQ(lay_chunk_shift(512 * TIB), 3u);
    EXPECT_EQ(lay_chunk_shift(LAY_MAX_BLOCKS), LAY_MAX_CHUNK_SHIFT);
    EXPECT_EQ(lay_map_slots(LAY_MAX_BLOCKS, LAY_MAX_CHUNK_SHIFT), LAY_MAX_SEGMENTS);
    EXPECT_EQ(lay_map_slots(4095, 0), 7u) << "whole segments";
}

TEST(Segments, AreTheSlotsOfWholeChunks)
{
    lay_geometry geo = object_geometry();
    EXPECT_EQ(lay_segments(&geo), 2 * LAY_MAP_SLOTS);
    geo.chunk_shift = 4;
    geo.map_blocks = 1;
    EXPECT_EQ(lay_segments(&geo), 160u);
    geo.chunk_shift = 0;
    geo.map_blocks = lay_map_blocks(LAY_MAX_CHUNKS);
    EXPECT_EQ(lay_segments(&geo), LAY_MAX_CHUNKS);
    geo.map_blocks = 0;
    EXPECT_EQ(lay_segments(&geo), LAY_MAX_SEGMENTS) << "before the superblock is known";
}

TEST(ChunkAddress, HasASegmentAndABlock)
{
    const uint64_t addr = LAY_ADDR_CHUNK(77, 511);
    EXPECT_EQ(addr, 0x4000000000000000u + 77 * 512 + 511);
    EXPECT_EQ(lay_addr_segment(addr), 77u);
    EXPECT_EQ(lay_addr_index(addr), 511u);
}

TEST(ChunkAddress, NamesABlockOtherThanTheEntriesOfASegmentInTheMap)
{
    lay_geometry geo = object_geometry();
    for (uint64_t addr : {LAY_ADDR_CHUNK(0, 1), LAY_ADDR_CHUNK(335, 511)})
        EXPECT_TRUE(lay_chunk_addr_ok(&geo, addr));
    for (uint64_t addr :
         {uint64_t{0}, uint64_t{3000}, LAY_ADDR_CHUNK(5, 0), LAY_ADDR_CHUNK(336, 1),
          LAY_ADDR(LAY_KIND_MAP, 1), LAY_ADDR_CHUNK(uint64_t{1} << 43, 1), UINT64_MAX})
        EXPECT_FALSE(lay_chunk_addr_ok(&geo, addr)) << std::hex << addr;
}

TEST(ChunkAddress, HasAHomeIfTheMapCanHaveItsSegment)
{
    lay_geometry geo = object_geometry();
    EXPECT_TRUE(lay_home_ok(&geo, LAY_ADDR_CHUNK(335, 0)));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR_CHUNK(336, 0)));
    EXPECT_TRUE(lay_home_ok(&geo, LAY_ADDR(LAY_KIND_MAP, 1)));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR(LAY_KIND_MAP, 2)));
    EXPECT_FALSE(lay_home_ok(&geo, 3000));
    geo.map_blocks = 0; // only the label is known
    EXPECT_TRUE(lay_home_ok(&geo, LAY_ADDR_CHUNK(LAY_MAX_SEGMENTS - 1, 0)));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR_CHUNK(LAY_MAX_SEGMENTS, 0)));
    uint64_t most = lay_map_blocks(LAY_MAX_SEGMENTS);
    EXPECT_TRUE(lay_home_ok(&geo, LAY_ADDR(LAY_KIND_MAP, most - 1)));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR(LAY_KIND_MAP, most)));
}

TEST(Slot, TranslatesAnAddress)
{
    lay_slot slot;
    uint64_t places[2];
    lay_slot_set(&slot, 21 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_TRUE(lay_slot_mapped(&slot));
    ASSERT_EQ(lay_slot_places(&slot, LAY_ADDR_CHUNK(6, 9), places), 1u);
    EXPECT_EQ(places[0], 21u * LAY_SEGMENT_BLOCKS + 9);
    slot.places[1] = lay_put64(LAY_SEGMENT_BLOCKS);
    ASSERT_EQ(lay_slot_places(&slot, LAY_ADDR_CHUNK(6, 9), places), 2u);
    EXPECT_EQ(places[1], LAY_SEGMENT_BLOCKS + 9);
    lay_slot_set(&slot, LAY_NONE, LAY_NONE);
    EXPECT_FALSE(lay_slot_mapped(&slot));
    EXPECT_EQ(lay_slot_places(&slot, LAY_ADDR_CHUNK(6, 9), places), 0u);
}

class MapBlock : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        geo = object_geometry();
        object_make(OBJECT_MAP, &o);
    }

    int check(uint64_t index = 0)
    {
        lay_seal(&o, 1);
        return lay_check_map_block(&geo, &o.map, index, &why);
    }

    lay_geometry geo;
    lay_block o;
    const char *why = "";
};

TEST_F(MapBlock, OfZerosIsDamaged)
{
    memset(&o, 0, sizeof(o));
    EXPECT_EQ(lay_check_map_block(&geo, &o.map, 1, &why), -EUCLEAN);
}

TEST_F(MapBlock, MapsNothingBehindTheLastChunk)
{
    geo.chunk_shift = 4;
    geo.map_blocks = geo.map_len = 1;
    for (lay_slot &slot : o.map.slots)
        lay_slot_set(&slot, LAY_NONE, LAY_NONE);
    for (unsigned i = 0; i < 16; i++) {
        lay_slot_set(&o.map.slots[i], (8 + i) * LAY_SEGMENT_BLOCKS, LAY_NONE);
        lay_slot_set(&o.map.slots[144 + i], (40 + i) * LAY_SEGMENT_BLOCKS, LAY_NONE);
    }
    EXPECT_EQ(check(), 0) << why;
    lay_slot_set(&o.map.slots[160], 60 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_EQ(check(), -EUCLEAN);
    EXPECT_STREQ(why, "slot: behind the last chunk");
}

/* Block 1 begins in the middle of a chunk of 16 segments, and ends with a whole one. */
TEST_F(MapBlock, MayBeginWithinAChunk)
{
    geo.chunk_shift = 4;
    o.map.index = lay_put64(1);
    o.head.block = lay_put64(LAY_ADDR(LAY_KIND_MAP, 1));
    for (lay_slot &slot : o.map.slots)
        lay_slot_set(&slot, LAY_NONE, LAY_NONE);
    for (unsigned i = 0; i < 8; i++)
        lay_slot_set(&o.map.slots[i], (20 + i) * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_EQ(check(1), 0) << why;
    lay_slot_set(&o.map.slots[7], 30 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_EQ(check(1), -EUCLEAN);
    EXPECT_STREQ(why, "slot: not behind the other segments of its chunk");
    lay_slot_set(&o.map.slots[7], 27 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    lay_slot_set(&o.map.slots[8], 10 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_EQ(check(1), -EUCLEAN) << "the first segment of another chunk alone";
}

TEST(Slots, OfAChunkFollowEachOther)
{
    lay_slot none, a, b;
    lay_slot_set(&none, LAY_NONE, LAY_NONE);
    lay_slot_set(&a, 20 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    lay_slot_set(&b, 21 * LAY_SEGMENT_BLOCKS, LAY_NONE);
    EXPECT_TRUE(lay_slots_follow(&a, &b));
    EXPECT_TRUE(lay_slots_follow(&none, &none));
    EXPECT_FALSE(lay_slots_follow(&b, &a));
    EXPECT_FALSE(lay_slots_follow(&a, &none));
    EXPECT_FALSE(lay_slots_follow(&none, &a));
}

TEST(InodeExtent, EndsWithItsSegment)
{
    lay_geometry geo;
    lay_extent e = {};
    const char *why = "";
    geo = object_geometry();
    auto check = [&](uint64_t addr, uint32_t len) {
        e.block = lay_put64(addr);
        e.len = lay_put32(len);
        return lay_check_inode_extent(&geo, &e, &why);
    };
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), 511), 0) << why;
    EXPECT_EQ(check(LAY_ADDR_CHUNK(335, 511), 1), 0) << why;
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), 512), -EUCLEAN);
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), UINT32_MAX), -EUCLEAN);
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), 0), -EUCLEAN);
    e.flags = lay_put16(LAY_EXTENT_DAMAGED);
    EXPECT_EQ(check(LAY_NONE, 1), -EUCLEAN);
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), 1), -EUCLEAN);
    e.flags = lay_put16(LAY_EXTENT_UNWRITTEN);
    EXPECT_EQ(check(LAY_ADDR_CHUNK(5, 1), 1), -EUCLEAN);
}

TEST(InodeExtent, IsWhatNodesOfTheInodeFileHold)
{
    lay_geometry geo = object_geometry();
    lay_block o;
    const char *why = "";
    object_make(OBJECT_EXTENT_LEAF, &o);
    auto check = [&](uint64_t owner) {
        o.head.owner = lay_put64(owner);
        lay_seal(&o, 1);
        return lay_check_node(&geo, &o.node, LAY_MAGIC_EXTENTS, object_addr(OBJECT_EXTENT_LEAF),
                              owner, 0, 0, UINT64_MAX, &why);
    };
    EXPECT_EQ(check(OBJECT_OWNER), 0) << why;
    EXPECT_EQ(check(0), -EUCLEAN);
    for (unsigned i = 0; i < 3; i++)
        o.node.u.extents[i].block = lay_put64(LAY_ADDR_CHUNK(i, 1));
    EXPECT_EQ(check(0), 0) << why;
    EXPECT_EQ(check(OBJECT_OWNER), -EUCLEAN);
}

// --- Two places of metadata: which may be named, and where a block is ----------------------------

constexpr uint64_t MAP = 3000, BITMAPS = 3100, SUMS = 3200, LOG = 12000;

class Copies : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        geo = object_geometry();
        geo.incompat |= LAY_INCOMPAT_META_COPIES | LAY_INCOMPAT_TWO_LOGS;
        geo.log_copy = LOG;
        object_make(OBJECT_SUPER, &o);
        o.super.map[1] = lay_put64(MAP);
        o.super.area.bitmaps[1] = lay_put64(BITMAPS);
        o.super.area.sums[1] = lay_put64(SUMS);
    }
    int check()
    {
        lay_seal(&o, OBJECT_TID);
        return lay_check_super(&o.super, &geo, &found, &why);
    }
    int check_slot(uint64_t block, uint64_t copy)
    {
        object_make(OBJECT_MAP, &o);
        for (unsigned i = 0; i < 2; i++)
            lay_slot_set(&o.map.slots[6 + i], block + i * LAY_SEGMENT_BLOCKS,
                         copy == LAY_NONE ? copy : copy + i * LAY_SEGMENT_BLOCKS);
        lay_seal(&o, OBJECT_TID);
        return lay_check_map_block(&found, &o.map, 0, &why);
    }

    lay_geometry geo, found = {};
    lay_block o;
    const char *why = "";
};

TEST_F(Copies, AreInTheGeometry)
{
    ASSERT_EQ(check(), 0) << why;
    EXPECT_EQ(found.map_copy, MAP);
    EXPECT_EQ(found.bitmap_copy, BITMAPS);
    EXPECT_EQ(found.sums_copy, SUMS);
    EXPECT_FALSE(lay_range_ok(&found, SUMS + found.sums_len - 1, 1));
    EXPECT_TRUE(lay_range_ok(&found, SUMS + found.sums_len, 1));
    lay_range areas[LAY_AREAS];
    EXPECT_EQ(lay_areas(&found, areas), LAY_AREAS);
}

TEST_F(Copies, AreMissingOrNotAllowed)
{
    for (uint64_t wrong : {uint64_t{0}, LAY_NONE, uint64_t{OBJECT_BLOCKS - 1}, geo.log_start,
                           geo.map_start, BITMAPS, geo.supers[1] - 1, uint64_t{LAY_LABEL_SECOND}}) {
        o.super.map[1] = lay_put64(wrong);
        EXPECT_EQ(check(), -EUCLEAN) << wrong;
    }
    o.super.map[1] = lay_put64(MAP);
    for (uint64_t wrong : {uint64_t{0}, LAY_NONE, uint64_t{OBJECT_BLOCKS - 1}, MAP, SUMS - 1}) {
        o.super.area.bitmaps[1] = lay_put64(wrong);
        EXPECT_EQ(check(), -EUCLEAN) << wrong;
    }
    o.super.area.bitmaps[1] = lay_put64(BITMAPS);
    for (uint64_t wrong : {uint64_t{0}, LAY_NONE, uint64_t{OBJECT_BLOCKS - 1}, geo.sums_start}) {
        o.super.area.sums[1] = lay_put64(wrong);
        EXPECT_EQ(check(), -EUCLEAN) << wrong;
    }
    o.super.area.sums[1] = lay_put64(SUMS);
    EXPECT_EQ(check(), 0) << why;
    geo.incompat &= ~LAY_INCOMPAT_META_COPIES;
    EXPECT_EQ(check(), -EUCLEAN) << "the feature is missing";
}

TEST_F(Copies, HaveTheOffsetsOfTheirBlocks)
{
    ASSERT_EQ(check(), 0) << why;
    uint64_t places[2];
    for (uint64_t addr : {LAY_ADDR(LAY_KIND_MAP, 1), LAY_ADDR_LEVEL(LAY_KIND_MAP, 1, 0)}) {
        ASSERT_EQ(lay_places(&found, addr, places), 2u);
        EXPECT_EQ(places[0] - found.map_start, places[1] - MAP);
    }
    ASSERT_EQ(lay_places(&found, LAY_ADDR(LAY_KIND_BITMAP, 1), places), 2u);
    EXPECT_EQ(places[1], BITMAPS + 1);
    ASSERT_EQ(lay_places(&found, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0), places), 2u);
    EXPECT_EQ(places[1], SUMS + found.sums_blocks);
    ASSERT_EQ(lay_places(&found, LAY_ADDR(LAY_KIND_LOG, 3), places), 2u);
    EXPECT_EQ(places[1], LOG + 3);
    EXPECT_EQ(lay_places(&found, LAY_ADDR(LAY_KIND_LOG, found.log_blocks), places), 0u);
}

TEST_F(Copies, AreInTheSlotOfASegment)
{
    const uint64_t block = 21 * LAY_SEGMENT_BLOCKS, copy = 50 * LAY_SEGMENT_BLOCKS;
    ASSERT_EQ(check(), 0) << why;
    EXPECT_EQ(check_slot(block, copy), 0) << why;
    EXPECT_EQ(check_slot(block, LAY_NONE), 0) << "a repair may have found no space";
    for (uint64_t wrong : {block, copy + 1, uint64_t{39 * LAY_SEGMENT_BLOCKS}, uint64_t{0},
                           uint64_t{78 * LAY_SEGMENT_BLOCKS}})
        EXPECT_EQ(check_slot(block, wrong), -EUCLEAN) << wrong;
    check_slot(block, copy);
    o.map.slots[7].places[1] = lay_put64(copy);
    lay_seal(&o, OBJECT_TID);
    EXPECT_EQ(lay_check_map_block(&found, &o.map, 0, &why), -EUCLEAN) << "not behind the other";
    found.incompat &= ~LAY_INCOMPAT_META_COPIES;
    EXPECT_EQ(check_slot(block, copy), -EUCLEAN) << "the feature is missing";
}

// --- Ages: which block has that of which other one -----------------------------------------------

class Ages : public ::testing::Test
{
  protected:
    uint64_t name_of(uint64_t addr)
    {
        EXPECT_TRUE(lay_home_ok(&geo, addr)) << std::hex << addr;
        return lay_name_of(&geo, addr, &index);
    }

    /* A file system of the largest size, of which nothing lies anywhere. */
    void grow()
    {
        geo.blocks = LAY_MAX_BLOCKS;
        geo.chunk_shift = LAY_MAX_CHUNK_SHIFT;
        geo.map_blocks = lay_map_blocks(LAY_MAX_SEGMENTS);
    }

    lay_geometry geo = object_geometry();
    unsigned index = 0;
};

TEST_F(Ages, OfBlocksInAChunkAreInItsEntriesAndTheirsInTheMap)
{
    EXPECT_EQ(name_of(LAY_ADDR_CHUNK(170, 511)), LAY_ADDR_CHUNK(170, 0));
    EXPECT_EQ(index, 511u);
    EXPECT_EQ(name_of(LAY_ADDR_CHUNK(170, 0)), LAY_ADDR(LAY_KIND_MAP, 1));
    EXPECT_EQ(index, 2u);
}

TEST_F(Ages, OfAreasAreInTheirLevelsAndThoseOfTheTopsInTheSuperblock)
{
    for (uint64_t kind : {LAY_KIND_MAP, LAY_KIND_BITMAP, LAY_KIND_SUMS}) {
        EXPECT_EQ(name_of(LAY_ADDR(kind, 1)), LAY_ADDR_LEVEL(kind, 1, 0));
        EXPECT_EQ(index, 1u);
        EXPECT_EQ(name_of(LAY_ADDR_LEVEL(kind, 1, 0)), LAY_ADDR_SUPER);
    }
    geo.map_blocks = 1;
    EXPECT_EQ(name_of(LAY_ADDR(LAY_KIND_MAP, 0)), LAY_ADDR_SUPER);
}

TEST_F(Ages, OfSuperblockAndLogAreInNoBlock)
{
    EXPECT_EQ(name_of(LAY_ADDR_SUPER), LAY_NONE);
    EXPECT_EQ(lay_name_of(&geo, LAY_ADDR(LAY_KIND_LOG, 3), &index), LAY_NONE);
    EXPECT_EQ(lay_name_of(&geo, LAY_ADDR_LABEL, &index), LAY_NONE);
}

TEST_F(Ages, HaveLevelsThatNoSizeExceeds)
{
    grow();
    for (uint64_t kind : {LAY_KIND_MAP, LAY_KIND_BITMAP, LAY_KIND_SUMS}) {
        uint64_t addr = LAY_ADDR(kind, LAY_AGES + 7);
        unsigned levels = 0;
        for (; addr != LAY_ADDR_SUPER; levels++)
            addr = name_of(addr);
        EXPECT_LE(levels, LAY_MAX_LEVELS) << kind;
    }
    EXPECT_EQ(name_of(LAY_ADDR(LAY_KIND_SUMS, LAY_AGES + 7)), LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 1));
    EXPECT_EQ(index, 7u);
}

TEST_F(Ages, AreSetOneByOne)
{
    const struct {
        object_kind kind;
        uint64_t addr;
    } names[] = {{OBJECT_ENTRIES, LAY_ADDR_CHUNK(6, 72)},
                 {OBJECT_MAP, LAY_ADDR_CHUNK(7, 0)},
                 {OBJECT_AGES, LAY_ADDR(LAY_KIND_SUMS, 7)},
                 {OBJECT_SUPER, LAY_ADDR_LEVEL(LAY_KIND_MAP, 1, 0)},
                 {OBJECT_SUPER, LAY_ADDR_LEVEL(LAY_KIND_BITMAP, 1, 0)},
                 {OBJECT_SUPER, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0)}};
    for (const auto &n : names) {
        SCOPED_TRACE(n.addr);
        lay_block b, before;
        const char *why = "";
        object_make(n.kind, &b);
        before = b;
        ASSERT_EQ(name_of(n.addr), object_addr(n.kind));
        lay_set_named_age(&b, n.addr, index, 0x01020304);
        EXPECT_EQ(lay_named_age(&b, n.addr, index), 0x01020304u);
        unsigned changed = 0;
        for (size_t i = 0; i < sizeof(b); i++)
            changed += b.bytes[i] != before.bytes[i];
        EXPECT_LE(changed, 4u);
        EXPECT_GE(changed, 1u);
        lay_seal(&b, OBJECT_TID);
        EXPECT_EQ(object_check(n.kind, &b, &why), 0) << why;
    }
}

TEST_F(Ages, LieInLevelsBehindTheirArea)
{
    uint64_t places[2];
    ASSERT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0), places), 1u);
    EXPECT_EQ(places[0], geo.sums_start + geo.sums_blocks);
    EXPECT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 1), places), 0u);
    EXPECT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 2, 0), places), 0u);
    EXPECT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_LOG, 1, 0), places), 0u);
    EXPECT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_SUPER, 1, 0), places), 0u);
    grow();
    ASSERT_EQ(lay_places(&geo, LAY_ADDR_LEVEL(LAY_KIND_BITMAP, 2, 3), places), 1u);
    EXPECT_EQ(places[0], geo.bitmap_start + lay_groups_of(geo.blocks) +
                             lay_level_blocks(lay_groups_of(geo.blocks), 1) + 3);
}

TEST_F(Ages, BelongToAddressesWithoutAMember)
{
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR(LAY_KIND_BITMAP, 0) | uint64_t{1} << 56));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR_LEVEL(LAY_KIND_CHUNK, 1, 1)));
    EXPECT_FALSE(lay_chunk_addr_ok(&geo, LAY_ADDR_LEVEL(LAY_KIND_CHUNK, 1, 1)));
    EXPECT_FALSE(lay_home_ok(&geo, LAY_ADDR_LEVEL(LAY_KIND_SUPER, 1, 0)));
}

TEST_F(Ages, AreNotThoseOfLevel0)
{
    lay_block b;
    const char *why = "";
    object_make(OBJECT_AGES, &b);
    for (uint64_t addr : {LAY_ADDR(LAY_KIND_SUMS, 0), LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 1),
                          LAY_ADDR_LEVEL(LAY_KIND_SUMS, 2, 0)}) {
        b.head.block = lay_put64(addr);
        lay_seal(&b, OBJECT_TID);
        EXPECT_NE(lay_check_ages(&geo, &b.ages, addr, &why), 0);
        EXPECT_STREQ(why, "level") << std::hex << addr;
    }
}

/*
 * A crafted block has the magic and the address of a bitmap, but is read where entries are. No area
 * has a bitmap with the number of that address.
 */
TEST(CheckBlock, RefusesAMagicThatIsNotThatOfTheAddress)
{
    const lay_geometry geo = object_geometry();
    const uint64_t addr = LAY_ADDR_CHUNK(1, 0), number = lay_addr_number(addr);
    lay_expect want = {};
    lay_block b = {};
    const char *why = "";

    want.magic = LAY_MAGIC_BITMAP;
    lay_head_init(&b.head, LAY_MAGIC_BITMAP, geo.uuid, LAY_ADDR(LAY_KIND_BITMAP, number), 0);
    b.bitmap.group = lay_put32(static_cast<uint32_t>(number));
    lay_seal(&b, OBJECT_TID);
    EXPECT_EQ(lay_check_block(&geo, addr, &b, &want, &why), -EUCLEAN);
    EXPECT_STREQ(why, "magic");
    EXPECT_EQ(lay_check_bitmap(&geo, &b.bitmap, number, &why), -EUCLEAN);
    EXPECT_STREQ(why, "group");
}

/* --- Age 0 ------------------------------------------------------------------------------------ */

// Five groups; the second superblock is in the third one, and the log in the last.
lay_geometry five_groups()
{
    lay_geometry geo = object_geometry();
    geo.incompat = LAY_INCOMPAT_DRAFT;
    geo.sums_start = geo.sums_blocks = geo.sums_len = 0;
    geo.blocks = 5 * LAY_GROUP_BLOCKS;
    geo.bitmap_blocks = 5;
    geo.bitmap_len = 6;
    geo.log_start = 4 * LAY_GROUP_BLOCKS + 100;
    geo.supers[1] = 2 * LAY_GROUP_BLOCKS;
    return geo;
}

bool is_new_bitmap(const lay_geometry &geo, uint64_t group)
{
    lay_block b;
    const char *why = "";
    memset(&b, 0xee, sizeof(b));
    if (!lay_new_block(&geo, LAY_ADDR(LAY_KIND_BITMAP, group), &b))
        return false;
    EXPECT_EQ(lay_check_bitmap(&geo, &b.bitmap, group, &why), 0) << why;
    EXPECT_EQ(lay_get32(b.bitmap.free), LAY_GROUP_BLOCKS);
    EXPECT_EQ(lay_get64(b.head.tid), 0u);
    return true;
}

TEST(NewBlock, IsABitmapOfAWholeGroupWithoutAreas)
{
    lay_geometry geo = five_groups();
    for (uint64_t group = 0; group < 5; group++)
        EXPECT_EQ(is_new_bitmap(geo, group), group == 1 || group == 3) << group;
    geo.blocks = 2 * LAY_GROUP_BLOCKS - 1;
    EXPECT_FALSE(is_new_bitmap(geo, 1));
}

TEST(NewBlock, IsAMapBlockWithoutMappedSlotsUnlessItIsTheFirst)
{
    lay_geometry geo = five_groups();
    lay_block b;
    const char *why = "";
    ASSERT_TRUE(lay_new_block(&geo, LAY_ADDR(LAY_KIND_MAP, 1), &b));
    ASSERT_EQ(lay_check_map_block(&geo, &b.map, 1, &why), 0) << why;
    for (const lay_slot &slot : b.map.slots)
        EXPECT_FALSE(lay_slot_mapped(&slot));
    EXPECT_FALSE(lay_new_block(&geo, LAY_ADDR(LAY_KIND_MAP, 0), &b)) << "chunk 0 is always mapped";
}

TEST(NewBlock, HasNoChecksumsAndNoAges)
{
    lay_geometry geo = object_geometry();
    lay_block b;
    const char *why = "";
    ASSERT_TRUE(lay_new_block(&geo, LAY_ADDR(LAY_KIND_SUMS, 39), &b));
    ASSERT_EQ(lay_check_sums(&geo, &b.sums, 39, &why), 0) << why;
    for (le32 sum : b.sums.sums)
        EXPECT_EQ(lay_get32(sum), LAY_NO_SUM);
    for (uint64_t kind : {LAY_KIND_MAP, LAY_KIND_BITMAP, LAY_KIND_SUMS}) {
        const uint64_t addr = LAY_ADDR_LEVEL(kind, 1, 0);
        ASSERT_TRUE(lay_new_block(&geo, addr, &b));
        ASSERT_EQ(lay_check_ages(&geo, &b.ages, addr, &why), 0) << why;
        for (le32 age : b.ages.ages)
            EXPECT_EQ(lay_get32(age), 0u);
    }
}

TEST(NewBlock, IsNoneOfAChunkAndNoSuperblock)
{
    lay_geometry geo = object_geometry();
    lay_block b;
    for (uint64_t addr : {LAY_ADDR_CHUNK(0, 0), LAY_ADDR_CHUNK(0, 5), LAY_ADDR_SUPER})
        EXPECT_FALSE(lay_new_block(&geo, addr, &b));
}

} // namespace
