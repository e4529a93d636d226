/* SPDX-License-Identifier: BSD-2-Clause */
// Staged pages, for which the persistent kernel has a path of its own, and what leaves it.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/client/lib/service_block.h"

namespace
{

using namespace service_block;

constexpr unsigned kDriveError = 0x281;

// The ring of a queue goes round, and from queue to queue.
TEST(ServicePage, PagesComeOneAfterAnother)
{
    for (uint32_t depth : {2u, 3u, 65535u}) {
        for (uint32_t n_queues : {1u, 4u}) {
            Stack s(n_queues, depth, 20);
            Block block;
            s.stage_all();
            for (unsigned i = 0; i < 40; i++) {
                ASSERT_EQ(block.read(s, 1 + i % 7, page_of(i)), kWhole) << i << " of " << depth;
                ASSERT_TRUE(s.holds((1 + i % 7) * kPage, kPage, page_of(i))) << i;
            }
            EXPECT_EQ(s.commands, 40u);
            EXPECT_EQ(s.odd_commands, 0u);
            EXPECT_EQ(block.others(), 0u) << "all were commands";
        }
    }
}

struct Place {
    size_t at;
    uint64_t len;
};

class Places : public ::testing::TestWithParam<Place>
{
};

// Pages lie between them, so that what one path leaves behind is seen by the other.
TEST_P(Places, HaveTheBytesAndNoOthers)
{
    auto [at, len] = GetParam();
    Stack s(4, kDepth, 20);
    Block block;
    s.stage_all();
    for (unsigned i = 0; i < 2 * kDepth; i++) {
        uint64_t offset = 3 * kPage; // the second extent, of three pages
        memset(s.pages[0].bytes, 0x5a, 8 * kPage);
        ASSERT_EQ(block.read_at(s, at, len, offset), static_cast<int64_t>(len)) << i;
        ASSERT_TRUE(s.holds(at, len, offset)) << i;
        EXPECT_EQ(s.pages[0].bytes[at - 1], 0x5a);
        EXPECT_EQ(s.pages[0].bytes[at + len], 0x5a);
        ASSERT_EQ(block.read(s, 5, page_of(i)), kWhole) << i;
        ASSERT_TRUE(s.holds(5 * kPage, kPage, page_of(i))) << i;
    }
    EXPECT_EQ(s.commands, 4 * kDepth);
    EXPECT_EQ(s.odd_commands, 0u);
    EXPECT_EQ(block.others(), 0u);
}

INSTANTIATE_TEST_SUITE_P(LengthsAndAlignments, Places,
                         ::testing::Values(Place{kPage, kPage}, Place{kPage + 16, kPage},
                                           Place{kPage + 4, kPage}, Place{kPage + 8, kPage},
                                           Place{kPage + 12, kPage}, Place{kPage, kLba},
                                           Place{kPage, kPage - kLba}, Place{kPage, kPage + kLba},
                                           Place{kPage + 16, 2 * kPage}));

TEST(ServicePage, OneThatTakesLongIsWaitedFor)
{
    Stack s(4, kDepth, 3);
    Block block;
    std::atomic<bool> is_slow{true};
    s.stage_all();
    s.on_command = [&] {
        if (is_slow.exchange(false))
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return true;
    };
    for (unsigned i = 0; i < 3 * kDepth; i++) {
        is_slow = i % 2 == 0;
        memset(&s.pages[1], 0x5a, kPage);
        ASSERT_EQ(block.read(s, 1, page_of(i % 2)), kWhole) << i;
        ASSERT_TRUE(s.holds(kPage, kPage, page_of(i % 2))) << i;
    }
    EXPECT_EQ(s.commands, 3 * kDepth);
}

TEST(ServicePage, TheDrivesErrorIsToldAndTheQueueGoesOn)
{
    Stack s(4, kDepth, 3);
    Block block;
    s.stage_all();
    for (unsigned i = 0; i < 3 * kDepth; i++) {
        bool fails = i % 3 == 1;
        memset(&s.pages[1], 0x5a, kPage);
        s.status_of_next = fails ? kDriveError : 0;
        ASSERT_EQ(block.read(s, 1, 0), fails ? -EIO : kWhole) << i;
        if (fails)
            EXPECT_EQ(s.pages[1].bytes[0], 0x5a) << "nothing is copied";
        else
            EXPECT_TRUE(s.holds(kPage, kPage, 0)) << i;
    }
    block.leave();
    for (uint32_t i = 0; i < 4; i++)
        EXPECT_TRUE(GD_FREE(s.lock(i))) << i;
}

TEST(ServicePage, ACompletionOfAnotherCommandIsNotBelieved)
{
    Stack s(4, kDepth, 3);
    Block block;
    s.stage_all();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    memset(&s.pages[2], 0x5a, kPage);
    s.cid_error = 1;
    EXPECT_EQ(block.read(s, 2, 0), -EIO);
    EXPECT_EQ(s.pages[2].bytes[0], 0x5a);
    EXPECT_EQ(block.read(s, 1, 0), kWhole) << "by another queue";
}

TEST(ServicePage, OneThatIsLostCostsItsQueue)
{
    Stack s(4, kDepth, 3);
    Block block;
    std::atomic<bool> lose{true};
    s.stage_all();
    s.file.set.command_ns = 300 * kMs;
    s.on_command = [&] { return !lose.exchange(false); };
    EXPECT_EQ(block.read(s, 1, 0), -ETIMEDOUT);
    for (unsigned i = 0; i < 3 * kDepth; i++) {
        ASSERT_EQ(block.read(s, 1, page_of(i % 2)), kWhole) << i;
        ASSERT_TRUE(s.holds(kPage, kPage, page_of(i % 2))) << i;
    }
    unsigned lost = 0;
    for (uint32_t i = 0; i < 4; i++)
        lost += (s.lock(i) & GD_LOST) != 0;
    EXPECT_EQ(lost, 1u);
}

TEST(ServicePage, ALeaseThatEndsTakesTheCommandUnderWayWithIt)
{
    Stack s(4, kDepth, 3);
    Block block;
    s.stage_all();
    s.on_command = [&] {
        __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
        return false;
    };
    EXPECT_EQ(block.read(s, 1, 0), -ESTALE);
    EXPECT_EQ(s.commands, 1u);
}

TEST(ServicePage, NothingIsSentOnceTheLeaseIsKnownToHaveEnded)
{
    Stack s(4, kDepth, 3);
    Block block;
    s.stage_all();
    block.stop_clock();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
    ASSERT_EQ(block.read(s, 1, 0), kWhole) << "it was good a moment ago";
    block.stop_clock(kMs);
    EXPECT_EQ(block.read(s, 1, 0), -ESTALE);
    EXPECT_EQ(s.commands, 2u);
}

// The queue is kept no longer than for other reads, though nothing but pages is read.
TEST(ServicePage, TheBlockLeavesAfterAWhileThoughPagesCome)
{
    Stack s(4, kDepth, 3);
    Block block;
    s.stage_all();
    block.stop_clock();
    for (unsigned i = 0; i < 3 * kDepth; i++)
        ASSERT_EQ(block.read(s, 1, 0), kWhole);
    block.stop_clock(2 * kServe);
    block.await_leaving();
    ASSERT_EQ(block.read(s, 1, 0), kWhole);
    EXPECT_EQ(block.launches(), 2u);
}

} // namespace
