/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults, delays, order of completion, full rings, abort and deletion of queues. */
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <set>
#include <thread>

#include "sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

struct Fault : ::testing::Test {
    explicit Fault(struct sim_config c = small_config())
        : r(c), q(r.create(1, 64)), buf(r.dma(1 << 20))
    {
    }
    void add(enum sim_fault_kind kind, unsigned times = 0, uint16_t status = 0)
    {
        struct sim_fault f = {};
        f.kind = kind;
        f.times = times;
        f.status = status;
        f.delay_ns = 20 * 1000 * 1000;
        ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
    }
    void submit(unsigned n)
    {
        for (uint16_t i = 0; i < n; i++)
            r.put(q, io(NVME_IO_READ, i, 1, buf->iova + 4096 * i, 0, i));
        r.ring(q);
    }
    std::vector<uint16_t> order(unsigned n)
    {
        std::vector<uint16_t> cids;
        struct nvme_cqe cqe;
        while (cids.size() < n && r.next(q, &cqe))
            cids.push_back(cqe.cid);
        return cids;
    }
    uint16_t read(uint64_t lba = 0)
    {
        return r.run(q, io(NVME_IO_READ, lba, 1, buf->iova));
    }
    Rig r;
    Queue &q;
    std::unique_ptr<Dma> buf;
};

struct sim_config with(void (*change)(struct sim_config &))
{
    struct sim_config c = small_config();
    change(c);
    return c;
}

TEST_F(Fault, StatusIsReportedAndDataNotMoved)
{
    fill(buf->addr, 4096, 5);
    add(SIM_FAULT_STATUS, 1, NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR);
    EXPECT_EQ(read(), NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR);
    EXPECT_TRUE(holds(buf->addr, 4096, 5));
    EXPECT_EQ(read(), 0);
}

TEST_F(Fault, RuleMatchesOpcodeQueueAndLbas)
{
    struct sim_fault f = {};
    f.kind = SIM_FAULT_STATUS;
    f.status = NVME_ERR_INTERNAL;
    f.match_opcode = true;
    f.opcode = NVME_IO_READ;
    f.first_lba = 10;
    f.lbas = 5;
    f.qid = 1;
    ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
    EXPECT_EQ(read(9), 0);
    EXPECT_EQ(read(10), NVME_ERR_INTERNAL);
    EXPECT_EQ(read(14), NVME_ERR_INTERNAL);
    EXPECT_EQ(read(15), 0);
    EXPECT_EQ(r.run(q, io(NVME_IO_WRITE, 12, 1, buf->iova)), 0);
    sim_clear_faults(r.sim);
    EXPECT_EQ(read(10), 0);
}

TEST_F(Fault, SkipPrecedesTimes)
{
    struct sim_fault f = {};
    f.kind = SIM_FAULT_STATUS;
    f.status = NVME_ERR_INTERNAL;
    f.skip = 2;
    f.times = 1;
    ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
    std::vector<uint16_t> seen;
    for (int i = 0; i < 5; i++)
        seen.push_back(read());
    EXPECT_EQ(seen, (std::vector<uint16_t>{0, 0, NVME_ERR_INTERNAL, 0, 0}));
}

std::vector<uint16_t> drawn(uint64_t seed)
{
    struct sim_config c = small_config();
    c.seed = seed;
    Rig r(c);
    Queue &q = r.create(1, 16);
    auto buf = r.dma(4096);
    struct sim_fault f = {};
    f.kind = SIM_FAULT_STATUS;
    f.status = NVME_ERR_INTERNAL;
    f.one_in = 3;
    EXPECT_EQ(sim_add_fault(r.sim, &f), 0);
    std::vector<uint16_t> v;
    for (int i = 0; i < 60; i++)
        v.push_back(r.run(q, io(NVME_IO_READ, 0, 1, buf->iova)));
    return v;
}

TEST(FaultSeed, TheSameSeedHasTheSameFaults)
{
    auto a = drawn(5);
    EXPECT_EQ(a, drawn(5));
    EXPECT_NE(a, drawn(6));
    auto failed = std::count(a.begin(), a.end(), NVME_ERR_INTERNAL);
    EXPECT_GT(failed, 5);
    EXPECT_LT(failed, 40);
}

TEST_F(Fault, RulesAreLimited)
{
    struct sim_fault f = {};
    f.kind = SIM_FAULT_LOSE;
    for (int i = 0; i < 64; i++)
        ASSERT_EQ(sim_add_fault(r.sim, &f), 0);
    EXPECT_EQ(sim_add_fault(r.sim, &f), -ENOSPC);
}

TEST_F(Fault, CorruptFlipsOneBitOfARead)
{
    memset(buf->addr, 0xff, 4096);
    add(SIM_FAULT_CORRUPT, 1);
    EXPECT_EQ(read(), 0);
    int bits = 0;
    for (int i = 0; i < 4096; i++)
        bits += __builtin_popcount(buf->addr[i]);
    EXPECT_EQ(bits, 1);
}

TEST_F(Fault, LateCommandCompletesAfterOthers)
{
    add(SIM_FAULT_LATE, 1);
    submit(8);
    auto cids = order(8);
    ASSERT_EQ(cids.size(), 8u);
    EXPECT_EQ(cids.back(), 0);
}

TEST_F(Fault, RepeatCompletesTheLastCommandAgain)
{
    add(SIM_FAULT_REPEAT, 1);
    submit(1);
    EXPECT_EQ(order(1), std::vector<uint16_t>{0}) << "nothing has completed before";
    submit(2);
    EXPECT_EQ(order(2), (std::vector<uint16_t>{0, 1}));
    sim_clear_faults(r.sim);
    add(SIM_FAULT_REPEAT, 1);
    r.put(q, io(NVME_IO_READ, 5, 1, buf->iova, 0, 0x1234));
    r.ring(q);
    EXPECT_EQ(order(2), (std::vector<uint16_t>{1, 0x1234}));
}

TEST_F(Fault, LostCommandCanBeAborted)
{
    add(SIM_FAULT_LOSE, 1);
    submit(1);
    r.wait_commands(3);
    EXPECT_TRUE(r.quiet(q));
    uint32_t result = 9;
    ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_ABORT, 1 | 0u << 16, 0), &result), 0);
    EXPECT_EQ(result, 0u);
    struct nvme_cqe cqe;
    ASSERT_TRUE(r.next(q, &cqe));
    EXPECT_EQ(NVME_STATUS(cqe.status), NVME_ERR_ABORT_REQUESTED);
    ASSERT_EQ(r.admin(admin_cmd(NVME_ADMIN_ABORT, 1 | 0u << 16, 0), &result), 0);
    EXPECT_EQ(result, 1u); /* nothing left to abort */
}

TEST_F(Fault, DeletingTheQueueEndsItsCommands)
{
    add(SIM_FAULT_LOSE, 3);
    submit(3);
    r.wait_commands(5);
    ASSERT_EQ(r.remove_sq(1), 0);
    for (int i = 0; i < 3; i++) {
        struct nvme_cqe cqe;
        ASSERT_TRUE(r.next(q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), NVME_ERR_SQ_DELETED);
    }
    EXPECT_EQ(r.remove_cq(1), 0);
}

TEST_F(Fault, FatalStopsTheController)
{
    add(SIM_FAULT_FATAL, 1);
    submit(1);
    while (!(r.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL))
        std::this_thread::yield();
    EXPECT_TRUE(r.quiet(q));
    buf.reset();
    r.disable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), 0u);
    r.enable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Fault, ResetClearsAllState)
{
    add(SIM_FAULT_LATE);
    submit(20);
    r.wait_commands(22);
    r.disable();
    sim_clear_faults(r.sim);
    r.enable();
    Queue &again = r.create(1, 8);
    EXPECT_EQ(r.run(again, io(NVME_IO_READ, 0, 1, buf->iova, 0, 0)), 0);
    EXPECT_TRUE(r.quiet(again));
}

TEST_F(Fault, FullCqDelaysCommandsUntilItsHeadMoves)
{
    Queue &small = r.create(2, 32, 4);
    for (uint16_t i = 0; i < 10; i++)
        r.put(small, io(NVME_IO_READ, i, 1, buf->iova, 0, i));
    r.ring(small);
    small.depth = 4; /* the CQ's, for next() */
    struct nvme_cqe cqe;
    for (int i = 0; i < 3; i++)
        ASSERT_TRUE(r.next(small, &cqe, false));
    EXPECT_TRUE(r.quiet(small));
    r.doorbell(2, true, small.head);
    for (int i = 3; i < 10; i++)
        ASSERT_TRUE(r.next(small, &cqe));
    EXPECT_EQ(cqe.sq_head, 10);
}

struct Reorder : Fault {
    Reorder() : Fault(with([](struct sim_config &c) { c.reorder = true; }))
    {
    }
};

TEST_F(Reorder, CompletesEveryCommandOnceAndOutOfOrder)
{
    submit(60);
    auto cids = order(60);
    ASSERT_EQ(cids.size(), 60u);
    EXPECT_FALSE(std::is_sorted(cids.begin(), cids.end()));
    EXPECT_EQ(std::set<uint16_t>(cids.begin(), cids.end()).size(), 60u);
}

struct Latency : Fault {
    Latency() : Fault(with([](struct sim_config &c) { c.latency_ns = 3 * 1000 * 1000; }))
    {
    }
};

TEST_F(Latency, NoCommandIsFasterThanTheModel)
{
    auto start = Clock::now();
    EXPECT_EQ(read(), 0);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(3));
}

struct Bandwidth : Fault {
    Bandwidth() : Fault(with([](struct sim_config &c) { c.bytes_per_sec = 10 << 20; }))
    {
    }
};

TEST_F(Bandwidth, TransfersTakeTheConfiguredTime)
{
    auto start = Clock::now();
    submit(50);
    EXPECT_EQ(order(50).size(), 50u);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(19)); /* 200 KiB at 10 MiB/s */
}

TEST(Ready, TakesTheConfiguredTime)
{
    struct sim_config c = small_config();
    c.ready_ms = 30;
    auto start = Clock::now();
    Rig r(c);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(30));
    EXPECT_TRUE(r.read32(NVME_REG_CSTS) & NVME_CSTS_READY);
}

} // namespace
