/* SPDX-License-Identifier: BSD-2-Clause */
/* Has a controller with one queue pair, which the block device lends to the engine for each run. */
#include "tests/cuda/engine/gq_recover_rig.h"

namespace
{

constexpr unsigned kLoads = 4;
constexpr size_t kBytes = 64u << 10;
constexpr uint64_t kDevicePart = kLoads * kMib; /* the loads use what is before it */

std::atomic<unsigned> changes{0}; /* of sides, and recreations after a reset */
std::atomic<unsigned> runs{0};

class GqLent : public GqTest
{
  protected:
    GqLent() : rig_(GetParam(), 512, kDevicePart + kMib)
    {
        rig_.lends = true;
        rig_.opts.depth = 16;
        rig_.opts.max_command = 8192;
        rig_.cfg.latency_ns = 200000;
        rig_.cfg.reorder = true;
        rig_.driver.admin_timeout_ms = kLostAdminMs;
        rig_.driver.io_timeout_ms = kSlackMs;
    }

    void start()
    {
        rig_.open();
        load_ = std::make_unique<Load>(rig_, kLoads);
        load_->start();
        load_->wait_rounds(kLoads);
    }

    int read(gq_buffer *target, unsigned deadline_ms = 0)
    {
        rig_.req.deadline_ms = deadline_ms;
        return rig_.move(GQ_READ, target, 0, {{0, kBytes}}, 0, kBytes);
    }

    /* Reads and writes a block of its own through the device, and flushes it. */
    void use_device(unsigned round)
    {
        Bytes out = random_bytes(4096, round), in(4096);

        ASSERT_EQ(bd_write(rig_.device, kDevicePart, out.data(), out.size(), 0), 0);
        ASSERT_EQ(bd_flush(rig_.device), 0);
        ASSERT_EQ(bd_read(rig_.device, kDevicePart, in.data(), in.size()), 0);
        ASSERT_EQ(in, out) << "round " << round;
    }

    Rig rig_;
    std::unique_ptr<Load> load_;
};

TEST_P(GqLent, DeviceAndTransfersTakeTurns)
{
    start();
    for (unsigned i = 0; i < 50 && !HasFatalFailure(); i++)
        use_device(i);
    load_->wait_rounds(4);
    load_->expect_right();
    EXPECT_EQ(rig_.stats().resets, 0u);
    EXPECT_EQ(rig_.stats().quarantined, 0u);
}

TEST_P(GqLent, OneQueueIsUsedAndItsDoorbellsAreTheHosts)
{
    gq_info info;

    rig_.opts.queues = 8;
    rig_.open();
    gq_engine_info(rig_.e, &info);
    EXPECT_EQ(info.queues, 1u);
    EXPECT_EQ(info.tier, 0u);
    EXPECT_NE(std::string(info.tier_note).find("the only queue pair is lent"), std::string::npos);
}

/* Runs in a row use the queues that the first of them created. */
TEST_P(GqLent, AdminCommandsAreSentOnlyForAChangeOfSides)
{
    rig_.open();
    Target target(rig_, kBytes);

    ASSERT_EQ(read(target), 0);
    unsigned before = changes;
    for (unsigned i = 0; i < 5; i++)
        ASSERT_EQ(read(target), 0);
    EXPECT_EQ(changes, before);
    use_device(1);
    EXPECT_EQ(changes, before + 1);
    use_device(2);
    EXPECT_EQ(changes, before + 1);
    ASSERT_EQ(read(target), 0);
    EXPECT_EQ(changes, before + 2);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kBytes));
}

/* The device waits for one part, not for the whole transfer, also without a listener. */
TEST_P(GqLent, ALongTransferIsCutIntoRuns)
{
    rig_.opts.part = kBytes;
    rig_.open();
    Target target(rig_, kMib);

    unsigned before = runs;
    ASSERT_EQ(rig_.move(GQ_READ, target, 0, {{0, kMib}}, 0, kMib), 0);
    EXPECT_EQ(runs - before, kMib / kBytes);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kMib));
}

/* The controller still has the command when the queue goes back. */
TEST_P(GqLent, ALostCommandEndsWithTheHandOver)
{
    rig_.open();
    Target target(rig_, kBytes);

    rig_.fault(once(SIM_FAULT_LOSE));
    EXPECT_EQ(read(target, 200), -ETIMEDOUT);
    EXPECT_FALSE(rig_.result.unsettled);
    EXPECT_EQ(rig_.stats().quarantined, 0u);
    use_device(1);
    ASSERT_EQ(read(target), 0);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kBytes));
    EXPECT_EQ(rig_.stats().resets, 0u);
}

/* Neither command nor queue ends: the reset that the engine asks for ends both. */
TEST_P(GqLent, AQueueThatCannotBeDeletedIsEndedByAReset)
{
    rig_.open();
    Target target(rig_, kBytes);

    ASSERT_EQ(read(target), 0); /* the queue is the engine's now */
    rig_.fault(once(SIM_FAULT_LOSE));
    rig_.fault(lost_admin(NVME_ADMIN_DELETE_SQ));
    EXPECT_NE(read(target, 200), 0);
    EXPECT_TRUE(rig_.result.unsettled);
    EXPECT_EQ(gq_engine_recover(rig_.e), 0);
    EXPECT_EQ(rig_.stats().resets, 1u);
    use_device(1);
    ASSERT_EQ(read(target), 0);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kBytes));
}

/* The device holds the queue with a command that does not end. */
TEST_P(GqLent, ATransferDoesNotWaitForTheQueueLongerThanItMay)
{
    sim_fault lost = once_at(SIM_FAULT_LOSE, kDevicePart / 512);
    std::atomic<bool> ended{false};
    sim_stats before, now;
    char block[4096];

    rig_.driver.io_timeout_ms = 2000;
    rig_.open();
    Target target(rig_, kBytes);
    sim_get_stats(rig_.s, &before);
    rig_.fault(lost);
    std::thread device([&] {
        (void)bd_read(rig_.device, kDevicePart, block, sizeof(block));
        ended = true;
    });
    do
        sim_get_stats(rig_.s, &now);
    while (now.commands == before.commands && !ended);
    EXPECT_EQ(read(target, 100), -ETIMEDOUT);
    EXPECT_FALSE(ended) << "it has waited for the device";
    device.join();
    EXPECT_EQ(read(target), 0);
}

/* The queue cannot be created for the engine, so the device recovers it by a reset. */
TEST_P(GqLent, AFailedHandOverIsRecoveredByTheDevice)
{
    rig_.open();
    Target target(rig_, kBytes);

    rig_.fault(lost_admin(NVME_ADMIN_CREATE_SQ));
    for (unsigned i = 0; i < 6; i++) {
        EXPECT_NE(read(target), 0);
        EXPECT_FALSE(rig_.result.unsettled);
    }
    use_device(1);
    EXPECT_EQ(rig_.stats().resets, 1u);
    ASSERT_EQ(read(target), 0);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kBytes));
}

TEST_P(GqLent, BothSidesGoOnAcrossResetsByOthers)
{
    start();
    for (unsigned i = 0; i < 8 && !HasFatalFailure(); i++) {
        ASSERT_EQ(nvme_ctrlr_reset(rig_.c, i), 0);
        use_device(i);
        load_->wait_rounds(2);
    }
    load_->expect_right();
    EXPECT_EQ(rig_.stats().resets, 8u);
    EXPECT_EQ(rig_.stats().quarantined, 0u);
}

/* A transfer of the device between two parts, as a listener's, does not wait for the transfer. */
TEST_P(GqLent, AListenerMayUseTheDevice)
{
    struct Reader {
        gq_listener listener;
        bd_dev *device;
        unsigned parts;
        int err;
    } reader = {};

    rig_.opts.part = 64u << 10;
    rig_.open();
    Target target(rig_, kMib);
    reader.device = rig_.device;
    reader.listener.begins = [](gq_listener *l, uint64_t) {
        Reader *r = reinterpret_cast<Reader *>(l);
        char block[4096];

        r->parts++;
        r->err |= bd_read(r->device, 0, block, sizeof(block));
    };
    reader.listener.ended = reader.listener.begins;
    gq_file_extent x = {0, 0};
    gq_request req = {GQ_READ, target, 0, 0, kMib, &x, 1, kMib, 0, nullptr, &reader.listener};
    ASSERT_EQ(gq_transfer(rig_.e, &req, &rig_.result), 0);
    EXPECT_EQ(reader.parts, 32u);
    EXPECT_EQ(reader.err, 0);
    EXPECT_TRUE(target.holds(0, rig_.media.data(), kMib));
}

const Executor kForLent[] = {kExecutors[0], kExecutors[1], kExecutors[2]};

GQ_FOR_SOME_EXECUTORS(GqLent, kForLent);

} // namespace

extern "C" int __real_bd_lend_give(bd_dev *dev, nvme_qpair *pair, bool end);
extern "C" int __wrap_bd_lend_give(bd_dev *dev, nvme_qpair *pair, bool end)
{
    runs++;
    return __real_bd_lend_give(dev, pair, end);
}

extern "C" int __real_nvme_qpair_recreate(nvme_ctrlr *c, nvme_qpair *qp);
extern "C" int __wrap_nvme_qpair_recreate(nvme_ctrlr *c, nvme_qpair *qp)
{
    changes++;
    return __real_nvme_qpair_recreate(c, qp);
}
