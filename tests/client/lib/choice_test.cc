/* SPDX-License-Identifier: BSD-2-Clause */
// Which transfers of GPU memory take the bounce pipeline.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/choice_rig.h"

namespace
{

constexpr size_t kKib = 1024;

class Choice : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        cached_ = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        ASSERT_GE(cached_, 0);
        handle_ = choice_handle_new();
        c_.on_gpu = true;
        c_.fd = cached_;
    }
    void TearDown() override
    {
        choice_handle_free(handle_);
        close(cached_);
        if (direct_ >= 0)
            close(direct_);
    }
    bool open_direct()
    {
        direct_ = open("/proc/self/exe", O_RDONLY | O_DIRECT | O_CLOEXEC);
        return direct_ >= 0;
    }
    void set(uint32_t path, uint64_t crossover)
    {
        c_.path = path;
        c_.crossover = crossover;
        ASSERT_EQ(choice_set(handle_, &c_), 0);
    }
    const char *why(size_t len)
    {
        c_.len = len;
        return choice_why(handle_, &c_);
    }
    bool bounces(size_t len) { return why(len) != nullptr; }

    choice_handle *handle_ = nullptr;
    int cached_ = -1, direct_ = -1;
    choice c_ = {};
};

TEST_F(Choice, ShortReadsBounceAndSaySo)
{
    EXPECT_STREQ(why(1), "shorter than the crossover");
    EXPECT_STREQ(why(4 * kKib), "shorter than the crossover");
    EXPECT_TRUE(bounces(128 * kKib - 1));
    EXPECT_FALSE(bounces(128 * kKib));
}

TEST_F(Choice, WithoutReadAheadFewerDo)
{
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    c_.fd = direct_;
    EXPECT_TRUE(bounces(16 * kKib - 1));
    EXPECT_FALSE(bounces(16 * kKib));
}

TEST_F(Choice, ShortWritesBounce)
{
    c_.write = true;
    EXPECT_STREQ(why(12 * kKib), "shorter than the crossover");
    EXPECT_FALSE(bounces(16 * kKib));
}

// The GPU path writes whole blocks.
TEST_F(Choice, WritesOfPartsOfBlocksDoNotBounce)
{
    c_.write = true;
    ASSERT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(4 * kKib + 1));
    c_.file_offset = 1;
    EXPECT_FALSE(bounces(4 * kKib));
}

// write(2) would send SIGXFSZ.
TEST_F(Choice, WritesPastTheLimitOfFileSizesAreTheMounts)
{
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = {1 << 20, before.rlim_max};
    c_.write = true;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    c_.file_offset = (1 << 20) - 4 * kKib;
    EXPECT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(8 * kKib));
    c_.file_offset = 2 << 20;
    EXPECT_FALSE(bounces(4 * kKib));
    setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(Choice, ListsOfFewPiecesBounce)
{
    c_.pieces = 4;
    EXPECT_STREQ(why(128 * kKib - 1), "shorter than the crossover");
    EXPECT_FALSE(bounces(128 * kKib));
    c_.pieces = 5;
    EXPECT_FALSE(bounces(20 * kKib));
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    c_.pieces = 2;
    c_.fd = direct_;
    EXPECT_FALSE(bounces(8 * kKib));
}

TEST_F(Choice, ACrossoverReplacesTheSizes)
{
    set(0, 8192);
    EXPECT_STREQ(why(8191), "shorter than the crossover");
    EXPECT_FALSE(bounces(8192));
    c_.write = true;
    EXPECT_TRUE(bounces(8191));
    c_.write = false;
    c_.pieces = 2;
    EXPECT_FALSE(bounces(4 * kKib));
    c_.pieces = 0;
    set(0, 1);
    EXPECT_FALSE(bounces(1));
}

TEST_F(Choice, APathThatWasAskedForIsTheOnlyOne)
{
    set(GPUNVME_PATH_GPU, 0);
    EXPECT_FALSE(bounces(4 * kKib));
    set(GPUNVME_PATH_BOUNCE, 0);
    EXPECT_STREQ(why(1024 * kKib), "asked for");
}

TEST_F(Choice, HostMemoryTakesTheMount)
{
    c_.on_gpu = false;
    EXPECT_FALSE(bounces(4 * kKib));
}

TEST_F(Choice, WritesBesideTheKernelsCacheAlwaysBounce)
{
    c_.write = true;
    c_.writeback_cache = true;
    EXPECT_TRUE(bounces(1024 * kKib));
}

} // namespace
