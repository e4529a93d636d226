/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Doorbell stores without a kick: the time until the controller notices them.
 */
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

/*
 * Stores a doorbell as a GPU does, without a kick. Returns the microseconds
 * until the completion.
 */
double ring_silently(Rig &r, Queue &q, const struct nvme_sqe &sqe)
{
    r.put(q, sqe);
    auto start = Clock::now();
    __atomic_store_n(&r.t->doorbells[2 * q.qid], q.tail, __ATOMIC_RELEASE);
    struct nvme_cqe cqe;
    auto *cq = q.cq->as<struct nvme_cqe>();
    uint16_t *status = &cq[q.head].status;
    while ((__atomic_load_n(status, __ATOMIC_ACQUIRE) & 1) != q.phase)
        ;
    std::chrono::duration<double, std::micro> took = Clock::now() - start;
    EXPECT_TRUE(r.next(q, &cqe));
    return took.count();
}

/*
 * The fastest of several single reads, each after a pause in which the controller
 * goes to sleep; announced with wake() for so many queues, or not at all. The
 * fastest one waited for no processor, unlike the median on a busy machine; a
 * wake-up is part of it all the same.
 */
double least_us(Rig &r, Queue &q, Dma &buf, unsigned announced = 0)
{
    std::vector<double> all;
    for (int i = 0; i < 21; i++) {
        usleep(25000);
        if (announced) {
            nvme_wake(r.t, announced);
            usleep(100);
        }
        all.push_back(ring_silently(r, q, io(NVME_IO_READ, 0, 1, buf.iova)));
    }
    return *std::min_element(all.begin(), all.end());
}

TEST(KeepPolling, DetectsDoorbellsSoonerThanASleepingThread)
{
    Rig r(small_config());
    Queue &q = r.create(1, 8);
    auto buf = r.dma(4096);
    bool sooner = false;
    /*
     * On a busy machine either time may include a wait for a processor: the
     * comparison is repeated.
     */
    for (int i = 0; i < 10 && !sooner; i++) {
        double alone = least_us(r, q, *buf);
        nvme_keep_polling(r.t, 1);
        double polled = least_us(r, q, *buf);
        nvme_keep_polling(r.t, -1);
        printf("fastest read: %.1f us, polled %.1f us\n", alone, polled);
        sooner = polled < alone;
    }
    EXPECT_TRUE(sooner);
}

/* The queue belongs to a thread other than thread 0. */
TEST(KeepPolling, WorkOfSeveralQueuesIsExpectedByAllThreads)
{
    struct sim_config cfg = small_config();
    cfg.threads = 2;
    Rig r(cfg);
    Queue &q = r.create(1, 8);
    auto buf = r.dma(4096);
    bool sooner = false;
    for (int i = 0; i < 10 && !sooner; i++) {
        double asleep = least_us(r, q, *buf);
        double expected = least_us(r, q, *buf, 2);
        printf("fastest read: %.1f us, expected %.1f us\n", asleep, expected);
        sooner = expected < asleep;
    }
    EXPECT_TRUE(sooner);
}

TEST(KeepPolling, RemainsOfAHolderAreNoMistakeOfTheDriver)
{
    Rig r(small_config());
    Queue &q = r.create(1, 8);
    auto buf = r.dma(4096);
    nvme_keep_polling(r.t, 1);
    uint64_t gone = buf->iova;
    buf->unmap();
    EXPECT_NE(r.run(q, io(NVME_IO_READ, 0, 1, gone)), 0u);
    ASSERT_EQ(r.remove_sq(1), 0u);
    ASSERT_EQ(r.remove_cq(1), 0u);
    __atomic_store_n(&r.t->doorbells[2], 5u, __ATOMIC_RELEASE);
    nvme_keep_polling(r.t, -1);
    usleep(20000);
    EXPECT_EQ(sim_violations(r.sim), 0u);
    r.doorbell(1, false, 6);
    for (int i = 0; i < 1000 && !r.events(SIM_EV_DB_INVALID_QUEUE); i++)
        usleep(1000);
    EXPECT_TRUE(r.only(SIM_EV_DB_INVALID_QUEUE)) << "no holder is left";
}

} // namespace
