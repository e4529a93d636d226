/* SPDX-License-Identifier: BSD-2-Clause */
// Reads of the direct path into GPU memory that the drive does not reach.
#include <cuda_runtime_api.h>
#include <errno.h>

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/client/lib/gpu_rig.h"
#include "tests/client/lib/refusal.h"

namespace
{

using namespace gpu_rig;

class StagedGpu : public GpuRig
{
  protected:
    void SetUp() override
    {
        ASSERT_NO_FATAL_FAILURE(start(options_));
        if (!IsSkipped())
            punch_hole();
    }

    // n bytes of the file, and a guard on both sides; at is not 0.
    ::testing::AssertionResult holds_alone(size_t at, size_t n, uint64_t offset)
    {
        for (size_t beside : {at - 1, at + n}) {
            unsigned char c = 0;
            if (cudaMemcpy(&c, memory() + beside, 1, cudaMemcpyDefault) != cudaSuccess ||
                c != kGuard)
                return ::testing::AssertionFailure() << "bytes beside " << n << " at " << offset;
        }
        return holds(memory() + at, n, offset);
    }

    void expect_captured_reads(size_t n)
    {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(direct_read_async(f_, memory() + kPage, n, 5, stream_, bytes_), 0);
        ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
        for (int i = 0; i < 3; i++) {
            ASSERT_NO_FATAL_FAILURE(poison());
            *bytes_ = 0;
            ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
            ASSERT_EQ(*bytes_, static_cast<int64_t>(n));
            ASSERT_TRUE(holds_alone(kPage, n, 5)) << i;
        }
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }

    template <typename Read> void expect_reads(int rounds, const Read &read)
    {
        std::mt19937 rng(3);
        for (int i = 0; i < rounds; i++) {
            size_t most = i % 10 == 0 ? kFile : i % 3 ? 40 * kPage : 4 * kMiB;
            uint64_t offset = i % 5 ? rng() % kFile : kHole + rng() % kHoleLength;
            size_t n = 1 + rng() % most, at = 1 + rng() % (kRoom - kFile - 2);
            if (i % 2)
                at += kPage - at % kPage;
            size_t want = std::min<size_t>(n, kFile - offset);
            ASSERT_NO_FATAL_FAILURE(poison());
            ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
            ASSERT_EQ(read(memory() + at, n, offset), static_cast<int64_t>(want))
                << n << " at " << offset << ": " << gpunvme_error();
            ASSERT_TRUE(holds_alone(at, want, offset));
        }
    }

    const char *options_ = "direct=root,deadline=5000";
};

class StagedGpuLeastMdts : public StagedGpu
{
  protected:
    StagedGpuLeastMdts() { options_ = "direct=root,deadline=5000,sim=mdts:8192"; }
};

// Without the limit their commands have 64 KiB.
TEST_F(StagedGpuLeastMdts, LongReadsHaveShortCommands)
{
    for (bool waits : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(poison());
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        ASSERT_EQ(waits ? direct_read_wait(f_, memory() + 1, kFile, 0)
                        : read_async(memory() + 1, kFile, 0),
                  static_cast<int64_t>(kFile))
            << gpunvme_error();
        ASSERT_TRUE(holds_alone(1, kFile, 0)) << waits;
    }
    expect_captured_reads(32 * kMiB);
}

TEST_F(StagedGpu, StreamsReadAnythingAnywhere)
{
    expect_reads(120, [this](unsigned char *dst, size_t n, uint64_t offset) {
        return read_async(dst, n, offset);
    });
}

TEST_F(StagedGpu, AHostReadsAnythingAnywhere)
{
    expect_reads(120, [this](unsigned char *dst, size_t n, uint64_t offset) {
        return direct_read_wait(f_, dst, n, offset);
    });
    EXPECT_EQ(direct_read_wait(f_, memory() + 1, kRoom - 2, 0), static_cast<ssize_t>(kFile));
    EXPECT_EQ(direct_read_wait(f_, memory() + kRoom - 10, 11, 0), -EFAULT);
    EXPECT_EQ(direct_read_wait(f_, memory(), kMiB, kFile), 0);
}

// Two warps copy a page; for all other reads, and when the block leaves, the second one waits with
// the remaining warps.
TEST_F(StagedGpu, AHostReadsPagesAmongOthers)
{
    std::mt19937 rng(17);
    for (int i = 0; i < 600; i++) {
        size_t n = i % 7 ? kPage : 1 + rng() % (3 * kPage), at = rng() % kPage * 16;
        uint64_t offset = rng() % (kFile / kPage - 3) * kPage;
        if (i % 50 == 0)
            usleep(2000); // the block leaves meanwhile
        ASSERT_EQ(direct_read_wait(f_, memory() + at, n, offset), static_cast<ssize_t>(n))
            << n << " at " << offset << ": " << gpunvme_error();
        ASSERT_TRUE(holds(memory() + at, n, offset)) << i;
    }
}

// More than there are words for: some are read by one block.
TEST_F(StagedGpu, ManyReadsAreInFlight)
{
    constexpr size_t kStride = kRoom / kResults / kPage * kPage, kLen = kStride - 2 * kPage;
    cudaStream_t streams[4];
    for (cudaStream_t &stream : streams)
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(poison());
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (unsigned i = 0; i < kResults; i++)
        ASSERT_EQ(direct_read_async(f_, memory() + i * kStride + kPage, kLen, i * 3 * kPage,
                                    streams[i % 4], &bytes_[i]),
                  0)
            << gpunvme_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (unsigned i = 0; i < kResults; i++) {
        ASSERT_EQ(bytes_[i], static_cast<int64_t>(kLen)) << i;
        ASSERT_TRUE(holds_alone(i * kStride + kPage, kLen, i * 3 * kPage)) << i;
    }
    for (cudaStream_t stream : streams)
        cudaStreamDestroy(stream);
}

TEST_F(StagedGpu, ACapturedReadRunsAgain)
{
    expect_captured_reads(8 * kMiB);
}

// The blocks of both find the words of their own launch.
TEST_F(StagedGpu, TwoInstancesOfAGraphReadAtOnce)
{
    cudaGraph_t graph;
    cudaGraphExec_t execs[2];
    cudaStream_t other;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(direct_read_async(f_, memory() + kPage, 8 * kMiB, 5, stream_, bytes_), 0);
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    for (cudaGraphExec_t &exec : execs)
        ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 20; i++) {
        ASSERT_NO_FATAL_FAILURE(poison());
        *bytes_ = 0;
        ASSERT_EQ(cudaGraphLaunch(execs[0], stream_), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(execs[1], other), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(i % 2 ? stream_ : other), cudaSuccess);
        ASSERT_EQ(*bytes_, static_cast<int64_t>(8 * kMiB));
        ASSERT_TRUE(holds(memory() + kPage, 8 * kMiB, 5)) << i;
        ASSERT_EQ(cudaStreamSynchronize(i % 2 ? other : stream_), cudaSuccess);
    }
    for (cudaGraphExec_t exec : execs)
        cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(other);
}

TEST_F(StagedGpu, ACaptureOutlivesALaunchThatIsRefused)
{
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    refusal_at(g_, 1);
    EXPECT_EQ(direct_read_async(f_, memory() + kPage, 8 * kMiB, 5, stream_, bytes_), -EIO);
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    ASSERT_EQ(read_async(memory() + kPage, 8 * kMiB, 5), static_cast<int64_t>(8 * kMiB));
    ASSERT_TRUE(holds(memory() + kPage, 8 * kMiB, 5));
}

TEST_F(StagedGpu, TheMountsEndEndsReads)
{
    end_the_mount();
    int64_t n = kFile;
    for (int i = 0; i < 100000 && n > 0; i++)
        n = i % 2 ? read_async(memory() + kPage, kFile, 0)
                  : direct_read_wait(f_, memory(), kFile, 0);
    EXPECT_TRUE(n == -ESTALE || n == -ETIMEDOUT) << n;
    EXPECT_LT(direct_renew(d_), 0);
    EXPECT_EQ(read_async(memory() + kPage, kFile, 0), -ESTALE);
    expect_ended();
}

class StagedGpuSums : public StagedGpu
{
  protected:
    StagedGpuSums() { format_ = {"-O", "data_csum"}; }
};

TEST_F(StagedGpuSums, SoundDataIsRead)
{
    expect_reads(40, [this](unsigned char *dst, size_t n, uint64_t offset) {
        return read_async(dst, n, offset);
    });
}

// By copy warps, and compared behind them, in one launch and in several.
TEST_F(StagedGpuSums, WholeBlocksAreRead)
{
    for (size_t n : {kMiB + kPage, 8 * kMiB, 63 * kMiB}) {
        for (bool waits : {false, true}) {
            size_t offset = kMiB - 3 * kPage, at = n == 8 * kMiB ? 13 : kPage;
            ASSERT_NO_FATAL_FAILURE(poison());
            ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
            ASSERT_EQ(waits ? direct_read_wait(f_, memory() + at, n, offset)
                            : read_async(memory() + at, n, offset),
                      static_cast<int64_t>(n))
                << gpunvme_error();
            ASSERT_TRUE(holds_alone(at, n, offset)) << waits;
        }
    }
}

// The kernel that was launched before would still read: 63 MiB take 10 ms and more.
TEST_F(StagedGpuSums, NothingIsWrittenAfterALaunchThatIsRefused)
{
    const size_t n = 63 * kMiB;
    unsigned char *const dst = memory() + kPage;
    for (unsigned i = 0; i < 140; i++) { // more than there are words
        refusal_at(g_, 2 + i % 2);
        ASSERT_EQ(i % 4 < 2 ? direct_read_async(f_, dst, n, 0, stream_, bytes_)
                            : direct_read_wait(f_, dst, n, 0),
                  -EIO);
        EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess) << i;
        std::vector<unsigned char> after(kPage);
        for (size_t at : {size_t{0}, n - kPage}) {
            ASSERT_EQ(cudaMemset(dst + at, kGuard, kPage), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            ASSERT_EQ(cudaMemcpy(after.data(), dst + at, kPage, cudaMemcpyDefault), cudaSuccess);
            EXPECT_EQ(std::count(after.begin(), after.end(), kGuard), kPage) << i;
        }
    }
    EXPECT_EQ(read_async(dst, n, 0), static_cast<int64_t>(n));
    EXPECT_TRUE(holds(dst, n, 0));
    EXPECT_EQ(direct_read_wait(f_, dst, n, 0), static_cast<ssize_t>(n));
}

TEST_F(StagedGpuSums, ABlockThatIsWrongInTheImageIsTheReadsError)
{
    const uint64_t bad = 9 * kMiB + kPage;
    uint64_t found;
    flip(bad + 7);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(i % 2 ? read_async(memory() + kPage, 16 * kMiB, 0)
                        : direct_read_wait(f_, memory(), 16 * kMiB, 0),
                  -EIO);
        EXPECT_TRUE(direct_bad_block(f_, &found) == 1 && found == bad) << i;
    }
    EXPECT_EQ(read_async(memory() + kPage, 8 * kMiB, 0), static_cast<int64_t>(8 * kMiB));
}

} // namespace
