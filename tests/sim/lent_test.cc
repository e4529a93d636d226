/* SPDX-License-Identifier: BSD-2-Clause */
// Commands that a thread of the driver executes: kick() of the transport.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/sim/sim_test_rig.h"

namespace
{

constexpr uint32_t kDepth = 16;

void ring(Rig &r, Queue &q)
{
    // Release: the SQEs are visible before the doorbell.
    __atomic_store_n(&r.t->doorbells[2 * q.qid << r.cfg.doorbell_stride], q.tail, __ATOMIC_RELEASE);
}

void post(Rig &r, Queue &q, const nvme_sqe &sqe)
{
    r.put(q, sqe);
    ring(r, q);
    nvme_kick(r.t, q.qid);
}

// The controller has posted the next completion already.
bool is_complete(Queue &q)
{
    const auto *cqe = q.cq->as<nvme_cqe>(q.head * sizeof(nvme_cqe));

    return (__atomic_load_n(&cqe->status, __ATOMIC_ACQUIRE) & 1u) == q.phase;
}

TEST(Lent, ACommandEndsInsideTheCall)
{
    Rig r(small_config());
    Queue &q = r.create(1, kDepth);
    auto data = r.dma(4096);
    int inside = 0;

    fill(data->addr, 4096, 7);
    ASSERT_EQ(r.run(q, io(NVME_IO_WRITE, 8, 1, data->iova)), NVME_OK);
    for (int i = 0; i < 50; i++) {
        nvme_cqe cqe;
        memset(data->addr, 0, 4096);
        usleep(2000); // the controller's thread sleeps again
        post(r, q, io(NVME_IO_READ, 8, 1, data->iova));
        inside += is_complete(q);
        ASSERT_TRUE(r.next(q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), NVME_OK);
        EXPECT_TRUE(holds(data->addr, 4096, 7));
    }
    EXPECT_GT(inside, 25) << "it takes a command itself now and then, when its time comes to look";
}

// More commands than one fetch has, of a queue whose owner has called before and does not call now.
TEST(Lent, DoorbellsWithoutACallAreNoticed)
{
    constexpr uint32_t kMany = 40;
    Rig r(small_config());
    Queue &q = r.create(1, 64);
    auto data = r.dma(4096);
    nvme_cqe cqe;

    post(r, q, io(NVME_IO_READ, 8, 1, data->iova));
    ASSERT_TRUE(r.next(q, &cqe));
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < kMany; i++)
            r.put(q, io(NVME_IO_READ, 8, 1, data->iova, 0, static_cast<uint16_t>(i)));
        ring(r, q);
        for (uint32_t i = 0; i < kMany; i++) {
            ASSERT_TRUE(r.next(q, &cqe, false)) << round << ": " << i;
            EXPECT_EQ(NVME_STATUS(cqe.status), NVME_OK);
        }
        r.doorbell(q.qid, true, q.head);
    }
}

TEST(Lent, DelayedCommandsAreLeftToTheController)
{
    sim_config cfg = small_config();
    cfg.latency_ns = 2000 * 1000;
    Rig r(cfg);
    Queue &q = r.create(1, kDepth);
    auto data = r.dma(4096);

    for (int i = 0; i < 50; i++) {
        nvme_cqe cqe;
        post(r, q, io(NVME_IO_READ, 0, 1, data->iova));
        ASSERT_TRUE(r.next(q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), NVME_OK);
    }
}

TEST(Lent, AHungControllerExecutesNothing)
{
    Rig r(small_config());
    Queue &q = r.create(1, kDepth);
    auto data = r.dma(4096);
    sim_fault hang = {};
    nvme_cqe cqe;

    hang.kind = SIM_FAULT_HANG;
    hang.times = 1;
    hang.qid = 1;
    hang.delay_ns = 1000 * 1000 * 1000; // also longer than a busy machine needs for the check
    ASSERT_EQ(sim_add_fault(r.sim, &hang), 0);
    post(r, q, io(NVME_IO_READ, 0, 1, data->iova, 0, 1));
    post(r, q, io(NVME_IO_READ, 0, 1, data->iova, 0, 2));
    EXPECT_FALSE(is_complete(q));
    EXPECT_TRUE(r.next(q, &cqe));
    EXPECT_TRUE(r.next(q, &cqe));
}

// Threads with a queue each, of which one controller thread owns all, and a pause now and then.
TEST(Lent, ThreadsDoNotDisturbEachOther)
{
    constexpr uint16_t kThreads = 4;
    constexpr uint32_t kRounds = 400;
    Rig r(small_config());
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<Dma>> data;

    for (uint16_t i = 0; i < kThreads; i++) {
        r.create(i + 1, kDepth);
        data.push_back(r.dma(4096));
    }
    for (uint16_t i = 0; i < kThreads; i++) {
        threads.emplace_back([&r, i, memory = data[i].get()] {
            Queue &q = *r.queues[i];
            uint64_t lba = 64u * (i + 1u);
            nvme_cqe cqe;
            for (uint32_t n = 0; n < kRounds; n++) {
                bool write = n % 2 == 0;
                if (write)
                    fill(memory->addr, 4096, n + i);
                else
                    memset(memory->addr, 0, 4096);
                post(r, q, io(write ? NVME_IO_WRITE : NVME_IO_READ, lba, 1, memory->iova));
                ASSERT_TRUE(r.next(q, &cqe));
                ASSERT_EQ(NVME_STATUS(cqe.status), NVME_OK);
                ASSERT_TRUE(write || holds(memory->addr, 4096, n - 1 + i));
            }
        });
    }
    for (int i = 0; i < 20; i++)
        auto paused = r.dma(4096); // map() and unmap() pause the controller
    for (auto &thread : threads)
        thread.join();
}

} // namespace
