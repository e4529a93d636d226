/* SPDX-License-Identifier: BSD-2-Clause */
// Which reads of GPU memory bounce because they are short.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/choice_rig.h"

namespace
{

class Choice : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        cached_ = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        ASSERT_GE(cached_, 0);
        c_.on_gpu = true;
        c_.fd = cached_;
    }
    void TearDown() override
    {
        close(cached_);
        if (direct_ >= 0)
            close(direct_);
    }
    bool bounces(size_t len)
    {
        c_.len = len;
        return choice_why(&c_) != nullptr;
    }

    int cached_ = -1, direct_ = -1;
    choice c_ = {};
};

TEST_F(Choice, ShortReadsBounceAndSaySo)
{
    EXPECT_TRUE(bounces(4096));
    EXPECT_STREQ(choice_why(&c_), "shorter than the crossover");
    EXPECT_TRUE(bounces((128u << 10) - 1));
    EXPECT_FALSE(bounces(128u << 10));
}

TEST_F(Choice, WithoutReadAheadFewerDo)
{
    direct_ = open("/proc/self/exe", O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct_ < 0)
        GTEST_SKIP() << "no O_DIRECT here";
    c_.fd = direct_;
    EXPECT_TRUE(bounces((16u << 10) - 1));
    EXPECT_FALSE(bounces(16u << 10));
}

TEST_F(Choice, WritesAndBatchesDoNot)
{
    EXPECT_EQ(choice_why_batch(&c_), nullptr);
    c_.write = true;
    EXPECT_FALSE(bounces(4096));
}

TEST_F(Choice, OptionsGoFirst)
{
    c_.crossover = 8192;
    EXPECT_TRUE(bounces(8191));
    EXPECT_FALSE(bounces(8192));
    c_.write = true;
    EXPECT_TRUE(bounces(8191));
    c_.write = false;
    c_.crossover = 1;
    EXPECT_FALSE(bounces(1));
    c_.crossover = 0;
    c_.path = GPUNVME_PATH_GPU;
    EXPECT_FALSE(bounces(1));
    c_.path = 0;
    c_.on_gpu = false;
    EXPECT_FALSE(bounces(1));
}

} // namespace
