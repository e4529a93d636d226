/* SPDX-License-Identifier: BSD-2-Clause */
/* One command on an idle queue pair, against a controller of few lines. */
#include <atomic>
#include <gtest/gtest.h>
#include <thread>

extern "C" {
#include "tests/cuda/queue/gq_single_rig.h"
}
#include "blockdev/transport.h"
#include "tests/cuda/queue/host_queue.h"

namespace
{

constexpr uint32_t kDepth = 4, kValid = 1, kRevoked = 2;
constexpr uint64_t kLong = 10000000000u, kShort = 1000000u;

struct Drive : nvme_transport {
    nvme_transport_ops table = {};
    single_rig rig = {};
    HostQueue q{kDepth};
    uint32_t valid = kValid, lease = kValid;
    uint16_t status = 0, cid_error = 0;
    bool mute = false;
    uint64_t plain = 0; /* what the last command read */

    Drive() : nvme_transport()
    {
        table.wake = [](nvme_transport *t, unsigned) { static_cast<Drive *>(t)->serve(); };
        ops = &table;
        rig.port = q.port();
        rig.phase = 1;
        rig.run.kick = this;
        rig.run.command_ns = kLong;
        rig.run.nsid = 7;
        rig.run.opcode = NVME_IO_READ;
        rig.run.leave[0] = &valid;
        rig.run.leave[1] = &lease;
        rig.run.leave_value = kRevoked;
    }

    /* Posts a completion for each new entry, for which the CQ must have room. */
    void serve()
    {
        while (!mute && q.fresh()) {
            uint32_t at = q.head;
            const nvme_sqe &sqe = q.fetch();

            EXPECT_EQ(q.room(), kDepth - 1) << "the completion before was given back";
            EXPECT_EQ(sqe.cid, GQ_CID_LONE | at);
            plain = sqe.cdw10;
            q.post((uint16_t)(sqe.cid + cid_error), status);
        }
    }

    uint32_t read(uint64_t slba)
    {
        gq_cmd cmd = {slba, 0x1000, 0x2008, 7, 0};

        single_rig_command(&rig, &cmd);
        return rig.outcome;
    }
};

class GqSingle : public ::testing::Test
{
  protected:
    Drive d;
};

TEST_F(GqSingle, SendsTheWholeEntryAndLeavesTheCqDoorbellToTheNext)
{
    EXPECT_EQ(d.read(0x123456789a), (uint32_t)GQ_OUT_DONE);
    EXPECT_EQ(d.rig.status, 0u);
    EXPECT_EQ(d.q.sq[0].opcode, NVME_IO_READ);
    EXPECT_EQ(d.q.sq[0].nsid, 7u);
    EXPECT_EQ(d.q.sq[0].prp1, 0x1000u);
    EXPECT_EQ(d.q.sq[0].prp2, 0x2008u);
    EXPECT_EQ(d.q.sq[0].cdw10, 0x3456789au);
    EXPECT_EQ(d.q.sq[0].cdw11, 0x12u);
    EXPECT_EQ(d.q.sq[0].cdw12, 7u);
    EXPECT_EQ(d.q.sq_doorbell, 1u);
    EXPECT_EQ(d.q.cq_doorbell, 0u);
    EXPECT_EQ(d.rig.entry, 1u);
    EXPECT_NE(d.rig.cq_db_pending, 0u);
}

TEST_F(GqSingle, GoesRoundItsRings)
{
    for (uint32_t i = 0; i < 5 * kDepth + 1; i++) {
        ASSERT_EQ(d.rig.entry, i % kDepth);
        ASSERT_EQ(d.rig.phase, (i / kDepth & 1) ^ 1);
        ASSERT_EQ(d.read(1000 + i), (uint32_t)GQ_OUT_DONE) << i;
        ASSERT_EQ(d.plain, 1000 + i);
        ASSERT_EQ(d.q.posted, i + 1);
    }
}

TEST_F(GqSingle, KeepsTheDrivesStatusAndGoesOn)
{
    d.status = 0x4281;
    EXPECT_EQ(d.read(1), (uint32_t)GQ_OUT_DONE);
    EXPECT_EQ(d.rig.status, 0x4281u);
    d.status = 0;
    EXPECT_EQ(d.read(2), (uint32_t)GQ_OUT_DONE);
    EXPECT_EQ(d.rig.status, 0u);
}

TEST_F(GqSingle, EndsByItsDeadline)
{
    ASSERT_EQ(d.read(1), (uint32_t)GQ_OUT_DONE);
    d.mute = true;
    d.rig.run.command_ns = kShort;
    EXPECT_EQ(d.read(2), (uint32_t)GQ_OUT_TIMED_OUT);
}

TEST_F(GqSingle, TakesACompletionThatIsThereWhateverTheClockSays)
{
    d.rig.run.command_ns = 0;
    EXPECT_EQ(d.read(1), (uint32_t)GQ_OUT_DONE);
}

TEST_F(GqSingle, TakesNoEntryOfTheLastPass)
{
    for (uint32_t i = 0; i < kDepth; i++)
        ASSERT_EQ(d.read(i), (uint32_t)GQ_OUT_DONE);
    d.mute = true;
    d.rig.run.command_ns = kShort;
    EXPECT_EQ(d.read(0), (uint32_t)GQ_OUT_TIMED_OUT);
}

TEST_F(GqSingle, BelievesNoCompletionOfAnotherCommand)
{
    ASSERT_EQ(d.read(1), (uint32_t)GQ_OUT_DONE);
    d.cid_error = 0xffff; /* the one before */
    EXPECT_EQ(d.read(2), (uint32_t)GQ_OUT_BROKEN);
}

TEST_F(GqSingle, LeavesWithACommandInFlight)
{
    for (uint32_t Drive::*word : {&Drive::valid, &Drive::lease}) {
        Drive d;

        d.mute = true;
        d.*word = kRevoked;
        EXPECT_EQ(d.read(1), (uint32_t)GQ_OUT_LEFT);
        EXPECT_EQ(d.q.sq_doorbell, 1u);
    }
}

TEST_F(GqSingle, BlamesNoDeadlineWhenItWasToLeave)
{
    d.mute = true;
    d.lease = kRevoked;
    d.rig.run.command_ns = 0;
    EXPECT_EQ(d.read(1), (uint32_t)GQ_OUT_LEFT);
}

/* What the controller wrote is seen by ordinary loads: ThreadSanitizer watches `plain`. */
TEST_F(GqSingle, SeesTheDataOfAControllerThatRunsBesideIt)
{
    std::atomic<bool> stop{false};

    d.rig.run.kick = nullptr;
    std::thread controller([&] {
        while (!stop) {
            d.serve();
            std::this_thread::yield();
        }
    });
    for (uint32_t i = 0; i < 500; i++) {
        ASSERT_EQ(d.read(i), (uint32_t)GQ_OUT_DONE);
        ASSERT_EQ(d.plain, i);
    }
    stop = true;
    controller.join();
}

constexpr uint32_t kLba = 512;
constexpr uint64_t kExtent[] = {8192, 8192 + (8u << 20)}, kFirst = 5000;
constexpr gq_target kTarget = {0, 0x10000000, 0x20000000, 0, 16u << 20};

bool make(gq_read read, gq_cmd *cmd, uint64_t lba = kFirst)
{
    const gq_file_map map = {nullptr, 1u << 30, 1, kLba};

    return single_rig_make(&map, &kTarget, kExtent, lba, &read, cmd);
}

TEST_F(GqSingle, MakesTheCommandOfWholeLbas)
{
    gq_cmd cmd = {};

    ASSERT_TRUE(make({8192 + 512, 4096, 512}, &cmd));
    EXPECT_EQ(cmd.slba, kFirst + 1);
    EXPECT_EQ(cmd.nlb, 0u);
    EXPECT_EQ(cmd.prp1, 0x10001000u);
    EXPECT_EQ(cmd.prp2, 0u);
    ASSERT_TRUE(make({8192, 4100, 4096}, &cmd)) << "to a multiple of 4";
    EXPECT_EQ(cmd.nlb, 7u);
    EXPECT_EQ(cmd.prp1, 0x10001004u);
    EXPECT_EQ(cmd.prp2, 0x10002000u);
    ASSERT_TRUE(make({8192, 0, 3 * 4096}, &cmd)) << "a list, from the table's second entry on";
    EXPECT_EQ(cmd.prp2, 0x20000008u);
    ASSERT_TRUE(make({kExtent[1] - 512, 0, 512}, &cmd)) << "up to the extent's end";
}

TEST_F(GqSingle, LeavesTheRestToTheGeneralRoad)
{
    gq_cmd cmd;

    EXPECT_FALSE(make({8192, 2, 4096}, &cmd)) << "no address of a PRP";
    EXPECT_FALSE(make({8192 + 4, 0, 512}, &cmd)) << "begins within an LBA";
    EXPECT_FALSE(make({8192, 0, 516}, &cmd)) << "ends within one";
    EXPECT_FALSE(make({kExtent[1] - 512, 0, 1024}, &cmd)) << "the next extent's, too";
    EXPECT_FALSE(make({8192, 0, 4096}, &cmd, GQ_LBA_ZERO)) << "a hole";
    EXPECT_FALSE(make({8192, 509 * 4096, 4 * 4096}, &cmd)) << "a list that leaves its page";
    EXPECT_TRUE(make({8192, 509 * 4096, 3 * 4096}, &cmd));
    EXPECT_TRUE(make({8192, 511 * 4096, 4 * 4096}, &cmd)) << "a list in the next page";
}

} // namespace
