/* SPDX-License-Identifier: BSD-2-Clause */
// Lists of reads by the direct path on a mount without a GPU, over a drive that fails when it is
// told to.
#include <algorithm>
#include <climits>
#include <random>

#include "tests/client/lib/mount_rig.h"

namespace
{

using namespace mount_rig;

constexpr int32_t kUntouched = INT32_MIN;

using Pieces = std::vector<struct gpunvme_piece>;

class ListBase : public MountRig
{
  protected:
    // A page of the file each, none in a hole, side by side in the buffer.
    static Pieces pages(size_t n)
    {
        Pieces pieces;
        for (size_t i = 0; i < n; i++)
            pieces.push_back({i * 7 % 100 * kPage, i * kPage, kPage, kUntouched});
        return pieces;
    }

    static int32_t bytes_of(const struct gpunvme_piece &p)
    {
        return static_cast<int32_t>(MountRig::bytes_of(p.len, p.file_offset));
    }
    // Each piece has all its bytes, and the right result, from `base` of the buffer on.
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
        return p.result <= 0 ||
               holds(base + p.buffer_offset, static_cast<size_t>(p.result), p.file_offset);
    }
    int readv(Pieces &pieces, size_t base = 0)
    {
        return direct_readv_async(f_, memory_ + base, pieces.data(), pieces.size(), nullptr);
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
};

class List : public ListBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override { start(GetParam(), GPUNVME_PUPPET); }
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
        poison();
        ASSERT_EQ(readv(pieces, base), 0) << gpunvme_error();
        EXPECT_TRUE(are_read(pieces, base));
        for (const struct gpunvme_piece &p : pieces)
            memset(memory_ + base + p.buffer_offset, kGuard, static_cast<size_t>(bytes_of(p)));
        EXPECT_TRUE(is_poisoned());
    }
}

TEST_P(List, WhatIsWrongWithAPieceIsItsResult)
{
    Pieces pieces = pages(64);
    poison();
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
        const char *space = memory_ + i * kPage;
        EXPECT_EQ(std::count(space, space + kPage, kGuard), static_cast<ssize_t>(kPage)) << i;
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
    EXPECT_EQ(direct_readv_async(f_, memory_, nullptr, 0, nullptr), 0);
    EXPECT_EQ(direct_readv_async(f_, own.data(), pieces.data(), 1, nullptr), -EFAULT);
    EXPECT_EQ(direct_readv_async(f_, end, pieces.data(), 1, nullptr), -EFAULT);
    EXPECT_EQ(direct_readv_async(f_, memory_, pieces.data(), 1u << 31, nullptr), -EINVAL);
    for (const struct gpunvme_piece &p : pieces)
        EXPECT_EQ(p.result, kUntouched);
    ASSERT_EQ(direct_readv_async(f_, memory_, pieces.data(), 1, nullptr), 0);
    EXPECT_EQ(pieces[0].result, static_cast<int32_t>(kPage));
    EXPECT_EQ(pieces[1].result, kUntouched);
}

TEST_P(List, PiecesMayBeTheLibrarys)
{
    struct gpunvme_piece *own;
    Pieces pieces = pages(200);
    ASSERT_EQ(shared_list_alloc_pieces(g_, 300, &own), 0) << gpunvme_error();
    std::copy(pieces.begin(), pieces.end(), own + 100);
    ASSERT_EQ(direct_readv_async(f_, memory_, own + 100, 200, nullptr), 0) << gpunvme_error();
    std::copy(own + 100, own + 300, pieces.begin());
    EXPECT_TRUE(are_read(pieces));
    EXPECT_EQ(direct_readv_async(f_, memory_, own + 100, 201, nullptr), -EINVAL) << "past its end";
    shared_list_free_pieces(g_, own);
}

TEST_P(List, ManyThreadsShareFewQueues)
{
    in_threads(6, [this](size_t t) {
        std::string wrong;
        for (int i = 0; i < 20; i++) {
            Pieces pieces = pages(150);
            int err = readv(pieces, t * 150 * kPage);
            ::testing::AssertionResult read = are_read(pieces, t * 150 * kPage);
            if (err || !read)
                wrong = std::to_string(err) + read.message();
        }
        return wrong;
    });
}

// Queues held elsewhere come free in no order: a reader waits for one as long as for a command,
// and where the processors are busy with other things the default is too short.
INSTANTIATE_TEST_SUITE_P(
    Mounts, List,
    ::testing::Values(
        Way{"defaults", "executor=cpu,direct=root,deadline=60000", 0, 0},
        Way{"blocks_of_4_KiB", "executor=cpu,direct=root,deadline=60000,sim=lba:4096", 4, 16},
        Way{"staged", "executor=cpu_staged,direct=root,deadline=60000", 0, 0},
        Way{"least_mdts", "executor=cpu,direct=root,deadline=60000,sim=mdts:8192", 0, 0},
        Way{"staged_least_mdts", "executor=cpu_staged,direct=root,deadline=60000,sim=mdts:8192", 0,
            0},
        Way{"staged_blocks_of_4_KiB", "executor=cpu_staged,direct=root,deadline=60000,sim=lba:4096",
            2, 4},
        Way{"two_queues_of_four", "executor=cpu,direct=root,deadline=60000", 2, 4},
        Way{"proxied_doorbells", "executor=cpu,direct=root,deadline=60000,doorbells=cpu", 1, 2}),
    [](const auto &info) { return info.param.name; });

// Over memory that the drive reaches, and staged.
class ListFails : public ListBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override { start(GetParam(), GPUNVME_PUPPET); }
};

INSTANTIATE_TEST_SUITE_P(
    Mounts, ListFails,
    ::testing::Values(Way{"Reached", "executor=cpu,direct=root,deadline=2000", 2, 16},
                      Way{"Tier1", "executor=cpu_staged,direct=root,deadline=2000", 2, 16}),
    [](const auto &info) { return info.param.name; });

TEST_P(ListFails, AnErrorOfTheDriveIsThePieces)
{
    Pieces pieces = pages(100);
    ASSERT_NO_FATAL_FAILURE(fault("status", kRead, 2, 0x281)); // unrecovered read error
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_EQ(errors(pieces), std::vector<int32_t>(2, -EIO));
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces));
}

TEST_P(ListFails, ALostCommandCostsTheRestOfItsQueuesPieces)
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

TEST_P(ListFails, WithoutAQueueNoPieceIsRead)
{
    Pieces pieces = pages(100);
    for (int i = 0; i < 2; i++) {
        ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
        ASSERT_EQ(readv(pieces), 0) << i;
        EXPECT_FALSE(errors(pieces).empty()) << i;
    }
    pieces = pages(100);
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_EQ(errors(pieces), std::vector<int32_t>(100, -ETIMEDOUT)) << "both are lost";
    ASSERT_EQ(direct_renew(d_), 0) << gpunvme_error();
    ASSERT_EQ(readv(pieces), 0);
    EXPECT_TRUE(are_read(pieces));
}

} // namespace
