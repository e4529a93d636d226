/* SPDX-License-Identifier: BSD-2-Clause */
/* The gate of an executor: which run or writer it admits, and the bounds of waiting. */
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

extern "C" {
#include "cuda/exec_cuda/gq_gate.h"
}

namespace
{

class GqGate : public testing::Test
{
  protected:
    GqGate() { EXPECT_EQ(gq_gate_init(&gate), 0); }

    ~GqGate() override
    {
        let_go();
        gq_gate_destroy(&gate);
    }

    /* Takes it exclusively. */
    void take()
    {
        std::atomic<bool> taken{false};

        leave = false;
        alone = std::thread([&] {
            gq_gate_take(&gate);
            taken = true;
            while (!leave)
                std::this_thread::yield();
            gq_gate_give(&gate);
        });
        while (!taken)
            std::this_thread::yield();
    }

    void let_go()
    {
        leave = true;
        if (alone.joinable())
            alone.join();
    }

    int enter(uint64_t budget_ns)
    {
        l.run.budget_ns = budget_ns;
        return gq_gate_enter(&gate, &l, &flags);
    }

    gq_gate gate;
    std::thread alone;
    std::atomic<bool> leave{false};
    gq_launch l = {};
    uint32_t flags = 0; /* the executor's */
};

TEST_F(GqGate, IsShared)
{
    ASSERT_EQ(enter(1), 0);
    ASSERT_EQ(enter(0), 0);
    EXPECT_NE(pthread_rwlock_trywrlock(&gate.lock), 0);
    gq_gate_leave(&gate);
    gq_gate_leave(&gate);
    EXPECT_EQ(pthread_rwlock_trywrlock(&gate.lock), 0);
    pthread_rwlock_unlock(&gate.lock);
}

TEST_F(GqGate, IsWaitedForNoLongerThanARunMayTake)
{
    take();
    EXPECT_EQ(enter(1000000), -ETIMEDOUT);
}

TEST_F(GqGate, IsNotWaitedForByARunThatIsCancelled)
{
    uint32_t cancel = 1;

    take();
    l.cancel = &cancel;
    EXPECT_EQ(enter(0), -ECANCELED);
}

/* A reset waits for all runs; one that waits at the gate as well, however late it is otherwise. */
TEST_F(GqGate, IsNotWaitedForBeforeAReset)
{
    uint32_t cancel = 1;

    take();
    flags = GQ_FLAG_LEAVE;
    EXPECT_EQ(enter(10000000000u), -ERESTART);
    EXPECT_EQ(enter(1), -ERESTART);
    l.cancel = &cancel;
    EXPECT_EQ(enter(0), -ERESTART);
}

/*
 * As clients that register buffers: of four there is always one that waits for
 * the exclusive gate.
 */
TEST_F(GqGate, LetsRunsInBetweenThoseWhoWantItAlone)
{
    constexpr uint64_t kBudget = 30000000000u; /* they come between in milliseconds, or never */
    std::atomic<bool> end{false};
    std::atomic<unsigned> begun{0};
    std::vector<std::thread> others;

    for (unsigned i = 0; i < 4; i++)
        others.emplace_back([&] {
            for (begun++; !end;) {
                gq_gate_take(&gate);
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                gq_gate_give(&gate);
                std::this_thread::sleep_for(std::chrono::microseconds(200));
            }
        });
    while (begun < 4)
        std::this_thread::yield();
    int err = 0;
    unsigned runs = 0;
    for (l.run.budget_ns = kBudget; runs < 20 && !err; runs += !err) {
        err = gq_gate_enter(&gate, &l, &flags);
        if (!err)
            gq_gate_leave(&gate);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    end = true;
    for (std::thread &t : others)
        t.join();
    EXPECT_EQ(err, 0) << "after " << runs << " runs";
}

/* The other may let go before the wait begins: then once more. */
TEST_F(GqGate, TakesTheWaitFromTheBudget)
{
    constexpr uint64_t kBudget = 60000000000u;
    bool waited = false;

    for (unsigned i = 0; i < 1000 && !waited; i++) {
        take();
        std::thread run([this] {
            ASSERT_EQ(enter(kBudget), 0);
            gq_gate_leave(&gate);
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        let_go();
        run.join();
        waited = l.run.budget_ns < kBudget;
        EXPECT_GT(l.run.budget_ns, 0u);
    }
    EXPECT_TRUE(waited);
}

} // namespace
