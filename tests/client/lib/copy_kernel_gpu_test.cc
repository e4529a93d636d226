/* SPDX-License-Identifier: BSD-2-Clause */
// Processes with copy kernels start and are killed; the mount continues to
// work.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/gpu_mount.h"
#include "tests/cuda/gq_child.h"

namespace
{

constexpr size_t kFile = 16u << 20;

class CopyKernelGpu : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why = why_no_gpu_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        mount_ = std::make_unique<Mounted>(64u << 20);
        ASSERT_TRUE(mount_->mount("direct=root,gpu=require,deadline=5000")) << mount_->log();
        std::mt19937_64 rng(1);
        for (char &c : file_)
            c = static_cast<char>(rng());
        fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_EQ(pwrite(fd_, file_.data(), kFile, 0), static_cast<ssize_t>(kFile));
    }
    void TearDown() override
    {
        if (fd_ >= 0)
            close(fd_);
        if (mount_ && mount_->pid() > 0) {
            EXPECT_TRUE(mount_->unmount()) << mount_->log();
            EXPECT_EQ(mount_->log().find("driver mistake"), std::string::npos) << mount_->log();
        }
    }
    std::unique_ptr<Child> reader()
    {
        return std::make_unique<Child>(
            "copy_kernel_child",
            std::vector<std::string>{mount_->mountpoint(), mount_->path("file")});
    }
    // Reads the whole file by READ, on queues of the daemon.
    ::testing::AssertionResult mount_reads()
    {
        gpunvme *g = nullptr;
        gpunvme_buffer *buffer = nullptr;
        gpunvme_result result = {};
        std::string got(kFile, '\0');
        bool read =
            gpunvme_connect(mount_->mountpoint().c_str(), &g) == 0 &&
            gpunvme_alloc(g, kFile, &buffer) == 0 &&
            gpunvme_read(buffer, fd_, 0, 0, kFile, &result) == static_cast<ssize_t>(kFile) &&
            gpunvme_copy_out(buffer, 0, &got[0], kFile) == 0;
        std::string why = gpunvme_error();
        if (g)
            gpunvme_disconnect(g);
        if (!read)
            return ::testing::AssertionFailure() << why << mount_->log();
        if (got != file_ || result.path != GPUNVME_PATH_GPU)
            return ::testing::AssertionFailure() << "path " << result.path;
        return ::testing::AssertionSuccess();
    }

    std::unique_ptr<Mounted> mount_;
    std::string file_ = std::string(kFile, '\0');
    int fd_ = -1;
};

TEST_F(CopyKernelGpu, TwoProcessesReadBesideEachOther)
{
    auto a = reader(), b = reader();

    for (unsigned i = 0; i < 3; i++) {
        EXPECT_EQ(a->read(1).size(), 1u) << mount_->log();
        EXPECT_EQ(b->read(1).size(), 1u) << mount_->log();
    }
    EXPECT_TRUE(mount_reads());
    EXPECT_EQ(mount_->log().find("does not respond"), std::string::npos) << mount_->log();
    a->kill();
    b->kill();
}

TEST_F(CopyKernelGpu, AKilledReaderHoldsNothingUp)
{
    for (unsigned i = 0; i < 3; i++) {
        auto child = reader();

        ASSERT_EQ(child->read(1).size(), 1u) << mount_->log();
        child->kill();
        EXPECT_TRUE(mount_reads());
    }
}

} // namespace
