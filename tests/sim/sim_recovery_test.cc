/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Cases of a driver's recovery: Abort, lost admin commands, hangs, removal,
 * resets.
 */
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <poll.h>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "sim_test_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;

struct Recovery : OneQueue {
    using OneQueue::OneQueue;
    uint32_t abort(uint16_t sqid, uint16_t cid)
    {
        uint32_t result = 9;
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_ABORT, sqid | static_cast<uint32_t>(cid) << 16, 0);
        s.cid = 77;
        EXPECT_EQ(r.admin(s, &result), 0);
        return result;
    }
    void start_again()
    {
        r.disable();
        r.enable();
        q = &r.create(1, 64);
        EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
        EXPECT_EQ(read(), 0);
    }
    int reset() { return r.t->ops->reset(r.t); }
};

TEST_F(Recovery, AbortEndsADelayedOrLostCommand)
{
    for (auto kind : {SIM_FAULT_LATE, SIM_FAULT_LOSE}) {
        add(fault(kind, 3600000 * MS));
        submit_held(4);
        EXPECT_TRUE(r.quiet(*q));
        EXPECT_EQ(abort(1, 5), 1u); /* no such command */
        EXPECT_EQ(abort(2, 4), 1u); /* no such queue */
        EXPECT_EQ(abort(1, 4), 0u);
        EXPECT_EQ(next_status(*q), NVME_ERR_ABORT_REQUESTED);
        EXPECT_EQ(abort(1, 4), 1u) << "nothing left to abort";
        submit(4); /* the CID is free again */
        EXPECT_EQ(next_status(*q), 0);
    }
}

TEST_F(Recovery, MoreAbortsThanAclAllowsAreRefused)
{
    for (uint16_t cid = 0; cid < 5; cid++) {
        struct nvme_sqe s = admin_cmd(NVME_ADMIN_ABORT, 1, 0);
        s.cid = cid;
        r.put(r.aq, s);
    }
    r.ring(r.aq);
    EXPECT_EQ(next_status(r.aq), NVME_ERR_ABORT_LIMIT);
    for (int i = 1; i < 5; i++)
        EXPECT_EQ(next_status(r.aq), 0);
    EXPECT_TRUE(r.only(SIM_EV_ABORT_LIMIT));
}

struct NoAbort : Recovery {
    NoAbort() : Recovery(with([](struct sim_config &c) { c.no_abort = c.no_reset = true; })) {}
};

TEST_F(NoAbort, AbortCompletesAndEndsNothing)
{
    add(fault(SIM_FAULT_LATE, 50 * MS));
    submit_held(4);
    EXPECT_EQ(abort(1, 4), 1u);
    EXPECT_EQ(next_status(*q), 0);
}

TEST_F(NoAbort, TheTransportHasNoReset)
{
    EXPECT_EQ(reset(), -ENOTSUP);
    EXPECT_EQ(read(), 0);
}

TEST_F(Recovery, AdminFaultsMatchAdminCommandsOnly)
{
    add(admin_fault(SIM_FAULT_STATUS));
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(identify(), NVME_ERR_INTERNAL);
    EXPECT_EQ(identify(), 0);
    add(fault(SIM_FAULT_STATUS));
    EXPECT_EQ(identify(), 0);
    EXPECT_EQ(read(), NVME_ERR_INTERNAL);
}

TEST_F(Recovery, LostAdminCommandCanBeAborted)
{
    add(admin_fault(SIM_FAULT_LOSE));
    submit_identify(3);
    EXPECT_TRUE(r.quiet(r.aq));
    struct nvme_sqe s = admin_cmd(NVME_ADMIN_ABORT, 0 | 3u << 16, 0);
    s.cid = 9;
    r.put(r.aq, s);
    r.ring(r.aq);
    struct nvme_cqe cqe;
    ASSERT_TRUE(r.next(r.aq, &cqe));
    EXPECT_EQ(cqe.cid, 3);
    EXPECT_EQ(NVME_STATUS(cqe.status), NVME_ERR_ABORT_REQUESTED);
    ASSERT_TRUE(r.next(r.aq, &cqe));
    EXPECT_EQ(cqe.cid, 9);
    EXPECT_EQ(cqe.result, 0u);
}

TEST_F(Recovery, AnAbortThatAbortsItselfEndsOnce)
{
    add(admin_fault(SIM_FAULT_LATE, 20 * MS, NVME_ADMIN_ABORT));
    EXPECT_EQ(abort(0, 77), 1u);
    EXPECT_TRUE(r.quiet(r.aq));
    EXPECT_EQ(identify(), 0);
}

TEST_F(Recovery, LateAdminCommandMovesItsDataLate)
{
    memset(buf->addr, 0xee, 4096);
    add(admin_fault(SIM_FAULT_LATE, 40 * MS));
    auto start = Clock::now();
    submit_identify(3);
    EXPECT_EQ(read(), 0) << "only the admin command is late";
    EXPECT_EQ(next_status(r.aq), 0);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(40));
    EXPECT_EQ(memcmp(buf->addr + 4, "SIM0001", 7), 0);
}

TEST_F(Recovery, MemoryOfALateCommandIsInUse)
{
    for (bool admin : {false, true}) {
        auto page = r.dma(4096);
        Queue &of = admin ? r.aq : *q;
        uint64_t before = r.stats().commands;
        add(admin ? admin_fault(SIM_FAULT_LATE, 1000 * MS) : fault(SIM_FAULT_LATE, 1000 * MS));
        r.put(of, admin ? admin_cmd(NVME_ADMIN_IDENTIFY, NVME_CNS_CTRL, 0, page->iova)
                        : io(NVME_IO_READ, 0, 1, page->iova));
        r.ring(of);
        r.wait_commands(before + 1); /* the memory is in use from here on */
        page.reset();
        EXPECT_TRUE(r.only(SIM_EV_UNMAP_IN_FLIGHT));
        EXPECT_EQ(next_status(of), NVME_ERR_DATA_TRANSFER);
    }
}

TEST_F(Recovery, CorruptDataDifferInOneBit)
{
    for (bool admin : {false, true}) {
        auto get = [&] { return admin ? identify() : read(); };
        ASSERT_EQ(get(), 0);
        std::vector<unsigned char> before(buf->addr, buf->addr + 4096);
        add(admin ? admin_fault(SIM_FAULT_CORRUPT) : fault(SIM_FAULT_CORRUPT));
        memset(buf->addr, 0xff, 4096);
        ASSERT_EQ(get(), 0);
        int bits = 0;
        for (size_t i = 0; i < 4096; i++)
            bits += __builtin_popcount(before[i] ^ buf->addr[i]);
        EXPECT_EQ(bits, 1);
    }
}

TEST_F(Recovery, AHangEndsByItselfAndLosesNothing)
{
    add(fault(SIM_FAULT_HANG, 60 * MS));
    auto start = Clock::now();
    submit_all(8);
    submit_identify(3);
    expect_success(8);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(60));
    EXPECT_EQ(next_status(r.aq), 0);
}

TEST_F(Recovery, AnEndlessHangEndsWithAReset)
{
    add(fault(SIM_FAULT_HANG));
    submit_held(0); /* the thread of the other queue could be faster */
    submit_identify(3);
    EXPECT_TRUE(r.quiet(*q));
    EXPECT_TRUE(r.quiet(r.aq, 1));
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY) << "it looks healthy";
    start_again();
}

/*
 * Seconds of processor time that the process uses while this thread sleeps for
 * half a second.
 */
double load()
{
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    return static_cast<double>(after.tv_sec - before.tv_sec) +
           static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
}

/* Doorbells of a disabled controller keep no thread awake. */
TEST_F(Recovery, ADoorbellCausesNoLoadWhileDisabled)
{
    r.disable();
    r.doorbell(0, false, 1);
    EXPECT_LT(load(), 0.25);
    start_again();
}

TEST_F(Recovery, ADoorbellCausesNoLoadWhileHalted)
{
    add(fault(SIM_FAULT_FATAL));
    submit(0);
    wait_fatal();
    submit(1);
    EXPECT_LT(load(), 0.25);
    start_again();
}

TEST_F(Recovery, ADoorbellCausesNoLoadWhileHung)
{
    add(fault(SIM_FAULT_HANG, 1000 * MS));
    submit_held(0);
    submit_identify(3);
    EXPECT_LT(load(), 0.25);
    EXPECT_EQ(next_status(*q), 0);
    EXPECT_EQ(next_status(r.aq), 0);
}

/* The commands were fetched together, and each rule has fired once. */
TEST_F(Recovery, AFaultOfTheSameBatchAsAHangHasItsEffect)
{
    add(fault(SIM_FAULT_HANG, 20 * MS));
    add(fault(SIM_FAULT_STATUS));
    add(fault(SIM_FAULT_HANG, 1));
    auto start = Clock::now();
    submit_all(4);
    for (uint16_t cid = 0; cid < 4; cid++)
        EXPECT_EQ(next_status(*q), cid == 1 ? NVME_ERR_INTERNAL : 0) << cid;
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(20));
}

TEST_F(Recovery, AnAdminCommandCanHangTheController)
{
    add(admin_fault(SIM_FAULT_HANG, 40 * MS));
    auto start = Clock::now();
    submit_identify(3);
    r.wait_commands(3); /* the thread of the other queue could be faster */
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(next_status(r.aq), 0);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(40));
}

TEST_F(Recovery, AResetRecoversFromAFatalCommand)
{
    for (bool admin : {false, true}) {
        Queue &of = admin ? r.aq : *q;
        add(admin ? admin_fault(SIM_FAULT_FATAL) : fault(SIM_FAULT_FATAL));
        admin ? submit_identify(3) : submit(0);
        wait_fatal();
        EXPECT_TRUE(r.quiet(of));
        buf.reset(); /* a halted controller uses no memory */
        r.disable();
        EXPECT_EQ(r.read32(NVME_REG_CSTS), 0u);
        r.enable();
        buf = r.dma(1 << 20);
        start_again();
    }
}

/*
 * The old rings are still mapped: a driver unmaps them after the controller has
 * stopped only.
 */
TEST_F(Recovery, ResetFromOutsideStopsAndKeepsTheMap)
{
    add(fault(SIM_FAULT_LATE, 300 * MS));
    memset(buf->addr, 0xee, 4096);
    submit_held(0);
    ASSERT_EQ(reset(), 0);
    EXPECT_EQ(r.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), 0u);
    EXPECT_EQ(r.read32(NVME_REG_AQA), 0u);
    EXPECT_EQ(r.t->doorbells[0], 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(310));
    EXPECT_EQ(buf->addr[0], 0xee) << "a command of before touches no memory";
    start_again();
    EXPECT_EQ(buf->addr[0], 0) << "the buffer is still mapped";
}

TEST_F(Recovery, AStuckControllerIgnoresCcUntilReset)
{
    sim_stick(r.sim);
    r.write32(NVME_REG_CC, 0);
    EXPECT_EQ(r.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
    EXPECT_EQ(read(), 0) << "it still works";
    ASSERT_EQ(reset(), 0);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), 0u);
    start_again();
}

TEST_F(NoAbort, UnmappingIsAllowedOnceAStuckControllerIsAbandoned)
{
    add(fault(SIM_FAULT_LOSE));
    submit_held(0);
    sim_stick(r.sim);
    r.write32(NVME_REG_CC, 0);
    ASSERT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
    buf.reset();
    r.queues.clear();
    r.aq.sq.reset();
    r.aq.cq.reset();
    EXPECT_EQ(sim_violations(r.sim), 0u);
    r.t->ops->close(r.t);
    r.attach();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST(Stuck, NeverBecomesReady)
{
    Rig r(small_config(), false);
    sim_stick(r.sim);
    r.write32(NVME_REG_CC, NVME_CC_ENABLE);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), 0u);
    ASSERT_EQ(r.t->ops->reset(r.t), 0);
    r.enable();
    EXPECT_EQ(r.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

struct Removal : Recovery {
    /*
     * Registers read all-ones; doorbell stores have no effect, do not fault and
     * are no mistake.
     */
    void expect_gone()
    {
        for (uint32_t reg : {NVME_REG_CAP, NVME_REG_CC, NVME_REG_CSTS})
            EXPECT_EQ(r.read32(reg), UINT32_MAX);
        EXPECT_EQ(r.read64(NVME_REG_CAP), UINT64_MAX);
        r.write32(NVME_REG_CC, 0);
        r.write64(NVME_REG_ASQ, 4096);
        for (size_t w = 0; w < r.t->doorbells_len / 4; w++)
            __atomic_store_n(&r.t->doorbells[w], 0xffffffff,
                             __ATOMIC_RELAXED); /* an ordinary store */
        r.kick();
        EXPECT_TRUE(r.quiet(*q, 100));
        EXPECT_EQ(reset(), -EIO);
        buf.reset();
        r.disable();
        EXPECT_EQ(sim_violations(r.sim), 0u);
    }
    void plug_in()
    {
        r.t->ops->close(r.t);
        r.attach();
        q = &r.create(1, 64);
        buf = r.dma(4096);
        EXPECT_EQ(read(), 0);
    }
};

TEST_F(Removal, ACallOrACommandRemovesTheDrive)
{
    const std::function<void()> ways[] = {
        [&] {
            add(fault(SIM_FAULT_LOSE));
            submit_held(0);
            sim_remove(r.sim);
        },
        [&] {
            add(fault(SIM_FAULT_REMOVE));
            submit(0);
        },
        [&] {
            add(admin_fault(SIM_FAULT_REMOVE));
            submit_identify(1);
        },
    };

    for (const auto &remove : ways) {
        remove();
        while (r.read32(NVME_REG_CSTS) != UINT32_MAX)
            std::this_thread::yield();
        expect_gone();
        plug_in();
    }
}

TEST_F(Removal, LosesNoCompletedWrite)
{
    fill(buf->addr, 4096, 7);
    ASSERT_EQ(r.run(*q, io(NVME_IO_WRITE, 5, 1, buf->iova)), 0);
    sim_remove(r.sim);
    expect_gone();
    std::vector<unsigned char> block(4096);
    ASSERT_EQ(sim_peek(r.sim, 1, 5 * 4096, block.data(), block.size()), 0);
    EXPECT_TRUE(holds(block.data(), 4096, 7));
    plug_in();
}

TEST_F(Recovery, ARequestToCloseMakesTheDescriptorReadable)
{
    struct pollfd p = {r.t->removal_fd, POLLIN, 0};
    ASSERT_GE(r.t->removal_fd, 0);
    EXPECT_EQ(poll(&p, 1, 0), 0);
    sim_request_close(r.sim);
    EXPECT_EQ(poll(&p, 1, 0), 1);
    EXPECT_EQ(read(), 0) << "it works until it is closed";
}

struct MapAt : Recovery {
    int map(uint64_t iova, size_t len = 65536)
    {
        struct nvme_mem m = {};
        m.addr = memory;
        m.len = len;
        m.fd = -1;
        return sim_map_at(r.t, &m, iova);
    }
    MapAt()
        : memory(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
    {
    }
    ~MapAt() override { munmap(memory, 65536); }
    void *memory;
};

/* The memory of a virtual machine begins at address 0. */
TEST_F(MapAt, MapsMemoryAtTheAddress)
{
    for (uint64_t at : {uint64_t(0), uint64_t(0x7000000000)}) {
        memset(memory, 0xee, 65536);
        ASSERT_EQ(map(at), 0);
        EXPECT_EQ(map(at), -EEXIST);
        EXPECT_EQ(r.run(*q, io(NVME_IO_READ, 0, 1, at + 4096)), 0);
        EXPECT_EQ(static_cast<unsigned char *>(memory)[4096], 0);
        EXPECT_EQ(static_cast<unsigned char *>(memory)[8192], 0xee);
        EXPECT_EQ(r.t->ops->unmap(r.t, at), 0);
    }
}

TEST_F(MapAt, RefusesOverlapsAndInvalidAddresses)
{
    const uint64_t at = 0x7000000000;
    ASSERT_EQ(map(at), 0);
    for (uint64_t iova : {at, at - 4096, at + 4096, at + 65536 - 4096, at - 65536 + 4096})
        EXPECT_EQ(map(iova), -EEXIST) << iova;
    for (uint64_t iova : {at + 1, uint64_t(1) << 52, (uint64_t(1) << 52) - 4096, UINT64_MAX - 4095})
        EXPECT_EQ(map(iova), -EINVAL) << iova;
    EXPECT_EQ(map(at + 65536), 0) << "neighbours may touch";
    EXPECT_EQ(map(at - 65536), 0);
    for (uint64_t iova : {at, at + 65536, at - 65536})
        EXPECT_EQ(r.t->ops->unmap(r.t, iova), 0);
    EXPECT_EQ(r.t->ops->unmap(r.t, at), -ENOENT);
}

/* map() avoids addresses chosen by the caller. */
TEST_F(MapAt, WorksTogetherWithMap)
{
    auto first = r.dma(4096);
    ASSERT_EQ(map(first->iova + 0x10000 - 4096), 0);
    std::vector<std::unique_ptr<Dma>> more;
    for (int i = 0; i < 20; i++) {
        more.push_back(r.dma(65536));
        EXPECT_EQ(map(more.back()->iova), -EEXIST);
    }
    EXPECT_EQ(r.t->ops->unmap(r.t, first->iova + 0x10000 - 4096), 0);
}

TEST_F(Recovery, DoorbellsAreAFile)
{
    int fd = sim_doorbells_fd(r.sim);
    size_t len = r.t->doorbells_len;
    struct stat st;
    ASSERT_EQ(fstat(fd, &st), 0);
    ASSERT_EQ(static_cast<size_t>(st.st_size), NVME_REG_DOORBELLS + len);
    EXPECT_EQ(ftruncate(fd, 0), -1) << "a client could take the doorbells away";
    void *p = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, NVME_REG_DOORBELLS);
    ASSERT_NE(p, MAP_FAILED);
    r.put(*q, io(NVME_IO_READ, 0, 1, buf->iova));
    auto *bell = static_cast<uint32_t *>(p) + 2;
    __atomic_store_n(bell, q->tail,
                     __ATOMIC_RELEASE); /* release: the SQE is visible before the doorbell */
    EXPECT_EQ(next_status(*q), 0) << "noticed without a kick";
    munmap(p, len);
}

// --- Faults, delays, order, full rings, deletion of queues ---------------------------------------

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
