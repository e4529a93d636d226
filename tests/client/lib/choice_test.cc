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
constexpr uint64_t kUs = 1000;
// Enough to have measured both paths, whatever the length.
constexpr size_t kMany = 10000;
const char *const kMeasured = "the bounce pipeline was measured faster for this length";

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
    bool bounces(size_t len)
    {
        return why(len) != nullptr;
    }
    size_t run(size_t len, uint64_t gpu_ns, uint64_t bounce_ns)
    {
        c_.len = len;
        return choice_run(handle_, &c_, kMany, gpu_ns, bounce_ns);
    }

    choice_handle *handle_ = nullptr;
    int cached_ = -1, direct_ = -1;
    choice c_ = {};
};

TEST_F(Choice, UntilTheyAreMeasuredShortReadsBounceAndSaySo)
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

TEST_F(Choice, UntilTheyAreMeasuredWritesAndBatchesDoNot)
{
    c_.pieces = 16;
    EXPECT_FALSE(bounces(64 * kKib));
    c_.pieces = 0;
    c_.write = true;
    EXPECT_FALSE(bounces(4 * kKib));
}

TEST_F(Choice, OfReadsOfALengthTheFasterPathIsTaken)
{
    run(64 * kKib, 10 * kUs, 30 * kUs);
    EXPECT_FALSE(bounces(64 * kKib));
    EXPECT_FALSE(bounces(128 * kKib - 1));
    EXPECT_TRUE(bounces(32 * kKib));
    run(1024 * kKib, 30 * kUs, 10 * kUs);
    EXPECT_STREQ(why(1024 * kKib), kMeasured);
    EXPECT_STREQ(why(2048 * kKib - 1), kMeasured);
    EXPECT_FALSE(bounces(2048 * kKib));
    EXPECT_FALSE(bounces(512 * kKib));
}

TEST_F(Choice, WithAndWithoutThePageCacheAreMeasuredApart)
{
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    run(512 * kKib, 30 * kUs, 10 * kUs);
    EXPECT_TRUE(bounces(512 * kKib));
    c_.fd = direct_;
    EXPECT_FALSE(bounces(512 * kKib));
}

TEST_F(Choice, LongTransfersAreNotMeasured)
{
    EXPECT_GT(run(4096 * kKib - 1, 30 * kUs, 10 * kUs), 0u);
    EXPECT_EQ(run(4096 * kKib, 30 * kUs, 10 * kUs), 0u);
}

TEST_F(Choice, WritesAreMeasuredByThemselves)
{
    c_.write = true;
    run(4 * kKib, 30 * kUs, 10 * kUs);
    EXPECT_STREQ(why(4 * kKib), kMeasured);
    run(64 * kKib, 10 * kUs, 30 * kUs);
    EXPECT_FALSE(bounces(64 * kKib));
    c_.write = false;
    EXPECT_STREQ(why(4 * kKib), "shorter than the crossover");
}

// The pages that bounced ones leave slow down writes by the GPU.
TEST_F(Choice, LongWritesAreMeasuredWithoutThePageCacheOnly)
{
    c_.write = true;
    EXPECT_GT(run(124 * kKib, 30 * kUs, 10 * kUs), 0u);
    EXPECT_EQ(run(128 * kKib, 30 * kUs, 10 * kUs), 0u);
    if (!open_direct())
        GTEST_SKIP() << "no O_DIRECT here";
    c_.fd = direct_;
    run(2048 * kKib, 30 * kUs, 10 * kUs);
    EXPECT_STREQ(why(2048 * kKib), kMeasured);
}

// The GPU path writes whole blocks.
TEST_F(Choice, WritesOfPartsOfBlocksAreNotMeasured)
{
    c_.write = true;
    run(4 * kKib, 30 * kUs, 10 * kUs);
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
    run(4 * kKib, 30 * kUs, 10 * kUs);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    c_.file_offset = (1 << 20) - 4 * kKib;
    EXPECT_TRUE(bounces(4 * kKib));
    EXPECT_FALSE(bounces(8 * kKib));
    c_.file_offset = 2 << 20;
    EXPECT_FALSE(bounces(4 * kKib));
    setrlimit(RLIMIT_FSIZE, &before);
}

TEST_F(Choice, BatchesAreMeasuredByTheirNumberAndLength)
{
    c_.pieces = 16;
    run(64 * kKib, 30 * kUs, 10 * kUs);
    EXPECT_STREQ(why(64 * kKib), kMeasured);
    EXPECT_FALSE(bounces(128 * kKib));
    c_.pieces = 32;
    EXPECT_FALSE(bounces(64 * kKib));
    c_.pieces = 128;
    EXPECT_EQ(run(64 * kKib, 30 * kUs, 10 * kUs), 0u);
    c_.pieces = 0;
    EXPECT_STREQ(why(64 * kKib), "shorter than the crossover");
}

TEST_F(Choice, ACrossoverEndsMeasuring)
{
    set(0, 8192);
    EXPECT_EQ(run(4 * kKib, 10 * kUs, 30 * kUs), kMany);
    EXPECT_STREQ(why(8191), "shorter than the crossover");
    EXPECT_FALSE(bounces(8192));
    EXPECT_EQ(run(8192, 30 * kUs, 10 * kUs), 0u);
    c_.write = true;
    EXPECT_TRUE(bounces(8191));
    c_.write = false;
    c_.pieces = 2;
    EXPECT_EQ(run(4 * kKib, 30 * kUs, 10 * kUs), 0u);
    c_.pieces = 0;
    set(0, 1);
    EXPECT_FALSE(bounces(1));
}

TEST_F(Choice, APathThatWasAskedForIsTheOnlyOne)
{
    set(GPUNVME_PATH_GPU, 0);
    EXPECT_EQ(run(4 * kKib, 30 * kUs, 10 * kUs), 0u);
    set(GPUNVME_PATH_BOUNCE, 0);
    EXPECT_EQ(run(1024 * kKib, 10 * kUs, 30 * kUs), kMany);
    EXPECT_STREQ(why(1024 * kKib), "asked for");
}

TEST_F(Choice, OptionsForgetWhatWasMeasured)
{
    run(1024 * kKib, 30 * kUs, 10 * kUs);
    ASSERT_TRUE(bounces(1024 * kKib));
    set(0, 0);
    EXPECT_FALSE(bounces(1024 * kKib));
}

TEST_F(Choice, HostMemoryTakesTheMount)
{
    c_.on_gpu = false;
    EXPECT_EQ(run(4 * kKib, 30 * kUs, 10 * kUs), 0u);
}

TEST_F(Choice, WritesBesideTheKernelsCacheAlwaysBounce)
{
    c_.write = true;
    c_.writeback_cache = true;
    EXPECT_EQ(run(4 * kKib, 10 * kUs, 30 * kUs), kMany);
}

} // namespace
