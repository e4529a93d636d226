/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums and seals. */
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layout/correct.h"
#include "tests/layout/objects.h"

namespace
{

class EveryObject : public ::testing::TestWithParam<int>
{
  protected:
    void SetUp() override { object_make(kind, &o); }

    const object_kind kind = static_cast<object_kind>(GetParam());
    lay_block o;
};

TEST(Crc, IsCastagnoliAndContinuesWhereItStopped)
{
    EXPECT_EQ(lay_crc32c(0, "123456789", 9), 0xE3069283u);
    EXPECT_EQ(lay_crc32c(lay_crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
}

TEST(Crc, OfDataHasNoSeed)
{
    std::vector<uint8_t> data(LAY_BLOCK_SIZE);
    EXPECT_EQ(lay_data_sum(data.data()), LAY_ZEROS_SUM);
    memcpy(data.data(), "123456789", 9);
    EXPECT_EQ(lay_data_sum(data.data()), lay_crc32c(0, data.data(), data.size()));
}

// The last four bytes make the CRC 0: the register before them, and the one that 32 steps take to
// all ones.
TEST(Crc, OfDataIsNeverTheMarkForNoChecksum)
{
    std::vector<uint8_t> data(LAY_BLOCK_SIZE, 7);
    uint32_t reg = UINT32_MAX;
    for (int bit = 0; bit < 32; bit++)
        reg = reg & 0x80000000u ? (reg ^ 0x82F63B78u) << 1 | 1 : reg << 1;
    le32 end = lay_put32(reg ^ ~lay_crc32c(0, data.data(), LAY_BLOCK_SIZE - 4));
    memcpy(data.data() + LAY_BLOCK_SIZE - 4, &end, 4);
    ASSERT_EQ(lay_crc32c(0, data.data(), data.size()), 0u);
    EXPECT_EQ(lay_data_sum(data.data()), UINT32_MAX);
}

TEST(Crc, DependsOnAddressAndUuid)
{
    uint8_t block[LAY_BLOCK_SIZE] = {};
    const uint8_t a[16] = {1}, b[16] = {2};
    EXPECT_NE(lay_block_crc(a, 1, block), lay_block_crc(a, 2, block));
    EXPECT_NE(lay_block_crc(a, 1, block), lay_block_crc(b, 1, block));
}

TEST(Crc, ExcludesItsOwnField)
{
    lay_node n = {};
    const uint8_t uuid[16] = {1};
    uint32_t before = lay_block_crc(uuid, 1, &n);
    n.head.crc = lay_put32(0x12345678);
    EXPECT_EQ(lay_block_crc(uuid, 1, &n), before);
}

TEST(Crc, OfACommitCoversDescriptors)
{
    lay_block first, second;
    object_make(OBJECT_DESC, &first);
    object_make(OBJECT_DESC, &second);
    second.desc.tags[0].age = lay_put32(7);
    lay_seal(&second, OBJECT_TID);
    uint32_t crc = lay_crc32c(0, &first.head.crc, 4);
    crc = lay_crc32c(crc, &second.head.crc, 4);
    EXPECT_EQ(lay_log_chain(lay_log_chain(0, &first), &second), crc);
}

TEST_P(EveryObject, IsAcceptedAsMade)
{
    const char *why = "";
    EXPECT_EQ(object_check(kind, &o, &why), 0) << why;
}

TEST_P(EveryObject, IsRejectedWithAnySingleBitFlipped)
{
    for (unsigned bit = 0; bit < 8 * LAY_BLOCK_SIZE; bit++) {
        o.bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        ASSERT_NE(object_check(kind, &o, nullptr), 0) << "bit " << bit;
        o.bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
}

TEST_P(EveryObject, IsRejectedAtAnotherAddress)
{
    o.head.block = lay_put64(object_addr(kind) + 1);
    lay_seal(&o, object_tid(kind));
    const char *why = "";
    EXPECT_EQ(object_check(kind, &o, &why), -EUCLEAN);
    EXPECT_STREQ(why, "block address");
}

TEST_P(EveryObject, IsRejectedWithAnotherOwner)
{
    o.head.owner = lay_put64(99);
    lay_seal(&o, object_tid(kind));
    const char *why = "";
    EXPECT_EQ(object_check(kind, &o, &why), -EUCLEAN);
    EXPECT_STREQ(why, "owner");
}

std::string kind_name(const ::testing::TestParamInfo<int> &info)
{
    std::string name = object_name(static_cast<object_kind>(info.param));
    for (char &c : name)
        c = c == ' ' ? '_' : c;
    return name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryObject, ::testing::Range(0, static_cast<int>(OBJECT_KINDS)),
                         kind_name);

// --- One flipped bit is found from the checksum; anything else is not ----------------------------

class Correct : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        for (uint8_t &byte : sound.bytes)
            byte = (uint8_t)random();
        lay_head_init(&sound.head, LAY_MAGIC_DIR, uuid, address, 7);
        lay_seal(&sound, 42);
        block = sound;
    }
    void flip(unsigned bit) { block.bytes[bit / 8] ^= 1u << bit % 8; }
    // XOR of the computed and the stored checksum after a flip.
    uint32_t syndrome_of(unsigned bit)
    {
        flip(bit);
        uint32_t syndrome = lay_block_crc(uuid, address, &block) ^ lay_get32(block.head.crc);
        flip(bit);
        return syndrome;
    }
    int correct() { return lay_correct(uuid, address, &block); }
    bool is_sound() const { return memcmp(&block, &sound, sizeof(block)) == 0; }

    static constexpr uint64_t address = 0x4000000000001234;
    const uint8_t uuid[16] = {1, 2, 3, 5, 8, 13};
    std::mt19937 random;
    lay_block sound, block;
};

TEST_F(Correct, FindsEachOfTheBits)
{
    for (unsigned bit = 0; bit < LAY_BLOCK_BITS; bit++) {
        flip(bit);
        ASSERT_EQ(correct(), (int)bit);
        ASSERT_TRUE(is_sound()) << bit;
    }
}

TEST_F(Correct, FindsEachOfTheBitsOfData)
{
    uint32_t sum = lay_data_sum(&sound);
    for (unsigned bit = 0; bit < LAY_BLOCK_BITS; bit += 7) {
        flip(bit);
        ASSERT_EQ(lay_correct_data(sum, &block), (int)bit);
        ASSERT_TRUE(is_sound()) << bit;
    }
    EXPECT_EQ(lay_correct_data(sum, &block), -EUCLEAN) << "sound data";
    flip(100);
    flip(40);
    EXPECT_EQ(lay_correct_data(sum, &block), -EUCLEAN) << "two bits";
}

/*
 * Each syndrome of one flip has an odd number of ones; the sum of two, which is
 * the syndrome of a double flip, has an even number and is never one of them.
 */
TEST_F(Correct, SyndromesAreDistinctAndNoneIsThatOfADoubleFlip)
{
    std::set<uint32_t> values;
    for (unsigned bit = 0; bit < LAY_BLOCK_BITS; bit++) {
        values.insert(syndrome_of(bit));
        ASSERT_EQ(__builtin_popcount(syndrome_of(bit)) % 2, 1) << bit;
    }
    EXPECT_EQ(values.size(), (size_t)LAY_BLOCK_BITS);
    EXPECT_EQ(values.count(0), 0u);
}

TEST_F(Correct, LeavesDoubleFlipsAsTheyAre)
{
    for (int i = 0; i < 20000; i++) {
        unsigned a = random() % LAY_BLOCK_BITS, b = random() % LAY_BLOCK_BITS;
        if (a == b)
            continue;
        flip(a);
        flip(b);
        const lay_block damaged = block;
        ASSERT_EQ(correct(), -EUCLEAN) << a << " and " << b;
        ASSERT_EQ(memcmp(&block, &damaged, sizeof(block)), 0);
        block = sound;
    }
}

TEST_F(Correct, LeavesSoundBlocksOfAnyAddressAndFileSystemAlone)
{
    const uint8_t other[16] = {1, 2, 3, 5, 8, 12};

    EXPECT_EQ(correct(), -EUCLEAN);
    EXPECT_EQ(lay_correct(uuid, address + 4096, &block), -EUCLEAN);
    EXPECT_EQ(lay_correct(other, address, &block), -EUCLEAN);
    EXPECT_TRUE(is_sound());
}

/* Garbage looks like a flip about once in 2^17 blocks, so in few of these. */
TEST_F(Correct, SeldomTakesGarbageForAFlip)
{
    unsigned taken = 0;
    for (int i = 0; i < 20000; i++) {
        block = sound;
        for (int j = 0; j < 8; j++)
            block.bytes[64 + random() % LAY_PAYLOAD] = (uint8_t)random();
        taken += correct() >= 0;
    }
    EXPECT_LE(taken, 3u);
}

// --- Checksum blocks, and their area -------------------------------------------------------------

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
