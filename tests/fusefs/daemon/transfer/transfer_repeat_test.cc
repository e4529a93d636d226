/* SPDX-License-Identifier: BSD-2-Clause */
// READ and WRITE that may not use host memory: a failure that passes costs nothing but time.
#include <errno.h>

#include <cstring>
#include <vector>

#include "tests/fusefs/daemon/rig_test.h"
#include "tests/threads.h"

namespace
{

constexpr uint64_t kBytes = 4u << 20;
constexpr uint16_t kUnrecoveredRead = 0x281, kWriteFault = 0x280, kNotReady = 0x82;
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
