/* SPDX-License-Identifier: BSD-2-Clause */
// Which transfers of GPU memory take the bounce pipeline.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/client/lib/internal.h"

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
        ASSERT_EQ(connection_local(&buffer_.owner), 0);
        buffer_.shared = true;
        range_.fd = cached_;
    }
    void TearDown() override
    {
        connection_close(buffer_.owner);
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
        gpunvme_options options = {};
        options.path = path;
        options.crossover = crossover;
        ASSERT_EQ(bounce_set_options(buffer_.owner, &options), 0);
    }
    // Returns why a transfer of a buffer that the mount has taken bounces, or NULL if it does not.
    const char *why(size_t len)
    {
        range_.len = len;
        return gpunvme_choose_path(&buffer_, &range_, pieces_).why;
    }
    bool bounces(size_t len) { return why(len) != nullptr; }

    int cached_ = -1, direct_ = -1;
    gpunvme_buffer buffer_ = {}; // of the first GPU
    range range_ = {};
    size_t pieces_ = 0; // of a batch of range_.len bytes together; 0: no batch
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
    range_.fd = direct_;
    EXPECT_TRUE(bounces(16 * kKib - 1));
    EXPECT_FALSE(bounces(16 * kKib));
}

TEST_F(Choice, ShortWritesBounce)
{
    range_.write = true;
    EXPECT_STREQ(why(12 * kKib), "shorter than the crossover");
    EXPECT_FALSE(bounces(16 * kKib));
}

// The GPU path writes whole blocks.
TEST_F(Choice, WritesOfPartsOfBlocksDoNotBounce)
{
    range_.write = true;
    ASSERT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(4 * kKib + 1));
    range_.file_offset = 1;
    EXPECT_FALSE(bounces(4 * kKib));
}

// write(2) would send SIGXFSZ.
TEST_F(Choice, WritesPastTheLimitOfFileSizesAreTheMounts)
{
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit limit = {1 << 20, before.rlim_max};
    range_.write = true;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    range_.file_offset = (1 << 20) - 4 * kKib;
    EXPECT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(8 * kKib));
    range_.file_offset = 2 << 20;
    EXPECT_FALSE(bounces(4 * kKib));
    setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(Choice, ListsOfFewPiecesBounce)
{
    pieces_ = 4;
    EXPECT_STREQ(why(128 * kKib - 1), "shorter than the crossover");
    EXPECT_FALSE(bounces(128 * kKib));
    pieces_ = 5;
    EXPECT_FALSE(bounces(20 * kKib));
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    pieces_ = 2;
    range_.fd = direct_;
    EXPECT_FALSE(bounces(8 * kKib));
}

TEST_F(Choice, ACrossoverReplacesTheSizes)
{
    set(0, 8192);
    EXPECT_STREQ(why(8191), "shorter than the crossover");
    EXPECT_FALSE(bounces(8192));
    range_.write = true;
    EXPECT_TRUE(bounces(8191));
    range_.write = false;
    pieces_ = 2;
    EXPECT_FALSE(bounces(4 * kKib));
    pieces_ = 0;
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
    buffer_.device = CUDA_NO_DEVICE;
    EXPECT_FALSE(bounces(4 * kKib));
}

TEST_F(Choice, WritesBesideTheKernelsCacheAlwaysBounce)
{
    range_.write = true;
    buffer_.owner->info.writeback_cache = true;
    EXPECT_TRUE(bounces(1024 * kKib));
}

} // namespace
