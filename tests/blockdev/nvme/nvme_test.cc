/* SPDX-License-Identifier: BSD-2-Clause */
/* The block device over NVMe queues, against the simulated controller and its judgement. */
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "sim/sim.h"
#include "tests/blockdev/load.h"
#include "tests/blockdev/nvme/nvme_sim_rig.h"

namespace
{

struct Shape {
    const char *name;
    uint32_t lba_size;
    unsigned mdts;
    unsigned depth;
    unsigned stride;
    bool reorder;
    unsigned threads;
};

using Shapes = ::testing::TestWithParam<Shape>;

TEST_P(Shapes, RandomTransfersReadBackWhatWasWritten)
{
    Rig rig;
    rig.cfg.ns[0].lba_size = GetParam().lba_size;
    rig.cfg.mdts = GetParam().mdts;
    rig.cfg.doorbell_stride = GetParam().stride;
    rig.cfg.reorder = GetParam().reorder;
    rig.cfg.threads = GetParam().threads;
    rig.cfg.seed = 7;
    rig.open(1, GetParam().depth);
    if (!::testing::Test::HasFatalFailure())
        verify_random(rig, 60, 11);
}

INSTANTIATE_TEST_SUITE_P(Nvme, Shapes,
                         ::testing::Values(Shape{"Lba512Mdts8K", 512, 8192, 16, 0, false, 1},
                                           Shape{"Lba4096Mdts8K", 4096, 8192, 16, 0, true, 1},
                                           Shape{"Lba512Mdts64K", 512, 65536, 32, 2, true, 2},
                                           Shape{"Lba4096Mdts1M", 4096, 1 << 20, 64, 0, true, 1},
                                           Shape{"ChainedMdts4M", 4096, 4 << 20, 8, 0, false, 1},
                                           Shape{"ChainedLba512Mdts8M", 512, 8 << 20, 8, 1, true,
                                                 1},
                                           Shape{"DepthTwo", 4096, 65536, 2, 0, true, 1},
                                           Shape{"DepthThree", 512, 8192, 3, 0, true, 1},
                                           Shape{"DepthDeep", 4096, 8192, 1024, 0, true, 1}),
                         [](const auto &info) { return info.param.name; });

class Nvme : public ::testing::Test
{
  protected:
    Rig rig;
};

using NvmeFaults = Nvme;
using NvmeQueues = Nvme;
using NvmeRecovery = Nvme;

/* From inside a page, too: 512 entries of one list page and PRP1. */
TEST_F(Nvme, ACommandCarriesAtMostOneListPage)
{
    rig.cfg.mdts = 4 << 20;
    rig.open();
    Dma dma(rig.dev, 4 * MIB + 4096);
    Bytes data = random_bytes(4 * MIB, 3);
    memcpy(dma.p + 512, data.data(), data.size());
    ASSERT_EQ(bd_write(rig.dev, 0, dma.p + 512, 4 * MIB, 0), 0);
    EXPECT_EQ(rig.stats().writes, 2u);
    EXPECT_EQ(rig.peek(0, 4 * MIB), data);
}

TEST_F(Nvme, TransfersAreSplitByMdts)
{
    rig.cfg.mdts = 16384;
    rig.open();
    Dma dma(rig.dev, MIB);
    ASSERT_EQ(bd_read(rig.dev, 0, dma.p, MIB), 0);
    EXPECT_EQ(rig.stats().reads, 64u);
}

TEST_F(Nvme, NamespacesAreSeparate)
{
    bd_dev *second;
    rig.cfg.namespaces = 3;
    rig.cfg.ns[1].bytes = 4 * MIB;
    rig.cfg.ns[1].lba_size = 512;
    rig.cfg.ns[2] = rig.cfg.ns[0];
    rig.open();
    uint32_t ids[4];
    ASSERT_EQ(nvme_ns_list(rig.c, ids, 4), 3);
    ASSERT_EQ(bd_nvme_open(rig.c, ids[1], 1, 8, &second), 0);
    EXPECT_EQ(second->info.lba_size, 512u);
    EXPECT_EQ(second->info.bytes, 4 * MIB);
    Bytes one = random_bytes(8192, 1), two = random_bytes(8192, 2);
    ASSERT_EQ(bd_write(rig.dev, 0, one.data(), one.size(), 0), 0);
    ASSERT_EQ(bd_write(second, 0, two.data(), two.size(), 0), 0);
    EXPECT_EQ(rig.peek(0, 8192, 1), one);
    EXPECT_EQ(rig.peek(0, 8192, 2), two);
    EXPECT_EQ(rig.peek(0, 8192, 3), Bytes(8192));
    bd_close(second);
    EXPECT_EQ(bd_nvme_open(rig.c, 4, 1, 8, &second), -ENODEV);
}

TEST_F(Nvme, UsesFewerQueuesIfThereAreFewer)
{
    bd_dev *other;
    rig.cfg.io_queues = 2;
    rig.open(8, 8);
    EXPECT_EQ(bd_nvme_open(rig.c, 1, 1, 8, &other), -ENOSPC);
    EXPECT_EQ(rig.read(0, MIB), Bytes(MIB));
}

TEST_F(Nvme, ReadOnlyNamespaceRefusesWrites)
{
    rig.cfg.ns[0].read_only = true;
    rig.open();
    Bytes data(4096);
    EXPECT_EQ(bd_write(rig.dev, 0, data.data(), 4096, 0), -EROFS);
    EXPECT_EQ(rig.read(0, 4096), data);
}

TEST_F(Nvme, ZeroesAndDiscardDoNotChangeTheNeighbours)
{
    rig.open();
    Bytes data = random_bytes(MIB, 5);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), MIB, 0), 0);
    ASSERT_EQ(bd_write_zeroes(rig.dev, 4096, 512 << 10), 0);
    ASSERT_EQ(bd_discard(rig.dev, 768 << 10, 4096), 0);
    memset(&data[4096], 0, 512 << 10);
    Bytes back = rig.read(0, MIB);
    memcpy(&data[768 << 10], &back[768 << 10], 4096);
    EXPECT_EQ(back, data);
}

TEST_F(Nvme, WholeDeviceIsZeroedAndDiscarded)
{
    rig.cfg.ns[0].bytes = 64 * MIB;
    rig.cfg.ns[0].lba_size = 512;
    rig.open();
    EXPECT_EQ(bd_write_zeroes(rig.dev, 0, 64 * MIB), 0);
    EXPECT_EQ(bd_discard(rig.dev, 0, 64 * MIB), 0);
}

// One range of Dataset Management has at most 2^32 - 1 LBAs.
TEST_F(Nvme, ADiscardLongerThanARangeReachesAllOfIt)
{
    constexpr uint64_t TIB = 1ull << 40;
    rig.cfg.ns[0].bytes = 3 * TIB;
    rig.cfg.ns[0].lba_size = 512;
    rig.open();
    Bytes data = random_bytes(4096, 7);
    for (uint64_t at : {TIB, 2 * TIB + MIB, 3 * TIB - 4096})
        ASSERT_EQ(bd_write(rig.dev, at, data.data(), data.size(), 0), 0);
    ASSERT_EQ(bd_discard(rig.dev, 0, 3 * TIB - 4096), 0);
    EXPECT_EQ(rig.read(TIB, 4096), Bytes(4096));
    EXPECT_EQ(rig.read(2 * TIB + MIB, 4096), Bytes(4096));
    EXPECT_EQ(rig.read(3 * TIB - 4096, 4096), data);
}

TEST_F(Nvme, EmptyTransfersNeedNoCommand)
{
    rig.open();
    char byte;
    uint64_t before = rig.stats().commands;
    EXPECT_EQ(bd_read(rig.dev, 0, &byte, 0), 0);
    EXPECT_EQ(bd_write(rig.dev, 4096, &byte, 0, 0), 0);
    EXPECT_EQ(bd_write_zeroes(rig.dev, 4096, 0), 0);
    EXPECT_EQ(rig.stats().commands, before);
}

TEST_F(Nvme, RefusedWriteZeroesBecomesWrites)
{
    rig.open();
    Bytes data = random_bytes(MIB, 6);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), MIB, 0), 0);
    rig.fault(status_fault(NVME_IO_WRITE_ZEROES, NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR, 0));
    EXPECT_EQ(bd_write_zeroes(rig.dev, 0, MIB), 0);
    EXPECT_EQ(rig.peek(0, MIB), Bytes(MIB));
}

TEST_F(Nvme, FlushReachesTheDriveOnlyWhenItHasACache)
{
    Rig with, without;
    without.cfg.no_volatile_cache = true;
    with.open();
    without.open();
    EXPECT_EQ(bd_flush(with.dev), 0);
    EXPECT_EQ(bd_flush(without.dev), 0);
    EXPECT_EQ(with.stats().flushes, 1u);
    EXPECT_EQ(without.stats().flushes, 0u);
}

TEST_F(Nvme, FlushedAndFuaWritesSurviveAPowerCut)
{
    rig.cfg.track_cache = true;
    rig.open();
    Bytes one = random_bytes(65536, 1), two = random_bytes(65536, 2);
    ASSERT_EQ(bd_write(rig.dev, 0, one.data(), one.size(), 0), 0);
    ASSERT_EQ(bd_flush(rig.dev), 0);
    ASSERT_EQ(bd_write(rig.dev, 65536, two.data(), two.size(), BD_FUA), 0);
    ASSERT_EQ(sim_power_cut(rig.sim, 1), 0);
    EXPECT_EQ(rig.peek(0, 65536), one);
    EXPECT_EQ(rig.peek(65536, 65536), two);
    EXPECT_EQ(bd_read(rig.dev, 0, one.data(), 4096), -EIO) << "the drive is gone";
}

TEST_F(NvmeFaults, PermanentErrorsAreReportedWithTheirStatus)
{
    rig.open();
    Bytes buf(65536);
    bd_io io{};
    io.op = BD_READ;
    io.len = buf.size();
    io.buf = buf.data();
    rig.fault(status_fault(NVME_IO_READ, NVME_ERR_UNRECOVERED_READ, 0));
    EXPECT_EQ(bd_submit(rig.dev, &io, 1), -EIO);
    EXPECT_EQ(io.error, -EIO);
    EXPECT_EQ(io.nvme_status & 0x7ff, NVME_ERR_UNRECOVERED_READ);
}

TEST_F(NvmeFaults, DnrIsNotRetried)
{
    rig.open();
    Bytes buf(4096);
    rig.fault(status_fault(NVME_IO_READ, NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR, 1));
    EXPECT_EQ(bd_read(rig.dev, 0, buf.data(), 4096), -EIO) << "the fault's only time";
    EXPECT_EQ(bd_read(rig.dev, 0, buf.data(), 4096), 0);
}

TEST_F(NvmeFaults, OneBadBlockFailsOnlyItsTransfer)
{
    rig.open();
    Bytes data = random_bytes(MIB, 9), back(MIB);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), MIB, 0), 0);
    sim_fault f = status_fault(NVME_IO_READ, NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR, 0);
    f.first_lba = 100;
    f.lbas = 1;
    rig.fault(f);
    bd_io ios[8]{};
    for (size_t i = 0; i < 8; i++)
        ios[i] = {BD_READ, 0, i * 131072, 131072, &back[i * 131072], 0, 0};
    EXPECT_EQ(bd_submit(rig.dev, ios, 8), -EIO);
    for (size_t i = 0; i < 8; i++)
        EXPECT_EQ(ios[i].error, i == 3 ? -EIO : 0) << i;
    EXPECT_EQ(memcmp(&back[4 * 131072], &data[4 * 131072], 4 * 131072), 0);
}

TEST_F(NvmeFaults, BuffersMayBeReusedAfterATimeout)
{
    rig.opts.io_timeout_ms = 100;
    rig.open(1, 8);
    Dma dma(rig.dev, MIB);
    rig.fault(lose_fault(NVME_IO_READ, 4));
    EXPECT_EQ(bd_read(rig.dev, 0, dma.p, MIB), -ETIMEDOUT);
}

// If freeing left the lock of the memory locked, another thread would wait
// forever.
TEST_F(Nvme, MemoryIsAllocatedByOtherThreadsAfterItWasFreed)
{
    rig.open();
    auto use = [&] {
        void *buf = bd_dma_alloc(rig.dev, 8192);
        ASSERT_NE(buf, nullptr);
        bd_dma_free(rig.dev, buf, 8192);
    };
    use();
    std::thread(use).join();
}

TEST_F(NvmeQueues, ControllerOpensAgainOnTheSameMedia)
{
    rig.open();
    Bytes data = random_bytes(65536, 8);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), data.size(), 0), 0);
    bd_close(rig.dev);
    nvme_ctrlr_close(rig.c);
    rig.dev = nullptr;
    rig.c = nullptr;
    nvme_transport *t;
    ASSERT_EQ(sim_attach(rig.sim, &t), 0);
    ASSERT_EQ(nvme_ctrlr_open(t, nullptr, &rig.c), 0);
    ASSERT_EQ(bd_nvme_open(rig.c, 1, 1, 8, &rig.dev), 0);
    EXPECT_EQ(rig.read(0, 65536), data);
}

/* The registers of a software controller that is late with a reply, or of one that is gone. */
class AllOnes : public ::testing::Test
{
  protected:
    static uint64_t read(nvme_transport *, uint32_t, unsigned) { return UINT64_MAX; }

    void SetUp() override
    {
        rig.open();
        ops_ = *rig.t->ops;
        ops_.read = read;
        ops_.silent = [](nvme_transport *) { return late; };
        usual_ = rig.t->ops;
        rig.t->ops = &ops_;
    }

    void TearDown() override { rig.t->ops = usual_; }

    inline static bool late;
    Rig rig;

  private:
    nvme_transport_ops ops_{};
    const nvme_transport_ops *usual_ = nullptr;
};

TEST_F(AllOnes, AreNoFailureWhileAReplyIsLate)
{
    late = true;
    EXPECT_TRUE(nvme_ctrlr_alive(rig.c));
    late = false;
    EXPECT_FALSE(nvme_ctrlr_alive(rig.c));
}

// --- Recovery with several threads: the bytes are right ------------------------------------------

constexpr unsigned TRIES = 3;        /* how often a command is sent again: BD_RETRIES */
constexpr unsigned SLACK_MS = 10000; /* of a loaded machine with sanitizers, on top of a bound */

sim_fault fault(sim_fault_kind kind, uint8_t opcode, unsigned times)
{
    sim_fault f = status_fault(opcode, 0, times);
    f.kind = kind;
    return f;
}

TEST_F(NvmeRecovery, TransfersOfManyThreadsContinueAcrossResets)
{
    rig.cfg.latency_ns = 200000;
    rig.cfg.reorder = true;
    rig.open(3, 16);
    Load load(rig.dev, 6);
    for (unsigned i = 0; i < 12; i++) {
        load.wait_rounds(2);
        if (i % TRIES == 0) /* no command meets more resets than that */
            load.wait_for_each();
        ASSERT_EQ(nvme_ctrlr_reset(rig.c, i), 0);
    }
    load.wait_rounds(6);
    EXPECT_TRUE(load.stop()) << load.text();
    EXPECT_EQ(nvme_ctrlr_epoch(rig.c), 12u);
}

/* With and without an admin queue to delete them by before the reset. */
TEST_F(NvmeRecovery, QueuesThatOutliveCcEnDoNoHarm)
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

TEST_F(NvmeRecovery, LostCommandsLoseNoData)
{
    rig.opts.io_timeout_ms = 300;
    rig.cfg.no_abort = true;
    rig.cfg.reorder = true;
    rig.open(2, 16);
    sim_fault f = fault(SIM_FAULT_LOSE, 0, 6);
    f.match_opcode = false;
    f.one_in = 40;
    rig.fault(f);
    Load load(rig.dev, 4);
    load.wait_rounds(40);
    EXPECT_TRUE(load.stop()) << load.text();
}

// A write that completes after its deadline must not undo a later one to the same place.
TEST_F(NvmeRecovery, LateWriteDoesNotOvertakeALaterOne)
{
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
TEST_F(NvmeRecovery, DurableCommandsGetTheTransportsExtraTime)
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

TEST_F(NvmeRecovery, ControllerThatHangsIsResetForAllThreads)
{
    rig.opts.io_timeout_ms = 300;
    rig.opts.admin_timeout_ms = 1000;
    rig.open(2, 16);
    Load load(rig.dev, 4);
    load.wait_rounds(4);
    rig.fault(fault(SIM_FAULT_HANG, NVME_IO_WRITE, 1));
    load.wait_rounds(20);
    EXPECT_TRUE(load.stop()) << load.text();
    EXPECT_GE(nvme_ctrlr_epoch(rig.c), 1u);
}

TEST_F(NvmeRecovery, ARemovedDriveEndsAllTransfersInTime)
{
    rig.opts.io_timeout_ms = 300;
    rig.opts.admin_timeout_ms = 1000;
    rig.open(2, 16);
    Load load(rig.dev, 6);
    load.wait_rounds(6);
    sim_remove(rig.sim);
    EXPECT_LT(load.seconds_until_errors() * 1000, rig.opts.io_timeout_ms + SLACK_MS);
    EXPECT_EQ(load.error, -EIO);
    EXPECT_EQ(load.wrong, 0u);
    EXPECT_TRUE(nvme_ctrlr_settled(rig.c));
    nvme_counters counters;
    nvme_ctrlr_counters(rig.c, &counters);
    EXPECT_GE(counters.errors, 6u) << "at least one of each thread";
}

TEST_F(NvmeRecovery, DataWrittenBeforeAResetIsFlushedAfterIt)
{
    rig.cfg.track_cache = true;
    rig.open();
    Bytes data = random_bytes(65536, 1);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), data.size(), 0), 0);
    ASSERT_EQ(nvme_ctrlr_reset(rig.c, 0), 0);
    ASSERT_EQ(bd_flush(rig.dev), 0);
    ASSERT_EQ(sim_power_cut(rig.sim, 1), 0);
    EXPECT_EQ(rig.peek(0, data.size()), data);
}

TEST_F(NvmeRecovery, RandomTransfersSurviveLossesFatalStatusAndErrors)
{
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

// --- Namespaces that change while they are in use ------------------------------------------------

class Watch : public ::testing::Test
{
  protected:
    int write(uint64_t offset, uint8_t byte)
    {
        Bytes data(4096, byte);
        return bd_write(rig.dev, offset, data.data(), data.size(), 0);
    }

    unsigned resets()
    {
        nvme_counters n;
        nvme_ctrlr_counters(rig.c, &n);
        return (unsigned)n.resets;
    }

    Rig rig;
};

TEST_F(Watch, NothingIsWrittenToANamespaceThatWasReplaced)
{
    rig.open();
    ASSERT_EQ(write(0, 1), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    Bytes got(4096);
    EXPECT_EQ(bd_read(rig.dev, 0, got.data(), got.size()), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
    EXPECT_TRUE(nvme_ctrlr_replaced(rig.c));
}

TEST_F(Watch, AChangeThatLeavesTheNamespaceAsItWasDisturbsNobody)
{
    rig.open();
    for (uint8_t round = 1; round <= 20; round++) {
        ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
        ASSERT_EQ(write(0, round), 0);
        ASSERT_EQ(rig.peek(0, 4096), Bytes(4096, round));
    }
    EXPECT_EQ(resets(), 0u);
    EXPECT_FALSE(nvme_ctrlr_replaced(rig.c));
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 99), -EIO);
}

TEST_F(Watch, AReplacementIsNoticedAfterAResetToo)
{
    rig.open();
    ASSERT_EQ(nvme_ctrlr_reset(rig.c, nvme_ctrlr_epoch(rig.c)), 0);
    ASSERT_EQ(write(0, 1), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
}

TEST_F(Watch, AnotherNamespaceOfTheControllerMayChange)
{
    rig.cfg.namespaces = 2;
    rig.cfg.ns[1] = rig.cfg.ns[0];
    rig.open();
    ASSERT_EQ(sim_change_ns(rig.sim, 2, true), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(resets(), 0u);
}

TEST_F(Watch, ANamespaceThatGrowsIsKept)
{
    char path[] = "/tmp/watch-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, 8 * MIB), 0);
    rig.cfg.ns[0].path = path;
    rig.cfg.ns[0].bytes = 0;
    rig.open();
    ASSERT_EQ(ftruncate(fd, 16 * MIB), 0);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(bd_refresh(rig.dev), 0);
    EXPECT_EQ(bd_bytes(rig.dev), 16 * MIB);
    close(fd);
    unlink(path);
}

/* Each thread writes its own LBA until it gets an error. */
TEST_F(Watch, WritesThatBeginAfterTheReportDoNotLand)
{
    rig.open(4);
    std::atomic<bool> changed{false};
    std::vector<std::thread> writers;
    for (unsigned i = 0; i < 4; i++) {
        writers.emplace_back([&, i] {
            for (int rc = 0; rc == 0;) {
                bool late = changed;
                rc = write(i * 4096, late ? 2 : 1);
                EXPECT_TRUE(rc == 0 || rc == -EIO) << rc;
                EXPECT_FALSE(late && rc == 0);
            }
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    changed = true;
    for (auto &w : writers)
        w.join();
    Bytes media = rig.peek(0, 4 * 4096);
    EXPECT_EQ(std::count(media.begin(), media.end(), 2), 0);
}

TEST_F(Watch, ALostAdminCommandDuringTheComparisonEndsInAResetThatCompares)
{
    rig.opts.admin_timeout_ms = 200;
    rig.open();
    sim_fault f = lose_fault(NVME_ADMIN_GET_LOG_PAGE, 1);
    f.admin = true;
    rig.fault(f);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, false), 0);
    EXPECT_EQ(write(0, 1), 0);
    EXPECT_EQ(resets(), 1u);
    ASSERT_EQ(sim_change_ns(rig.sim, 1, true), 0);
    EXPECT_EQ(write(0, 2), -EIO);
    EXPECT_EQ(rig.peek(0, 4096), Bytes(4096, 1));
}

TEST_F(Watch, AControllerThatDoesNotAnswerTheRequestForEventsIsNotOpened)
{
    struct reason why = {};
    ASSERT_EQ(sim_create(&rig.cfg, &rig.sim, &rig.t), 0);
    sim_fault f = lose_fault(NVME_ADMIN_SET_FEATURES, 1);
    f.admin = true;
    f.skip = 1; /* the number of queues */
    rig.fault(f);
    rig.opts.admin_timeout_ms = 200;
    rig.opts.why = &why;
    EXPECT_NE(nvme_ctrlr_open(rig.t, &rig.opts, &rig.c), 0);
    EXPECT_NE(std::string(why.text).find("Asynchronous Events"), std::string::npos) << why.text;
    rig.t->ops->close(rig.t);
}

} // namespace
