/* SPDX-License-Identifier: BSD-2-Clause */
// Groups that wait for CIDs of shared queues (client/device/gd_shared_run.h).
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

using direct_stack::kLba, direct_stack::kPage, direct_stack::Stack;

constexpr auto kSoon = std::chrono::seconds(8); // below the deadline of a command, 10 s

// A page's read, begun while no queue has a free CID; `then` is called while it waits.
template <typename Then> int64_t read_waiting(Stack &s, Then then)
{
    int64_t got = 0;
    std::thread reader([&] {
        got =
            shared_read_warp(&s.file, reinterpret_cast<uint64_t>(s.pages.data()) + kPage, kPage, 0);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    then();
    reader.join();
    return got;
}

uint32_t take_all(Stack &s, size_t queue)
{
    return __atomic_exchange_n(&s.cids[queue].taken[0], UINT32_MAX, __ATOMIC_SEQ_CST);
}

TEST(DirectWaiting, AQueueWithoutFreeCidsIsNotLostAsAnotherOneIs)
{
    Stack s(2, 8, 20);
    s.cids[0].lost = 1;
    uint32_t taken = take_all(s, 1);
    EXPECT_EQ(
        read_waiting(s, [&] { __atomic_store_n(&s.cids[1].taken[0], taken, __ATOMIC_SEQ_CST); }),
        static_cast<int64_t>(kPage));
    EXPECT_TRUE(s.holds(kPage, kPage, 0));
}

// What the read returns, far below the deadline of a command.
template <typename Then> int64_t read_and_end_soon(Stack &s, Then then)
{
    auto start = std::chrono::steady_clock::now();
    int64_t got = read_waiting(s, then);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
    return got;
}

void take_all_of_all(Stack &s)
{
    for (gq_cids &cids : s.cids)
        std::fill_n(cids.taken, GQ_CID_WORDS, UINT32_MAX);
}

void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

// To readers that had them for themselves: no CID is lost, and none is given back.
TEST(DirectWaiting, EndsWhenTheLocksOfAllQueuesTellThatTheyAreLost)
{
    for (uint32_t queues : {1u, 3u, 6u}) {
        Stack s(queues, 40, 20);
        take_all_of_all(s);
        EXPECT_EQ(read_and_end_soon(s,
                                    [&] {
                                        for (uint32_t &lock : s.locks)
                                            store(&lock, GD_LOST);
                                    }),
                  -ETIMEDOUT)
            << queues;
    }
}

TEST(DirectWaiting, EndsWhenQueuesAreLostToReadersAloneAndToGroupsThatShareThem)
{
    Stack s(3, 40, 20);
    take_all_of_all(s);
    EXPECT_EQ(read_and_end_soon(s,
                                [&] {
                                    store(&s.locks[0], GD_LOST);
                                    store(&s.cids[1].lost, 1);
                                    store(&s.locks[2], GD_LOST);
                                }),
              -ETIMEDOUT);
}

TEST(DirectWaiting, EndsWhenTheFileHasLostItsQueues)
{
    Stack s(2, 8, 20);
    take_all(s, 0);
    take_all(s, 1);
    EXPECT_EQ(read_and_end_soon(s, [&] { store(&s.file.set.n_queues, 0); }), -ESTALE);
}

// It leads the queue, and gives up the lock: the host waits for that.
TEST(DirectWaiting, EndsForACommandWhenTheFileHasLostItsQueues)
{
    Stack s(1, 8, 20);
    s.on_command = [] { return false; };
    EXPECT_EQ(read_and_end_soon(s, [&] { store(&s.file.set.n_queues, 0); }), -ESTALE);
    EXPECT_EQ(s.commands, 1u);
    EXPECT_EQ(s.lock(0), GD_LOST);
}

// The lanes of a group: half of them have all CIDs of the queue, in which another group's is lost.
TEST(DirectWaiting, ForLanesAQueueThatIsFoundLostOftenIsNotAllQueues)
{
    Stack s(2, 17, 20);
    std::atomic<bool> goes_on{false};
    struct shared_read reads[SHARED_LANES];
    for (size_t i = 0; i < SHARED_LANES; i++)
        reads[i] = {reinterpret_cast<uint64_t>(&s.pages[1 + i]), kLba, i % 4 * kPage, 0};
    s.on_command = [&] {
        while (!goes_on)
            std::this_thread::yield();
        return true;
    };
    std::thread reader([&] { shared_read_lanes(&s.file, reads); });
    while (s.commands == 0)
        std::this_thread::yield();
    store(&s.cids[s.lock(0) ? 0 : 1].lost, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    goes_on = true;
    reader.join();
    for (size_t i = 0; i < SHARED_LANES; i++)
        EXPECT_EQ(reads[i].result, static_cast<int64_t>(kLba)) << i;
}

} // namespace
