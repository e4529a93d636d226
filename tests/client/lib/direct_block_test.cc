/* SPDX-License-Identifier: BSD-2-Clause */
// Reads by the warps of a block into memory that the controller does not reach.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

namespace
{

using direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

constexpr uint64_t kMs = 1000000;
constexpr unsigned char kPoison = 0x5a;

class DirectBlock : public ::testing::Test
{
  protected:
    DirectBlock()
    {
        s.stage_all();
        whole = s.file.map.end;
    }

    // By a thread for each warp: bytes, or the least error.
    int64_t read(uint32_t groups, size_t at, uint64_t len, uint64_t offset)
    {
        std::vector<int> errs(groups);
        std::vector<std::thread> threads;
        memset(s.pages[0].bytes, kPoison, kPages * kPage);
        dealing = {};
        for (uint32_t rank = 0; rank < groups; rank++)
            threads.emplace_back([&, rank] {
                errs[rank] =
                    direct_part_read(&s.file, reinterpret_cast<uint64_t>(s.pages.data()) + at, len,
                                     offset, rank, groups, &dealing);
            });
        for (std::thread &t : threads)
            t.join();
        int worst = *std::min_element(errs.begin(), errs.end());
        return worst ? worst : static_cast<int64_t>(len);
    }

    void expect_read(uint32_t groups, size_t at, uint64_t len, uint64_t offset)
    {
        ASSERT_EQ(read(groups, at, len, offset), static_cast<int64_t>(len));
        ASSERT_TRUE(s.holds_alone(at, len, offset, kPoison))
            << len << " at " << offset << " by " << groups;
    }

    Stack s{4, 64, 60};
    struct gq_dealing dealing = {};
    uint64_t whole;
    std::atomic<unsigned> seen{0};
};

// With commands of two kilobytes a counter deals them, with longer ones shares are even.
TEST_F(DirectBlock, WarpsReadAnythingAnywhereAndTouchNothingElse)
{
    std::mt19937 rng(5);
    s.out_of_order = true;
    for (int i = 0; i < 160; i++) {
        size_t at = kPage + rng() % kPage;
        uint64_t offset = i % 4 ? rng() % (whole - 1) : 0;
        uint64_t len = i % 4 ? 1 + rng() % (whole - offset) : whole;
        s.file.set.max_command = 2048u << rng() % 6;
        ASSERT_NO_FATAL_FAILURE(expect_read(1 + rng() % GD_READ_QUEUES, at, len, offset));
    }
    EXPECT_EQ(s.odd_commands, 0u);
    EXPECT_EQ(s.lost_queues(), 0u);
}

// However long commands may be: with long ones a short read would keep one lane busy.
TEST_F(DirectBlock, CommandsAreAsShortAsLanesHaveStaging)
{
    s.make_one_extent(240);
    for (uint32_t most : {2048u, 4096u, 8192u, 131072u}) {
        uint32_t unit = std::min(most, GD_STAGED_ALL);
        s.file.set.max_command = most;
        s.commands = 0;
        ASSERT_NO_FATAL_FAILURE(expect_read(4, kPage, 240 * kPage, 0));
        EXPECT_EQ(s.commands, 240 * kPage / unit);
        s.most_held = 0;
        ASSERT_NO_FATAL_FAILURE(expect_read(2, kPage, 16 * kPage, 8 * kPage));
        EXPECT_GE(s.most_held, 4u) << "one by each lane";
    }
}

TEST_F(DirectBlock, OnlyALongReadIsDealt)
{
    s.make_one_extent(240);
    s.file.set.max_command = 4096;
    ASSERT_NO_FATAL_FAILURE(expect_read(4, kPage, 240 * kPage, 0));
    EXPECT_EQ(dealing.runs, 0u);
    s.file.set.max_command = 2048;
    ASSERT_NO_FATAL_FAILURE(expect_read(4, kPage, 240 * kPage, 0));
    EXPECT_EQ(dealing.runs, 1u);
}

TEST_F(DirectBlock, ARefusedCommandIsTheReadsError)
{
    for (uint32_t most : {2048u, 8192u}) {
        s.file.set.max_command = most;
        s.on_command = [&] {
            if (++seen == 20)
                s.status_of_next = NVME_ERR_UNRECOVERED_READ;
            return true;
        };
        for (uint32_t groups : {1u, 3u}) {
            seen = 0;
            EXPECT_EQ(read(groups, kPage, whole, 0), -EIO) << groups;
            EXPECT_EQ(s.lost_queues(), 0u);
            ASSERT_NO_FATAL_FAILURE(expect_read(groups, kPage, whole, 0)) << groups;
        }
    }
}

TEST_F(DirectBlock, ALostCommandTakesItsQueueAlone)
{
    s.file.set.max_command = 2048;
    s.file.set.command_ns = 300 * kMs;
    s.on_command = [&] { return ++seen != 20; };
    EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT);
    EXPECT_EQ(s.lost_queues(), 1u);
    s.file.set.command_ns = 10000 * kMs;
    ASSERT_NO_FATAL_FAILURE(expect_read(3, kPage, whole, 0));
}

TEST_F(DirectBlock, WarpsWithoutAQueueAreAnError)
{
    s.file.set.max_command = 2048;
    s.file.set.command_ns = 100 * kMs;
    s.on_command = [] { return false; };
    while (s.lost_queues() < 4)
        EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT);
    EXPECT_EQ(read(4, kPage, whole, 0), -ETIMEDOUT) << "no warp has a queue";
}

TEST_F(DirectBlock, LeasesThatEndMeanwhileEndTheRead)
{
    s.on_command = [&] {
        if (++seen >= 20)
            __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
        return seen < 20;
    };
    s.file.set.max_command = 2048;
    EXPECT_EQ(read(4, kPage, whole, 0), -ESTALE);
}

// A group reads those of its blocks again that do not match, so no counter deals them.
TEST_F(DirectBlock, BlocksWithChecksumsAreComparedInStaging)
{
    s.add_sums();
    s.file.set.max_command = kPage;
    for (uint32_t groups : {1u, 4u})
        ASSERT_NO_FATAL_FAILURE(expect_read(groups, kPage, whole, 0));
    s.on_media(0) ^= 1;
    EXPECT_EQ(read(4, kPage, whole, 0), -EIO);
    EXPECT_EQ(s.bad_block, 1u);
    EXPECT_EQ(dealing.runs, 0u);
}

} // namespace
