/* SPDX-License-Identifier: BSD-2-Clause */
// Direct files, which share the leased queues of their mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "gpunvme/gpunvme.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

class DirectFile : public MountedTest
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount("executor=cpu,direct=all", 128u << 20));
        path_ = mounted_->mountpoint() + "/file";
        ASSERT_TRUE(make_file(path_, bytes_));
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        open_file(path_);
    }

    void let_go() override { gpunvme_close(io_); }

    void open_file(const std::string &path)
    {
        if (fd_ >= 0)
            close(fd_);
        fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(gpunvme_file_open(io_, fd_, 0, &file_), 0) << gpunvme_error();
    }

    int open_direct() { return gpunvme_file_open(io_, fd_, GPUNVME_FILE_DIRECT, &direct_); }

    std::vector<char> bytes_ = some_bytes(3 << 20, 8);
    std::string path_;
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    struct gpunvme_file *direct_ = nullptr;
};

TEST_F(DirectFile, ReadsIntoMemoryOfTheMount)
{
    struct gpunvme_result result;
    void *at;
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_alloc_host(direct_, 2 << 20, &at), 0) << gpunvme_error();
    for (auto [len, offset] : {std::pair<size_t, size_t>{4096, 8192}, {1, 7}, {2 << 20, 12345}}) {
        EXPECT_EQ(gpunvme_read(direct_, at, len, offset, &result), static_cast<ssize_t>(len))
            << gpunvme_error();
        EXPECT_EQ(memcmp(at, bytes_.data() + offset, len), 0) << offset;
        EXPECT_EQ(result.path, GPUNVME_CALLS_DIRECT);
    }
    EXPECT_EQ(gpunvme_read(direct_, at, 100, bytes_.size() - 10, nullptr), 10);
    EXPECT_EQ(gpunvme_read(direct_, at, 0, 0, nullptr), 0);
}

TEST_F(DirectFile, SaysWhetherItIsDirect)
{
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
    EXPECT_NE(gpunvme_file_device(direct_), nullptr);
    EXPECT_EQ(gpunvme_file_device(file_), nullptr);
    EXPECT_EQ(gpunvme_file_renew(file_), -EINVAL);
    EXPECT_EQ(gpunvme_file_refresh(file_), 0);
    struct gpunvme_file *f;
    EXPECT_EQ(gpunvme_file_open(io_, fd_, 2, &f), -EINVAL);
}

TEST_F(DirectFile, ReadsInStreamOrder)
{
    constexpr int64_t kOffset = 4099, kNone = 0;
    constexpr size_t kLen = 70000;
    int64_t got = 0;
    void *at;
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_alloc_host(direct_, kLen, &at), 0) << gpunvme_error();
    struct gpunvme_stream_transfer t = {};
    t.addr = at;
    t.len = &kLen;
    t.file_offset = &kOffset;
    t.addr_offset = &kNone;
    t.bytes = &got;
    ASSERT_EQ(gpunvme_submit_stream(direct_, &t, nullptr), 0) << gpunvme_error();
    EXPECT_EQ(got, static_cast<int64_t>(kLen));
    EXPECT_EQ(memcmp(at, bytes_.data() + kOffset, kLen), 0);

    struct gpunvme_piece *pieces;
    ASSERT_EQ(gpunvme_pieces_alloc(direct_, 2, &pieces), 0) << gpunvme_error();
    pieces[0] = {12288, 0, 4096, 0};
    pieces[1] = {5, 5000, 100, 0};
    t.pieces = pieces;
    t.n_pieces = 2;
    EXPECT_EQ(gpunvme_submit_stream(file_, &t, nullptr), -EINVAL) << "not a direct file";
    ASSERT_EQ(gpunvme_submit_stream(direct_, &t, nullptr), 0) << gpunvme_error();
    EXPECT_EQ(pieces[0].result, 4096);
    EXPECT_EQ(pieces[1].result, 100);
    EXPECT_EQ(memcmp(at, bytes_.data() + 12288, 4096), 0);
    EXPECT_EQ(memcmp(static_cast<char *>(at) + 5000, bytes_.data() + 5, 100), 0);
    gpunvme_pieces_free(direct_, pieces);
    t.write = 1;
    EXPECT_EQ(gpunvme_submit_stream(direct_, &t, nullptr), -EINVAL);
}

TEST_F(DirectFile, NewLeasesShowAChangedFile)
{
    void *at;
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_alloc_host(direct_, 4096, &at), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_file_size(direct_), static_cast<int64_t>(bytes_.size()));
    EXPECT_EQ(gpunvme_file_refresh(direct_), 0);
    ASSERT_EQ(truncate(path_.c_str(), 100), 0) << strerror(errno);
    EXPECT_EQ(gpunvme_file_size(file_), 100);
    EXPECT_EQ(gpunvme_file_refresh(direct_), 1) << gpunvme_error();
    EXPECT_EQ(gpunvme_file_size(direct_), 100);
    ASSERT_EQ(gpunvme_file_renew(direct_), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_read(direct_, at, 4096, 0, nullptr), 100) << gpunvme_error();
    EXPECT_EQ(memcmp(at, bytes_.data(), 100), 0);
}

TEST_F(DirectFile, RefusesMemoryOutOfReach)
{
    constexpr int64_t kNone = 0;
    constexpr size_t kLen = 4096;
    std::vector<char> own(kLen);
    int64_t got;
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_read(direct_, own.data(), own.size(), 0, nullptr), -EFAULT);
    EXPECT_NE(strstr(gpunvme_error(), "alloc_host"), nullptr) << gpunvme_error();
    struct gpunvme_stream_transfer t = {};
    t.addr = own.data();
    t.len = &kLen;
    t.file_offset = t.addr_offset = &kNone;
    t.bytes = &got;
    EXPECT_EQ(gpunvme_submit_stream(direct_, &t, nullptr), -EFAULT);
    EXPECT_NE(strstr(gpunvme_error(), "gpunvme_register"), nullptr) << gpunvme_error();
}

// A mount lends fewer queues than 200 files with queues of their own would take.
TEST_F(DirectFile, FilesOfAMountShareItsQueues)
{
    std::vector<struct gpunvme_file *> files(200);
    for (auto &file : files)
        ASSERT_EQ(gpunvme_file_open(io_, fd_, GPUNVME_FILE_DIRECT, &file), 0) << gpunvme_error();
    for (auto *file : files)
        gpunvme_file_close(file);
    ASSERT_EQ(open_direct(), 0) << gpunvme_error();
}

TEST_F(DirectFile, FilesThatNoMountServes)
{
    std::string why;
    Folder tmpfs(Where::kTmpfs, &why);
    ASSERT_TRUE(make_file(tmpfs.path("file"), bytes_));
    open_file(tmpfs.path("file"));
    EXPECT_EQ(open_direct(), -ENOTTY);
    EXPECT_NE(strstr(gpunvme_error(), "not on a gpunvmefs mount"), nullptr) << gpunvme_error();
    struct gpunvme_piece *pieces;
    EXPECT_EQ(gpunvme_pieces_alloc(file_, 2, &pieces), -ENOTTY);
    EXPECT_TRUE(tmpfs.end());
}

// Without CUDA copies are those of the host.
TEST_F(DirectFile, CopiesToAndFromMemoryOfTheMount)
{
    void *at;
    char out[16] = "";
    ASSERT_EQ(gpunvme_alloc(file_, 4096, &at), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_copy_in(io_, at, "a few bytes", 12), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_copy_out(io_, at, out, 12), 0) << gpunvme_error();
    EXPECT_STREQ(out, "a few bytes");
    EXPECT_EQ(gpunvme_unregister(io_, at), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_unregister(io_, at), -ENOENT);
}

} // namespace
