/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests two places of metadata: which ones a superblock and a slot may name,
 * and where a block is.
 */
#include <errno.h>
#include <string.h>

#include <gtest/gtest.h>

#include "layout/layout.h"
#include "tests/layout/objects.h"

namespace
{

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

} // namespace
