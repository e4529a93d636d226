/* SPDX-License-Identifier: BSD-2-Clause */
// Groups that wait for CIDs of shared queues (client/device/gd_claim.h).
#include <errno.h>

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

using direct_stack::kPage, direct_stack::Stack;

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

// The memory of the CIDs is given back soon after.
TEST(DirectWaiting, EndsWhenTheFileHasLostItsQueues)
{
    Stack s(2, 8, 20);
    take_all(s, 0);
    take_all(s, 1);
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(
        read_waiting(s, [&] { __atomic_store_n(&s.file.set.n_queues, 0u, __ATOMIC_SEQ_CST); }),
        -ESTALE);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

} // namespace
