/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksum blocks, and their area. */
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "tests/layout/objects.h"

namespace
{

/* What the check of a sealed object says after a change. */
std::string spoil(object_kind kind, const std::function<void(lay_block &)> &change)
{
    lay_block o;
    const char *why = "accepted";
    object_make(kind, &o);
    change(o);
    lay_seal(&o, OBJECT_TID);
    int err = object_check(kind, &o, &why);
    EXPECT_EQ(err == 0, strcmp(why, "accepted") == 0);
    return why;
}

std::string spoil_area(uint64_t start, uint64_t blocks, uint64_t incompat = LAY_INCOMPAT_DATA_CSUM)
{
    return spoil(OBJECT_SUPER, [&](lay_block &o) {
        o.super.sums_start = lay_put64(start);
        o.super.sums_blocks = lay_put64(blocks);
        o.super.incompat = lay_put64(incompat);
    });
}

TEST(SumsArea, OverlapsNoOtherAreaAndCoversAllBlocks)
{
    EXPECT_EQ(spoil_area(1027, 40), "accepted");
    EXPECT_EQ(spoil_area(1026, 40), "sums_start"); // the journal
    EXPECT_EQ(spoil_area(2, 40), "sums_start");    // the bitmaps
    EXPECT_EQ(spoil_area(0, 40), "sums_start");
    EXPECT_EQ(spoil_area(OBJECT_BLOCKS - 39, 40), "sums_start");
    EXPECT_EQ(spoil_area(UINT64_MAX - 20, 40), "sums_start");
    EXPECT_EQ(spoil_area(LAY_GROUP_BLOCKS - 39, 40), "copies");
    EXPECT_EQ(spoil_area(1027, 39), "sums_blocks");
    EXPECT_EQ(spoil_area(1027, 41), "sums_blocks");
}

TEST(SumsArea, ExistsOnlyWithTheFeature)
{
    EXPECT_EQ(spoil_area(0, 0, 0), "accepted");
    EXPECT_EQ(spoil_area(1027, 40, 0), "sums_start");
    EXPECT_EQ(spoil_area(0, 0), "sums_blocks");
}

TEST(Sums, HaveValidFields)
{
    const size_t past = OBJECT_BLOCKS - 39 * LAY_SUMS_ENTRIES;
    EXPECT_EQ(spoil(OBJECT_SUMS, [](lay_block &o) { o.sums.index = lay_put64(0); }), "index");
    EXPECT_EQ(spoil(OBJECT_SUMS, [](lay_block &o) { o.sums.reserved = lay_put64(1); }), "reserved");
    EXPECT_EQ(spoil(OBJECT_SUMS, [&](lay_block &o) { o.sums.sums[past] = lay_put32(1); }),
              "entries past the end");
    EXPECT_EQ(spoil(OBJECT_SUMS, [&](lay_block &o) { o.sums.sums[past - 1] = lay_put32(1); }),
              "accepted");
}

TEST(Sums, MayBeZero)
{
    lay_block o = {};
    lay_geometry geo;
    object_geometry(&geo);
    EXPECT_EQ(lay_check_sums(&geo, &o.sums, 39, nullptr), 0);
    o.bytes[LAY_BLOCK_SIZE - 1] = 1;
    EXPECT_EQ(lay_check_sums(&geo, &o.sums, 39, nullptr), -EUCLEAN);
}

} // namespace
