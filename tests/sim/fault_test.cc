/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults, delays, order of completion, full rings, abort and deletion of queues. */
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <set>

#include "sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

struct Fault : OneQueue {
    using OneQueue::OneQueue;
};

TEST_F(Fault, StatusIsReportedAndDataNotMoved)
{
    fill(buf->addr, 4096, 5);
    struct sim_fault f = fault(SIM_FAULT_STATUS);
    f.status = NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR;
    add(f);
    EXPECT_EQ(read(), NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR);
    EXPECT_TRUE(holds(buf->addr, 4096, 5));
    EXPECT_EQ(read(), 0);
}

TEST_F(Fault, RuleMatchesOpcodeQueueAndLbas)
{
    struct sim_fault f = fault(SIM_FAULT_STATUS);
    f.times = 0;
    f.match_opcode = true;
    f.opcode = NVME_IO_READ;
    f.first_lba = 10;
    f.lbas = 5;
    f.qid = 1;
    add(f);
    EXPECT_EQ(read(9), 0);
    EXPECT_EQ(read(10), NVME_ERR_INTERNAL);
    EXPECT_EQ(read(14), NVME_ERR_INTERNAL);
    EXPECT_EQ(read(15), 0);
    EXPECT_EQ(r.run(*q, io(NVME_IO_WRITE, 12, 1, buf->iova)), 0);
    sim_clear_faults(r.sim);
    EXPECT_EQ(read(10), 0);
}

TEST_F(Fault, SkipPrecedesTimes)
{
    struct sim_fault f = fault(SIM_FAULT_STATUS);
    f.skip = 2;
    add(f);
    std::vector<uint16_t> seen;
    for (int i = 0; i < 5; i++)
        seen.push_back(read());
    EXPECT_EQ(seen, (std::vector<uint16_t>{0, 0, NVME_ERR_INTERNAL, 0, 0}));
}

std::vector<uint16_t> drawn(uint64_t seed)
{
    Rig r(with([=](struct sim_config &c) { c.seed = seed; }));
    Queue &q = r.create(1, 16);
    auto buf = r.dma(4096);
    struct sim_fault f = fault(SIM_FAULT_STATUS);
    f.times = 0;
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
    const struct sim_fault f = fault(SIM_FAULT_LOSE);
    for (int i = 0; i < 64; i++)
        add(f);
    EXPECT_EQ(sim_add_fault(r.sim, &f), -ENOSPC);
}

TEST_F(Fault, LateCommandCompletesAfterOthers)
{
    add(fault(SIM_FAULT_LATE, 20 * MS));
    submit_all(8);
    auto cids = order(8);
    ASSERT_EQ(cids.size(), 8u);
    EXPECT_EQ(cids.back(), 0);
}

TEST_F(Fault, RepeatCompletesTheLastCommandAgain)
{
    add(fault(SIM_FAULT_REPEAT));
    submit_all(1);
    EXPECT_EQ(order(1), std::vector<uint16_t>{0}) << "nothing has completed before";
    submit_all(2);
    EXPECT_EQ(order(2), (std::vector<uint16_t>{0, 1}));
    sim_clear_faults(r.sim);
    add(fault(SIM_FAULT_REPEAT));
    r.put(*q, io(NVME_IO_READ, 5, 1, buf->iova, 0, 0x1234));
    r.ring(*q);
    EXPECT_EQ(order(2), (std::vector<uint16_t>{1, 0x1234}));
}

TEST_F(Fault, DeletingTheQueueEndsItsCommands)
{
    struct sim_fault f = fault(SIM_FAULT_LOSE);
    f.times = 3;
    add(f);
    submit_all(3);
    r.wait_commands(5);
    ASSERT_EQ(r.remove_sq(1), 0);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(next_status(*q), NVME_ERR_SQ_DELETED);
    EXPECT_EQ(r.remove_cq(1), 0);
}

TEST_F(Fault, ResetClearsAllState)
{
    struct sim_fault f = fault(SIM_FAULT_LATE, 20 * MS);
    f.times = 0;
    add(f);
    submit_all(20);
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
    Reorder() : Fault(with([](struct sim_config &c) { c.reorder = true; })) {}
};

TEST_F(Reorder, CompletesEveryCommandOnceAndOutOfOrder)
{
    submit_all(60);
    auto cids = order(60);
    ASSERT_EQ(cids.size(), 60u);
    EXPECT_FALSE(std::is_sorted(cids.begin(), cids.end()));
    EXPECT_EQ(std::set<uint16_t>(cids.begin(), cids.end()).size(), 60u);
}

struct Latency : Fault {
    Latency() : Fault(with([](struct sim_config &c) { c.latency_ns = 3 * 1000 * 1000; })) {}
};

TEST_F(Latency, NoCommandIsFasterThanTheModel)
{
    auto start = Clock::now();
    EXPECT_EQ(read(), 0);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(3));
}

struct Bandwidth : Fault {
    Bandwidth() : Fault(with([](struct sim_config &c) { c.bytes_per_sec = 10 << 20; })) {}
};

TEST_F(Bandwidth, TransfersTakeTheConfiguredTime)
{
    auto start = Clock::now();
    submit_all(50);
    EXPECT_EQ(order(50).size(), 50u);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(19)); /* 200 KiB at 10 MiB/s */
}

TEST(Ready, TakesTheConfiguredTime)
{
    auto start = Clock::now();
    Rig r(with([](struct sim_config &c) { c.ready_ms = 30; }));
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(30));
    EXPECT_TRUE(r.read32(NVME_REG_CSTS) & NVME_CSTS_READY);
}

} // namespace
