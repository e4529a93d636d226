/* SPDX-License-Identifier: BSD-2-Clause */
/* Names, times, ranges and labels. */
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/layout/objects.h"

namespace
{

bool name_ok(const std::string &s)
{
    return lay_name_ok(s.data(), s.size());
}

bool label_ok(const std::string &s)
{
    return lay_label_ok(s.data(), s.size());
}

TEST(Name, MayBeAnythingButSlashNulAndDots)
{
    EXPECT_TRUE(name_ok("a"));
    EXPECT_TRUE(name_ok("..."));
    EXPECT_TRUE(name_ok(".a"));
    EXPECT_TRUE(name_ok("\xff\xfe"));
    EXPECT_FALSE(name_ok("."));
    EXPECT_FALSE(name_ok(".."));
    EXPECT_FALSE(name_ok("a/b"));
    EXPECT_FALSE(name_ok(std::string("a\0b", 3)));
}

TEST(Name, IsOneTo255Bytes)
{
    EXPECT_FALSE(name_ok(""));
    EXPECT_TRUE(name_ok(std::string(255, 'x')));
    EXPECT_FALSE(name_ok(std::string(256, 'x')));
}

TEST(Name, KeyLeavesRoomForDotsAndEqualHashes)
{
    const uint8_t seed[16] = {3};
    for (int i = 0; i < 10000; i++) {
        std::string name = "file" + std::to_string(i);
        uint64_t key = lay_name_key(seed, name.data(), name.size());
        ASSERT_GE(key, LAY_DIR_KEY_MIN);
        ASSERT_LT(key, uint64_t{1} << 63);
        ASSERT_EQ(key & 0xff, 0u);
    }
}

// Key 00 01 .. 0f, input 00 01 .. of each length: from the paper's appendix and its reference code.
TEST(SipHash, MatchesThePublishedVectors)
{
    const struct {
        size_t len;
        uint64_t hash;
    } vectors[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd},  {7, 0xab0200f58b01d137},
                   {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}, {16, 0x3f2acc7f57c29bdb},
                   {63, 0x958a324ceb064572}};
    uint8_t key[16], data[64];
    for (uint8_t i = 0; i < 64; i++)
        data[i] = i;
    std::memcpy(key, data, sizeof(key));
    for (const auto &v : vectors)
        EXPECT_EQ(lay_siphash(key, data, v.len), v.hash) << v.len;
}

TEST(Name, KeyDependsOnBothHalvesOfTheSeed)
{
    const uint8_t zero[16] = {}, low[16] = {1};
    uint8_t high[16] = {};
    high[15] = 1;
    EXPECT_NE(lay_name_key(zero, "name", 4), lay_name_key(low, "name", 4));
    EXPECT_NE(lay_name_key(zero, "name", 4), lay_name_key(high, "name", 4));
}

TEST(Time, KeepsSecondsBeforeTheEpochAndAfter2106)
{
    for (int64_t sec : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1} << 33, INT64_MAX}) {
        lay_time t = lay_time_make(sec, 999999999);
        EXPECT_EQ(lay_time_sec(t), sec);
        EXPECT_EQ(lay_get32(t.nsec), 999999999u);
    }
}

TEST(Range, AcceptsOnlyBlocksOutsideTheFixedAreas)
{
    lay_geometry geo = object_geometry();
    const uint64_t first = geo.map_start + geo.map_len, next = LAY_LABEL_SECOND + 1;
    EXPECT_TRUE(lay_range_ok(&geo, first, LAY_LABEL_SECOND - first));
    EXPECT_FALSE(lay_range_ok(&geo, first, LAY_LABEL_SECOND - first + 1));
    EXPECT_TRUE(lay_range_ok(&geo, next, geo.supers[1] - next));
    EXPECT_FALSE(lay_range_ok(&geo, next, geo.supers[1] - next + 1));
    EXPECT_FALSE(lay_range_ok(&geo, first - 1, 1));
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_MMP_BLOCK}, geo.supers[0], geo.bitmap_start,
                           geo.sums_start, geo.log_start - 1, geo.log_start, geo.map_start})
        EXPECT_FALSE(lay_range_ok(&geo, block, 1)) << block;
    EXPECT_TRUE(lay_range_ok(&geo, geo.blocks - 1, 1));
    EXPECT_FALSE(lay_range_ok(&geo, geo.blocks - 1, 2));
}

TEST(Range, RefusesEmptyAndOverflowing)
{
    lay_geometry geo = object_geometry();
    EXPECT_FALSE(lay_range_ok(&geo, 5000, 0));
    EXPECT_FALSE(lay_range_ok(&geo, 5000, UINT64_MAX));
    EXPECT_FALSE(lay_range_ok(&geo, UINT64_MAX, 2));
    EXPECT_FALSE(lay_range_ok(&geo, geo.blocks, 1));
}

TEST(LabelText, IsUtf8WithoutControlCharacters)
{
    EXPECT_TRUE(label_ok(""));
    EXPECT_TRUE(label_ok("data \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
    EXPECT_FALSE(label_ok("a\nb"));
    EXPECT_FALSE(label_ok("\x80"));
    EXPECT_FALSE(label_ok("\xc3"));
    EXPECT_FALSE(label_ok("\xc0\xaf"));
    EXPECT_FALSE(label_ok("\xe0\x80\x80"));
    EXPECT_FALSE(label_ok("\xed\xa0\x80"));
    EXPECT_FALSE(label_ok("\xf4\x90\x80\x80"));
}

TEST(LabelText, IsAtMost63Bytes)
{
    EXPECT_TRUE(label_ok(std::string(63, 'x')));
    EXPECT_FALSE(label_ok(std::string(64, 'x')));
}

} // namespace
