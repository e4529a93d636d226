/* SPDX-License-Identifier: BSD-2-Clause */
/* The block device over NVMe queues, against the simulated controller and its judgement. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "sim/sim.h"
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

/* From inside a page, too: 512 entries of one list page and PRP1. */
TEST(Nvme, ACommandCarriesAtMostOneListPage)
{
    Rig rig;
    rig.cfg.mdts = 4 << 20;
    rig.open();
    Dma dma(rig.dev, 4 * MIB + 4096);
    Bytes data = random_bytes(4 * MIB, 3);
    memcpy(dma.p + 512, data.data(), data.size());
    ASSERT_EQ(bd_write(rig.dev, 0, dma.p + 512, 4 * MIB, 0), 0);
    EXPECT_EQ(rig.stats().writes, 2u);
    EXPECT_EQ(rig.peek(0, 4 * MIB), data);
}

TEST(Nvme, TransfersAreSplitByMdts)
{
    Rig rig;
    rig.cfg.mdts = 16384;
    rig.open();
    Dma dma(rig.dev, MIB);
    ASSERT_EQ(bd_read(rig.dev, 0, dma.p, MIB), 0);
    EXPECT_EQ(rig.stats().reads, 64u);
}

TEST(Nvme, NamespacesAreSeparate)
{
    Rig rig;
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
}

TEST(Nvme, AMissingNamespaceIsNoDevice)
{
    Rig rig;
    bd_dev *other;
    rig.open();
    EXPECT_EQ(bd_nvme_open(rig.c, 2, 1, 8, &other), -ENODEV);
}

TEST(Nvme, UsesFewerQueuesIfThereAreFewer)
{
    Rig rig;
    bd_dev *other;
    rig.cfg.io_queues = 2;
    rig.open(8, 8);
    EXPECT_EQ(bd_nvme_open(rig.c, 1, 1, 8, &other), -ENOSPC);
    EXPECT_EQ(rig.read(0, MIB), Bytes(MIB));
}

TEST(Nvme, ReadOnlyNamespaceRefusesWrites)
{
    Rig rig;
    rig.cfg.ns[0].read_only = true;
    rig.open();
    Bytes data(4096);
    EXPECT_EQ(bd_write(rig.dev, 0, data.data(), 4096, 0), -EROFS);
    EXPECT_EQ(rig.read(0, 4096), data);
}

TEST(Nvme, ZeroesAndDiscardDoNotChangeTheNeighbours)
{
    Rig rig;
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

TEST(Nvme, WholeDeviceIsZeroedAndDiscarded)
{
    Rig rig;
    rig.cfg.ns[0].bytes = 64 * MIB;
    rig.cfg.ns[0].lba_size = 512;
    rig.open();
    EXPECT_EQ(bd_write_zeroes(rig.dev, 0, 64 * MIB), 0);
    EXPECT_EQ(bd_discard(rig.dev, 0, 64 * MIB), 0);
}

// One range of Dataset Management has at most 2^32 - 1 LBAs.
TEST(Nvme, ADiscardLongerThanARangeReachesAllOfIt)
{
    constexpr uint64_t TIB = 1ull << 40;
    Rig rig;
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

TEST(Nvme, EmptyTransfersNeedNoCommand)
{
    Rig rig;
    rig.open();
    char byte;
    uint64_t before = rig.stats().commands;
    EXPECT_EQ(bd_read(rig.dev, 0, &byte, 0), 0);
    EXPECT_EQ(bd_write(rig.dev, 4096, &byte, 0, 0), 0);
    EXPECT_EQ(bd_write_zeroes(rig.dev, 4096, 0), 0);
    EXPECT_EQ(rig.stats().commands, before);
}

TEST(Nvme, RefusedWriteZeroesBecomesWrites)
{
    Rig rig;
    rig.open();
    Bytes data = random_bytes(MIB, 6);
    ASSERT_EQ(bd_write(rig.dev, 0, data.data(), MIB, 0), 0);
    rig.fault(status_fault(NVME_IO_WRITE_ZEROES, NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR, 0));
    EXPECT_EQ(bd_write_zeroes(rig.dev, 0, MIB), 0);
    EXPECT_EQ(rig.peek(0, MIB), Bytes(MIB));
}

TEST(Nvme, FlushReachesTheDriveOnlyWhenItHasACache)
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

TEST(Nvme, FlushedAndFuaWritesSurviveAPowerCut)
{
    Rig rig;
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

TEST(NvmeFaults, PermanentErrorsAreReportedWithTheirStatus)
{
    Rig rig;
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

TEST(NvmeFaults, DnrIsNotRetried)
{
    Rig rig;
    rig.open();
    Bytes buf(4096);
    rig.fault(status_fault(NVME_IO_READ, NVME_ERR_UNRECOVERED_READ | NVME_STATUS_DNR, 1));
    EXPECT_EQ(bd_read(rig.dev, 0, buf.data(), 4096), -EIO) << "the fault's only time";
    EXPECT_EQ(bd_read(rig.dev, 0, buf.data(), 4096), 0);
}

TEST(NvmeFaults, OneBadBlockFailsOnlyItsTransfer)
{
    Rig rig;
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

TEST(NvmeFaults, BuffersMayBeReusedAfterATimeout)
{
    Rig rig;
    rig.opts.io_timeout_ms = 100;
    rig.open(1, 8);
    Dma dma(rig.dev, MIB);
    rig.fault(lose_fault(NVME_IO_READ, 4));
    EXPECT_EQ(bd_read(rig.dev, 0, dma.p, MIB), -ETIMEDOUT);
}

// If freeing left the lock of the memory locked, another thread would wait
// forever.
TEST(Nvme, MemoryIsAllocatedByOtherThreadsAfterItWasFreed)
{
    Rig rig;
    rig.open();
    auto use = [&] {
        void *buf = bd_dma_alloc(rig.dev, 8192);
        ASSERT_NE(buf, nullptr);
        bd_dma_free(rig.dev, buf, 8192);
    };
    use();
    std::thread(use).join();
}

TEST(NvmeQueues, ControllerOpensAgainOnTheSameMedia)
{
    Rig rig;
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
    static uint32_t read32(nvme_transport *, uint32_t) { return UINT32_MAX; }

    void SetUp() override
    {
        rig.open();
        ops_ = *rig.t->ops;
        ops_.read32 = read32;
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

} // namespace
