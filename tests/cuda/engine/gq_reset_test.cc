/* SPDX-License-Identifier: BSD-2-Clause */
/* Controllers that are reset, hang, stick or are pulled while four transfers run. */
#include "blockdev/bdev.h"
#include "tests/cuda/engine/gq_recover_rig.h"

namespace
{

using GqReset = GqTest;

/* What waits for a controller that does not come back. */
using GqStuck = GqTest;

const Executor kForStuck[] = {kExecutors[2], kExecutors[3]};

TEST_P(GqReset, TransfersGoOnAcrossResetsByOthers)
{
    Busy b(GetParam());

    b.start();
    for (unsigned i = 0; i < 8; i++) {
        ASSERT_EQ(nvme_ctrlr_reset(b.rig.c, i), 0);
        b.load.wait_rounds(3);
    }
    b.load.expect_right();
    EXPECT_EQ(b.rig.stats().resets, 8u);
    EXPECT_GE(b.rig.stats().restarts, 1u);
    EXPECT_EQ(b.rig.stats().quarantined, 0u);
    EXPECT_EQ(b.rig.stats().timeouts, 0u);
}

/* The ordinary path meets a command that neither completes nor ends, and resets the drive. */
TEST_P(GqReset, ResetByTheBlockDeviceIsNotSeen)
{
    Busy b(GetParam());
    sim_fault lose = once(SIM_FAULT_LOSE);
    bd_dev *dev = nullptr;

    b.rig.cfg.no_abort = true;
    b.rig.driver.io_timeout_ms = 300;
    b.start();
    ASSERT_EQ(bd_nvme_open(b.rig.c, 1, 1, 16, &dev), 0);
    lose.match_opcode = true;
    lose.opcode = NVME_IO_FLUSH;
    b.rig.fault(lose);
    b.rig.fault(lost_admin(NVME_ADMIN_DELETE_SQ));
    EXPECT_EQ(bd_flush(dev), 0);
    EXPECT_EQ(b.rig.stats().resets, 1u);
    b.load.wait_rounds(4);
    b.load.expect_right();
    bd_close(dev);
}

TEST_P(GqReset, OtherTransfersGoOnWhileAQueueIsRecovered)
{
    for (bool no_abort : {false, true}) {
        Busy b(GetParam());

        b.rig.cfg.no_abort = no_abort;
        b.rig.opts.deadline_ms = 2500; /* no other command misses it on a busy machine */
        b.start();
        b.rig.fault(once(SIM_FAULT_LOSE));
        while (!b.load.failed)
            std::this_thread::sleep_for(milliseconds(1));
        EXPECT_EQ(b.load.error, -ETIMEDOUT);
        EXPECT_EQ(gq_engine_recover(b.rig.e), 0);
        b.load.wait_rounds(3);
        EXPECT_EQ(b.load.failed, 1u);
        EXPECT_EQ(b.rig.stats().restarts, 0u);
        EXPECT_EQ(b.rig.stats().aborts, no_abort ? 0u : 1u);
        EXPECT_EQ(b.rig.stats().recreates, no_abort ? 1u : 0u);
        EXPECT_EQ(b.rig.stats().quarantined, 0u);
        b.load.join();
    }
}

TEST_P(GqReset, ControllerThatHangsIsReset)
{
    Busy b(GetParam());

    b.load.deadline_ms = 500;
    b.start();
    b.rig.fault(once(SIM_FAULT_HANG));
    b.load.join(false);
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_GE(b.load.unsettled, 1u);
    EXPECT_EQ(gq_engine_recover(b.rig.e), 0);
    EXPECT_EQ(b.rig.stats().resets, 1u);
    EXPECT_EQ(b.rig.stats().quarantined, 0u);
    b.load.failed = b.load.unsettled = b.load.deadline_ms = 0;
    b.load.start();
    b.load.wait_rounds(8);
    b.load.expect_right();
}

TEST_P(GqStuck, StuckControllerIsResetFromOutside)
{
    Busy b(GetParam());

    b.start();
    sim_stick(b.rig.s);
    EXPECT_EQ(nvme_ctrlr_reset(b.rig.c, 0), 0);
    b.load.wait_rounds(4);
    b.load.expect_right();
    EXPECT_EQ(b.rig.stats().resets, 1u);
}

/* From then on everything ends at once, and nothing is left to end. */
// A controller that was not stopped is given no memory, whose IOVA its commands may have.
void expect_dead(Rig &rig)
{
    Memory m(rig.x.kind, 4096);
    gq_mem mem = m.part(0, 4096);
    gq_buffer *b = nullptr;

    if (!nvme_ctrlr_settled(rig.c) && !rig.x.staged) {
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EIO);
        EXPECT_EQ(gq_engine_recover(rig.e), -EIO);
        return;
    }
    b = rig.add(m, 0, 4096);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{0, 4096}}, 0, 4096), -EIO);
    EXPECT_FALSE(rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(rig.e), -EIO);
    gq_buffer_unregister(b);
}

unsigned regions(nvme_ctrlr *c)
{
    nvme_dma_budget budget;

    nvme_dma_regions(c, &budget);
    return budget.used;
}

/*
 * The drive may still move data, but not to or from the buffers, and every load is refused.
 */
void give_up(Busy &b)
{
    unsigned before = regions(b.rig.c), buffers = (unsigned)b.rig.stats().buffers;

    sim_stick(b.rig.s);
    EXPECT_EQ(nvme_ctrlr_reset(b.rig.c, 0), -EIO);
    EXPECT_FALSE(nvme_ctrlr_settled(b.rig.c));
    EXPECT_GE(buffers, 4u);
    EXPECT_EQ(regions(b.rig.c), before - buffers);
    auto start = Clock::now();
    b.load.join(false);
    EXPECT_LT(Clock::now() - start, milliseconds(kSlackMs)) << "nothing is waited for any more";
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_EQ(b.load.error, -EIO);
}

/*
 * Two transfers have all queues, full of commands that never end; the other
 * transfers have posted nothing.
 */
TEST_P(GqStuck, TransfersRefusedAfterARestartTellWhatTheyLeft)
{
    Busy b(GetParam());
    sim_fault lose = once(SIM_FAULT_LOSE);
    sim_stats before, now;
    uint64_t sent = 0;

    lose.times = 0;
    b.rig.cfg.no_reset = true;
    b.rig.opts.deadline_ms = 600000; /* none is missed before the reset */
    b.rig.open();
    b.rig.fault(lose);
    const uint64_t room = b.rig.opts.queues * (b.rig.opts.depth - 1);
    sim_get_stats(b.rig.s, &before);
    b.load.start();
    auto end = Clock::now() + milliseconds(kSlackMs);
    do {
        std::this_thread::sleep_for(milliseconds(1));
        sim_get_stats(b.rig.s, &now);
    } while (now.commands < before.commands + room && Clock::now() < end);
    give_up(b);
    EXPECT_EQ(b.load.unsettled, 2u);
    for (const gq_result &r : b.load.results) {
        EXPECT_EQ(r.unsettled, r.commands != 0);
        sent += r.commands;
    }
    EXPECT_EQ(sent, room);
    EXPECT_EQ(b.rig.stats().restarts, 2u);
    EXPECT_EQ(b.rig.stats().quarantined, b.rig.opts.queues);
    expect_dead(b.rig);
}

TEST_P(GqReset, PulledDriveEndsEverythingInTime)
{
    Busy b(GetParam());

    b.rig.opts.deadline_ms = 1000;
    b.start();
    auto start = Clock::now();
    sim_remove(b.rig.s);
    b.load.join(false);
    /* A command's deadline, and an eighth of it until the kernel checks. */
    EXPECT_LT(Clock::now() - start, milliseconds(1125 + kSlackMs));
    EXPECT_EQ(b.load.failed, 4u);
    start = Clock::now();
    EXPECT_EQ(gq_engine_recover(b.rig.e), -EIO);
    EXPECT_LT(Clock::now() - start, milliseconds(nvme_ctrlr_reset_ms(b.rig.c) + kSlackMs));
    EXPECT_TRUE(nvme_ctrlr_settled(b.rig.c));
    uint64_t errors = b.rig.stats().errors;
    expect_dead(b.rig);
    EXPECT_GT(b.rig.stats().errors, errors);
}

GQ_FOR_SOME_EXECUTORS(GqReset, kForBusy);
GQ_FOR_SOME_EXECUTORS(GqStuck, kForStuck);

} // namespace
