/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums and seals. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

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

} // namespace
