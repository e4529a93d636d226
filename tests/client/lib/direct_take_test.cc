/* SPDX-License-Identifier: BSD-2-Clause */
// Taking a queue of the direct path while other warps take queues too.
#include <errno.h>

#include <climits>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_take_rig.h"
}

namespace
{

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
