/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/client/lib/gpu_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "tests/client/device/test_direct_kernels.h"
#include "tests/client/lib/gpu_mount.h"
#include "tests/client/lib/image_bit.h"

namespace gpu_rig
{

void GpuRig::start(const std::string &options, uint32_t queues, uint32_t depth)
{
    std::string why = why_no_gpu_mount();
    if (!why.empty())
        GTEST_SKIP() << why;
    mount_ = std::make_unique<Mounted>(512 * kMiB, format_);
    ASSERT_TRUE(mount_->mount(options)) << mount_->log();
    ASSERT_EQ(connection_open(mount_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
    ASSERT_EQ(alloc(&buffer_), 0) << gpunvme_error();
    bytes_ = pinned<int64_t>(kResults);
    ASSERT_TRUE(bytes_);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_NO_FATAL_FAILURE(make_file());
    open_direct(queues, depth);
}

void GpuRig::TearDown()
{
    Connection::TearDown();
    cudaFreeHost(bytes_);
    if (stream_)
        cudaStreamDestroy(stream_);
}

// Kernels of the tests compute the same words.
void GpuRig::make_file()
{
    auto *words = reinterpret_cast<uint64_t *>(file_.data());
    for (size_t i = 0; i < kFile / sizeof(*words); i++)
        words[i] = CONTENT_WORD(i);
    fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(pwrite(fd_, file_.data(), kFile, 0), static_cast<ssize_t>(kFile));
    ASSERT_EQ(fsync(fd_), 0);
}

void GpuRig::punch_hole()
{
    ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kHole, kHoleLength), 0);
    std::fill_n(&file_[kHole], kHoleLength, 0);
    ASSERT_EQ(leased_file_refresh(f_), 1) << gpunvme_error();
}

void GpuRig::flip(uint64_t offset)
{
    flip_in_image(mount_->image(), fd_, offset);
}

void GpuRig::poison()
{
    ASSERT_EQ(cudaMemsetAsync(memory(), kGuard, kRoom, stream_), cudaSuccess);
}

::testing::AssertionResult GpuRig::holds(const unsigned char *dst, size_t n, uint64_t offset)
{
    std::vector<unsigned char> got(n);
    if (cudaMemcpyAsync(got.data(), dst, n, cudaMemcpyDefault, stream_) != cudaSuccess ||
        cudaStreamSynchronize(stream_) != cudaSuccess)
        return ::testing::AssertionFailure() << "the GPU fails";
    for (size_t i = 0; i < n; i++) {
        if (got[i] != file_[offset + i])
            return ::testing::AssertionFailure() << "byte " << i << " of " << n << " at " << offset;
    }
    return ::testing::AssertionSuccess();
}

int64_t GpuRig::read_async(unsigned char *dst, size_t n, uint64_t offset)
{
    *bytes_ = INT64_MIN;
    int err = direct_read_async(f_, dst, n, offset, stream_, bytes_);
    if (cudaStreamSynchronize(stream_) != cudaSuccess)
        return -EIO;
    return err ? err : *bytes_;
}

} // namespace gpu_rig
