/* SPDX-License-Identifier: BSD-2-Clause */
/* Bitmaps of zeros (FORMAT.md 5.5). */
#include <gtest/gtest.h>

#include <cstring>

#include "tests/layout/objects.h"

namespace
{

// Five groups: copies of the superblock in the third and the last.
lay_geometry five_groups(uint64_t incompat)
{
    lay_geometry geo;
    object_geometry(&geo);
    geo.incompat = incompat;
    geo.sums_start = geo.sums_blocks = 0;
    geo.blocks = 4 * LAY_GROUP_BLOCKS + 1000;
    geo.bitmap_blocks = 5;
    geo.journal_start = 6;
    geo.copies[0] = 2 * LAY_GROUP_BLOCKS;
    geo.copies[1] = geo.blocks - 1;
    return geo;
}

TEST(ZeroBitmaps, RepresentGroupsWithoutFixedAreas)
{
    lay_geometry geo = five_groups(LAY_INCOMPAT_ZERO_BITMAPS);
    for (uint64_t group = 0; group < 5; group++) {
        lay_bitmap bm = {};
        lay_bitmap_complete(&geo, &bm, group);
        bool whole = lay_check_bitmap(&geo, &bm, group, nullptr) == 0;
        EXPECT_EQ(whole, group == 1 || group == 3) << group;
        EXPECT_EQ(lay_get32(bm.free), whole ? LAY_GROUP_BLOCKS : 0u);
        EXPECT_EQ(lay_get64(bm.head.tid), 0u);
    }
}

TEST(ZeroBitmaps, AreDamageWithoutTheFeature)
{
    lay_geometry geo = five_groups(0);
    lay_bitmap bm = {};
    lay_bitmap_complete(&geo, &bm, 1);
    EXPECT_NE(lay_check_bitmap(&geo, &bm, 1, nullptr), 0);
}

TEST(ZeroBitmaps, AreZeroThroughout)
{
    lay_geometry geo = five_groups(LAY_INCOMPAT_ZERO_BITMAPS);
    for (size_t at : {size_t{0}, size_t{60}, size_t{4095}}) {
        lay_bitmap bm = {};
        reinterpret_cast<uint8_t *>(&bm)[at] = 1;
        lay_bitmap_complete(&geo, &bm, 1);
        EXPECT_NE(lay_check_bitmap(&geo, &bm, 1, nullptr), 0) << at;
    }
}

} // namespace
