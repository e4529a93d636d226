// Lists of reads by the direct path on a mount without a GPU, over a drive that fails when it is
// told to.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/gpunvme.h"
#include "tests/e2e/mounted.h"

namespace
{

constexpr size_t kPage = 4096, kFile = (2u << 20) + 1234, kRoom = 8u << 20;
constexpr int kRead = 2, kAny = -1;
constexpr int32_t kUntouched = INT32_MIN;
constexpr char kGuard = 0x5a;
constexpr auto kLong = std::chrono::seconds(60); // a bound, not an expectation

using Pieces = std::vector<struct gpunvme_piece>;

struct Way {
    const char *name;
    const char *options;
    uint32_t queues, depth;
};

class ListBase : public ::testing::Test
{
  protected:
    void start(const std::string &options, uint32_t queues, uint32_t depth)
    {
        std::string why = why_no_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        int ends[2];
        mount_ = std::make_unique<Mounted>(128u << 20);
        mount_->use_program(GPUNVME_PUPPET);
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        control_ = ends[0];
        ASSERT_TRUE(mount_->mount(options, ends[1])) << mount_->log();
        close(ends[1]);
        ASSERT_EQ(gpunvme_connect(mount_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_alloc(g_, kRoom, &buffer_), 0) << gpunvme_error();
        memory_ = static_cast<char *>(gpunvme_buffer_addr(buffer_));
        make_file();
        struct gpunvme_direct_options o = {queues, depth};
        ASSERT_EQ(gpunvme_direct_open(g_, &o, &d_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(d_, fd_, &f_), 0) << gpunvme_error();
    }

    void TearDown() override
    {
        gpunvme_direct_close(d_);
        if (g_)
            gpunvme_disconnect(g_);
        if (fd_ >= 0)
            close(fd_);
        if (mount_ && mount_->pid() > 0) {
            EXPECT_TRUE(mount_->unmount()) << mount_->log();
        }
        if (control_ >= 0)
            close(control_);
    }

    // The first quarter in one piece, then pieces out of order, with holes and unwritten blocks.
    void make_file()
    {
        std::mt19937 rng(15);
        fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd_, 0);
        ASSERT_EQ(ftruncate(fd_, kFile), 0);
        write_at(0, kFile / 4, rng);
        for (int i = 0; i < 100; i++) {
            size_t at = kFile / 4 + rng() % (kFile - kFile / 4);
            write_at(at, std::min<size_t>(kFile - at, 1 + rng() % 20000), rng);
        }
        ASSERT_EQ(fallocate(fd_, FALLOC_FL_KEEP_SIZE, 1u << 20, 20 * kPage), 0);
        ASSERT_EQ(fsync(fd_), 0);
    }
    void write_at(size_t at, size_t len, std::mt19937 &rng)
    {
        for (size_t i = 0; i < len; i++)
            file_[at + i] = static_cast<char>(rng());
        ASSERT_EQ(pwrite(fd_, &file_[at], len, static_cast<off_t>(at)), static_cast<ssize_t>(len));
    }

    static int32_t bytes_of(const struct gpunvme_piece &p)
    {
        if (p.file_offset >= kFile)
            return 0;
        return static_cast<int32_t>(std::min<uint64_t>(p.len, kFile - p.file_offset));
    }
    // Pieces of the file's first quarter, a page each, side by side in the buffer.
    static Pieces pages(size_t n)
    {
        Pieces pieces;
        for (size_t i = 0; i < n; i++)
            pieces.push_back({i * 7 % 100 * kPage, i * kPage, kPage, kUntouched});
        return pieces;
    }

    // Each piece has all bytes that there are, and what it says, from `base` of the buffer on.
    ::testing::AssertionResult are_read(const Pieces &pieces, size_t base = 0)
    {
        for (size_t i = 0; i < pieces.size(); i++) {
            const struct gpunvme_piece &p = pieces[i];
            if (p.result != bytes_of(p))
                return ::testing::AssertionFailure() << "piece " << i << ": " << p.result;
            if (!has_bytes(p, base))
                return ::testing::AssertionFailure() << "piece " << i << ": other bytes";
        }
        return ::testing::AssertionSuccess();
    }
    bool has_bytes(const struct gpunvme_piece &p, size_t base = 0)
    {
        return p.result <= 0 || memcmp(memory_ + base + p.buffer_offset, &file_[p.file_offset],
                                       static_cast<size_t>(p.result)) == 0;
    }
    int readv(Pieces &pieces, size_t base = 0)
    {
        return gpunvme_readv_async(f_, memory_ + base, pieces.data(), pieces.size(), nullptr);
    }
    // The results that are not as they would be without errors.
    std::vector<int32_t> errors(const Pieces &pieces)
    {
        std::vector<int32_t> found;
        for (const struct gpunvme_piece &p : pieces) {
            EXPECT_TRUE(p.result == bytes_of(p) ? has_bytes(p) : p.result < 0) << p.result;
            if (p.result != bytes_of(p))
                found.push_back(p.result);
        }
        return found;
    }

    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0)
    {
        char answer[16] = "";
        std::string line = "fault " + kind + " " + std::to_string(opcode) + " 0 0 " +
                           std::to_string(times) + " " + std::to_string(status) + " 0\n";
        ASSERT_EQ(send(control_, line.data(), line.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(line.size()));
        ASSERT_GT(recv(control_, answer, sizeof(answer) - 1, 0), 0);
        ASSERT_STREQ(answer, "ok\n") << line;
    }

    std::unique_ptr<Mounted> mount_;
    struct gpunvme *g_ = nullptr;
    struct gpunvme_buffer *buffer_ = nullptr;
    struct gpunvme_direct *d_ = nullptr;
    struct gpunvme_file *f_ = nullptr;
    char *memory_ = nullptr;
    int fd_ = -1, control_ = -1;
    std::vector<char> file_ = std::vector<char>(kFile);
};

class List : public ListBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override
    {
        start(GetParam().options, GetParam().queues, GetParam().depth);
    }
};

// Many more than a queue holds, of any alignment, in holes, at the file's end and beyond it.
TEST_P(List, ReadsAnythingAnywhereAndTouchesNothingElse)
{
    std::mt19937 rng(16);
    for (size_t base : {size_t{0}, size_t{12345}}) {
        Pieces pieces;
        size_t at = 64;
        for (int i = 0; i < 700; i++) {
            uint64_t offset = rng() % (kFile + kPage);
            uint32_t len = static_cast<uint32_t>(i % 50 == 0 ? rng() % 100000 : rng() % 9000);
            if (i % 3 == 0) {
                offset -= offset % kPage;
                at += kPage - (base + at) % kPage;
                len = kPage;
            }
            pieces.push_back({offset, at, len, kUntouched});
            at += len + 64;
        }
        ASSERT_LT(base + at, kRoom);
        std::shuffle(pieces.begin(), pieces.end(), rng);
        memset(memory_, kGuard, kRoom);
        ASSERT_EQ(readv(pieces, base), 0) << gpunvme_error();
        EXPECT_TRUE(are_read(pieces, base));
        for (const struct gpunvme_piece &p : pieces)
            memset(memory_ + base + p.buffer_offset, kGuard, static_cast<size_t>(bytes_of(p)));
        EXPECT_EQ(std::count(memory_, memory_ + kRoom, kGuard), static_cast<ssize_t>(kRoom));
    }
}

TEST_P(List, WhatIsWrongWithAPieceIsItsResult)
{
    Pieces pieces = pages(64);
    memset(memory_, kGuard, kRoom);
    pieces[3].buffer_offset = kRoom;
    pieces[9].buffer_offset = kRoom - kPage + 1;
    pieces[20].buffer_offset = UINT64_MAX - 10;
    pieces[21].len = 0x80000000u;
    pieces[30].len = INT32_MAX;
    pieces[63].len = UINT32_MAX;
    ASSERT_EQ(readv(pieces), 0) << gpunvme_error();
    for (size_t i : {3, 9, 20, 30})
        EXPECT_EQ(pieces[i].result, -EFAULT) << i;
    for (size_t i : {21, 63})
        EXPECT_EQ(pieces[i].result, -EINVAL) << i;
    for (size_t i : {63, 30, 21, 20, 9, 3}) {
        const char *place = memory_ + i * kPage;
        EXPECT_EQ(std::count(place, place + kPage, kGuard), static_cast<ssize_t>(kPage)) << i;
        pieces.erase(pieces.begin() + static_cast<ssize_t>(i));
    }
    EXPECT_TRUE(are_read(pieces));
    EXPECT_EQ(std::count(memory_ + 64 * kPage, memory_ + kRoom, kGuard),
              static_cast<ssize_t>(kRoom - 64 * kPage));
}

TEST_P(List, WhatIsWrongWithTheCallReadsNothing)
{
    Pieces pieces = pages(3), none;
    std::vector<char> own(kPage);
    void *end = memory_ + kRoom;
    EXPECT_EQ(gpunvme_readv_async(f_, memory_, nullptr, 0, nullptr), 0);
    EXPECT_EQ(gpunvme_readv_async(f_, own.data(), pieces.data(), 1, nullptr), -EFAULT);
    EXPECT_EQ(gpunvme_readv_async(f_, end, pieces.data(), 1, nullptr), -EFAULT);
    EXPECT_EQ(gpunvme_readv_async(f_, memory_, pieces.data(), 1u << 31, nullptr), -EINVAL);
    for (const struct gpunvme_piece &p : pieces)
        EXPECT_EQ(p.result, kUntouched);
    ASSERT_EQ(gpunvme_readv_async(f_, memory_, pieces.data(), 1, nullptr), 0);
    EXPECT_EQ(pieces[0].result, static_cast<int32_t>(kPage));
    EXPECT_EQ(pieces[1].result, kUntouched);
}

TEST_P(List, PiecesMayBeTheLibrarys)
{
    struct gpunvme_piece *own;
    Pieces pieces = pages(200);
    ASSERT_EQ(gpunvme_pieces_alloc(g_, 300, &own), 0) << gpunvme_error();
    std::copy(pieces.begin(), pieces.end(), own + 100);
    ASSERT_EQ(gpunvme_readv_async(f_, memory_, own + 100, 200, nullptr), 0) << gpunvme_error();
    std::copy(own + 100, own + 300, pieces.begin());
    EXPECT_TRUE(are_read(pieces));
    EXPECT_EQ(gpunvme_readv_async(f_, memory_, own + 100, 201, nullptr), -EINVAL) << "past its end";
    gpunvme_pieces_free(g_, own);
}

TEST_P(List, ManyThreadsShareFewQueues)
{
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(6);
    for (size_t t = 0; t < wrong.size(); t++) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 20; i++) {
                Pieces pieces = pages(150);
                int err = readv(pieces, t * 150 * kPage);
                ::testing::AssertionResult read = are_read(pieces, t * 150 * kPage);
                if (err || !read)
                    wrong[t] = std::to_string(err) + read.message();
            }
        });
    }
    for (std::thread &t : threads)
        t.join();
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
}

INSTANTIATE_TEST_SUITE_P(
    Mounts, List,
    ::testing::Values(Way{"defaults", "executor=cpu,direct=root", 0, 0},
                      Way{"blocks_of_4_KiB", "executor=cpu,direct=root,sim_lba=4096", 4, 16},
                      Way{"two_queues_of_four", "executor=cpu,direct=root", 2, 4},
                      Way{"shadow_doorbells", "executor=cpu,direct=root,doorbells=cpu", 1, 2}),
    [](const auto &info) { return info.param.name; });

class ListOne : public ListBase
{
  protected:
    void SetUp() override
    {
        start("executor=cpu,direct=root,deadline=1000", 3, 16);
    }
    // The first result that is an error, or what the call returned; 0 when the time is up.
    int read_until_it_fails()
    {
        auto end = std::chrono::steady_clock::now() + kLong;
        while (std::chrono::steady_clock::now() < end) {
            Pieces pieces = pages(100);
            int err = readv(pieces);
            if (err)
                return err;
            std::vector<int32_t> wrong = errors(pieces);
            if (!wrong.empty())
                return wrong.front();
        }
        return 0;
    }
};

TEST_F(ListOne, AnErrorOfTheDriveIsThePieces)
{
    Pieces pieces = pages(100);
    ASSERT_NO_FATAL_FAILURE(fault("status", kRead, 2, 0x281)); // unrecovered read error
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_EQ(errors(pieces), std::vector<int32_t>(2, -EIO));
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces));
}

TEST_F(ListOne, ALostCommandCostsTheRestOfItsQueuesPieces)
{
    Pieces pieces = pages(100);
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
    ASSERT_EQ(readv(pieces), 0);
    std::vector<int32_t> wrong = errors(pieces);
    EXPECT_EQ(wrong, std::vector<int32_t>(wrong.size(), -ETIMEDOUT));
    EXPECT_GE(wrong.size(), 1u);
    pieces = pages(100);
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces)) << "by another queue";
}

TEST_F(ListOne, WithoutAQueueNoPieceIsRead)
{
    Pieces pieces = pages(100);
    for (int i = 0; i < 3; i++) {
        ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
        ASSERT_EQ(readv(pieces), 0) << i;
        EXPECT_FALSE(errors(pieces).empty()) << i;
    }
    pieces = pages(100);
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_EQ(errors(pieces), std::vector<int32_t>(100, -ETIMEDOUT)) << "all three are lost";
    ASSERT_EQ(gpunvme_direct_renew(d_), 0) << gpunvme_error();
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces));
}

TEST_F(ListOne, AResetEndsTheLeasesAndTheyAreRenewed)
{
    ASSERT_NO_FATAL_FAILURE(fault("fatal", kAny, 1));
    int err = read_until_it_fails();
    EXPECT_TRUE(err == -ETIMEDOUT || err == -ESTALE) << err;
    int other = open(mount_->path("other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_EQ(write(other, "x", 1), 1); // the daemon finds out, and resets
    EXPECT_EQ(fsync(other), 0);
    close(other);
    Pieces pieces = pages(100);
    ASSERT_EQ(readv(pieces), 0) << "the leases are not known to have ended";
    std::vector<int32_t> wrong = errors(pieces);
    EXPECT_EQ(wrong.size(), 100u);
    EXPECT_EQ(std::count(wrong.begin(), wrong.end(), -ESTALE) +
                  std::count(wrong.begin(), wrong.end(), -ETIMEDOUT),
              100);
    ASSERT_EQ(gpunvme_direct_renew(d_), 0) << gpunvme_error();
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces));
}

TEST_F(ListOne, TheMountsEndIsTheLeases)
{
    close(fd_);
    fd_ = -1;
    kill(mount_->pid(), SIGTERM);
    int err = read_until_it_fails();
    EXPECT_TRUE(err == -ETIMEDOUT || err == -ESTALE) << err;
    EXPECT_LT(gpunvme_direct_renew(d_), 0);
    Pieces pieces = pages(3);
    EXPECT_EQ(readv(pieces), -ESTALE);
    EXPECT_EQ(pieces[0].result, kUntouched);
    gpunvme_disconnect(g_); // the handle with it
    g_ = nullptr;
    d_ = nullptr;
    EXPECT_TRUE(mount_->ended()) << mount_->log();
}

} // namespace
