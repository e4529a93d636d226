/* SPDX-License-Identifier: BSD-2-Clause */
/* Bitmaps of zeros (FORMAT.md 5.5). */
#include <gtest/gtest.h>

#include <cstring>

#include "tests/layout/objects.h"

namespace
{

// Five groups; the second superblock is in the third one, and the log in the last.
lay_geometry five_groups()
{
    lay_geometry geo;
    object_geometry(&geo);
    geo.incompat = LAY_INCOMPAT_DRAFT;
    geo.sums_start = geo.sums_blocks = 0;
    geo.blocks = 4 * LAY_GROUP_BLOCKS + LAY_GROUP_BLOCKS;
    geo.bitmap_blocks = 5;
    geo.log_start = 4 * LAY_GROUP_BLOCKS + 100;
    geo.supers[1] = 2 * LAY_GROUP_BLOCKS;
    return geo;
}

TEST(ZeroBitmaps, RepresentGroupsWithoutFixedAreas)
{
    lay_geometry geo = five_groups();
    for (uint64_t group = 0; group < 5; group++) {
        lay_bitmap bm = {};
        lay_bitmap_complete(&geo, &bm, group);
        bool whole = lay_check_bitmap(&geo, &bm, group, nullptr) == 0;
        EXPECT_EQ(whole, group == 1 || group == 3) << group;
        EXPECT_EQ(lay_get32(bm.free), whole ? LAY_GROUP_BLOCKS : 0u);
        EXPECT_EQ(lay_get64(bm.head.tid), 0u);
    }
}

TEST(ZeroBitmaps, AreNoneOfAGroupThatIsCutOff)
{
    lay_geometry geo = five_groups();
    geo.blocks = 2 * LAY_GROUP_BLOCKS - 1;
    lay_bitmap bm = {};
    lay_bitmap_complete(&geo, &bm, 1);
    EXPECT_NE(lay_check_bitmap(&geo, &bm, 1, nullptr), 0);
}

TEST(ZeroBitmaps, AreZeroThroughout)
{
    lay_geometry geo = five_groups();
    for (size_t at : {size_t{0}, size_t{60}, size_t{4095}}) {
        lay_bitmap bm = {};
        reinterpret_cast<uint8_t *>(&bm)[at] = 1;
        lay_bitmap_complete(&geo, &bm, 1);
        EXPECT_NE(lay_check_bitmap(&geo, &bm, 1, nullptr), 0) << at;
    }
}

} // namespace
