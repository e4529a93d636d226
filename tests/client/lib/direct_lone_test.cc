/* SPDX-License-Identifier: BSD-2-Clause */
// A page by a warp, on the short path (client/device/gd_lone.h).
#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/client/lib/direct_stack.h"

namespace
{

using direct_stack::address, direct_stack::expect_idle, direct_stack::kLba, direct_stack::kPage,
    direct_stack::Stack;

enum shared_path read_lone(Stack &s, uint64_t offset, int *result)
{
    memset(&s.pages[1], 0x5a, kPage);
    s.set_checked();
    return shared_read_lone(&s.file, address(s, kPage), kPage, offset, result);
}

// The same on one of these paths. A busy machine may take longer for a try than a check is good.
enum shared_path read_alone(Stack &s, uint64_t offset, int *result)
{
    enum shared_path path = SHARED_OTHER;
    for (unsigned i = 0; i < 1000 && path == SHARED_OTHER; i++)
        path = read_lone(s, offset, result);
    return path;
}

class DirectSharedLone : public ::testing::Test
{
  protected:
    Stack s{1, 40, 20};
    int result;
};

TEST_F(DirectSharedLone, ReadsPagesOfAnIdleQueue)
{
    for (bool stages : {false, true}) {
        Stack s(1, 40, 20);
        int result;
        unsigned lone = 0;
        if (stages)
            s.stage_all();
        s.forget_check(); // of the leases
        EXPECT_EQ(shared_read_lone(&s.file, address(s, kPage), kPage, 0, &result), SHARED_OTHER);
        EXPECT_EQ(s.commands, 0u);
        for (unsigned i = 0; i < 100; i++) {
            lone += read_alone(s, i % 5 * kPage, &result) == SHARED_LONE;
            ASSERT_EQ(result, 0) << i;
            ASSERT_TRUE(s.holds(kPage, kPage, i % 5 * kPage)) << i;
        }
        EXPECT_GT(lone, 0u); // all but those that a busy machine makes wait
        EXPECT_EQ(s.commands, 100u);
        EXPECT_EQ(s.odd_commands, 0u);
        expect_idle(s);
    }
}

// Of memory that the controller reaches: whole LBAs, also over two pages of it.
TEST_F(DirectSharedLone, ReadsPartsOfPages)
{
    for (uint64_t len : {kLba, 3 * kLba, 8 * kLba}) {
        for (size_t at : {kPage, 2 * kPage - kLba, kPage + 4}) {
            memset(&s.pages[1], 0x5a, 4 * kPage);
            enum shared_path path = SHARED_OTHER;
            for (unsigned i = 0; i < 1000 && path == SHARED_OTHER; i++) {
                s.set_checked();
                path = shared_read_lone(&s.file, address(s, at), len, 2 * kLba, &result);
            }
            EXPECT_NE(path, SHARED_OTHER);
            EXPECT_TRUE(s.holds(at, len, 2 * kLba)) << len << " at " << at;
            EXPECT_EQ(s.pages[0].bytes[at + len], 0x5a);
        }
    }
    EXPECT_EQ(s.odd_commands, 0u);
    expect_idle(s);
}

void expect_other(Stack &s, uint64_t dst, uint64_t len, uint64_t offset)
{
    int result;
    s.set_checked();
    EXPECT_EQ(shared_read_lone(&s.file, dst, len, offset, &result), SHARED_OTHER);
    EXPECT_EQ(s.commands, 0u);
    expect_idle(s);
}

TEST_F(DirectSharedLone, LeavesAQueueOrCidThatItCannotTakeUnchanged)
{
    uint32_t idle = s.lock(0), taken = s.cids[0].taken[0];
    s.locks[0] = GD_LOST;
    EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER);
    EXPECT_EQ(s.lock(0), GD_LOST);
    EXPECT_EQ(s.cids[0].taken[0], taken);
    s.locks[0] = idle;
    s.cids[0].taken[0] = UINT32_MAX;
    EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER);
    EXPECT_EQ(s.cids[0].taken[0], UINT32_MAX);
    s.cids[0].taken[0] = taken;
    s.cids[0].lost = 1;
    EXPECT_EQ(read_lone(s, 0, &result), SHARED_OTHER);
    s.cids[0].lost = 0;
    expect_other(s, address(s, kPage), kPage, 5 * kPage);        // a hole
    expect_other(s, address(s, 0), kPage, 0);                    // no buffer
    expect_other(s, address(s, kPage), kPage, 2 * kPage - kLba); // two extents
    expect_other(s, address(s, kPage), kPage + kLba, 0);         // more than a page
    expect_other(s, address(s, kPage), kLba, 100);               // the staging is one LBA
    expect_other(s, address(s, kPage + 1), kPage, 0);            // likewise
    expect_other(s, address(s, kPage), 0, 0);
    EXPECT_EQ(s.lock(0), idle);
}

// Functions of few registers stage nothing but whole pages at multiples of 16.
static bool has_short_path(bool stages, size_t at, uint64_t len, uint64_t offset)
{
#ifdef GPUNVME_DEVICE_SMALL
    bool is_direct = !stages && offset % kLba == 0 && len % kLba == 0 && at % 4 == 0;
    return is_direct || (len == kPage && at % 16 == 0 && offset % kLba == 0);
#else
    (void)stages;
    (void)at;
    (void)len;
    (void)offset;
    return true;
#endif
}

// Places of a read in the file and in memory that are not whole LBAs at multiples of 4.
TEST_F(DirectSharedLone, ReadsAnyPieceThroughStaging)
{
    for (bool stages : {false, true}) {
        Stack s(1, 40, 20);
        int result;
        unsigned reads = 0;
        s.file.set.shared_bytes = GD_STAGED_ALL;
        if (stages)
            s.stage_all();
        for (uint64_t offset : {0, 1, 8, 100, 511, 1000}) {
            for (uint64_t len : {1, 7, 256, 512, 1000, 4096}) {
                for (size_t at : {kPage, kPage + 1, kPage + 8, 2 * kPage - 4}) {
                    if (!has_short_path(stages, at, len, offset)) {
                        s.set_checked();
                        EXPECT_EQ(shared_read_lone(&s.file, address(s, at), len, offset, &result),
                                  SHARED_OTHER);
                        continue;
                    }
                    memset(&s.pages[0], 0x5a, 5 * kPage);
                    enum shared_path path = SHARED_OTHER;
                    for (unsigned i = 0; i < 1000 && path == SHARED_OTHER; i++) {
                        s.set_checked();
                        path = shared_read_lone(&s.file, address(s, at), len, offset, &result);
                    }
                    ASSERT_NE(path, SHARED_OTHER);
                    EXPECT_TRUE(s.holds_alone(at, len, offset, 0x5a))
                        << len << " from " << offset << " at " << at;
                    reads++;
                }
            }
        }
        EXPECT_EQ(s.commands, reads) << "one command each";
        EXPECT_EQ(s.odd_commands, 0u);
        expect_idle(s);
    }
}

// Its own queue is taken by a reader that needs it for itself.
TEST_F(DirectSharedLone, TakesAFreeQueueInsteadOfOneThatIsTaken)
{
#ifdef GPUNVME_DEVICE_SMALL
    GTEST_SKIP() << "functions of few registers share the queue";
#endif
    Stack s(4, 40, 20);
    uint32_t idle = s.lock(3);
    for (uint32_t i = 0; i < 3; i++)
        s.locks[i] |= GD_TAKEN;
    for (unsigned i = 0; i < 10; i++) {
        ASSERT_NE(read_alone(s, i % 2 * kPage, &result), SHARED_OTHER);
        ASSERT_EQ(result, 0);
        ASSERT_TRUE(s.holds(kPage, kPage, i % 2 * kPage));
    }
    EXPECT_NE(s.lock(3), idle) << "the queue that is not shared has served";
    for (uint32_t i = 0; i < 3; i++)
        s.locks[i] &= ~GD_TAKEN;
    expect_idle(s);
}

TEST_F(DirectSharedLone, StagesWhereThereIsRoom)
{
    uint32_t bytes = s.file.set.shared_bytes;
    s.stage_all();
    s.file.set.shared_bytes = bytes;
    expect_other(s, address(s, kPage), kPage, 0);
    s.file.set.shared_bytes = GD_STAGED_ALL;
    s.file.set.staged_cids = 0;
    expect_other(s, address(s, kPage), kPage, 0);
}

// All CIDs of the first word but one, which is not the one that the short path claims on this
// processor.
uint32_t take_cids(Stack &s)
{
    uint32_t all_but_one = ~(1u << (sched_getcpu() + 16) % 32);
    __atomic_fetch_or(&s.cids[0].taken[0], all_but_one, __ATOMIC_RELAXED);
    return all_but_one;
}

void give_cids(Stack &s, uint32_t taken)
{
    __atomic_fetch_and(&s.cids[0].taken[0], ~taken, __ATOMIC_RELAXED);
}

// Reads while another group leads, whose own command the controller never completes. That group
// ends when the file has lost its queues. Returns the path of the last read.
enum shared_path read_beside_a_leader()
{
    Stack s(1, 40, 20);
    std::atomic<bool> leads{false};
    enum shared_path path = SHARED_HANDED_ON;
    int result = 0;
    s.on_command = [&] { return leads.exchange(true); };
    uint32_t taken = take_cids(s); // the leader gets another one
    std::thread leader(
        [&] { EXPECT_EQ(shared_read_warp(&s.file, address(s, 9 * kPage), kPage, 0), -ESTALE); });
    while (!leads)
        std::this_thread::yield();
    give_cids(s, taken);
    for (unsigned i = 0; i < 20 && path == SHARED_HANDED_ON && result == 0; i++) {
        path = read_alone(s, kPage, &result);
        EXPECT_EQ(result, 0);
        EXPECT_TRUE(s.holds(kPage, kPage, kPage));
    }
    __atomic_store_n(&s.file.set.n_queues, 0, __ATOMIC_SEQ_CST);
    leader.join();
    return path;
}

// A read that waits long for its leader, as on a busy machine, is handed on: the next one may not
// be.
TEST_F(DirectSharedLone, HandsItsCommandToTheLeader)
{
    enum shared_path path = SHARED_HANDED_ON;

    for (unsigned i = 0; i < 8 && path == SHARED_HANDED_ON; i++)
        path = read_beside_a_leader();
    EXPECT_EQ(path, SHARED_LONE);
}

// A ticket has left its command in the queue.
TEST_F(DirectSharedLone, LeadsForCommandsThatOthersHaveInTheQueue)
{
    std::atomic<bool> goes_on{false};
    s.on_command = [&] {
        while (!goes_on)
            std::this_thread::yield();
        return true;
    };
    uint32_t taken = take_cids(s);
    struct shared_ticket *ticket = shared_begin(&s.file, address(s, 9 * kPage), kPage, kPage);
    give_cids(s, taken);
    EXPECT_NE(s.lock(0) & GD_IN_FLIGHT, 0u);
    goes_on = true;
    EXPECT_EQ(read_alone(s, 0, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, 0);
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
    EXPECT_EQ(shared_end(ticket), static_cast<int64_t>(kPage));
    EXPECT_TRUE(s.holds(9 * kPage, kPage, kPage));
    expect_idle(s);
}

// Its leader leaves without having taken the command up.
TEST_F(DirectSharedLone, LeadsWhenNobodyDoes)
{
    uint32_t idle = s.lock(0);
    s.locks[0] = idle | GD_TAKEN;
    std::thread leaver([&] {
        while (__atomic_load_n(&s.cids[0].pending[0], __ATOMIC_ACQUIRE) == 0)
            std::this_thread::yield();
        __atomic_store_n(&s.locks[0], idle, __ATOMIC_RELEASE);
    });
    EXPECT_EQ(read_alone(s, kPage, &result), SHARED_HANDED_ON);
    leaver.join();
    EXPECT_EQ(result, 0);
    EXPECT_TRUE(s.holds(kPage, kPage, kPage));
    expect_idle(s);
}

TEST_F(DirectSharedLone, GoesOnAsALeaderWhenAnotherGroupSubmits)
{
    constexpr uint32_t other = 35; // its CID
    gq_cids &cids = s.cids[0];
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

TEST_F(DirectSharedLone, FailsAsALeaderDoes)
{
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

TEST_F(DirectSharedLone, DoesNotTakeTheCompletionOfAnotherCommand)
{
    s.stage_all();
    s.cid_error = 1;
    EXPECT_EQ(read_alone(s, 0, &result), SHARED_HANDED_ON);
    EXPECT_EQ(result, -EIO);
    EXPECT_TRUE(s.lock(0) & GD_LOST);
}

TEST_F(DirectSharedLone, DoesNotTakeASecondCompletionOfTheCommandBefore)
{
    for (bool stages : {false, true}) {
        Stack s(1, 40, 20);
        int result;
        if (stages)
            s.stage_all();
        ASSERT_NE(read_alone(s, 0, &result), SHARED_OTHER);
        ASSERT_EQ(result, 0);
        s.repeat = true;
        for (unsigned i = 0; i < 100 && s.repeat; i++) { // may move to another processor and CID
            EXPECT_EQ(result, 0);
            EXPECT_NE(read_alone(s, i % 5 * kPage, &result), SHARED_OTHER);
        }
        EXPECT_EQ(result, -EIO);
        EXPECT_TRUE(s.lock(0) & GD_LOST);
    }
}

TEST_F(DirectSharedLone, DividesItsSeedByTheNumberOfQueues)
{
    for (uint32_t n = 1; n <= 256; n++) {
        for (uint32_t seed = 0; seed < 20000; seed++) {
            uint32_t next = seed;
            ASSERT_EQ(shared_place(n, gd_inverse(n), &next), seed % n) << seed << " by " << n;
            ASSERT_EQ(next, seed / n);
        }
    }
}

TEST_F(DirectSharedLone, TakesOneOfItsQueuesWithTheInverseOfAnotherNumber)
{
    for (uint32_t n : {1u, 3u, 17u, 200u}) {
        for (uint32_t of : {1u, 2u, 17u, 18u, 256u}) {
            for (uint32_t seed = 0; seed < 20000; seed += 7) {
                uint32_t next = seed;
                ASSERT_LT(shared_place(n, gd_inverse(of), &next), n);
            }
        }
    }
}

} // namespace
