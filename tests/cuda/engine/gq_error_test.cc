/* SPDX-License-Identifier: BSD-2-Clause */
/* What goes wrong: statuses, lost and late commands, cancel, buffers that end too early. */
#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <thread>

#include "tests/cuda/gq_rig.h"

namespace
{

using GqError = GqTest;
using GqErrorWaits = GqTest;

TEST_P(GqError, ReportsTheFirstErrorInStreamOrder)
{
    Rig rig(GetParam(), 512, 1u << 20);

    rig.opts.max_command = 4096;
    rig.cfg.reorder = true;
    rig.open();
    rig.fault(fault_at(SIM_FAULT_STATUS, 900, NVME_ERR_INTERNAL));
    rig.fault(fault_at(SIM_FAULT_STATUS, 100, NVME_ERR_UNRECOVERED_READ));
    Target m(rig, 1u << 20);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 1u << 20}}, 0, 1u << 20), -EIO);
    EXPECT_EQ(rig.result.nvme_status & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(rig.result.bytes, 96u * 512);
    Bytes got = m.read(0, 96 * 512);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), rig.media.begin()));
    EXPECT_EQ(rig.stats().errors, 1u);
    EXPECT_EQ(rig.stats().quarantined, 0u);
}

/* Its commands are longer, also where they are staged. */
TEST_P(GqError, ALongReadEndsWhereItFailed)
{
    constexpr size_t kLen = 16u << 20, kCommand = 64u << 10, kBad = 150 * kCommand;
    Rig rig(GetParam(), 512, kLen);

    rig.opts.max_command = kCommand;
    rig.open();
    rig.fault(fault_at(SIM_FAULT_STATUS, kBad / 512 + 77, NVME_ERR_UNRECOVERED_READ));
    Target m(rig, kLen);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, kLen}}, 0, kLen), -EIO);
    EXPECT_EQ(rig.result.bytes, kBad);
    EXPECT_TRUE(m.holds(0, rig.media.data(), kBad));
}

/* Of writes from 4 MiB on. */
TEST_P(GqError, ALongWriteEndsWhereItFailed)
{
    constexpr size_t kLen = 4u << 20, kCommand = 64u << 10, kBad = 50 * kCommand;
    Rig rig(GetParam(), 512, kLen);
    Bytes data = random_bytes(kLen, 5);

    rig.opts.max_command = kCommand;
    rig.open();
    rig.fault(fault_at(SIM_FAULT_STATUS, kBad / 512 + 77, NVME_ERR_INTERNAL));
    Target m(rig, kLen);
    m.write(0, data);
    EXPECT_EQ(rig.move(GQ_WRITE, m, 0, {{0, kLen}}, 0, kLen), -EIO);
    EXPECT_EQ(rig.result.bytes, kBad);
    EXPECT_EQ(rig.peek(0, kBad), Bytes(data.begin(), data.begin() + kBad));
}

TEST_P(GqError, ANamespaceThatWasReplacedGetsNoWrite)
{
    constexpr size_t kLen = 64u << 10;
    OpenRig rig(GetParam(), 512, kLen);
    Target m(rig, kLen);
    ASSERT_EQ(sim_change_ns(rig.s, 1, true), 0);
    EXPECT_EQ(rig.move(GQ_WRITE, m, 0, {{0, kLen}}, 0, kLen), -EIO);
    EXPECT_EQ(rig.peek(0, kLen), Bytes(rig.media.begin(), rig.media.begin() + kLen));
}

TEST_P(GqError, FailedPieceLeavesTheBufferAlone)
{
    OpenRig rig(GetParam(), 4096, 1u << 20);
    Target m(rig, 16384);
    ASSERT_EQ(rig.move(GQ_READ, m, 0, {{8, 8192}}, 100, 1000), 0) << "leaves bytes in staging";
    m.fill(0x5a);
    rig.fault(fault_at(SIM_FAULT_STATUS, 3, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{3, 4096}}, 100, 1000), -EIO);
    EXPECT_EQ(rig.result.bytes, 0u);
    EXPECT_TRUE(m.read(0, 16384) == Bytes(16384, 0x5a));
}

TEST_P(GqErrorWaits, LostCommandQuarantinesItsQueueUntilRecovered)
{
    Rig rig(GetParam(), 512, 1u << 20);

    rig.opts.deadline_ms = 1000; /* the other queues take less on a busy machine, too */
    rig.opts.max_command = 4096;
    rig.open();
    rig.fault(once(SIM_FAULT_LOSE));
    Target m(rig, 1u << 20);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 1u << 20}}, 0, 1u << 20), -ETIMEDOUT);
    EXPECT_TRUE(rig.result.timed_out);
    EXPECT_LT(rig.result.bytes, 1u << 20);
    EXPECT_EQ(rig.stats().quarantined, 1u);
    EXPECT_EQ(rig.stats().timeouts, 1u);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 1u << 20}}, 0, 1u << 20), 0) << "by the other queues";
    EXPECT_EQ(gq_engine_recover(rig.e), 0);
    EXPECT_EQ(rig.stats().quarantined, 0u);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 1u << 20}}, 0, 1u << 20), 0);
    EXPECT_TRUE(m.holds(0, rig.media));
}

TEST_P(GqError, NoQueueLeftIsNoDeviceUntilRecovered)
{
    Rig rig(GetParam(), 512, 1u << 20);

    rig.opts.queues = 1;
    rig.open();
    rig.fault(once(SIM_FAULT_LOSE));
    Target m(rig, 4096);
    rig.req.deadline_ms = 50;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}}, 0, 4096), -ETIMEDOUT);
    EXPECT_TRUE(rig.result.timed_out);
    EXPECT_EQ(rig.result.bytes, 0u);
    rig.req.deadline_ms = 0;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}}, 0, 4096), -ENODEV);
    EXPECT_EQ(gq_engine_recover(rig.e), 0);
    for (unsigned i = 0; i < 100; i++)
        ASSERT_EQ(rig.move(GQ_READ, m, 0, {{i, 4096}}, 0, 4096), 0) << "in step after " << i;
}

TEST_P(GqError, LateCompletionIsNotTakenForALaterCommand)
{
    Rig rig(GetParam(), 512, 1u << 20);
    sim_fault late = once(SIM_FAULT_LATE);

    late.delay_ns = 800000000; // a thread that is not scheduled for a while still sees the deadline
    rig.opts.queues = 1;
    rig.open();
    rig.fault(late);
    Target m(rig, 4096);
    rig.req.deadline_ms = 50;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}}, 0, 4096), -ETIMEDOUT);
    rig.req.deadline_ms = 0;
    EXPECT_EQ(gq_engine_recover(rig.e), 0);
    m.fill(0x11);
    std::this_thread::sleep_for(std::chrono::milliseconds(850));
    EXPECT_TRUE(m.read(0, 4096) == Bytes(4096, 0x11)) << "data of a command that is gone";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{64, 4096}}, 0, 4096), 0);
    EXPECT_TRUE(std::equal(rig.media.begin() + 64 * 512, rig.media.begin() + 72 * 512,
                           m.read(0, 4096).begin()));
}

// The second completion comes when the tracker has another command, whose data has not moved.
TEST_P(GqError, ASecondCompletionDoesNotEndTheNextCommand)
{
    for (gq_op op : {GQ_READ, GQ_WRITE}) {
        Rig rig(GetParam(), 512, 1u << 20);
        sim_fault repeat = once(SIM_FAULT_REPEAT);

        repeat.delay_ns = 2000000000;
        repeat.skip = 1;
        rig.cfg.latency_ns = 1000000;
        rig.opts.queues = 1;
        rig.opts.max_command = 512;
        rig.open();
        Target m(rig, 4096);
        for (unsigned i = 0; i < 3; i++)
            ASSERT_EQ(rig.move(op, m, 0, {{0, 1024}}, 0, 1024), 0);
        rig.fault(repeat);
        EXPECT_EQ(rig.move(op, m, 0, {{64, 1024}}, 0, 1024), -ETIMEDOUT) << "commands are lost";
        EXPECT_EQ(gq_engine_recover(rig.e), 0);
        EXPECT_EQ(rig.stats().recreates, 1u) << "the queue is not trusted";
        ASSERT_EQ(rig.move(GQ_READ, m, 0, {{64, 1024}}, 0, 1024), 0);
        EXPECT_TRUE(m.holds(0, rig.peek(64 * 512, 1024)));
    }
}

/* The judge flags memory that is unmapped while a command can reach it. */
TEST_P(GqError, UnregisterAfterATimeoutDeletesTheQueueFirst)
{
    Rig rig(GetParam(), 512, 1u << 20);

    rig.opts.deadline_ms = 50;
    rig.open();
    rig.fault(once(SIM_FAULT_LOSE));
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{0, 4096}}, 0, 4096), -ETIMEDOUT);
    gq_buffer_unregister(b);
    EXPECT_EQ(rig.stats().quarantined, 0u);
    EXPECT_EQ(sim_violations(rig.s), 0u);
}

TEST_P(GqError, FatalStatusEndsTransfersUntilItIsReset)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    rig.fault(once(SIM_FAULT_FATAL));
    Target m(rig, 65536);
    rig.req.deadline_ms = 50;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 65536}}, 0, 65536), -ETIMEDOUT);
    rig.req.deadline_ms = 0;
    EXPECT_TRUE(rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(rig.e), 0);
    EXPECT_EQ(rig.stats().resets, 1u);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 65536}}, 0, 65536), 0);
    EXPECT_TRUE(std::equal(rig.media.begin(), rig.media.begin() + 65536, m.read(0, 65536).begin()));
}

TEST_P(GqError, CancelDrainsAndTellsWhatIsCertain)
{
    Rig rig(GetParam(), 512, 4u << 20);
    uint32_t cancel = 0;

    rig.opts.max_command = 512;
    rig.opts.depth = 4;
    rig.cfg.latency_ns = 1000000;
    rig.open();
    Target m(rig, 4u << 20);
    rig.req.cancel = &cancel;
    std::thread canceller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4u << 20}}, 0, 4u << 20), -ECANCELED);
    canceller.join();
    EXPECT_TRUE(rig.result.cancelled);
    EXPECT_LT(rig.result.bytes, 4u << 20);
    Bytes got = m.read(0, rig.result.bytes);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), rig.media.begin()));
    EXPECT_EQ(rig.stats().quarantined, 0u);
    cancel = 0;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}}, 0, 4096), 0);
}

TEST_P(GqError, CancelledBeforeItStartsSendsNothing)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    uint32_t cancel = 1;

    Target m(rig, 4096);
    rig.req.cancel = &cancel;
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}}, 0, 4096), -ECANCELED);
    EXPECT_EQ(rig.result.commands, 0u);
    EXPECT_EQ(rig.stats().cancelled, 1u);
}

TEST_P(GqError, UnregisterWaitsForTheTransferInProgress)
{
    Rig rig(GetParam(), 512, 1u << 20);
    std::atomic<int> err{1};

    rig.opts.max_command = 4096;
    rig.cfg.latency_ns = 2000000;
    rig.open();
    Memory m(rig.x.kind, 1u << 20);
    gq_buffer *b = rig.add(m, 0, 1u << 20);
    std::thread dma_engine([&] { err = rig.move(GQ_READ, b, 0, {{0, 1u << 20}}, 0, 1u << 20); });
    while (rig.sent() == 0)
        std::this_thread::yield();
    gq_buffer_unregister(b);
    dma_engine.join();
    EXPECT_TRUE(err == 0 || err == -ESTALE) << err;
    EXPECT_EQ(sim_violations(rig.s), 0u);
}

TEST_P(GqError, StaleBuffersAreRefused)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);
    gq_buffer_unregister(b);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{0, 4096}}, 0, 4096), -ESTALE);
    EXPECT_EQ(rig.move(GQ_READ, nullptr, 0, {{0, 4096}}, 0, 4096), -ESTALE);
}

TEST_P(GqError, RegistersNoMoreBuffersThanAllowed)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    std::vector<gq_buffer *> buffers;
    gq_buffer *extra = nullptr;

    Memory m(rig.x.kind, 65536);
    for (unsigned i = 0; i < rig.opts.max_buffers; i++)
        buffers.push_back(rig.add(m, i * 4096, 4096));
    gq_mem mem = m.part(0, 4096);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &extra), -EMFILE);
    gq_buffer_unregister(buffers.back());
    buffers.pop_back();
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &extra), 0);
    EXPECT_EQ(rig.stats().buffers, rig.opts.max_buffers);
    for (gq_buffer *b : buffers)
        gq_buffer_unregister(b);
    gq_buffer_unregister(extra);
}

TEST_P(GqError, RefusesMemoryThatCannotBe)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    gq_buffer *b = nullptr;

    Memory m(rig.x.kind, 4096);
    gq_mem mem = m.part(0, 0);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "empty";
    mem = m.part(0, SIZE_MAX - 4);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "wraps";
    mem = m.part(0, 4096);
    mem.kind = rig.x.kind == GQ_EXECUTOR_CUDA ? GQ_MEM_HOST : GQ_MEM_CUDA;
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -ENOTSUP) << "the other executor's";
    mem.kind = rig.x.kind == GQ_EXECUTOR_CUDA ? GQ_MEM_CUDA_IPC : GQ_MEM_FD;
    EXPECT_LT(gq_buffer_register(rig.e, &mem, &b), 0) << "no such handle";
    EXPECT_EQ(rig.stats().buffers, 0u);
}

TEST_P(GqError, CloseUnregistersWhatIsLeft)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    Memory m(rig.x.kind, 8192);
    rig.add(m, 0, 4096);
    rig.add(m, 1, 4096);
    rig.close();
}

TEST(GqErrorOpen, CudaDemandedWithoutADeviceIsNoDevice)
{
    struct reason why = {};
    Rig rig({"Cuda", GQ_EXECUTOR_CUDA, 0}, 512, 1u << 20);

    if (gq_probe(0, &why) == 0)
        GTEST_SKIP() << "there is a CUDA device";
    EXPECT_NE(why.text[0], '\0');
    EXPECT_THROW(rig.open(), std::runtime_error);
}

TEST_P(GqError, SaysItsTierAndWhyItIsNoBetter)
{
    OpenRig rig(GetParam(), 512, 1u << 20);
    gq_info info;

    gq_engine_info(rig.e, &info);
    if (rig.x.doorbells == GQ_DOORBELLS_CPU)
        EXPECT_EQ(info.tier, 0u);
    else
        EXPECT_EQ(info.tier, rig.x.kind == GQ_EXECUTOR_CUDA && !rig.x.staged ? 2u : 1u);
    EXPECT_EQ(info.tier_note[0] != '\0', info.tier < 2) << info.tier_note;
    EXPECT_EQ(std::string(info.tier_note).find("CPU executor are in host memory") !=
                  std::string::npos,
              rig.x.kind == GQ_EXECUTOR_CPU && !rig.x.staged)
        << info.tier_note;
}

TEST_P(GqError, ControllerThatCannotReachDeviceMemoryCostsTheTier)
{
    Rig rig(GetParam(), 512, 1u << 20);
    Bytes data = random_bytes(4096, 3), back(4096);
    gq_buffer *b = nullptr;
    gq_info info;

    if (rig.x.kind != GQ_EXECUTOR_CUDA)
        GTEST_SKIP() << "all memory is the host's";
    rig.no_peer = true;
    rig.open();
    gq_engine_info(rig.e, &info);
    EXPECT_EQ(info.tier, rig.x.doorbells == GQ_DOORBELLS_CPU ? 0u : 1u);
    EXPECT_NE(std::string(info.tier_note).find("GPU memory"), std::string::npos);
    Memory m(rig.x.kind, 4096);
    gq_mem mem = m.part(0, 4096);
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    EXPECT_FALSE(gq_buffer_is_reachable(b));
    EXPECT_EQ(gq_buffer_put(b, 0, data.data(), data.size()), 0);
    EXPECT_EQ(gq_buffer_get(b, 0, back.data(), back.size()), 0);
    EXPECT_TRUE(back == data);
    gq_buffer_unregister(b);
}

TEST(GqErrorOpen, AutoFallsBackAndSaysWhy)
{
    struct reason why = {};
    OpenRig rig({"Auto", GQ_EXECUTOR_AUTO, 1}, 512, 1u << 20);
    gq_info info;

    gq_engine_info(rig.e, &info);
    if (gq_probe(0, &why) == 0) {
        EXPECT_EQ(info.executor, GQ_EXECUTOR_CUDA);
        EXPECT_EQ(info.tier, 2u);
    } else {
        EXPECT_EQ(info.executor, GQ_EXECUTOR_CPU);
        EXPECT_STREQ(info.fallback.text, why.text);
        EXPECT_EQ(info.tier, 1u);
    }
}

GQ_FOR_EXECUTORS(GqError);
GQ_FOR_SOME_EXECUTORS(GqErrorWaits, kForWaits);

} // namespace
