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
    lay_seal(&o, object_tid(kind));
    int err = object_check(kind, &o, &why);
    EXPECT_EQ(err == 0, strcmp(why, "accepted") == 0);
    return why;
}

std::string spoil_area(uint64_t start, uint64_t copy = LAY_NONE)
{
    return spoil(OBJECT_SUPER, [&](lay_block &o) {
        o.super.area.sums[0] = lay_put64(start);
        o.super.area.sums[1] = lay_put64(copy);
    });
}

TEST(SumsArea, OverlapsNoOtherAreaAndCoversAllBlocks)
{
    EXPECT_EQ(spoil_area(6), "accepted");
    EXPECT_EQ(spoil_area(2500), "accepted");
    EXPECT_EQ(spoil_area(7), "sums"); // the log
    EXPECT_EQ(spoil_area(5), "bitmaps");
    EXPECT_EQ(spoil_area(0), "bitmaps");
    EXPECT_EQ(spoil_area(OBJECT_BLOCKS - 40), "sums");
    EXPECT_EQ(spoil_area(UINT64_MAX - 20), "sums");
    EXPECT_EQ(spoil_area(OBJECT_BLOCKS / 2 - 40), "sums"); // the second superblock
    EXPECT_EQ(spoil_area(LAY_LABEL_SECOND), "sums");
}

TEST(SumsArea, ExistsOnlyWithTheFeature)
{
    lay_geometry geo = object_geometry(), got;
    lay_block o;
    geo.incompat = LAY_INCOMPAT_DRAFT;
    object_make(OBJECT_SUPER, &o);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &got, nullptr), -EUCLEAN);
    o.super.area.sums[0] = o.super.area.sums[1] = lay_put64(0);
    lay_seal(&o, OBJECT_TID);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &got, nullptr), -EUCLEAN) << "it has an age";
    o.super.area.sums_age = lay_put32(0);
    lay_seal(&o, OBJECT_TID);
    EXPECT_EQ(lay_check_super(&o.super, &geo, &got, nullptr), 0);
    EXPECT_EQ(got.sums_blocks, 0u);
    EXPECT_EQ(spoil_area(0, 0), "area");
    EXPECT_EQ(spoil_area(6, 2500), "area"); // no copies of areas yet
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

} // namespace
