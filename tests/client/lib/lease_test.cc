/* SPDX-License-Identifier: BSD-2-Clause */
// Reads of leased files, which share the queues of their mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gpunvme/gpunvme_io.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

class IoLease : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why = why_no_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        mount_ = std::make_unique<Mounted>(128u << 20);
        ASSERT_TRUE(mount_->mount("executor=cpu,direct=all")) << mount_->log();
        path_ = mount_->mountpoint() + "/file";
        ASSERT_TRUE(make_file(path_, bytes_));
        ASSERT_EQ(gpunvme_io_open(nullptr, &io_), 0) << gpunvme_error();
        open_file(path_);
    }

    void TearDown() override
    {
        gpunvme_io_close(io_);
        if (fd_ >= 0)
            close(fd_);
        if (mount_) {
            EXPECT_TRUE(mount_->unmount()) << mount_->log();
        }
    }

    void open_file(const std::string &path)
    {
        if (fd_ >= 0)
            close(fd_);
        fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(gpunvme_io_file_open(io_, fd_, &file_), 0) << gpunvme_error();
    }

    std::vector<char> bytes_ = some_bytes(3 << 20, 8);
    std::unique_ptr<Mounted> mount_;
    std::string path_;
    struct gpunvme_io *io_ = nullptr;
    struct gpunvme_io_file *file_ = nullptr;
    struct gpunvme_io_lease *lease_ = nullptr;
    int fd_ = -1;
};

TEST_F(IoLease, ReadsIntoMemoryOfTheMount)
{
    struct gpunvme_result result;
    void *at;
    ASSERT_EQ(gpunvme_io_lease_open(file_, &lease_), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_io_alloc_host(file_, 2 << 20, &at), 0) << gpunvme_error();
    for (auto [len, offset] : {std::pair<size_t, size_t>{4096, 8192}, {1, 7}, {2 << 20, 12345}}) {
        EXPECT_EQ(gpunvme_io_lease_read(lease_, at, len, offset, &result),
                  static_cast<ssize_t>(len))
            << gpunvme_error();
        EXPECT_EQ(memcmp(at, bytes_.data() + offset, len), 0) << offset;
        EXPECT_EQ(result.path, GPUNVME_CALLS_DIRECT);
    }
    EXPECT_EQ(gpunvme_io_lease_read(lease_, at, 100, bytes_.size() - 10, nullptr), 10);
    EXPECT_EQ(gpunvme_io_lease_read(lease_, at, 0, 0, nullptr), 0);
    gpunvme_io_lease_close(lease_);
    gpunvme_io_lease_close(nullptr);
}

TEST_F(IoLease, RefusesMemoryOutOfReach)
{
    std::vector<char> own(4096);
    ASSERT_EQ(gpunvme_io_lease_open(file_, &lease_), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_io_lease_read(lease_, own.data(), own.size(), 0, nullptr), -EFAULT);
    EXPECT_NE(strstr(gpunvme_error(), "alloc_host"), nullptr) << gpunvme_error();
    gpunvme_io_lease_close(lease_);
}

// A mount lends fewer queues than 200 leases with queues of their own would take.
TEST_F(IoLease, LeasesOfAMountShareItsQueues)
{
    std::vector<struct gpunvme_io_lease *> leases(200);
    for (auto &lease : leases)
        ASSERT_EQ(gpunvme_io_lease_open(file_, &lease), 0) << gpunvme_error();
    for (auto *lease : leases)
        gpunvme_io_lease_close(lease);
    ASSERT_EQ(gpunvme_io_lease_open(file_, &lease_), 0) << gpunvme_error();
    gpunvme_io_lease_close(lease_);
}

TEST_F(IoLease, FilesThatNoMountServes)
{
    std::string why;
    Folder tmpfs(Where::kTmpfs, &why);
    ASSERT_TRUE(make_file(tmpfs.path("file"), bytes_));
    open_file(tmpfs.path("file"));
    EXPECT_EQ(gpunvme_io_lease_open(file_, &lease_), -ENOTTY);
    EXPECT_NE(strstr(gpunvme_error(), "not on a gpunvmefs mount"), nullptr) << gpunvme_error();
    EXPECT_TRUE(tmpfs.end());
}

} // namespace
