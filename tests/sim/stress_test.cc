/* SPDX-License-Identifier: BSD-2-Clause */
/* Several controller threads, wake-ups, and random commands. */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

#include "sim_test_rig.h"
#include "tests/sim/sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

/* Checked traffic of one thread on its own queue and its own LBAs. */
void traffic(Rig &r, Queue &q, Dma &buf, uint64_t first_lba, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        struct nvme_cqe cqe;
        for (uint16_t c = 0; c < 8; c++) {
            fill(buf.addr + 4096 * c, 4096, first_lba * 1000 + i * 8 + c);
            r.put(q, io(NVME_IO_WRITE, first_lba + c, 1, buf.iova + 4096 * c, 0, c));
        }
        r.ring(q);
        for (int c = 0; c < 8; c++)
            ASSERT_TRUE(r.next(q, &cqe) && NVME_STATUS(cqe.status) == 0);
        memset(buf.addr, 0, buf.len);
        for (uint16_t c = 0; c < 8; c++)
            r.put(q, io(NVME_IO_READ, first_lba + c, 1, buf.iova + 4096 * c, 0, c));
        r.ring(q);
        for (int c = 0; c < 8; c++)
            ASSERT_TRUE(r.next(q, &cqe) && NVME_STATUS(cqe.status) == 0);
        for (int c = 0; c < 8; c++)
            ASSERT_TRUE(holds(buf.addr + 4096 * c, 4096, first_lba * 1000 + i * 8 + c));
    }
}

TEST(Threads, ServeQueuesConcurrently)
{
    struct sim_config c = small_config();
    c.threads = 3;
    c.reorder = true;
    Rig r(c);
    std::vector<std::thread> drivers;
    std::vector<std::unique_ptr<Dma>> bufs;
    for (uint16_t i = 1; i <= 4; i++) {
        Queue &q = r.create(i, 32);
        bufs.push_back(r.dma(32768));
        drivers.emplace_back([&r, &q, b = bufs.back().get(), i] { traffic(r, q, *b, i * 8, 50); });
    }
    for (auto &d : drivers)
        d.join();
}

TEST(Threads, MapAndUnmapDuringTraffic)
{
    struct sim_config c = small_config();
    c.threads = 2;
    Rig r(c);
    Queue &q = r.create(1, 32);
    auto buf = r.dma(32768);
    std::thread driver([&] { traffic(r, q, *buf, 8, 100); });
    for (int i = 0; i < 200; i++)
        r.dma(4096);
    driver.join();
}

TEST(Parking, SleepingThreadsNoticeDoorbellsWithoutAKick)
{
    struct sim_config c = small_config();
    c.threads = 3;
    Rig r(c);
    auto buf = r.dma(4096);
    for (uint16_t id = 1; id <= 3; id++) {
        Queue &q = r.create(id, 8);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        r.put(q, io(NVME_IO_READ, 0, 1, buf->iova));
        __atomic_store_n(&r.t->doorbells[2 * id], q.tail, __ATOMIC_RELEASE);
        struct nvme_cqe cqe;
        EXPECT_TRUE(r.next(q, &cqe));
    }
}

TEST(Parking, AnIdleControllerUsesLittleCpu)
{
    struct sim_config c = small_config();
    c.threads = 4;
    Rig r(c);
    r.create(1, 8);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    auto wall = Clock::now();
    clock_t cpu = clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    double used = double(clock() - cpu) / CLOCKS_PER_SEC;
    double spent = std::chrono::duration<double>(Clock::now() - wall).count();
    EXPECT_LT(used, spent * 0.2); /* a polling thread uses all of it */
}

/* A mostly valid command with some random fields. */
struct nvme_sqe nonsense(std::mt19937_64 &g, const Dma &buf, uint16_t cid)
{
    const uint8_t opcodes[] = {0, 1, 2, 8, 9, 5};
    auto some = [&](uint64_t sane) { return g() % 8 ? sane : g() >> (g() % 64); };
    auto address = [&] { return some(buf.iova + (g() % buf.len & (g() % 4 ? ~4095ull : ~0ull))); };
    struct nvme_sqe s =
        io(opcodes[g() % 6], some(g() % 1000), 1 + g() % 20, address(), address(), cid);
    s.nsid = static_cast<uint32_t>(some(1));
    s.flags = static_cast<uint8_t>(some(g() % 2 ? NVME_PSDT_SGL : NVME_PSDT_PRP));
    s.cdw12 = static_cast<uint32_t>(some(s.cdw12));
    s.cdw10 = s.opcode == NVME_IO_DSM ? g() % 8 : s.cdw10;
    s.mptr = some(0);
    s.cdw2 = static_cast<uint32_t>(some(0));
    return s;
}

void forgive_all(struct sim *s)
{
    for (int e = 0; e < SIM_EV_COUNT; e++)
        sim_forgive(s, static_cast<enum sim_event>(e));
}

TEST(Nonsense, EveryIoCommandCompletes)
{
    struct sim_config c = small_config();
    c.track_cache = true;
    c.reorder = true;
    Rig r(c);
    Queue &q = r.create(1, 64);
    auto buf = r.dma(256 << 10);
    std::mt19937_64 g(1);
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < buf->len / 8; i += 1 + g() % 16)
            buf->as<uint64_t>()[i] = g() % 4 ? buf->iova + (g() % buf->len & ~4095ull) : g();
        for (uint16_t i = 0; i < 32; i++)
            r.put(q, nonsense(g, *buf, i));
        r.ring(q);
        struct nvme_cqe cqe;
        for (int i = 0; i < 32; i++)
            ASSERT_TRUE(r.next(q, &cqe));
    }
    forgive_all(r.sim);
}

TEST(Nonsense, EveryAdminCommandCompletes)
{
    Rig r(small_config());
    auto buf = r.dma(64 << 10);
    std::mt19937_64 g(2);
    const uint8_t opcodes[] = {0, 1, 4, 5, 6, 8, 9, 10, 12, 13};
    for (int i = 0; i < 2000; i++) {
        struct nvme_sqe s =
            admin_cmd(opcodes[g() % 10], g() % 8 | (g() % 64) << 16, g() % 4 | (g() % 6) << 16,
                      buf->iova + (g() % buf->len & ~4095ull));
        s.nsid = g() % 3;
        s.cid = static_cast<uint16_t>(i);
        if (s.opcode == NVME_ADMIN_ASYNC_EVENT)
            continue;
        ASSERT_NE(r.admin(s), 0xffff) << i;
    }
    r.disable();
    forgive_all(r.sim);
}

TEST(Nonsense, DoorbellsAreReportedAndAResetRecoversTheDrive)
{
    Rig r(small_config());
    r.create(1, 16);
    auto store = [&](size_t word, uint32_t value) {
        __atomic_store_n(&r.t->doorbells[word], value, __ATOMIC_RELEASE);
        r.kick();
    };
    std::mt19937_64 g(3);
    for (int i = 0; i < 3000; i++)
        store(g() % 4 ? g() % 12 : g() % (r.t->doorbells_len / 4),
              static_cast<uint32_t>(g() % 3 ? g() % 20 : g()));
    // The drive's thread sees the newest value only: each is another one, until it has looked.
    for (uint32_t i = 0; i < 10000 && r.events(SIM_EV_DB_OUT_OF_RANGE) == 0; i++) {
        store(2, 1000 + i);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GT(r.events(SIM_EV_DB_OUT_OF_RANGE), 0u);
    r.disable();
    r.enable();
    auto buf = r.dma(4096);
    Queue &fresh = r.create(2, 16);
    EXPECT_EQ(r.run(fresh, io(NVME_IO_READ, 0, 1, buf->iova)), 0);
    r.disable();
    forgive_all(r.sim);
}

TEST(Nonsense, AnEnableAfterAnyRegisterWritesWorks)
{
    Rig r(small_config());
    std::mt19937_64 g(4);
    for (int i = 0; i < 3000; i++) {
        uint32_t reg = static_cast<uint32_t>(g() % 20 * 4), v = static_cast<uint32_t>(g());
        r.write32(reg, g() % 2 ? v : v & 1);
        r.read32(reg);
        r.read64(reg);
    }
    r.disable();
    r.enable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
    r.disable();
    forgive_all(r.sim);
}

// --- Doorbells without a kick --------------------------------------------------------------------

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

// --- Threads of the driver that execute commands -------------------------------------------------

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
