// SPDX-License-Identifier: BSD-2-Clause
// Checksums of data on the direct path: each way to read, by 32 lanes, compares whole blocks.
#include <errno.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"
#include "tests/threads.h"

namespace
{

using direct_stack::address, direct_stack::kLba, direct_stack::kPage, direct_stack::kPages,
    direct_stack::Stack;

int64_t read_shared(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    return s.read(at, len, offset);
}

int64_t read_lane(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    struct shared_read reads[SHARED_LANES] = {};
    reads[5] = {address(s, at), len, offset, 0};
    shared_read_lanes(&s.file, reads);
    return reads[5].result;
}

int64_t read_in_steps(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    return shared_end(shared_begin(&s.file, address(s, at), len, offset));
}

// Beside other pieces, which must not suffer.
int64_t read_piece(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    size_t beside = (kPages - 4) * kPage;
    struct gq_read_desc list[3] = {{offset, at - kPage, static_cast<uint32_t>(len), -1},
                                   {2 * kPage, beside - kPage, kPage, -1},
                                   {2 * kPage, beside, 100, -1}};
    int err = direct_list_read(&s.file, address(s, kPage), list, 3, 0, 1, nullptr);
    EXPECT_EQ(list[1].result, static_cast<int32_t>(kPage));
    EXPECT_EQ(list[2].result, 100);
    EXPECT_TRUE(s.holds(beside, kPage, 2 * kPage));
    EXPECT_EQ(err, list[0].result < 0 ? list[0].result : 0);
    return list[0].result;
}

// Compared by other groups than the one that reads.
int64_t read_compared_piece(Stack &s, size_t at, uint64_t len, uint64_t offset)
{
    struct gd_check check = {};
    size_t beside = (kPages - 4) * kPage;
    struct gq_read_desc list[2] = {{offset, at - kPage, static_cast<uint32_t>(len), -1},
                                   {2 * kPage, beside - kPage, kPage, -1}};
    const struct compare_rig r = {&s.file, address(s, kPage), {}, list, 2, &check};
    compare_rig_read(&r);
    compare_rig_compare(&r, 7);
    compare_rig_conclude(&r, 2);
    EXPECT_EQ(check.runs, 1u);
    EXPECT_EQ(list[1].result, static_cast<int32_t>(kPage));
    EXPECT_TRUE(s.holds(beside, kPage, 2 * kPage));
    return list[0].result;
}

struct Way {
    const char *name;
    int64_t (*read)(Stack &s, size_t at, uint64_t len, uint64_t offset);
    bool staged;
};

class DirectSums : public ::testing::TestWithParam<Way>
{
  protected:
    void SetUp() override
    {
        if (GetParam().staged)
            s_.stage_all();
        s_.add_sums();
        // The file ends within a block, the drive's block goes on.
        s_.file.map.end -= 1000;
    }
    int64_t read(uint64_t len, uint64_t offset, size_t at = 8 * kPage)
    {
        memset(s_.pages[0].bytes, 0x5a, kPages * kPage);
        return GetParam().read(s_, at, len, offset);
    }
    void expect_right(uint64_t len, uint64_t offset, size_t at = 8 * kPage)
    {
        ASSERT_EQ(read(len, offset, at), static_cast<int64_t>(len)) << len << " at " << offset;
        EXPECT_TRUE(s_.holds(at, len, offset)) << len << " at " << offset;
        EXPECT_EQ(s_.pages[0].bytes[at - 1], 0x5a);
        EXPECT_EQ(s_.pages[0].bytes[at + len], 0x5a);
        EXPECT_EQ(s_.bad_block, 0u);
    }

    Stack s_{4, 16, 20};
};

TEST_P(DirectSums, SoundDataIsReadFromAnywhereToAnywhere)
{
    std::mt19937 rng(3);
    for (int i = 0; i < 150; i++) {
        uint64_t len = 1 + rng() % (i % 3 ? 9000 : 60000);
        uint64_t offset = rng() % (s_.file.map.end - len);
        if (i % 4 == 0)
            offset -= offset % kPage;
        ASSERT_NO_FATAL_FAILURE(expect_right(len, offset, 8 * kPage + (i % 2 ? rng() % 64 : 0)));
    }
    uint64_t tail = s_.file.map.end % kPage;
    ASSERT_NO_FATAL_FAILURE(expect_right(tail, s_.file.map.end - tail));
    ASSERT_NO_FATAL_FAILURE(expect_right(1, s_.file.map.end - 1));
    EXPECT_EQ(s_.odd_commands, 0u);
}

TEST_P(DirectSums, ABlockThatDiffersTwiceIsAnError)
{
    const uint64_t bad = kPage; // the second block of the first extent
    s_.on_media(bad + 77) ^= 16;
    for (uint64_t offset : {bad, bad + 50, bad + 3000, bad - 1, uint64_t{0}})
        for (uint64_t len : {uint64_t{1}, kLba + uint64_t{3}, uint64_t{kPage}, uint64_t{5} * kPage})
            for (size_t at : {8 * kPage, 8 * kPage + 1}) {
                bool meets = offset < bad + kPage && offset + len > bad;
                s_.bad_block = 0;
                unsigned before = s_.commands;
                EXPECT_EQ(read(len, offset, at), meets ? -EIO : static_cast<int64_t>(len))
                    << len << " at " << offset;
                EXPECT_EQ(s_.bad_block, meets ? bad + 1 : 0);
                EXPECT_GE(s_.commands - before, meets ? 2u : 1u);
            }
    s_.bad_block = 0;
    ASSERT_NO_FATAL_FAILURE(expect_right(kPage, 2 * kPage));
    s_.on_media(bad + 77) ^= 16;
    ASSERT_NO_FATAL_FAILURE(expect_right(6 * kPage, 0));
}

// Past the end of the file the drive's block counts, too.
TEST_P(DirectSums, TheLastBlockIsComparedWhole)
{
    uint64_t end = s_.file.map.end;
    ASSERT_NO_FATAL_FAILURE(expect_right(10, end - 10));
    s_.on_media(end + 20) ^= 1;
    EXPECT_EQ(read(10, end - 10), -EIO);
}

TEST_P(DirectSums, ABlockThatDiffersOnceIsReadAgain)
{
    uint64_t offset = 0;
    bool flipped = false, restored = false;
    // By the thread of the drive: the first command that reads the block brings a wrong bit.
    s_.on_command = [&] {
        if (flipped && !restored) {
            s_.on_media(offset + 9) ^= 2;
            restored = true;
        } else if (!flipped) {
            s_.on_media(offset + 9) ^= 2;
            flipped = true;
        }
        return true;
    };
    for (uint64_t len : {uint64_t{kPage}, uint64_t{100}, uint64_t{2} * kPage}) {
        flipped = restored = false;
        ASSERT_NO_FATAL_FAILURE(expect_right(len, offset));
        EXPECT_TRUE(restored) << "the block was read twice";
    }
}

// As the daemon does it: the word becomes 0 before the first byte changes.
TEST_P(DirectSums, ABlockThatIsOverwrittenIsNotCompared)
{
    s_.on_command = [this] {
        __atomic_store_n(&s_.sums[0], 0, __ATOMIC_RELAXED);
        s_.on_media(5) = 0x77;
        return true;
    };
    EXPECT_EQ(read(kPage, 0), static_cast<int64_t>(kPage));
    EXPECT_EQ(s_.pages[8].bytes[5], 0x77);
    EXPECT_EQ(read(100, 0), 100);
    EXPECT_EQ(s_.pages[8].bytes[5], 0x77);
}

TEST_P(DirectSums, AnErrorOfTheDriveIsNoBlockThatDiffers)
{
    s_.status_of_next = NVME_ERR_UNRECOVERED_READ;
    EXPECT_EQ(read(kPage, 0), -EIO);
    EXPECT_EQ(s_.bad_block, 0u);
}

const Way kWays[] = {
    {"shared", read_shared, false},     {"shared_staged", read_shared, true},
    {"lane", read_lane, false},         {"lane_staged", read_lane, true},
    {"in_steps", read_in_steps, false}, {"piece", read_piece, false},
    {"piece_staged", read_piece, true}, {"compared_piece", read_compared_piece, false},
};

// A lane sends one command after another. Each command reads wrong bits at
// first, and right bits when it is sent again.
TEST(DirectSumsLane, EachCommandOfALongReadMayDifferOnce)
{
    Stack s{4, 16, 20};
    s.add_sums();
    const uint64_t len = 14 * kPage;
    unsigned commands = 0;
    s.on_command = [&] {
        for (uint64_t at = 0; at < len; at += kPage) {
            if (!s.is_hole(at))
                s.on_media(at + 9) ^= 2;
        }
        commands++;
        return true;
    };
    EXPECT_EQ(read_lane(s, 8 * kPage, len, 0), static_cast<int64_t>(len));
    EXPECT_TRUE(s.holds(8 * kPage, len, 0));
    EXPECT_GE(commands, 4u);
    EXPECT_EQ(commands % 2, 0u);
}

INSTANTIATE_TEST_SUITE_P(Ways, DirectSums, ::testing::ValuesIn(kWays),
                         [](const auto &info) { return info.param.name; });

// Shares of several groups, each of which compares its own pieces.
TEST(DirectSumsList, EachPieceHasItsResult)
{
    for (bool staged : {false, true}) {
        Stack s(4, 16, 20);
        if (staged)
            s.stage_all();
        s.add_sums();
        std::vector<struct gq_read_desc> list;
        for (uint64_t i = 0; i < 150; i++)
            list.push_back({i % 2 * kPage + i % 7, i * kPage, i % 3 ? 100u : 4096u, -1});
        s.on_media(kPage + 1) ^= 1;
        in_threads(4, [&](uint32_t rank) {
            direct_list_read(&s.file, address(s, kPage), list.data(), 150, rank, 4, nullptr);
        });
        for (uint64_t i = 0; i < list.size(); i++) {
            bool meets = list[i].file_offset + list[i].len > kPage;
            EXPECT_EQ(list[i].result, meets ? -EIO : static_cast<int32_t>(list[i].len)) << i;
            EXPECT_TRUE(meets || s.holds((1 + i) * kPage, list[i].len, list[i].file_offset)) << i;
        }
        EXPECT_EQ(s.bad_block, kPage + 1);
    }
}

// --- Checks: one kernel reads, another compares, a third reads again -----------------------------

using direct_stack::address, direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

constexpr size_t kAt = 8 * kPage;

class DirectCheck : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        s_.add_sums();
        memset(s_.pages[0].bytes, 0x5a, kPages * kPage);
    }
    compare_rig of_read(uint64_t len, uint64_t offset)
    {
        return {&s_.file, address(s_, kAt), {offset, 0, len}, nullptr, 1, &check_};
    }
    compare_rig of_list()
    {
        return {&s_.file, address(s_, kAt), {}, list_.data(), static_cast<uint32_t>(list_.size()),
                &check_};
    }
    // Data of block `i` that lies in memory, as a kernel has read it.
    uint8_t &in_memory(uint64_t i) { return s_.pages[kAt / kPage + i].bytes[9]; }
    void expect_ended(uint32_t runs)
    {
        EXPECT_EQ(check_.runs, runs);
        EXPECT_EQ(check_.refused | check_.left, 0u) << "the words are not ready for the next one";
    }

    Stack s_{4, 16, 60};
    gd_check check_ = {};
    std::vector<gq_read_desc> list_;
};

TEST_F(DirectCheck, OnlyBlocksThatDifferAreReadAgain)
{
    const compare_rig r = of_read(100 * kPage, 0);
    for (uint32_t groups : {1u, 4u, 40u}) {
        compare_rig_read(&r);
        in_memory(1) ^= 1;
        in_memory(9) ^= 1;
        in_memory(90) ^= 1;
        compare_rig_compare(&r, groups);
        EXPECT_EQ(check_.refused, 3u);
        unsigned before = s_.commands;
        EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(100 * kPage));
        EXPECT_EQ(s_.commands - before, 3u);
        EXPECT_TRUE(s_.holds(kAt, 100 * kPage, 0));
    }
    EXPECT_EQ(s_.bad_block, 0u);
    expect_ended(3);
}

TEST_F(DirectCheck, MoreBlocksThanThereIsRoomForAreReadAgainToo)
{
    const compare_rig r = of_read(150 * kPage, 0);
    compare_rig_read(&r);
    for (uint64_t i = 0; i < 150; i++)
        in_memory(i) ^= 1;
    compare_rig_compare(&r, 5);
    EXPECT_GT(check_.refused, GD_REFUSED);
    EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(150 * kPage));
    EXPECT_TRUE(s_.holds(kAt, 150 * kPage, 0)) << "but for holes, which the read has zeroed";
    expect_ended(1);
}

TEST_F(DirectCheck, ABlockThatIsWrongOnTheDriveIsReadTwiceMoreAndNamed)
{
    const compare_rig r = of_read(20 * kPage, 0);
    s_.on_media(10 * kPage) ^= 1;
    compare_rig_read(&r);
    compare_rig_compare(&r, 2);
    unsigned before = s_.commands;
    EXPECT_EQ(compare_rig_conclude(&r, 1), -EIO);
    EXPECT_EQ(s_.commands - before, 2u);
    EXPECT_EQ(s_.bad_block, 10 * kPage + 1);
    expect_ended(1);
}

// Copy warps compare nothing: the copied bytes are compared where they are.
TEST_F(DirectCheck, StagedBlocksAreComparedInTheirPlace)
{
    s_.stage_all();
    const compare_rig r = of_read(100 * kPage, 0);
    const direct_staged_rig staged = {&s_.file, r.dst,   r.read.len, 0,
                                      nullptr,  nullptr, 1,          GD_STAGED_ALL};
    int err;
    for (uint32_t run : {1u, 2u}) {
        EXPECT_TRUE(direct_staged_rig_read(&staged, 0, &err));
        check_.bytes = err ? err : static_cast<int64_t>(r.read.len);
        if (run == 2)
            s_.on_media(10 * kPage) ^= 1;
        in_memory(10) ^= 1;
        compare_rig_compare(&r, 4);
        EXPECT_EQ(check_.refused, 1u);
        unsigned before = s_.commands;
        EXPECT_EQ(compare_rig_conclude(&r, 1), run == 1 ? check_.bytes : -EIO);
        EXPECT_EQ(s_.commands - before, run);
        expect_ended(run);
    }
    EXPECT_EQ(s_.bad_block, 10 * kPage + 1);
}

TEST_F(DirectCheck, ARevokedLeaseIsStale)
{
    const compare_rig r = of_read(20 * kPage, 0);
    compare_rig_read(&r);
    in_memory(3) ^= 1;
    compare_rig_compare(&r, 2);
    s_.lease = GD_LEASE_REVOKED;
    s_.forget_check();
    EXPECT_EQ(compare_rig_conclude(&r, 1), -ESTALE);
    expect_ended(1);
}

TEST_F(DirectCheck, AReadThatFailedIsNotCompared)
{
    const compare_rig r = of_read(4 * kPage, 0);
    s_.status_of_next = NVME_ERR_UNRECOVERED_READ;
    compare_rig_read(&r);
    compare_rig_compare(&r, 2);
    EXPECT_EQ(check_.refused, 0u);
    EXPECT_EQ(compare_rig_conclude(&r, 1), -EIO);
    EXPECT_EQ(s_.bad_block, 0u);
    expect_ended(1);
}

TEST_F(DirectCheck, PiecesThatDifferAreReadAgain)
{
    for (uint64_t i = 0; i < 100; i++)
        list_.push_back({i % 50 * kPage, i * kPage, kPage, -1});
    list_.push_back({100, 120 * kPage, 100, -1}); // a part of a block
    s_.on_media(kPage) ^= 1;                      // of two pieces
    for (uint32_t groups : {1u, 8u, 1000u}) {
        const compare_rig r = of_list();
        s_.bad_block = 0;
        compare_rig_read(&r);
        in_memory(10) ^= 1;
        in_memory(70) ^= 1;
        compare_rig_compare(&r, groups);
        EXPECT_EQ(list_[70].result, GQ_MISMATCH);
        compare_rig_conclude(&r, 3);
        for (size_t i = 0; i < list_.size(); i++) {
            bool bad = list_[i].file_offset == kPage;
            EXPECT_EQ(list_[i].result, bad ? -EIO : static_cast<int32_t>(list_[i].len)) << i;
            EXPECT_TRUE(bad || s_.holds(kAt + list_[i].at, list_[i].len, list_[i].file_offset));
        }
        EXPECT_EQ(s_.bad_block, kPage + 1);
    }
    expect_ended(3);
}

TEST_F(DirectCheck, PiecesAreStaleWithTheLease)
{
    for (uint64_t i = 0; i < 40; i++)
        list_.push_back({i * kPage, i * kPage, kPage, -1});
    const compare_rig r = of_list();
    compare_rig_read(&r);
    in_memory(10) ^= 1;
    compare_rig_compare(&r, 3);
    s_.lease = GD_LEASE_REVOKED;
    s_.forget_check();
    compare_rig_conclude(&r, 2);
    for (uint64_t i = 0; i < 40; i++)
        EXPECT_EQ(list_[i].result, i == 10 ? -ESTALE : static_cast<int32_t>(kPage)) << i;
    expect_ended(1);
}

// As the daemon does it: the word becomes 0 before the first byte changes.
TEST_F(DirectCheck, ABlockThatIsOverwrittenIsNotCompared)
{
    const compare_rig r = of_read(20 * kPage, 0);
    compare_rig_read(&r);
    in_memory(3) ^= 1;
    s_.sums[3] = 0;
    compare_rig_compare(&r, 2);
    EXPECT_EQ(compare_rig_conclude(&r, 1), static_cast<int64_t>(20 * kPage));
    EXPECT_FALSE(s_.holds(kAt, 20 * kPage, 0));
    expect_ended(1);
}

} // namespace
