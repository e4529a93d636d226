/* SPDX-License-Identifier: BSD-2-Clause */
// The path that the library takes on a mount, its report of it, and that the bytes are the same.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/connection.h"
#include "tests/client/lib/hole_rig.h"

namespace
{

using namespace hole_rig;

// How the mount runs, whether it has room to register the pipeline's staging, and the chunks: small
// ones are moved by read(2) and write(2), those of 1 MiB by ioctls into registered staging.
struct Way {
    const char *name;
    const char *options;
    bool registers;
    size_t chunk;
};

class Bounce : public HoleRig<Way>
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(HoleRig::set_up());
        ASSERT_EQ(set_path(0), 0);
    }

    int set_path(uint32_t path)
    {
        struct gpunvme_options o = {};
        o.path = path;
        o.threads = 3;
        o.chunk = GetParam().chunk;
        return bounce_set_options(g_, &o);
    }

    void expect_reads(struct gpunvme_buffer *b, uint32_t path)
    {
        std::mt19937 rng(8);
        for (int i = 0; i < 40; i++) {
            size_t offset = i ? rng() % kFile : 0, len = i ? rng() % (kFile - offset) : kRoom;
            size_t at = rng() % (kRoom - len + 1), want = std::min(len, kFile - offset);
            std::vector<char> got(want);
            struct gpunvme_result r;
            ssize_t n = transfer_read(b, fd_, at, offset, len, &r);
            ASSERT_EQ(n, static_cast<ssize_t>(want)) << gpunvme_error();
            ASSERT_EQ(buffer_copy_out(b, at, got.data(), want), 0);
            ASSERT_EQ(memcmp(got.data(), &file_[offset], want), 0) << offset << "+" << len;
            if (n) {
                ASSERT_EQ(r.path, path) << r.why;
                ASSERT_EQ(*r.why == '\0', path == GPUNVME_PATH_GPU) << r.why;
            }
        }
    }
};

TEST_P(Bounce, MemoryThatTheMountRefusesIsReadAndTheReasonReported)
{
    expect_reads(local_, GPUNVME_PATH_BOUNCE);
    struct gpunvme_result r;
    ASSERT_EQ(transfer_read(local_, fd_, 0, 0, 10, &r), 10);
    EXPECT_NE(std::string(r.why).find("use "), std::string::npos) << r.why;
}

TEST_P(Bounce, IsTheOnlyPathOnRequest)
{
    ASSERT_EQ(set_path(GPUNVME_PATH_BOUNCE), 0);
    expect_reads(shared_, GPUNVME_PATH_BOUNCE);
    struct gpunvme_result r;
    ASSERT_EQ(transfer_read(shared_, fd_, 0, 0, 10, &r), 10);
    EXPECT_STREQ(r.why, "asked for");
}

TEST_P(Bounce, TheGpuPathOrNothing)
{
    ASSERT_EQ(set_path(GPUNVME_PATH_GPU), 0);
    EXPECT_EQ(transfer_read(local_, fd_, 0, 0, 4096, nullptr), -EREMOTEIO);
    struct gpunvme_buffer *none;
    EXPECT_EQ(buffer_register(g_, own_.data(), 4096, true, &none), -ENOTSUP);
    struct gpunvme_ioc_info info;
    ASSERT_EQ(gpunvme_info(connection_fd(g_), &info), 0);
    if (info.executor == GPUNVME_EXECUTOR_NONE)
        EXPECT_EQ(transfer_read(shared_, fd_, 0, 0, 4096, nullptr), -EREMOTEIO);
    else
        expect_reads(shared_, GPUNVME_PATH_GPU);
}

TEST_P(Bounce, WritesWhatOrdinaryReadsSee)
{
    std::mt19937 rng(9);
    std::vector<char> bytes = some_bytes(kRoom, 6), now(kFile);
    memcpy(own_.data(), bytes.data(), kRoom);
    for (int i = 0; i < 25; i++) {
        size_t offset = rng() % kFile, len = rng() % (kFile - offset), at = rng() % (kRoom - len);
        struct gpunvme_result r;
        ASSERT_EQ(transfer_write(local_, fd_, at, offset, len, &r), static_cast<ssize_t>(len));
        memcpy(&file_[offset], &bytes[at], len);
        ASSERT_EQ(r.path, len ? GPUNVME_PATH_BOUNCE : 0);
        ASSERT_EQ(pread(fd_, now.data(), kFile, 0), static_cast<ssize_t>(kFile));
        ASSERT_EQ(now, file_);
    }
    ASSERT_EQ(transfer_write(local_, fd_, 1, kFile + 5000, 3000, nullptr), 3000);
    struct stat st;
    ASSERT_EQ(fstat(fd_, &st), 0);
    EXPECT_EQ(st.st_size, static_cast<off_t>(kFile + 8000));
}

// The mount writes chunks of several MiB from registered staging.
TEST_P(Bounce, WritesLongRanges)
{
    constexpr size_t kLong = (24u << 20) + 777;
    std::vector<char> bytes = some_bytes(kLong, 12), now(kLong);
    struct gpunvme_buffer *b;
    ASSERT_EQ(buffer_register(g_, bytes.data(), kLong, true, &b), 0) << gpunvme_error();
    struct gpunvme_result r;
    ASSERT_EQ(transfer_write(b, fd_, 0, 4096, kLong, &r), ssize_t{kLong}) << gpunvme_error();
    EXPECT_EQ(r.path, GPUNVME_PATH_BOUNCE);
    EXPECT_EQ(r.commands > 0, GetParam().registers) << "by queues of the mount";
    ASSERT_EQ(pread(fd_, now.data(), kLong, 4096), ssize_t{kLong});
    EXPECT_EQ(memcmp(now.data(), bytes.data(), kLong), 0);
    EXPECT_EQ(buffer_unregister(b), 0);
}

// The list has neighbours and pieces apart, short ones, and some that are
// longer than a chunk.
TEST_P(Bounce, ReadsLists)
{
    std::mt19937 rng(13);
    std::vector<gpunvme_piece> list;
    for (size_t at = 0; at + kFile / 2 + kFile / 4 < kRoom;) {
        size_t len = rng() % 300 ? rng() % 900 : rng() % (kFile / 4);
        list.push_back({rng() % kFile, at, static_cast<uint32_t>(len), 7});
        at += len + (rng() % 3 ? 0 : rng() % 99);
    }
    list.push_back({0, kRoom - kFile / 2, kFile / 2, 7});
    struct gpunvme_result r;
    ASSERT_EQ(readv_buffer(local_, fd_, list.data(), list.size(), &r), 0) << gpunvme_error();
    EXPECT_EQ(r.path, GPUNVME_PATH_BOUNCE);
    EXPECT_EQ(r.commands > 0, GetParam().registers) << "by queues of the mount";
    for (const gpunvme_piece &p : list) {
        size_t want = std::min<size_t>(p.len, kFile - p.file_offset);
        ASSERT_EQ(p.result, static_cast<int32_t>(want));
        ASSERT_EQ(memcmp(&own_[p.buffer_offset], &file_[p.file_offset], want), 0);
    }
}

TEST_P(Bounce, RefusesWhatTheMountWouldRefuse)
{
    const std::string name = mounted_->path("file");
    int write_only = open(name.c_str(), O_WRONLY | O_CLOEXEC);
    int append = open(name.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
    int directory = open(mounted_->mountpoint().c_str(), O_RDONLY | O_CLOEXEC);
    int foreign = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(transfer_read(local_, write_only, 0, 0, 10, nullptr), -EBADF);
    EXPECT_EQ(transfer_write(local_, append, 0, 0, 10, nullptr), -EBADF);
    EXPECT_EQ(transfer_read(local_, directory, 0, 0, 10, nullptr), -EISDIR);
    EXPECT_EQ(transfer_read(local_, foreign, 0, 0, 10, nullptr), -ENOTTY);
    EXPECT_EQ(transfer_read(local_, -1, 0, 0, 10, nullptr), -EBADF);
    EXPECT_EQ(transfer_read(local_, fd_, kRoom, 0, 1, nullptr), -ERANGE);
    EXPECT_EQ(transfer_read(local_, fd_, 0, 0, kRoom + 1, nullptr), -ERANGE);
    EXPECT_EQ(transfer_read(local_, fd_, 0, UINT64_MAX - 5, 10, nullptr), -EOVERFLOW);
    for (int fd : {write_only, append, directory, foreign})
        close(fd);
    EXPECT_EQ(set_path(3), -EINVAL);
    struct gpunvme_options odd = {};
    odd.chunk = 4097;
    EXPECT_EQ(bounce_set_options(g_, &odd), -EINVAL);
    odd = {};
    odd.threads = 65;
    EXPECT_EQ(bounce_set_options(g_, &odd), -EINVAL);
}

TEST_P(Bounce, AFullDriveCutsAWriteShort)
{
    std::vector<char> bytes = some_bytes(kRoom, 7);
    memcpy(own_.data(), bytes.data(), kRoom);
    uint64_t at = 0;
    ssize_t n;
    Fd fd = open(mounted_->path("full").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    while ((n = transfer_write(local_, fd, 0, at, kRoom, nullptr)) == static_cast<ssize_t>(kRoom))
        at += kRoom;
    EXPECT_EQ(transfer_write(local_, fd, 0, at + static_cast<uint64_t>(std::max<ssize_t>(n, 0)),
                             kRoom, nullptr),
              -ENOSPC);
    struct stat st;
    ASSERT_EQ(fstat(fd, &st), 0);
    uint64_t size = at + static_cast<uint64_t>(std::max<ssize_t>(n, 0));
    EXPECT_EQ(static_cast<uint64_t>(st.st_size), size);
    std::vector<char> last(kRoom);
    ASSERT_EQ(pread(fd, last.data(), kRoom, static_cast<off_t>(size - kRoom)),
              static_cast<ssize_t>(kRoom));
    size_t turn = size % kRoom;
    EXPECT_EQ(memcmp(last.data() + kRoom - turn, bytes.data(), turn), 0);
}

uint64_t bytes_read(struct connection *g)
{
    struct gpunvme_ioc_stats stats;
    return gpunvme_stats(connection_fd(g), &stats) == 0
               ? stats.gpu_read_bytes + stats.bounce_read_bytes
               : UINT64_MAX;
}

TEST_P(Bounce, UnregisteringWaitsForATransferOfAnother)
{
    if (!GetParam().registers || GetParam().chunk < 1u << 20)
        GTEST_SKIP() << "the mount's counters do not tell when read(2) has begun";
    struct gpunvme_options o = {};
    struct gpunvme *io;
    struct gpunvme_file *f;
    o.threads = 2;
    o.chunk = 1u << 20;
    ASSERT_EQ(gpunvme_open(&o, &io), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_file_open(io, fd_, 0, &f), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_register(io, own_.data(), own_.size()), 0) << gpunvme_error();
    ssize_t n = 0;
    std::thread reader([&] { n = gpunvme_read(f, own_.data(), kFile, 0, nullptr); });
    while (bytes_read(g_) == 0)
        std::this_thread::yield();
    EXPECT_EQ(gpunvme_unregister(io, own_.data()), 0);
    std::vector<char> after = own_; // no writer is left
    reader.join();
    EXPECT_EQ(n, ssize_t{kFile});
    EXPECT_EQ(memcmp(after.data(), file_.data(), kFile), 0);
    gpunvme_close(io);
}

INSTANTIATE_TEST_SUITE_P(Mounts, Bounce,
                         ::testing::Values(Way{"cpu", "executor=cpu", true, 1u << 20},
                                           Way{"cpu_small", "executor=cpu", true, 64u << 10},
                                           Way{"cpu_no_room", "executor=cpu,max_buffers=1", false,
                                               1u << 20},
                                           Way{"off", "gpu=off", true, 1u << 20}),
                         [](const auto &info) { return info.param.name; });

} // namespace
