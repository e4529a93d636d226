/* SPDX-License-Identifier: BSD-2-Clause */
// Commands by the block that stays, of a file with checksums.
#include <cerrno>
#include <cstring>

#include "tests/client/lib/service_block.h"

namespace
{

using namespace service_block;

// A block that has a checksum is one command, too; the warp compares it where it then is.
class Compared : public ::testing::TestWithParam<bool>
{
  protected:
    Compared()
    {
        s_.add_sums();
        if (GetParam())
            s_.stage_all();
    }
    Stack s_{4, kDepth, 20};
    Block block_;
};

TEST_P(Compared, BlocksAreCommands)
{
    for (unsigned i = 0; i < 40; i++) {
        size_t page = 1 + i % 7;
        if (i == 20) // without one
            s_.sums[page_of(i) / kPage] = 0;
        memset(&s_.pages[page], 0x5a, kPage);
        ASSERT_EQ(block_.read(s_, page, page_of(i)), kWhole) << i;
        ASSERT_TRUE(s_.holds(page * kPage, kPage, page_of(i))) << i;
    }
    block_.leave();
    EXPECT_EQ(s_.commands, 40u);
    EXPECT_EQ(s_.odd_commands, 0u);
    EXPECT_EQ(block_.others(), 0u) << "all were commands";
}

TEST_P(Compared, ABlockThatDiffersIsReadByTheGeneralPath)
{
    for (unsigned i = 0; i < 10; i++) {
        uint32_t &sum = s_.sums[page_of(i) / kPage];
        sum ^= 1u << i;
        ASSERT_EQ(block_.read(s_, 1, page_of(i)), kWhole) << i;
        EXPECT_EQ(block_.others(), i + 1);
        sum ^= 1u << i;
        ASSERT_EQ(block_.read(s_, 1, page_of(i)), kWhole) << i;
        EXPECT_EQ(block_.others(), i + 1) << "the queue works on";
    }
}

TEST_P(Compared, OnlyWholeBlocksAreCommands)
{
    EXPECT_EQ(block_.read(s_, s_.file, 1, 0, kLba), -ENOTSUP);
    EXPECT_EQ(block_.read(s_, s_.file, 1, kLba, kPage), -ENOTSUP);
    EXPECT_EQ(block_.read(s_, s_.file, 1, 3 * kPage, 2 * kPage), -ENOTSUP);
}

// The completion says nothing of the checksum.
INSTANTIATE_TEST_SUITE_P(Ways, Compared, ::testing::Bool(),
                         [](const auto &info) { return info.param ? "staged" : "reached"; });

} // namespace
