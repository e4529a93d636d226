/* SPDX-License-Identifier: BSD-2-Clause */
/* One flipped bit is found from the checksum; anything else is not. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <set>

#include "layout/correct.h"

namespace
{

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

} // namespace
