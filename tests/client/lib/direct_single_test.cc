/* SPDX-License-Identifier: BSD-2-Clause */
// Reads of the direct path over queues that reads of one command and longer ones share.
#include <errno.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "tests/client/lib/direct_take_rig.h"
}
#include "tests/client/lib/direct_stack.h"
#include "tests/threads.h"

namespace
{

using direct_stack::Case, direct_stack::expect_read, direct_stack::kLba, direct_stack::kPage,
    direct_stack::kPages, direct_stack::Stack;

using DirectSingle = ::testing::TestWithParam<Case>;

auto own_queue(Stack &s)
{
    return [&s](size_t at, uint64_t len, uint64_t offset) { return s.read(at, len, offset); };
}

TEST_P(DirectSingle, TakesAsManyCommandsAsItMust)
{
    for (unsigned extents : {9u, 50u}) {
        Stack s(1, 8, extents);
        expect_read(s, GetParam(), own_queue(s));
        EXPECT_TRUE(GD_FREE(s.lock(0)));
    }
}

INSTANTIATE_TEST_SUITE_P(Reads, DirectSingle, ::testing::ValuesIn(direct_stack::kCases),
                         [](const auto &info) { return info.param.name; });

using DirectSingleStaged = ::testing::TestWithParam<Case>;

TEST_P(DirectSingleStaged, TakesAsManyCommandsAsItMust)
{
    for (uint32_t n_queues : {1u, 3u}) {
        Stack s(n_queues, 8, 9);
        s.stage_all();
        expect_read(s, GetParam(), own_queue(s));
        for (uint32_t i = 0; i < n_queues; i++)
            EXPECT_TRUE(GD_FREE(s.lock(i))) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Reads, DirectSingleStaged,
                         ::testing::Values(Case{"a_page", kPage, kPage, 0, 1},
                                           Case{"an_lba", kPage, kLba, 1536, 1},
                                           Case{"to_an_odd_address", kPage + 1, kPage, kPage, 1},
                                           Case{"two_pages", 2 * kPage, 2 * kPage, 3 * kPage, 1},
                                           Case{"from_within_an_lba", kPage, kLba, 100, 1},
                                           Case{"over_two_extents", kPage, 2 * kPage, kPage, 2}),
                         [](const auto &info) { return info.param.name; });

// Both paths leave the queue as the other finds it.
using DirectSingleMixed = ::testing::TestWithParam<bool>;

TEST_P(DirectSingleMixed, LongAndShortReadsShareAQueue)
{
    for (uint32_t depth : {2u, 3u, 8u}) {
        Stack s(1, depth, 20);
        if (GetParam())
            s.stage_all();
        std::mt19937 rng(depth);
        uint64_t size = s.file.map.end;
        for (unsigned i = 0; i < 300; i++) {
            bool is_short = rng() % 3 != 0;
            uint64_t offset = rng() % (size - 5 * kPage), len = 1 + rng() % (4 * kPage);
            size_t at = kPage + rng() % kPage;
            if (is_short) {
                offset -= offset % kLba;
                len = kLba;
                at -= at % 4;
            }
            ASSERT_EQ(s.read(at, len, offset), static_cast<int64_t>(len)) << i;
            ASSERT_TRUE(s.holds(at, len, offset)) << i << ": " << len << " at " << offset;
            ASSERT_TRUE(GD_FREE(s.lock(0))) << i;
        }
    }
}

TEST_P(DirectSingleMixed, ThreadsShareTwoQueues)
{
    Stack s(2, 4, 20);
    if (GetParam())
        s.stage_all();
    std::vector<std::string> wrong(4);
    in_threads(wrong.size(), [&](size_t t) {
        std::mt19937 rng(static_cast<unsigned>(t));
        for (unsigned i = 0; i < 100; i++) {
            uint64_t offset = rng() % 16 * kPage, len = i % 4 ? kPage : 3 * kPage + 5;
            size_t at = (1 + t * 8) * kPage;
            if (s.read(at, len, offset) != static_cast<int64_t>(len) || !s.holds(at, len, offset))
                wrong[t] = std::to_string(len) + " at " + std::to_string(offset);
        }
    });
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
}

INSTANTIATE_TEST_SUITE_P(Reads, DirectSingleMixed, ::testing::Bool(),
                         [](const auto &info) { return info.param ? "staged" : "direct"; });

TEST(DirectSingleFails, WithTheDrivesErrorAndTheQueueGoesOn)
{
    Stack s(1, 4, 3);
    s.status_of_next = 0x281;
    EXPECT_EQ(s.read(kPage, kPage, 0), -EIO);
    for (unsigned i = 0; i < 9; i++)
        EXPECT_EQ(s.read(kPage, kPage, 0), static_cast<int64_t>(kPage)) << i;
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
}

TEST(DirectSingleFails, OutsideOfBuffersAndTheQueueGoesOn)
{
    Stack s(1, 4, 3);
    EXPECT_EQ(s.read(kPages * kPage - 100, kLba, 0), -EFAULT);
    EXPECT_EQ(s.read(0, kLba, 0), -EFAULT) << "of the first page 64 bytes are not the buffer's";
    EXPECT_EQ(s.commands, 0u);
    EXPECT_EQ(s.read(kPage, kLba, 0), static_cast<int64_t>(kLba));
}

TEST(DirectSingleFails, ByTheDeadlineAndTheQueueIsLost)
{
    Stack s(2, 4, 3);
    s.file.set.command_ns = 2000000;
    s.on_command = [] { return false; };
    EXPECT_EQ(s.read(kPage, kPage, 0), -ETIMEDOUT);
    EXPECT_EQ(s.read(kPage, kPage, 0), -ETIMEDOUT);
    for (uint32_t queue : {0u, 1u})
        EXPECT_TRUE(s.lock(queue) & GD_LOST) << queue;
    for (int i = 0; i < 1000 && s.commands < 2; i++) // the controller may be late, too
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(s.commands, 2u);
    EXPECT_EQ(s.read(kPage, kPage, 0), -ETIMEDOUT) << "both are lost";
    EXPECT_EQ(s.commands, 2u);
}

TEST(DirectSingleFails, OverACompletionOfAnotherCommandAndTheQueueIsLost)
{
    Stack s(1, 4, 3);
    ASSERT_EQ(s.read(kPage, kPage, 0), static_cast<int64_t>(kPage));
    s.cid_error = 1;
    EXPECT_EQ(s.read(kPage, kPage, 0), -EIO);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
}

// Of long reads: their commands have trackers.
TEST(DirectSingleFails, OverASecondCompletionAndTheQueueIsLost)
{
    constexpr uint64_t kLong = 2 * kPage;
    Stack s(1, 4, 20);
    int64_t got = 0;
    for (unsigned i = 0; i < 100 && got >= 0; i++) {
        memset(&s.pages[1], 0x5a, kLong);
        s.repeat = i == 20;
        got = s.read(kPage, kLong, kPage); // of two extents
        ASSERT_TRUE(got < 0 || s.holds(kPage, kLong, kPage)) << i;
    }
    EXPECT_EQ(got, -EIO);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
}

TEST(DirectSingleFails, WhenTheLeaseEndsWithACommandInFlight)
{
    Stack s(1, 4, 3);
    s.on_command = [&] {
        __atomic_store_n(&s.lease, GD_LEASE_REVOKED, __ATOMIC_RELAXED);
        return false;
    };
    EXPECT_EQ(s.read(kPage, kPage, 0), -ESTALE);
    EXPECT_EQ(s.commands, 1u);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
}

TEST(DirectSingleFails, BeforeACommandWhenTheLeaseHasEnded)
{
    Stack s(1, 4, 3);
    s.lease = GD_LEASE_REVOKED;
    EXPECT_EQ(s.read(kPage, kPage, 0), -ESTALE);
    EXPECT_EQ(s.commands, 0u);
    EXPECT_TRUE(GD_FREE(s.lock(0)));
}

// --- Queues that other warps take, too -----------------------------------------------------------

using direct_stack::Stack;

constexpr uint64_t kStep = 1000, kPatience = 100 * kStep;

struct Take : Stack {
    explicit Take(uint32_t n_queues) : Stack(n_queues, 4, 3) { file.set.command_ns = kPatience; }
    struct direct_take take = {1, kStep, 0, 0, 0};
};

TEST(DirectTake, AQueueThatIsLostToOthersIsTriedAgain)
{
    Take t(3);
    t.take.losses = 20;
    EXPECT_EQ(direct_take(&t.file, &t.take), 0);
    EXPECT_EQ(t.take.tries, 21u);
    EXPECT_EQ(t.lock(t.take.queue), GD_TAKEN);
}

TEST(DirectTake, WhoLosesEveryQueueStopsByTheDeadline)
{
    for (uint32_t queues : {1u, 3u}) {
        Take t(queues);
        t.take.losses = UINT_MAX;
        EXPECT_EQ(direct_take(&t.file, &t.take), -ETIMEDOUT);
        EXPECT_GE(t.take.now_ns, kPatience);
        EXPECT_LT(t.take.now_ns, 2 * kPatience);
        EXPECT_GT(t.take.tries, 10u);
        EXPECT_TRUE(GD_FREE(t.lock(t.take.queue))) << "it is others' to give back";
    }
}

TEST(DirectTake, WhereAllAreTakenTheWaitEndsByTheDeadline)
{
    Take t(2);
    t.locks = {GD_TAKEN, GD_TAKEN};
    EXPECT_EQ(direct_take(&t.file, &t.take), -ETIMEDOUT);
    EXPECT_GE(t.take.now_ns, kPatience);
    EXPECT_LT(t.take.now_ns, 2 * kPatience);
}

// The last check of the leases is recent, and does not count.
TEST(DirectTake, WhereAllAreLostTheErrorIsAtOnceAndThatOfTheLeases)
{
    for (uint32_t lease : {GD_LEASE_VALID, GD_LEASE_REVOKED}) {
        Take t(2);
        t.locks = {GD_LOST, GD_LOST};
        t.lease = lease;
        t.take.now_ns = *t.file.checked_ns = 10 * GD_CHECK_NS;
        EXPECT_EQ(direct_take(&t.file, &t.take), lease == GD_LEASE_VALID ? -ETIMEDOUT : -ESTALE);
        EXPECT_LT(t.take.now_ns, 10 * GD_CHECK_NS + 10 * kStep);
    }
}

// Time may have passed while the thread was not scheduled: a free queue is taken all the same.
TEST(DirectTake, TimeThatIsUpSparesTheTryThatWorks)
{
    Take t(2);
    t.take.losses = 1;
    t.take.step_ns = 2 * kPatience;
    EXPECT_EQ(direct_take(&t.file, &t.take), 0);
    EXPECT_EQ(t.take.tries, 2u);
}

} // namespace
