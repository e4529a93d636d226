/* SPDX-License-Identifier: BSD-2-Clause */
// Host memory of the library's, which any mount reads to and kernels reach: as any buffer.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/client/lib/mount_rig.h"

namespace
{

using namespace mount_rig;

class HostMemory : public MountRig
{
  protected:
    void SetUp() override { start("direct=all,deadline=5000"); }
    int alloc(struct gpunvme_buffer **out) override
    {
        take_only(GPUNVME_PATH_GPU);
        return buffer_alloc_host(g_, kRoom, out);
    }
    void take_only(uint32_t path)
    {
        struct gpunvme_options o = {};
        o.path = path;
        ASSERT_EQ(bounce_set_options(g_, &o), 0) << gpunvme_error();
    }
    unsigned buffers()
    {
        struct gpunvme_ioc_stats stats = {};
        EXPECT_EQ(gpunvme_stats(connection_fd(g_), &stats), 0) << gpunvme_error();
        return static_cast<unsigned>(stats.buffers);
    }
};

TEST_F(HostMemory, IsReadIntoByTheExecutor)
{
    ASSERT_EQ(buffer_len(buffer_), kRoom);
    expect_reads(60, {1u << 20}, [this](size_t at, size_t n, uint64_t offset) {
        gpunvme_result r = {};
        ssize_t got = transfer_read(buffer_, fd_, at, offset, n, &r);
        EXPECT_TRUE(got <= 0 || r.path == GPUNVME_PATH_GPU) << r.path << ": " << r.why;
        return got;
    });
    EXPECT_EQ(transfer_read(buffer_, fd_, kRoom - 10, 0, 11, nullptr), -ERANGE);
}

TEST_F(HostMemory, IsReadIntoByThePipeline)
{
    take_only(GPUNVME_PATH_BOUNCE);
    expect_reads(10, {1u << 20}, [this](size_t at, size_t n, uint64_t offset) {
        return transfer_read(buffer_, fd_, at, offset, n, nullptr);
    });
}

TEST_F(HostMemory, IsReadIntoByTheDirectPath)
{
    ASSERT_NO_FATAL_FAILURE(open_direct(4, 16));
    expect_reads(60, {200000}, [this](size_t at, size_t n, uint64_t offset) {
        return direct_read_wait(f_, memory_ + at, n, offset);
    });
    EXPECT_EQ(direct_read_wait(f_, memory_ + kRoom - 10, 11, 0), -EFAULT);
}

TEST_F(HostMemory, HoldsTheBytesOfAList)
{
    std::mt19937 rng(6);
    std::vector<gpunvme_piece> pieces(700);
    size_t at = 0;
    for (gpunvme_piece &p : pieces) {
        p = {rng() % kFile, at, static_cast<uint32_t>(1 + rng() % 9000), 77};
        at += p.len;
    }
    ASSERT_LE(at, kRoom);
    gpunvme_result r = {};
    ASSERT_EQ(readv_buffer(buffer_, fd_, pieces.data(), pieces.size(), &r), 0) << gpunvme_error();
    EXPECT_EQ(r.path, static_cast<uint32_t>(GPUNVME_PATH_GPU)) << r.why;
    for (const gpunvme_piece &p : pieces) {
        size_t n = bytes_of(p.len, p.file_offset);
        ASSERT_EQ(p.result, static_cast<int32_t>(n));
        ASSERT_TRUE(holds(p.buffer_offset, n, p.file_offset));
    }
}

TEST_F(HostMemory, IsWrittenFrom)
{
    take_only(0);
    std::mt19937 rng(7);
    for (size_t i = 0; i < kRoom; i++)
        memory_[i] = static_cast<char>(rng());
    gpunvme_result r = {};
    ASSERT_EQ(transfer_write(buffer_, fd_, 4096, 1u << 20, 2u << 20, &r), 2 << 20)
        << gpunvme_error();
    EXPECT_EQ(r.path, static_cast<uint32_t>(GPUNVME_PATH_GPU)) << r.why;
    ASSERT_EQ(transfer_write(buffer_, fd_, 77, (5u << 20) + 5, 123457, nullptr), 123457);
    std::copy_n(memory_ + 4096, 2u << 20, file_.begin() + (1u << 20));
    std::copy_n(memory_ + 77, 123457, file_.begin() + (5u << 20) + 5);
    std::vector<char> got(kFile);
    ASSERT_EQ(pread(fd_, got.data(), kFile, 0), static_cast<ssize_t>(kFile));
    EXPECT_TRUE(got == file_);
}

TEST_F(HostMemory, IsCopiedByTheLibraryAsOthersAre)
{
    std::vector<char> back(1000);
    ASSERT_EQ(buffer_copy_in(buffer_, 5, file_.data(), 1000), 0);
    EXPECT_EQ(memcmp(memory_ + 5, file_.data(), 1000), 0);
    ASSERT_EQ(buffer_copy_out(buffer_, 5, back.data(), 1000), 0);
    EXPECT_EQ(memcmp(back.data(), file_.data(), 1000), 0);
    EXPECT_EQ(buffer_copy_out(buffer_, kRoom - 5, back.data(), 6), -ERANGE);
}

TEST_F(HostMemory, IsFilledBesideMemoryOfTheExecutors)
{
    gpunvme_buffer *other = nullptr;
    std::vector<char> got(kFile);
    ASSERT_NO_FATAL_FAILURE(open_direct(4, 16));
    ASSERT_EQ(buffer_alloc(g_, kFile, &other), 0) << gpunvme_error();
    auto *there = static_cast<char *>(buffer_addr(other));
    for (int i = 0; i < 5; i++) {
        poison();
        std::thread beside([&] {
            EXPECT_EQ(transfer_read(other, fd_, 0, 0, kFile / 2, nullptr),
                      static_cast<ssize_t>(kFile / 2));
        });
        EXPECT_EQ(transfer_read(buffer_, fd_, 0, 0, kFile / 2, nullptr),
                  static_cast<ssize_t>(kFile / 2));
        beside.join();
        EXPECT_EQ(direct_read_wait(f_, memory_ + kFile / 2, kFile, kFile / 2),
                  static_cast<ssize_t>(kFile - kFile / 2));
        EXPECT_EQ(direct_read_wait(f_, there + kFile / 2, kFile - kFile / 2, kFile / 2),
                  static_cast<ssize_t>(kFile - kFile / 2));
        ASSERT_EQ(buffer_copy_out(other, 0, got.data(), kFile), 0) << gpunvme_error();
        ASSERT_TRUE(holds(0, kFile, 0)) << i;
        ASSERT_TRUE(got == file_) << i;
    }
    EXPECT_EQ(buffer_unregister(other), 0);
}

// An address that comes again means the new pages, to the mount and to the direct path.
TEST_F(HostMemory, LeavesNothingBehind)
{
    ASSERT_NO_FATAL_FAILURE(open_direct(4, 16));
    unsigned before = buffers();
    for (int i = 0; i < 10; i++) {
        gpunvme_buffer *b = nullptr;
        ASSERT_EQ(buffer_alloc_host(g_, 100000, &b), 0) << gpunvme_error();
        auto *to = static_cast<char *>(buffer_addr(b));
        EXPECT_EQ(buffers(), before + 1);
        EXPECT_EQ(std::count(to, to + 100000, 0), 100000);
        ASSERT_EQ(transfer_read(b, fd_, 0, 4096, 50000, nullptr), 50000) << gpunvme_error();
        ASSERT_EQ(direct_read_wait(f_, to + 50000, 50000, 54096), 50000) << gpunvme_error();
        EXPECT_EQ(memcmp(to, &file_[4096], 100000), 0);
        ASSERT_EQ(buffer_unregister(b), 0) << gpunvme_error();
        EXPECT_EQ(buffers(), before);
    }
}

TEST_F(HostMemory, OfNoLengthOrTooMuchIsRefused)
{
    gpunvme_buffer *b = nullptr;
    unsigned before = buffers();
    EXPECT_EQ(buffer_alloc_host(g_, 0, &b), -EINVAL);
    for (size_t len : {static_cast<size_t>(1) << 62, SIZE_MAX}) {
        EXPECT_LT(buffer_alloc_host(g_, len, &b), 0);
        EXPECT_NE(std::string(gpunvme_error()).find(std::to_string(len)), std::string::npos);
    }
    EXPECT_EQ(buffers(), before);
}

TEST_F(HostMemory, OfAKilledProcessIsFreed)
{
    int ends[2];
    char byte;
    unsigned before = buffers();
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    std::string mountpoint = mount_->mountpoint(), path = mount_->path("file");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl(HOST_CHILD, HOST_CHILD, mountpoint.c_str(), path.c_str(), nullptr);
        _exit(127);
    }
    close(ends[1]);
    EXPECT_EQ(read(ends[0], &byte, 1), 1) << "it reads";
    EXPECT_EQ(buffers(), before + 1);
    kill(pid, SIGKILL);
    EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
    close(ends[0]);
    for (int i = 0; i < 1000 && buffers() != before; i++)
        usleep(10000);
    EXPECT_EQ(buffers(), before);
    EXPECT_EQ(transfer_read(buffer_, fd_, 0, 0, kFile, nullptr), static_cast<ssize_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

} // namespace
