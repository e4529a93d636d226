/* SPDX-License-Identifier: BSD-2-Clause */
/* Which block names the age of which other one, and what an age of 0 stands for. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tests/layout/objects.h"

namespace
{

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
