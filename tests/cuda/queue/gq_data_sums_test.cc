/* SPDX-License-Identifier: BSD-2-Clause */
// Checksums of data by groups of lanes, against the definition, and blocks that differ.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda/crc32c.h"

extern "C" {
#include "cuda/gq_sum_fill.h"
#include "tests/cuda/queue/gq_data_sums_rig.h"
}

namespace
{

constexpr size_t kBlock = 4096, kBlocks = 70;

struct Lanes {
    const char *name;
    const data_sums_group *group;
};

class GqDataSums : public ::testing::TestWithParam<Lanes>
{
  protected:
    void SetUp() override
    {
        std::mt19937 rng(11);

        gq_sum_fill(&table_);
        for (uint8_t &byte : data_)
            byte = static_cast<uint8_t>(rng());
        for (size_t i = 0; i < kBlocks; i++)
            words_[i] = crc32c(&data_[i * kBlock], kBlock);
    }
    // Of the blocks that [offset, offset + len) of the file has whole.
    uint64_t find_bad(uint64_t offset, uint64_t len)
    {
        return GetParam().group->find_bad(&sums_, offset, len, &data_[offset]);
    }

    gq_sum_table table_;
    std::vector<uint8_t> data_ = std::vector<uint8_t>(kBlocks * kBlock + 8);
    std::vector<uint32_t> words_ = std::vector<uint32_t>(kBlocks);
    gq_file_sums sums_ = {words_.data(), &table_};
};

TEST_P(GqDataSums, AreThoseOfTheDefinitionAtAnyAddress)
{
    for (size_t at : {0, 1, 2, 3, 4, 5, 8, 20, 1000, 4095})
        EXPECT_EQ(GetParam().group->crc(&sums_, &data_[at]), crc32c(&data_[at], kBlock)) << at;
}

TEST_P(GqDataSums, EachBitCounts)
{
    for (size_t bit = 0; bit < 8 * kBlock; bit += bit % 97 ? 1 : 61) {
        data_[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        ASSERT_EQ(find_bad(0, kBlock), 0u) << bit;
        data_[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
    EXPECT_EQ(find_bad(0, kBlock), UINT64_MAX);
}

TEST_P(GqDataSums, TheFirstBlockThatDiffersIsFound)
{
    EXPECT_EQ(find_bad(0, kBlocks * kBlock), UINT64_MAX);
    for (size_t bad : {69, 64, 40, 32, 31, 8, 7, 6, 1, 0}) {
        data_[bad * kBlock + 7] ^= 4;
        EXPECT_EQ(find_bad(0, kBlocks * kBlock), bad * kBlock);
        EXPECT_EQ(find_bad(bad * kBlock, kBlock), bad * kBlock);
        EXPECT_EQ(find_bad(bad * kBlock, kBlock - 1), UINT64_MAX) << "not whole";
        EXPECT_EQ(find_bad(bad * kBlock + 1, kBlock - 1), UINT64_MAX) << "not whole";
        EXPECT_EQ(find_bad(0, bad * kBlock), UINT64_MAX) << "before it";
    }
}

TEST_P(GqDataSums, ABlockWithoutAChecksumIsNotCompared)
{
    data_[9 * kBlock] ^= 1;
    data_[50 * kBlock] ^= 1;
    words_[9] = 0;
    EXPECT_EQ(find_bad(0, kBlocks * kBlock), 50 * kBlock);
}

// A checksum of 0 is stored as ~0, because 0 says that there is none.
TEST_P(GqDataSums, AChecksumOfZeroIsStoredAsOnes)
{
    // The last four bytes are those that make it 0: appended to `crc`, they cancel it.
    uint32_t crc = ~crc32c(&data_[0], kBlock - 4), target = ~0u;
    for (int bit = 0; bit < 32; bit++)
        target = target & 0x80000000u ? (target ^ 0x82f63b78u) << 1 | 1 : target << 1;
    crc ^= target;
    memcpy(&data_[kBlock - 4], &crc, 4);
    ASSERT_EQ(crc32c(&data_[0], kBlock), 0u);
    words_[0] = ~0u;
    EXPECT_EQ(find_bad(0, kBlock), UINT64_MAX);
    data_[100] ^= 1;
    EXPECT_EQ(find_bad(0, kBlock), 0u);
}

INSTANTIATE_TEST_SUITE_P(Lanes, GqDataSums,
                         ::testing::Values(Lanes{"1", &data_sums_1}, Lanes{"7", &data_sums_7},
                                           Lanes{"32", &data_sums_32}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
