/* SPDX-License-Identifier: BSD-2-Clause */
// Long reads of the direct path into GPU memory that the drive does not reach.
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/gpu_mount.h"
#include "tests/client/lib/image_bit.h"

namespace
{

constexpr size_t kPage = 4096, kFile = (64u << 20) + 1232, kRoom = 96u << 20, kMiB = 1u << 20;
constexpr size_t kHole = 20u << 20, kHoleLength = 300000;
constexpr unsigned kWords = 256;
constexpr unsigned char kGuard = 0x5a;

class StagedGpu : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why = why_no_gpu_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        mount_ = std::make_unique<Mounted>(512u << 20, format_);
        ASSERT_TRUE(mount_->mount("direct=root,deadline=5000,sim_gpu=off")) << mount_->log();
        ASSERT_EQ(gpunvme_connect(mount_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_alloc(g_, kRoom, &buffer_), 0) << gpunvme_error();
        ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void **>(&bytes_), kWords * sizeof(*bytes_),
                                cudaHostAllocMapped),
                  cudaSuccess);
        for (cudaStream_t &stream : streams_)
            ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        make_file();
        ASSERT_EQ(gpunvme_direct_open(g_, nullptr, &d_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(d_, fd_, &f_), 0) << gpunvme_error();
    }

    void TearDown() override
    {
        gpunvme_direct_close(d_);
        gpunvme_disconnect(g_);
        if (fd_ >= 0)
            close(fd_);
        if (mount_ && mount_->pid() > 0) {
            EXPECT_TRUE(mount_->unmount()) << mount_->log();
        }
        cudaFreeHost(bytes_);
        for (cudaStream_t stream : streams_) {
            if (stream)
                cudaStreamDestroy(stream);
        }
    }

    void make_file()
    {
        std::mt19937_64 rng(1);
        std::generate_n(reinterpret_cast<uint64_t *>(file_.data()), kFile / 8, rng);
        std::fill_n(&file_[kHole], kHoleLength, 0);
        fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd_, 0);
        ASSERT_EQ(pwrite(fd_, file_.data(), kFile, 0), static_cast<ssize_t>(kFile));
        ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kHole, kHoleLength),
                  0);
        ASSERT_EQ(fsync(fd_), 0);
    }

    unsigned char *memory()
    {
        return static_cast<unsigned char *>(gpunvme_buffer_addr(buffer_));
    }

    // n bytes of the file, and a guard on both sides; at is not 0.
    ::testing::AssertionResult holds(size_t at, size_t n, uint64_t offset)
    {
        std::vector<unsigned char> got(n + 2);
        if (cudaMemcpy(got.data(), memory() + at - 1, n + 2, cudaMemcpyDefault) != cudaSuccess)
            return ::testing::AssertionFailure() << "the GPU fails";
        if (got[0] != kGuard || got[n + 1] != kGuard)
            return ::testing::AssertionFailure() << "bytes beside " << n << " at " << offset;
        for (size_t i = 0; i < n; i++) {
            if (got[i + 1] != file_[offset + i])
                return ::testing::AssertionFailure()
                       << "byte " << i << " of " << n << " at " << offset;
        }
        return ::testing::AssertionSuccess();
    }

    int64_t read_async(size_t at, size_t n, uint64_t offset)
    {
        *bytes_ = INT64_MIN;
        int err = gpunvme_read_async(f_, memory() + at, n, offset, streams_[0], bytes_);
        if (cudaStreamSynchronize(streams_[0]) != cudaSuccess)
            return -EIO;
        return err ? err : *bytes_;
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
            ASSERT_EQ(cudaMemset(memory(), kGuard, kRoom), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            ASSERT_EQ(read(at, n, offset), static_cast<int64_t>(want))
                << n << " at " << offset << ": " << gpunvme_error();
            ASSERT_TRUE(holds(at, want, offset));
        }
    }

    std::vector<std::string> format_; // arguments of mkfs.gpunvme
    std::unique_ptr<Mounted> mount_;
    struct gpunvme *g_ = nullptr;
    struct gpunvme_buffer *buffer_ = nullptr;
    struct gpunvme_direct *d_ = nullptr;
    struct gpunvme_file *f_ = nullptr;
    int64_t *bytes_ = nullptr;
    cudaStream_t streams_[4] = {};
    int fd_ = -1;
    std::vector<unsigned char> file_ = std::vector<unsigned char>(kFile);
};

TEST_F(StagedGpu, StreamsReadAnythingAnywhere)
{
    expect_reads(
        120, [this](size_t at, size_t n, uint64_t offset) { return read_async(at, n, offset); });
}

TEST_F(StagedGpu, AHostReadsAnythingAnywhere)
{
    expect_reads(120, [this](size_t at, size_t n, uint64_t offset) {
        return gpunvme_file_read(f_, memory() + at, n, offset);
    });
    EXPECT_EQ(gpunvme_file_read(f_, memory() + 1, kRoom - 2, 0), static_cast<ssize_t>(kFile));
    EXPECT_EQ(gpunvme_file_read(f_, memory() + kRoom - 10, 11, 0), -EFAULT);
    EXPECT_EQ(gpunvme_file_read(f_, memory(), kMiB, kFile), 0);
}

// More than there are words for: some are read by one block.
TEST_F(StagedGpu, ManyReadsAreInFlight)
{
    constexpr size_t kStride = kRoom / kWords / kPage * kPage, kLen = kStride - 2 * kPage;
    ASSERT_EQ(cudaMemset(memory(), kGuard, kRoom), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (unsigned i = 0; i < kWords; i++)
        ASSERT_EQ(gpunvme_read_async(f_, memory() + i * kStride + kPage, kLen, i * 3 * kPage,
                                     streams_[i % 4], &bytes_[i]),
                  0)
            << gpunvme_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (unsigned i = 0; i < kWords; i++) {
        ASSERT_EQ(bytes_[i], static_cast<int64_t>(kLen)) << i;
        ASSERT_TRUE(holds(i * kStride + kPage, kLen, i * 3 * kPage)) << i;
    }
}

TEST_F(StagedGpu, ACapturedReadRunsAgain)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(gpunvme_read_async(f_, memory() + kPage, 8 * kMiB, 5, streams_[0], bytes_), 0);
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(cudaMemset(memory(), kGuard, kRoom), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        *bytes_ = 0;
        ASSERT_EQ(cudaGraphLaunch(exec, streams_[0]), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
        ASSERT_EQ(*bytes_, static_cast<int64_t>(8 * kMiB));
        ASSERT_TRUE(holds(kPage, 8 * kMiB, 5)) << i;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

TEST_F(StagedGpu, TheMountsEndEndsReads)
{
    close(fd_);
    fd_ = -1;
    kill(mount_->pid(), SIGTERM);
    int64_t n = kFile;
    for (int i = 0; i < 100000 && n > 0; i++)
        n = i % 2 ? read_async(kPage, kFile, 0) : gpunvme_file_read(f_, memory(), kFile, 0);
    EXPECT_TRUE(n == -ESTALE || n == -ETIMEDOUT) << n;
    EXPECT_LT(gpunvme_direct_renew(d_), 0);
    EXPECT_EQ(read_async(kPage, kFile, 0), -ESTALE);
    gpunvme_direct_close(d_);
    d_ = nullptr;
    gpunvme_disconnect(g_);
    g_ = nullptr;
    EXPECT_TRUE(mount_->ended()) << mount_->log();
}

class StagedGpuSums : public StagedGpu
{
  protected:
    StagedGpuSums()
    {
        format_ = {"-O", "data_csum"};
    }
};

TEST_F(StagedGpuSums, SoundDataIsRead)
{
    expect_reads(
        40, [this](size_t at, size_t n, uint64_t offset) { return read_async(at, n, offset); });
}

// By copy warps, and compared behind them, in one launch and in several.
TEST_F(StagedGpuSums, WholeBlocksAreRead)
{
    for (size_t n : {kMiB + kPage, 8 * kMiB, 63 * kMiB}) {
        for (bool waits : {false, true}) {
            size_t offset = kMiB - 3 * kPage, at = n == 8 * kMiB ? 13 : kPage;
            ASSERT_EQ(cudaMemset(memory(), kGuard, kRoom), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            ASSERT_EQ(waits ? gpunvme_file_read(f_, memory() + at, n, offset)
                            : read_async(at, n, offset),
                      static_cast<int64_t>(n))
                << gpunvme_error();
            ASSERT_TRUE(holds(at, n, offset)) << waits;
        }
    }
}

TEST_F(StagedGpuSums, ABlockThatIsWrongInTheImageIsTheReadsError)
{
    const uint64_t bad = 9 * kMiB + kPage;
    uint64_t found;
    flip_in_image(mount_->image(), fd_, bad + 7);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(i % 2 ? read_async(kPage, 16 * kMiB, 0)
                        : gpunvme_file_read(f_, memory(), 16 * kMiB, 0),
                  -EIO);
        EXPECT_TRUE(gpunvme_file_bad_block(f_, &found) == 1 && found == bad) << i;
    }
    EXPECT_EQ(read_async(kPage, 8 * kMiB, 0), static_cast<int64_t>(8 * kMiB));
}

} // namespace
