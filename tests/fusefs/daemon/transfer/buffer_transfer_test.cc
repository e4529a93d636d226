/* SPDX-License-Identifier: BSD-2-Clause */
// Transfers with faults of the drive, of the executor, and without space.
// Success is tested over a mount.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/rig_test.h"
#include "tests/threads.h"

namespace
{

constexpr uint64_t kBytes = 4u << 20;

class Transfer : public RigTest
{
  protected:
    void open(const rig_config &config = {})
    {
        ASSERT_NO_FATAL_FAILURE(open_rig(config));
        ASSERT_EQ(rig_register(rig_, kBytes, 0, &buffer_), 0);
        write_content(kBytes);
    }
    void fail(sim_fault_kind kind, uint8_t opcode, uint16_t status, unsigned times)
    {
        ASSERT_EQ(rig_fail(rig_, kind, opcode, status, 0, times), 0);
    }
    // Registers one more buffer of the user.
    int add(uint32_t uid)
    {
        rig_buffer b = {};
        int err = rig_register(rig_, 4096, uid, &b);
        rig_forget(&b);
        return err;
    }
    gpunvme_ioc_rw request(uint64_t len = kBytes, uint32_t flags = 0) const
    {
        return request_of(buffer_, len, flags);
    }
    // Reads the file into the buffer, or writes it from there, and expects all bytes.
    gpunvme_ioc_rw move_all(bool write = false)
    {
        gpunvme_ioc_rw rw = request();
        memset(buffer_.data, write ? 0x5a : 0x33, kBytes);
        EXPECT_EQ(rig_transfer(rig_, write, 0, &rw), 0);
        EXPECT_EQ(rw.bytes, kBytes);
        if (write) {
            EXPECT_EQ(rig_read_file(rig_, 0, content_.data(), kBytes), 0);
        }
        EXPECT_TRUE(buffer_is_content());
        return rw;
    }
    bool buffer_is_content() const { return memcmp(buffer_.data, content_.data(), kBytes) == 0; }
};

TEST_F(Transfer, ReadWithoutFaultsTakesTheGpuPath)
{
    open();
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_GPU);
    EXPECT_GT(rw.commands, 0u);
    gpunvme_ioc_stats stats = rig_stats(rig_);
    EXPECT_GT(stats.latency[GPUNVME_OP_READ][GPUNVME_PATH_GPU - 1].ns, 0u);
    EXPECT_EQ(stats.latency[GPUNVME_OP_READ][GPUNVME_PATH_BOUNCE - 1].ns, 0u);
    EXPECT_EQ(stats.fallbacks[GPUNVME_FALLBACK_NO_EXECUTOR], 0u);
}

TEST(TransferStats, BucketsAreOfPowersOfTwoMicroseconds)
{
    EXPECT_EQ(rig_bucket(0), 0u);
    EXPECT_EQ(rig_bucket(1999), 0u);
    EXPECT_EQ(rig_bucket(2000), 1u);
    EXPECT_EQ(rig_bucket(4095999), 11u);
    EXPECT_EQ(rig_bucket(4096000), 12u);
    EXPECT_EQ(rig_bucket(UINT64_MAX), GPUNVME_LATENCY_BUCKETS - 1);
}

TEST(TransferStats, AnOperationCountsOnceAndOneThatMovedNothingDoesNot)
{
    gpunvme_ioc_stats stats = rig_stats_of_ops();
    uint64_t calls = 0;
    for (auto &by_path : stats.latency) {
        for (auto &latency : by_path)
            calls += std::accumulate(std::begin(latency.buckets), std::end(latency.buckets), 0ull);
    }
    EXPECT_EQ(calls, 1u);
    EXPECT_EQ(stats.bounce_transfers, 1u);
    EXPECT_EQ(stats.bounce_written_bytes, 40u);
    EXPECT_EQ(stats.bounce_read_bytes, 0u);
}

TEST_F(Transfer, ReadErrorFallsBackAndKeepsItsStatus)
{
    open();
    fail(SIM_FAULT_STATUS, kRead, kUnrecoveredRead, 0);
    gpunvme_ioc_rw rw = move_all();
    EXPECT_NE(rw.path & GPUNVME_PATH_BOUNCE, 0u);
    EXPECT_EQ(rw.nvme_status & 0x7ffu, kUnrecoveredRead);
    EXPECT_EQ(rig_stats(rig_).fallbacks[GPUNVME_FALLBACK_DRIVE_ERROR], 1u);
}

TEST_F(Transfer, LostCommandFallsBackAndTheQueueReturns)
{
    open(with(&rig_config::deadline_ms, RIG_DEADLINE_MS));
    fail(SIM_FAULT_LOSE, kRead, 0, 1);
    EXPECT_NE(move_all().path & GPUNVME_PATH_BOUNCE, 0u);
    EXPECT_EQ(rig_stats(rig_).fallbacks[GPUNVME_FALLBACK_LOST_COMMAND], 1u);
    EXPECT_EQ(move_all().path, GPUNVME_PATH_GPU);
}

TEST_F(Transfer, CallersDeadlineEndsTheTransfer)
{
    open(with(&rig_config::deadline_ms, 2000u));
    fail(SIM_FAULT_LOSE, kRead, 0, 1);
    gpunvme_ioc_rw rw = request();
    rw.deadline_ms = 50;
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), -ETIMEDOUT);
    EXPECT_LT(rw.bytes, kBytes);
}

TEST_F(Transfer, WriteErrorFallsBackAndNotifiesTheKernelOnce)
{
    open();
    fail(SIM_FAULT_STATUS, kWrite, kWriteFault, 0);
    rig_notified();
    EXPECT_NE(move_all(true).path & GPUNVME_PATH_BOUNCE, 0u);
    struct rig_notified n = rig_notified();
    EXPECT_EQ(n.times, 1u);
    EXPECT_EQ(n.len, kBytes);
    EXPECT_FALSE(n.grew);
    EXPECT_EQ(n.last, 0) << "a copy of the GPU that nothing needs";
}

TEST_F(Transfer, GrowingWriteNotifiesTheKernelOfTheNewEnd)
{
    open();
    buffer_.data[4999] = 0x77;
    gpunvme_ioc_rw rw = request(5000);
    rw.file_offset = kBytes;
    ASSERT_EQ(rig_transfer(rig_, true, 0, &rw), 0);
    struct rig_notified n = rig_notified();
    EXPECT_TRUE(n.grew);
    EXPECT_EQ(n.offset + n.len, kBytes + 5000);
    EXPECT_EQ(n.last, 0x77);
    EXPECT_EQ(rw.path, GPUNVME_PATH_MIXED) << "a part of a block goes through host memory";
}

// The kernel shows no byte of the last page before it has read it: none is fetched from the GPU.
TEST_F(Transfer, GrowingWriteToTheEndOfABlockFetchesNoByte)
{
    open();
    buffer_.data[kBytes - 1] = 0x77;
    gpunvme_ioc_rw rw = request();
    rw.file_offset = kBytes;
    ASSERT_EQ(rig_transfer(rig_, true, 0, &rw), 0);
    struct rig_notified n = rig_notified();
    EXPECT_TRUE(n.grew);
    EXPECT_EQ(n.offset + n.len, 2 * kBytes);
    EXPECT_EQ(n.last, 0);
}

TEST_F(Transfer, WriteIsShortWhenTheDeviceIsFullAndThenFails)
{
    open();
    gpunvme_ioc_rw rw = request();
    int err = 0;
    uint64_t end = kBytes;
    while (!err && rw.bytes == (end == kBytes ? 0 : kBytes)) {
        rw = request();
        rw.file_offset = end;
        err = rig_transfer(rig_, true, 0, &rw);
        end += rw.bytes;
    }
    EXPECT_GT(end, kBytes) << "something was written";
    rw = request();
    rw.file_offset = end;
    EXPECT_EQ(rig_transfer(rig_, true, 0, &rw), -ENOSPC);
    EXPECT_EQ(rw.bytes, 0u);
    EXPECT_LT(rig_free_bytes(rig_), kBytes);
}

TEST_F(Transfer, ACancelledTransferThatMovedNothingIsInterrupted)
{
    open();
    for (bool all : {false, true}) {
        if (all)
            rig_cancel_all(rig_);
        for (bool write : {false, true}) {
            gpunvme_ioc_rw rw = request();
            EXPECT_EQ(all ? rig_transfer(rig_, write, 0, &rw)
                          : rig_transfer_cancelled(rig_, write, &rw),
                      -EINTR);
            EXPECT_EQ(rw.bytes, 0u);
        }
    }
}

TEST_F(Transfer, EndOfTheBufferEndsTheTransfer)
{
    open(with(&rig_config::bytes_per_sec, uint64_t{8u << 20}));
    gpunvme_ioc_rw rw = request();
    int err = -1;
    const uint64_t before = reads();
    std::thread reader([&] { err = rig_transfer(rig_, false, 0, &rw); });
    await_read(before);
    EXPECT_EQ(rig_unregister(rig_, &buffer_, 0), 0);
    EXPECT_EQ(rig_buffers(rig_), 0u);
    memset(buffer_.data, 1, kBytes);
    reader.join();
    EXPECT_EQ(std::count(buffer_.data, buffer_.data + kBytes, 1), ssize_t{kBytes})
        << "at once: nothing reaches the memory any more";
    EXPECT_TRUE(err == 0 || err == -EINTR) << err;
    EXPECT_LT(rw.bytes, kBytes);
}

TEST_F(Transfer, WithoutAnExecutorEverythingUsesHostMemory)
{
    open(with(&rig_config::gpu_off, true));
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_BOUNCE);
    EXPECT_GT(rw.commands, 0u) << "by queues of the bounce path";
    rw = request(kBytes, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), -EREMOTEIO);
    EXPECT_EQ(rig_stats(rig_).fallbacks[GPUNVME_FALLBACK_NO_EXECUTOR], 1u);
}

TEST_F(Transfer, WithoutQueuesOfItsOwnTheBouncePathCopies)
{
    open(with(&rig_config::gpu_off, true, with(&rig_config::copied, true)));
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_BOUNCE);
    EXPECT_EQ(rw.commands, 0u);
}

// No executor takes part in the transfer, whatever its state.
TEST_F(Transfer, ABufferOfTheBouncePathBouncesBesideAnExecutor)
{
    open(with(&rig_config::bounces, true));
    fail(SIM_FAULT_LOSE, kRead, 0, 0);
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_BOUNCE);
    EXPECT_GT(rw.commands, 0u);
    EXPECT_EQ(move_all(true).path, GPUNVME_PATH_BOUNCE);
    rw = request(kBytes, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), -EREMOTEIO);
    sim_clear_faults(rig_sim(rig_));
}

// The option concerns transfers of the GPU path; a client that bounces copies to any memory.
TEST_F(Transfer, ABufferOfTheBouncePathBouncesWhereAGpuIsRequired)
{
    open(with(&rig_config::bounces, true, with(&rig_config::requires_gpu, true)));
    EXPECT_EQ(move_all().path, GPUNVME_PATH_BOUNCE);
}

TEST_F(Transfer, BouncedTransfersSurviveAnErrorAndALostCommand)
{
    open(with(&rig_config::gpu_off, true, with(&rig_config::deadline_ms, RIG_DEADLINE_MS)));
    fail(SIM_FAULT_STATUS, kRead, kUnrecoveredRead, 1);
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_BOUNCE);
    EXPECT_EQ(rw.nvme_status, kUnrecoveredRead);
    fail(SIM_FAULT_LOSE, kRead, 0, 1);
    move_all();
}

TEST_F(Transfer, MemoryOutOfTheDrivesReachIsStagedByTheExecutor)
{
    open(with(&rig_config::unreachable, true));
    gpunvme_ioc_rw rw = move_all();
    EXPECT_EQ(rw.path, GPUNVME_PATH_GPU);
    EXPECT_GT(rw.commands, 0u);
    EXPECT_EQ(rw.nvme_status, 0u);
    EXPECT_EQ(move_all(true).path, GPUNVME_PATH_GPU);
    rw = request(kBytes, GPUNVME_NO_FALLBACK);
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), 0) << "no fallback";
}

// More runs than one batch holds, and an error in the last: not the end of the
// file.
TEST_F(Transfer, AnErrorInTheMiddleOfABouncedReadIsNoEndOfFile)
{
    open(with(&rig_config::gpu_off, true, with(&rig_config::copied, true)));
    for (uint64_t block = 1; block < 160; block += 2)
        ASSERT_EQ(rig_write_file(rig_, kBytes + block * 4096, content_.data(), 4096), 0);
    sim_fault fault = {};
    fault.kind = SIM_FAULT_STATUS;
    fault.opcode = kRead;
    fault.match_opcode = true;
    fault.status = kUnrecoveredRead | 0x4000;
    fault.skip = 60;
    ASSERT_EQ(sim_add_fault(rig_sim(rig_), &fault), 0);
    gpunvme_ioc_rw rw = request(1u << 20);
    rw.file_offset = kBytes;
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), -EIO);
    sim_clear_faults(rig_sim(rig_)); // the unmount reads, too
}

TEST_F(Transfer, HolesReadAsZeros)
{
    open();
    uint64_t hole = kBytes, far = kBytes + (1u << 20);
    ASSERT_EQ(rig_write_file(rig_, far, "x", 1), 0);
    memset(buffer_.data, 0xff, kBytes);
    gpunvme_ioc_rw rw = request();
    rw.file_offset = hole - 100;
    ASSERT_EQ(rig_transfer(rig_, false, 0, &rw), 0);
    EXPECT_EQ(rw.bytes, far + 1 - (hole - 100)) << "short at the end of the file";
    EXPECT_EQ(memcmp(buffer_.data, &content_[kBytes - 100], 100), 0);
    for (uint64_t i = 100; i < rw.bytes - 1; i++)
        ASSERT_EQ(buffer_.data[i], 0) << i;
    EXPECT_EQ(buffer_.data[rw.bytes - 1], 'x');
    EXPECT_EQ(buffer_.data[rw.bytes], 0xff) << "nothing past the end";
}

// BadTransferTest has the transfers that are invalid for any caller.
TEST_F(Transfer, RefusesBuffersOfOthersAndOfThePast)
{
    open();
    gpunvme_ioc_rw rw = request();
    EXPECT_EQ(rig_transfer(rig_, false, 1000, &rw), -EACCES) << "another user";
    EXPECT_EQ(rig_unregister(rig_, &buffer_, 1000), -EACCES);
    EXPECT_EQ(rig_unregister(rig_, &buffer_, 0), 0);
    EXPECT_EQ(rig_unregister(rig_, &buffer_, 0), -ENOENT);
    EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), -ENOENT) << "stale";
}

TEST_F(Transfer, BuffersAreLimitedInNumber)
{
    open(with(&rig_config::max_buffers, 16u)); // open() registers one of root's two
    rig_buffer mine = {};
    EXPECT_EQ(rig_register(rig_, 4096, 1, &mine), 0);
    unsigned held = 1, left = 14;
    for (uint32_t uid = 1; uid <= 5; uid++, held = 0) {
        while (add(uid) == 0)
            held++;
        EXPECT_EQ(held, (left + 1) / 2) << "half of the rest, rounded up";
        EXPECT_EQ(add(uid), -EMFILE);
        left -= held;
    }
    EXPECT_EQ(rig_unregister(rig_, &mine, 1), 0);
    EXPECT_EQ(add(0), 0);
    EXPECT_EQ(add(0), 0);
    EXPECT_EQ(add(1), -EMFILE) << "root has it";
    rig_forget(&mine);
}

// A sparse file costs its sender nothing, but READs into it take the daemon's
// memory.
TEST_F(Transfer, BuffersAreLimitedInBytes)
{
    open(with(&rig_config::gpu_off, true));
    uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page;
    rig_buffer holes = {}, small = {};
    EXPECT_EQ(rig_register(rig_, memory / 2, 0, &holes), -ENOMEM) << "open() has some";
    rig_forget(&holes);
    EXPECT_EQ(rig_register(rig_, memory / 32 * 7 + page, 1, &holes), -ENOMEM)
        << "half is for others";
    EXPECT_EQ(rig_register(rig_, 4096, 0, &small), 0);
    EXPECT_EQ(rig_unregister(rig_, &small, 0), 0);
    rig_forget(&holes);
    rig_forget(&small);
}

class TakenDrive : public Transfer
{
  protected:
    void TearDown() override
    {
        rig_forget(&buffer_);
        EXPECT_LT(rig_close(rig_), 0) << "not all was written";
    }
};

// Another host has reserved the namespace, and may have ended that when the next write comes.
TEST_F(TakenDrive, NothingIsWrittenAfterAConflict)
{
    open(with(&rig_config::requires_gpu, true));
    fail(SIM_FAULT_STATUS, kWrite, 0x4083, 1);
    gpunvme_ioc_rw rw = request();
    EXPECT_LT(rig_transfer(rig_, true, 0, &rw), 0);
    EXPECT_EQ(rw.nvme_status & 0x7ffu, 0x083u);
    EXPECT_EQ(rig_truncate(rig_, kBytes / 2), -EIO);
    rw = request();
    EXPECT_LT(rig_transfer(rig_, true, 0, &rw), 0);
}

// --- Failures that pass, of transfers that may not use host memory -------------------------------

constexpr uint16_t kAccessInTransition = 0x303;
constexpr uint16_t kDoNotRetry = 0x4000;

// The parameter: WRITE.
class Repeat : public RigTest, public ::testing::WithParamInterface<bool>
{
  protected:
    void open(unsigned deadline_ms = 0)
    {
        ASSERT_NO_FATAL_FAILURE(open_rig(with(&rig_config::deadline_ms, deadline_ms)));
        ASSERT_EQ(rig_register(rig_, kBytes, 0, &buffer_), 0);
        fill();
    }
    void fill()
    {
        file_ = pattern(31);
        ASSERT_EQ(rig_write_file(rig_, 0, file_.data(), kBytes), 0);
        memory_ = pattern(77);
        memcpy(buffer_.data, memory_.data(), kBytes);
    }
    static std::vector<unsigned char> pattern(unsigned seed)
    {
        std::vector<unsigned char> bytes(kBytes);
        content_fill(seed, 0, bytes.data(), bytes.size());
        return bytes;
    }
    void fail(sim_fault_kind kind, uint16_t status, unsigned times, unsigned skip = 0)
    {
        ASSERT_EQ(rig_fail(rig_, kind, GetParam() ? kWrite : kRead, status, skip, times), 0);
    }
    uint16_t fault() const { return GetParam() ? kWriteFault : kUnrecoveredRead; }
    int transfer(gpunvme_ioc_rw *rw, uint32_t flags = GPUNVME_NO_FALLBACK, uint32_t deadline_ms = 0)
    {
        *rw = request_of(buffer_, kBytes, flags);
        rw->deadline_ms = deadline_ms;
        return rig_transfer(rig_, GetParam(), 0, rw);
    }
    void expect_moved(const gpunvme_ioc_rw &rw)
    {
        EXPECT_EQ(rw.bytes, kBytes);
        EXPECT_EQ(rw.path, GPUNVME_PATH_GPU) << "no byte through host memory";
        EXPECT_EQ(rig_quarantined(rig_), 0u);
        const std::vector<unsigned char> &source = GetParam() ? memory_ : file_;
        std::vector<unsigned char> now(kBytes);
        ASSERT_EQ(rig_read_file(rig_, 0, now.data(), kBytes), 0);
        EXPECT_EQ(now, source);
        EXPECT_EQ(memcmp(buffer_.data, source.data(), kBytes), 0);
    }

    std::vector<unsigned char> file_, memory_;
};

INSTANTIATE_TEST_SUITE_P(Ways, Repeat, ::testing::Values(false, true),
                         [](const auto &info) { return info.param ? "write" : "read"; });

TEST_P(Repeat, ALostCommandOnlyCostsTime)
{
    constexpr uint32_t kCallersMs = 60000;
    gpunvme_ioc_rw rw;

    open(RIG_DEADLINE_MS);
    for (uint32_t callers_ms : {0u, kCallersMs}) { // with it, also where fallback is permitted
        fill();
        fail(SIM_FAULT_LOSE, 0, 1);
        ASSERT_EQ(transfer(&rw, callers_ms ? 0 : GPUNVME_NO_FALLBACK, callers_ms), 0);
        expect_moved(rw);
    }
    EXPECT_EQ(rig_stats(rig_).fallbacks[GPUNVME_FALLBACK_LOST_COMMAND], 0u);
}

TEST_P(Repeat, ATransientFailureLeavesOnlyItsStatus)
{
    open();
    fail(SIM_FAULT_STATUS, fault(), 1);
    gpunvme_ioc_rw rw;
    ASSERT_EQ(transfer(&rw), 0);
    expect_moved(rw);
    EXPECT_EQ(rw.nvme_status & 0x7ffu, fault());
}

// The second of four commands, then of the three that are left, and of two.
TEST_P(Repeat, ATransferWithProgressMayFailOften)
{
    open();
    for (unsigned skip : {1u, 4u, 6u})
        fail(SIM_FAULT_STATUS, fault(), 1, skip);
    gpunvme_ioc_rw rw;
    ASSERT_EQ(transfer(&rw), 0);
    expect_moved(rw);
    EXPECT_EQ(rw.commands, 10u) << "four, three, two, one";
}

TEST_P(Repeat, APermanentFailureEndsSoon)
{
    open();
    fail(SIM_FAULT_STATUS, fault(), 0);
    gpunvme_ioc_rw rw;
    EXPECT_EQ(transfer(&rw), -EIO);
    EXPECT_EQ(rw.bytes, 0u);
    EXPECT_EQ(rw.path, 0u);
    EXPECT_EQ(rw.nvme_status & 0x7ffu, fault());
    EXPECT_LE(rw.commands, 3 * kBytes / 4096);
}

TEST_P(Repeat, AStatusThatForbidsItIsNotRepeated)
{
    open();
    fail(SIM_FAULT_STATUS, fault() | kDoNotRetry, 1);
    gpunvme_ioc_rw rw;
    EXPECT_EQ(transfer(&rw), -EIO);
    EXPECT_EQ(rw.bytes, 0u);
}

TEST_P(Repeat, CommandsThatAreLostEachTimeEndTheTransfer)
{
    open(RIG_DEADLINE_MS);
    fail(SIM_FAULT_LOSE, 0, 0);
    gpunvme_ioc_rw rw;
    EXPECT_EQ(transfer(&rw), -ETIMEDOUT);
    EXPECT_EQ(rw.bytes, 0u);
    EXPECT_EQ(rw.path, 0u);
    EXPECT_EQ(rig_quarantined(rig_), 0u);
}

// More often than another failure would be repeated.
TEST_P(Repeat, ATransferWaitsForADriveThatIsNotReadyOrChangesItsAccess)
{
    open();
    for (uint16_t status : {kNotReady, kAccessInTransition}) {
        fill();
        fail(SIM_FAULT_STATUS, status, 60);
        gpunvme_ioc_rw rw;
        ASSERT_EQ(transfer(&rw), 0) << status;
        expect_moved(rw);
    }
}

// The only queue waits for recovery when the second transfer would take it.
TEST_P(Repeat, TheLostCommandOfAnotherTransferOnlyCostsTime)
{
    open(RIG_DEADLINE_MS);
    fail(SIM_FAULT_LOSE, 0, 1);
    gpunvme_ioc_rw rws[4];
    int errors[4];
    in_threads(4, [&](int i) { errors[i] = transfer(&rws[i]); });
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(errors[i], 0) << i;
        expect_moved(rws[i]);
    }
}

} // namespace
