/* SPDX-License-Identifier: BSD-2-Clause */
// Memory of small buffers: pieces of files, used again, and gone with the last of them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "client/lib/bar_range.h"
#include "client/lib/buffer_slab.h"
}

namespace
{

constexpr size_t kPage = 4096, kMost = 128 << 10;

struct Held {
    slab_piece piece;
    size_t len;
    uint8_t mark;
};

class Slabs : public ::testing::Test
{
  protected:
    void SetUp() override { slabs_init(&slabs_); }
    void TearDown() override
    {
        for (auto &h : held_)
            slab_free(&slabs_, &h.piece, h.len, false);
        EXPECT_TRUE(LIST_EMPTY(&slabs_.all));
        slabs_destroy(&slabs_);
    }
    // Zeros, whole pages, and seen at its place in the file.
    Held take(size_t len)
    {
        Held h = {{}, len, static_cast<uint8_t>(1 + rng_() % 255)};

        EXPECT_EQ(slab_alloc(&slabs_, len, &h.piece), 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(h.piece.addr) % kPage, 0u);
        EXPECT_EQ(h.piece.offset % kPage, 0u);
        EXPECT_TRUE(is_all(h, 0));
        memset(h.piece.addr, h.mark, len);
        return h;
    }
    static bool is_all(const Held &h, uint8_t byte)
    {
        const auto *bytes = static_cast<const uint8_t *>(h.piece.addr);
        return std::all_of(bytes, bytes + h.len, [=](uint8_t b) { return b == byte; });
    }
    static bool is_in_its_file(const Held &h)
    {
        std::vector<uint8_t> file(h.len);
        return pread(h.piece.fd, file.data(), h.len, static_cast<off_t>(h.piece.offset)) ==
                   static_cast<ssize_t>(h.len) &&
               memcmp(file.data(), h.piece.addr, h.len) == 0;
    }
    std::set<slab *> all_slabs() const
    {
        std::set<slab *> all;
        for (const auto &h : held_)
            all.insert(h.piece.slab);
        return all;
    }

    slabs slabs_ = {};
    std::vector<Held> held_;
    std::mt19937 rng_{11};
};

TEST_F(Slabs, TakeSmallBuffersAlone)
{
    EXPECT_TRUE(slab_takes(1));
    EXPECT_TRUE(slab_takes(kMost));
    EXPECT_FALSE(slab_takes(kMost + 1));
}

TEST_F(Slabs, AreNotMadeWhereFilesMayNotBeSoLong)
{
    struct rlimit old, limit;

    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = kMost;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_FALSE(slab_takes(kPage)) << "SIGXFSZ would end the process";
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_TRUE(slab_takes(kPage));
}

TEST_F(Slabs, PiecesOfManyBuffersAreInOneFile)
{
    for (unsigned i = 0; i < 1000; i++)
        held_.push_back(take(kPage));
    EXPECT_EQ(all_slabs().size(), 1u);
    for (const auto &h : held_) {
        EXPECT_TRUE(is_all(h, h.mark));
        EXPECT_TRUE(is_in_its_file(h));
    }
}

TEST_F(Slabs, APageIsFreeBehindEachPiece)
{
    std::vector<std::pair<char *, size_t>> at;

    for (size_t len : {kPage, 3 * kPage, size_t{1}, kPage + 1, kMost})
        held_.push_back(take(len));
    for (const auto &h : held_)
        at.emplace_back(static_cast<char *>(h.piece.addr), (h.len + kPage - 1) / kPage * kPage);
    std::sort(at.begin(), at.end());
    for (size_t i = 1; i < at.size(); i++)
        EXPECT_GE(at[i].first, at[i - 1].first + at[i - 1].second + kPage);
}

TEST_F(Slabs, PiecesThatWereFreedInAnyOrderAreUsedAgain)
{
    size_t most = 0;

    for (unsigned i = 0; i < 20000; i++) {
        if (held_.size() < 100 && (held_.empty() || rng_() % 2)) {
            held_.push_back(take(1 + rng_() % (8 * kPage)));
            most = std::max(most, all_slabs().size());
            continue;
        }
        std::swap(held_[rng_() % held_.size()], held_.back());
        Held h = held_.back();
        held_.pop_back();
        ASSERT_TRUE(is_all(h, h.mark)) << i;
        slab_free(&slabs_, &h.piece, h.len, false);
    }
    EXPECT_EQ(most, 1u) << "100 pieces of 8 pages at most";
}

TEST_F(Slabs, MorePiecesThanOneHasRoomForTakeAnother)
{
    for (unsigned i = 0; i < 100; i++)
        held_.push_back(take(kMost));
    EXPECT_EQ(all_slabs().size(), 2u) << "62 in each";
    for (const auto &h : held_)
        EXPECT_TRUE(is_all(h, h.mark));
    slab *full = held_[0].piece.slab;
    std::swap(held_[5], held_.back());
    slab_free(&slabs_, &held_.back().piece, kMost, false);
    held_.back() = take(kMost);
    for (unsigned i = 0; i < 24; i++)
        held_.push_back(take(kMost));
    EXPECT_EQ(std::count_if(held_.begin(), held_.end(),
                            [=](const Held &h) { return h.piece.slab == full; }),
              62);
}

TEST_F(Slabs, TheLastPieceEndsTheFile)
{
    struct stat before, after;
    Held a = take(kPage), b = take(kPage);

    ASSERT_EQ(fstat(a.piece.fd, &before), 0);
    slab_free(&slabs_, &a.piece, a.len, false);
    EXPECT_TRUE(is_all(b, b.mark));
    slab_free(&slabs_, &b.piece, b.len, false);
    EXPECT_TRUE(LIST_EMPTY(&slabs_.all));
    EXPECT_TRUE(fstat(a.piece.fd, &after) != 0 || after.st_ino != before.st_ino);
}

TEST_F(Slabs, AReachablePieceIsNotUsedAgain)
{
    Held last = take(kPage), h = take(kPage);
    void *at = h.piece.addr;

    slab_free(&slabs_, &h.piece, h.len, true);
    h = take(kPage);
    EXPECT_NE(h.piece.addr, at);
    EXPECT_EQ(h.piece.slab, last.piece.slab);
    slab_free(&slabs_, &h.piece, h.len, false);
    slab_free(&slabs_, &last.piece, last.len, false);
    EXPECT_EQ(LIST_FIRST(&slabs_.all), nullptr) << "nor does it keep the file";
}

// --- Ranges of a device's memory, for which a file stands in -------------------------------------

constexpr size_t kSize = 8 * kPage;

class BarRange : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        int fd = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd, 0);
        ASSERT_EQ(ftruncate(fd, kSize), 0);
        close(fd);
    }
    void TearDown() override { unlink(path_.c_str()); }
    bar_range take(size_t len)
    {
        bar_range r = {};
        EXPECT_EQ(bar_range_alloc(path_.c_str(), len, &r), 0);
        return r;
    }
    int refused(size_t len)
    {
        bar_range r = {};
        return bar_range_alloc(path_.c_str(), len, &r);
    }
    static void unmap(const bar_range &r, size_t len)
    {
        munmap(r.addr, len);
        close(r.fd);
    }

    std::string path_ = testing::TempDir() + "/bar-range-" + std::to_string(getpid());
};

TEST_F(BarRange, RangesAreWholePagesApart)
{
    bar_range a = take(1), b = take(kPage + 1), c = take(5 * kPage);

    EXPECT_EQ(a.offset, 0u);
    EXPECT_EQ(b.offset, kPage);
    EXPECT_EQ(c.offset, 3 * kPage);
    static_cast<char *>(b.addr)[kPage] = 'b';
    char got = 0;
    EXPECT_EQ(pread(a.fd, &got, 1, 2 * kPage), 1);
    EXPECT_EQ(got, 'b');
    EXPECT_EQ(refused(1), -ENOMEM);
    unmap(b, kPage + 1);
    EXPECT_EQ(refused(2 * kPage + 1), -ENOMEM);
    bar_range d = take(2 * kPage);
    EXPECT_EQ(d.offset, kPage);
    unmap(a, 1);
    unmap(c, 5 * kPage);
    unmap(d, 2 * kPage);
}

TEST_F(BarRange, LongerOnesThanTheMemoryAreRefused)
{
    EXPECT_EQ(refused(kSize + 1), -ENOMEM);
    EXPECT_EQ(refused(SIZE_MAX), -ENOMEM);
    unlink(path_.c_str());
    EXPECT_EQ(refused(1), -ENOENT);
}

TEST_F(BarRange, AnotherHolderKeepsARange)
{
    bar_range a = take(kSize);
    int held = fcntl(a.fd, F_DUPFD_CLOEXEC, 0);
    pid_t pid = fork();

    if (pid == 0)
        _exit(refused(1) == -ENOMEM ? 0 : 1);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "another process gets none of it";
    unmap(a, kSize);
    EXPECT_EQ(refused(1), -ENOMEM) << "a duplicate is open";
    void *mapped = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, held, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    close(held);
    EXPECT_EQ(refused(1), -ENOMEM) << "a mapping is left";
    munmap(mapped, kPage);
    unmap(take(kSize), kSize);
}

TEST(BarRangeSet, TheEnvironmentNamesTheDevice)
{
    bar_range r;

    unsetenv("GPUNVME_CPU_MEMORY");
    EXPECT_FALSE(bar_range_is_set());
    setenv("GPUNVME_CPU_MEMORY", "", 1);
    EXPECT_FALSE(bar_range_is_set());
    setenv("GPUNVME_CPU_MEMORY", "0000:ff:1f.7", 1);
    EXPECT_TRUE(bar_range_is_set());
    EXPECT_EQ(bar_range_alloc_set(1, &r), -ENOENT);
    unsetenv("GPUNVME_CPU_MEMORY");
}

} // namespace
