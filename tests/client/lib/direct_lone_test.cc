/* SPDX-License-Identifier: BSD-2-Clause */
// A page by a warp that finds its queue idle (client/device/gd_lone.h).
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

using direct_stack::expect_idle, direct_stack::kPage, direct_stack::Stack;

uint64_t address(Stack &s, size_t at)
{
    return reinterpret_cast<uint64_t>(s.pages.data()) + at;
}

enum shared_way read_lone(Stack &s, uint64_t offset, int *result)
{
    memset(&s.pages[1], 0x5a, kPage);
    s.set_checked();
    return shared_read_lone(&s.file, address(s, kPage), offset, result);
}

// The same where that is the way. A busy machine may take longer for a try than a check is good.
enum shared_way read_alone(Stack &s, uint64_t offset, int *result)
{
    enum shared_way way = SHARED_OTHER;
    for (unsigned i = 0; i < 1000 && way == SHARED_OTHER; i++)
        way = read_lone(s, offset, result);
    return way;
}

TEST(DirectSharedLone, ReadsPagesOfAnIdleQueue)
{
    Stack s(1, 40, 20);
    int result;
    unsigned lone = 0;
    s.stage_all();
    s.forget_check(); // of the leases
    EXPECT_EQ(shared_read_lone(&s.file, address(s, kPage), 0, &result), SHARED_OTHER);
    EXPECT_EQ(s.commands, 0u);
    for (unsigned i = 0; i < 100; i++) {
        lone += read_alone(s, i % 5 * kPage, &result) == SHARED_LONE;
        ASSERT_EQ(result, 0) << i;
        ASSERT_TRUE(s.holds(kPage, kPage, i % 5 * kPage)) << i;
    }
    EXPECT_GT(lone, 0u); // all but those that a busy machine makes wait
    EXPECT_EQ(s.commands, 100u);
    expect_idle(s);
}

TEST(DirectSharedLone, LeavesWhatItCannotHaveAsItWas)
{
    Stack s(1, 40, 20);
    int result;
    s.stage_all();
    uint32_t idle = s.lock(0), taken = s.cids[0].taken[0];
    for (uint32_t word : {idle | GD_TAKEN, GD_LOST, idle | 1u << GD_FLIGHT_SHIFT}) {
        s.locks[0] = word;
        EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER) << word;
        EXPECT_EQ(s.lock(0), word);
        EXPECT_EQ(s.cids[0].taken[0], taken);
    }
    s.locks[0] = idle;
    s.cids[0].taken[0] = UINT32_MAX;
    EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER);
    EXPECT_EQ(s.cids[0].taken[0], UINT32_MAX);
    s.cids[0].taken[0] = taken;
    s.cids[0].lost = 1;
    EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER);
    s.cids[0].lost = 0;
    EXPECT_EQ(read_lone(s, 5 * kPage, &result), SHARED_OTHER); // a hole
    EXPECT_EQ(shared_read_lone(&s.file, address(s, 0), 0, &result), SHARED_OTHER);
    EXPECT_EQ(s.commands, 0u);
    expect_idle(s);
    EXPECT_EQ(s.lock(0), idle);
}

TEST(DirectSharedLone, GoesOnAsALeaderWhenAnotherGroupSubmits)
{
    constexpr uint32_t other = 35; // its CID
    Stack s(1, 40, 20);
    gq_cids &cids = s.cids[0];
    int result;
    s.stage_all();
    cids.cmds[other] = {0, address(s, 3 * kPage), 0, 0, 0};
    cids.states[other] = GQ_CID_PENDING;
    cids.taken[1] |= 1u << other % 32;
    cids.pending[1] = 1u << other % 32;
    // The read's own command ends after the leader has taken up the other one.
    s.on_command = [&cids] {
        for (int i = 0; i < 10000 && __atomic_load_n(&cids.pending[1], __ATOMIC_ACQUIRE); i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return true;
    };
    EXPECT_EQ(read_alone(s, kPage, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, 0);
    EXPECT_TRUE(s.holds(kPage, kPage, kPage));
    EXPECT_EQ(cids.pending[1], 0u);
    EXPECT_NE(cids.states[other], static_cast<uint32_t>(GQ_CID_PENDING));
}

TEST(DirectSharedLone, FailsAsALeaderDoes)
{
    Stack s(1, 40, 20);
    int result;
    s.stage_all();
    s.status_of_next = 0x281;
    EXPECT_EQ(read_alone(s, 0, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, -EIO);
    expect_idle(s);
    s.file.set.command_ns = 50000000;
    s.on_command = [] { return false; };
    EXPECT_EQ(read_alone(s, 0, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, -ETIMEDOUT);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
    EXPECT_EQ(s.cids[0].lost, 1u);
}

TEST(DirectSharedLone, DoesNotTakeTheCompletionOfAnotherCommand)
{
    Stack s(1, 40, 20);
    int result;
    s.stage_all();
    s.cid_error = 1;
    EXPECT_EQ(read_alone(s, 0, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, -EIO);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
}

} // namespace
