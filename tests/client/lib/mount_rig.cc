/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/client/lib/mount_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tests/e2e/content.h"
#include "tests/fusefs/daemon/puppet.h"
#include "tests/threads.h"

namespace mount_rig
{

// Reads from one comparison of the whole buffer to the next. ThreadSanitizer checks each byte that
// is compared, so there they are few: a byte that a read has changed remains until the next one.
#ifdef __SANITIZE_THREAD__
constexpr int kReadsPerComparison = 10;
#else
constexpr int kReadsPerComparison = 1;
#endif

void Connection::open_direct(uint32_t queues, uint32_t depth)
{
    struct direct_options o = {queues, depth, flags_};
    ASSERT_EQ(direct_open(g_, &o, &d_), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(d_, fd_, true, &f_), 0) << gpunvme_error();
}

void Connection::TearDown()
{
    direct_close(d_);
    connection_close(g_);
    if (fd_ >= 0)
        close(fd_);
    if (mount_ && mount_->pid() > 0) {
        EXPECT_TRUE(mount_->unmount()) << mount_->log();
    }
}

void Connection::end_the_mount()
{
    close(fd_);
    fd_ = -1;
    kill(mount_->pid(), SIGTERM);
}

void Connection::expect_ended()
{
    connection_close(g_); // the handle of the direct path with it
    g_ = nullptr;
    d_ = nullptr;
    EXPECT_TRUE(mount_->ended()) << mount_->log();
}

void MountRig::start(const std::string &options)
{
    mount(options, nullptr);
    if (!IsSkipped() && !HasFatalFailure())
        connect();
}

void MountRig::start(const Way &way, const char *puppet)
{
    mount(way.options, puppet);
    if (!IsSkipped() && !HasFatalFailure())
        connect();
    if (!IsSkipped() && !HasFatalFailure())
        open_direct(way.queues, way.depth);
}

void MountRig::mount(const std::string &options, const char *puppet)
{
    std::string why = why_no_mount();
    if (!why.empty())
        GTEST_SKIP() << why;
    int ends[2] = {-1, -1};
    mount_ = std::make_unique<Mounted>(128u << 20, format_);
    if (puppet && !getenv("GPUNVME_TEST_DEVICE")) {
        mount_->use_program(puppet);
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        control_ = ends[0];
    }
    ASSERT_TRUE(mount_->mount(options, ends[1])) << mount_->log();
    if (ends[1] >= 0)
        close(ends[1]);
}

void MountRig::connect()
{
    ASSERT_EQ(connection_open(mount_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
    ASSERT_EQ(alloc(&buffer_), 0) << gpunvme_error();
    memory_ = static_cast<char *>(buffer_addr(buffer_));
    make_file();
}

void MountRig::TearDown()
{
    Connection::TearDown();
    if (control_ >= 0)
        close(control_);
}

// After its first quarter pieces of all lengths, out of order, with holes and unwritten blocks.
void MountRig::make_file()
{
    std::mt19937 rng(5);
    auto write_at = [&](size_t at, size_t len) {
        content_fill(5, at, reinterpret_cast<uint8_t *>(&file_[at]), len);
        ASSERT_EQ(pwrite(fd_, &file_[at], len, static_cast<off_t>(at)), static_cast<ssize_t>(len));
    };
    fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(ftruncate(fd_, kFile), 0);
    ASSERT_NO_FATAL_FAILURE(write_at(0, kWhole));
    for (int i = 0; i < 400; i++) {
        size_t at = kWhole + rng() % (kFile - kWhole);
        ASSERT_NO_FATAL_FAILURE(write_at(at, std::min<size_t>(kFile - at, 1 + rng() % 20000)));
    }
    for (int i = 0; i < 30; i++) {
        size_t at = kWhole + rng() % ((kFile - kWhole) / kPage) * kPage;
        ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                            3 * kPage),
                  0);
        ASSERT_EQ(fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), kPage), 0);
        std::fill_n(&file_[at], std::min(kFile - at, 3 * kPage), 0);
    }
    ASSERT_EQ(fsync(fd_), 0);
}

void MountRig::fault(const std::string &kind, int opcode, unsigned times, unsigned status,
                     unsigned skip)
{
    ASSERT_NO_FATAL_FAILURE(tell_fault(control_, kind, opcode, skip, times, status));
}

void MountRig::write_another_file()
{
    Fd other = open(mount_->path("other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_EQ(write(other, "x", 1), 1);
    EXPECT_EQ(fsync(other), 0);
}

void MountRig::expect_gone(int64_t result)
{
    EXPECT_TRUE(result == -ETIMEDOUT || result == -ESTALE) << result;
}

int64_t MountRig::until_it_fails(const std::function<int64_t()> &read)
{
    auto end = std::chrono::steady_clock::now() + kLong;
    int64_t result = 0;
    while (result == 0 && std::chrono::steady_clock::now() < end)
        result = read();
    return result;
}

void MountRig::in_threads(size_t n, const std::function<std::string(size_t)> &work)
{
    std::vector<std::string> wrong(n);
    ::in_threads(n, [&](size_t t) { wrong[t] = work(t); });
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
}

::testing::AssertionResult MountRig::holds(size_t at, size_t n, uint64_t offset) const
{
    if (n == 0 || memcmp(memory_ + at, &file_[offset], n) == 0)
        return ::testing::AssertionSuccess();
    size_t i = 0;
    while (memory_[at + i] == file_[offset + i])
        i++;
    return ::testing::AssertionFailure()
           << "byte " << i << " of " << n << " at " << offset << ", read to " << at;
}

size_t MountRig::bytes_of(size_t n, uint64_t offset)
{
    return offset < kFile ? std::min<size_t>(n, kFile - offset) : 0;
}

void MountRig::poison()
{
    memset(memory_, kGuard, kRoom);
}

// Each byte is what the one before it is.
::testing::AssertionResult MountRig::is_poisoned() const
{
    if (memory_[0] == kGuard && memcmp(memory_, memory_ + 1, kRoom - 1) == 0)
        return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "byte "
           << std::find_if(memory_, memory_ + kRoom, [](char c) { return c != kGuard; }) - memory_
           << " has changed";
}

void MountRig::expect_reads(int rounds, const std::vector<size_t> &most, const Read &read)
{
    std::mt19937 rng(6);
    poison();
    for (int i = 0; i < rounds; i++) {
        size_t below = most[static_cast<size_t>(i) % most.size()], n = rng() % below;
        size_t at = kPage + rng() % (kRoom - below - kPage);
        uint64_t offset = rng() % (kFile + kPage);
        if (i % 4 == 0) {
            offset -= offset % kPage;
            at -= at % kPage;
        }
        size_t want = bytes_of(n, offset);
        ASSERT_EQ(read(at, n, offset), static_cast<int64_t>(want))
            << n << " at " << offset << ": " << gpunvme_error();
        ASSERT_TRUE(holds(at, want, offset));
        memset(memory_ + at, kGuard, want);
        if (i % kReadsPerComparison == 0 || i + 1 == rounds) {
            ASSERT_TRUE(is_poisoned()) << n << " at " << offset << " to " << at;
        }
    }
}

} // namespace mount_rig
