/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Recovery with several threads, against the simulated controller: the bytes must come out right.
 */
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/blockdev/nvme/nvme_sim_rig.h"

namespace
{

constexpr unsigned TRIES = 3;        /* how often a command is sent again: BD_RETRIES */
constexpr unsigned SLACK_MS = 10000; /* of a loaded machine with sanitizers, on top of a bound */

/* Threads that write, read back and compare, each its own MiB, until told to stop. */
class Load
{
  public:
    Load(Rig &r, unsigned n) : rig(r)
    {
        EXPECT_LE(n, MOST);
        for (unsigned i = 0; i < n; i++)
            threads.emplace_back([this, i] { work(i); });
    }

    void join()
    {
        stop = true;
        for (auto &t : threads)
            t.join();
        threads.clear();
    }

    /* Returns once n more rounds have been made, or none succeeds any more. */
    void wait_rounds(unsigned n)
    {
        for (unsigned until = rounds + n; rounds < until && !errors;)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    /* Returns once each thread has made another round, or none succeeds any more. */
    void wait_for_each()
    {
        for (unsigned i = 0; i < threads.size(); i++) {
            for (unsigned until = rounds_of[i] + 1; rounds_of[i] < until && !errors;)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    /* Returns once n threads have met an error. */
    void wait_errors(unsigned n)
    {
        while (errors < n)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    ~Load() { join(); }
    Load(const Load &) = delete;
    Load &operator=(const Load &) = delete;

    std::atomic<unsigned> rounds{0}, errors{0}, wrong{0};
    std::atomic<int> error{0};

  private:
    void work(unsigned index)
    {
        Bytes data = random_bytes(512 << 10, index), back(512 << 10);
        while (!stop) {
            std::rotate(data.begin(), data.begin() + 1, data.end());
            int rc = bd_write(rig.dev, index * MIB, data.data(), data.size(), 0);
            if (!rc)
                rc = bd_read(rig.dev, index * MIB, back.data(), back.size());
            if (rc) {
                error = rc;
                errors++;
                return;
            }
            wrong += back != data;
            rounds_of[index]++;
            rounds++;
        }
    }

    static constexpr unsigned MOST = 16;
    std::atomic<unsigned> rounds_of[MOST] = {};
    Rig &rig;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
};

void expect_right(Load &load)
{
    load.join();
    EXPECT_EQ(load.errors, 0u) << "the last: " << load.error;
    EXPECT_EQ(load.wrong, 0u);
}

sim_fault fault(sim_fault_kind kind, uint8_t opcode, unsigned times)
{
    sim_fault f = status_fault(opcode, 0, times);
    f.kind = kind;
    return f;
}

TEST(NvmeRecovery, TransfersOfManyThreadsContinueAcrossResets)
{
    Rig rig;
    rig.cfg.latency_ns = 200000;
    rig.cfg.reorder = true;
    rig.open(3, 16);
    Load load(rig, 6);
    for (unsigned i = 0; i < 12; i++) {
        load.wait_rounds(2);
        if (i % TRIES == 0) /* no command meets more resets than that */
            load.wait_for_each();
        ASSERT_EQ(nvme_ctrlr_reset(rig.c, i), 0);
    }
    load.wait_rounds(6);
    expect_right(load);
    EXPECT_EQ(nvme_ctrlr_epoch(rig.c), 12u);
}

/* With and without an admin queue to delete them by before the reset. */
TEST(NvmeRecovery, QueuesThatOutliveCcEnDoNoHarm)
{
    for (bool admin_lost : {false, true}) {
        struct nvme_ns_info ns;
        Rig rig;

        rig.cfg.keeps_queues = true;
        rig.opts.admin_timeout_ms = 500;
        rig.open(3, 16);
        if (admin_lost) {
            sim_fault f = fault(SIM_FAULT_LOSE, NVME_ADMIN_IDENTIFY, 1);
            f.admin = true;
            rig.fault(f);
            EXPECT_EQ(nvme_ns_info(rig.c, 1, &ns), -ETIMEDOUT);
        }
        ASSERT_EQ(nvme_ctrlr_reset(rig.c, 0), 0) << admin_lost;
        EXPECT_EQ(nvme_ctrlr_epoch(rig.c), 1u);
        verify_random(rig, 50, 2);
    }
}

TEST(NvmeRecovery, LostCommandsLoseNoData)
{
    Rig rig;
    rig.opts.io_timeout_ms = 300;
    rig.cfg.no_abort = true;
    rig.cfg.reorder = true;
    rig.open(2, 16);
    sim_fault f = fault(SIM_FAULT_LOSE, 0, 6);
    f.match_opcode = false;
    f.one_in = 40;
    rig.fault(f);
    Load load(rig, 4);
    load.wait_rounds(40);
    expect_right(load);
}

// A write that completes after its deadline must not undo a later one to the same place.
TEST(NvmeRecovery, LateWriteDoesNotOvertakeALaterOne)
{
    Rig rig;
    rig.opts.io_timeout_ms = 100;
    rig.cfg.no_abort = true;
    rig.open(2, 8);
    sim_fault late = fault(SIM_FAULT_LATE, NVME_IO_WRITE, 1);
    late.delay_ns = 1000000000;
    rig.fault(late);
    Bytes first = random_bytes(4096, 1), second = random_bytes(4096, 2);
    EXPECT_EQ(bd_write(rig.dev, 0, first.data(), 4096, 0), 0);
    EXPECT_EQ(bd_write(rig.dev, 0, second.data(), 4096, 0), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    EXPECT_EQ(rig.peek(0, 4096), second);
}

// As the file of a simulated drive does, whose disk has much to write before.
TEST(NvmeRecovery, DurableCommandsGetTheTransportsExtraTime)
{
    for (bool has_cache : {true, false}) {
        Rig rig;
        rig.opts.io_timeout_ms = 100;
        rig.cfg.no_volatile_cache = !has_cache;
        rig.open(2, 8);
        nvme_ctrlr_transport(rig.c)->durable_ms = 60000;
        for (uint8_t opcode : {NVME_IO_FLUSH, NVME_IO_WRITE}) {
            sim_fault late = fault(SIM_FAULT_LATE, opcode, 1);
            late.delay_ns = 500000000;
            rig.fault(late);
        }
        uint64_t before = rig.stats().commands;
        Bytes data = random_bytes(4096, 1);
        EXPECT_EQ(bd_flush(rig.dev), 0);
        EXPECT_EQ(bd_write(rig.dev, 0, data.data(), 4096, has_cache ? BD_FUA : 0), 0);
        EXPECT_EQ(rig.stats().commands, before + 1 + has_cache) << "and no Abort";
    }
}

TEST(NvmeRecovery, ControllerThatHangsIsResetForAllThreads)
{
    Rig rig;
    rig.opts.io_timeout_ms = 300;
    rig.opts.admin_timeout_ms = 1000;
    rig.open(2, 16);
    Load load(rig, 4);
    load.wait_rounds(4);
    rig.fault(fault(SIM_FAULT_HANG, NVME_IO_WRITE, 1));
    load.wait_rounds(20);
    expect_right(load);
    EXPECT_GE(nvme_ctrlr_epoch(rig.c), 1u);
}

TEST(NvmeRecovery, StuckControllerIsResetFromOutside)
{
    Rig rig;
    rig.open(2, 16);
    Load load(rig, 3);
    load.wait_rounds(3);
    sim_stick(rig.sim);
    EXPECT_EQ(nvme_ctrlr_reset(rig.c, 0), 0);
    load.wait_rounds(6);
    expect_right(load);
}

TEST(NvmeRecovery, ARemovedDriveEndsAllTransfersInTime)
{
    Rig rig;
    rig.opts.io_timeout_ms = 300;
    rig.opts.admin_timeout_ms = 1000;
    rig.open(2, 16);
    Load load(rig, 6);
    load.wait_rounds(6);
    auto start = std::chrono::steady_clock::now();
    sim_remove(rig.sim);
    load.wait_errors(6);
    auto took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took, std::chrono::milliseconds(rig.opts.io_timeout_ms + SLACK_MS));
    EXPECT_EQ(load.error, -EIO);
    EXPECT_EQ(load.wrong, 0u);
    EXPECT_TRUE(nvme_ctrlr_settled(rig.c));
    nvme_counters counters;
    nvme_ctrlr_counters(rig.c, &counters);
    EXPECT_GE(counters.errors, 6u) << "at least one of each thread";
}

TEST(NvmeRecovery, DataWrittenBeforeAResetIsFlushedAfterIt)
{
    Rig rig;
    rig.cfg.track_cache = true;
    rig.open();
    Bytes data = random_bytes(65536, 1);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), data.size(), 0), 0);
    ASSERT_EQ(nvme_ctrlr_reset(rig.c, 0), 0);
    ASSERT_EQ(bd_flush(rig.dev), 0);
    ASSERT_EQ(sim_power_cut(rig.sim, 1), 0);
    EXPECT_EQ(rig.peek(0, data.size()), data);
}

TEST(NvmeRecovery, RandomTransfersSurviveLossesFatalStatusAndErrors)
{
    Rig rig;
    rig.opts.io_timeout_ms = 200;
    rig.cfg.reorder = true;
    rig.open(1, 16);
    sim_fault fatal = fault(SIM_FAULT_FATAL, NVME_IO_WRITE, 3), lose = lose_fault(NVME_IO_READ, 4);
    sim_fault error = status_fault(0, NVME_ERR_INTERNAL, 0);
    error.match_opcode = false;
    fatal.one_in = lose.one_in = error.one_in = 100;
    rig.fault(fatal);
    rig.fault(lose);
    rig.fault(error);
    verify_random(rig, 60, 31);
}

} // namespace
