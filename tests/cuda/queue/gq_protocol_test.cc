/* SPDX-License-Identifier: BSD-2-Clause */
/* The protocol against a controller of one line: it answers what a test has written down. */
#include <gtest/gtest.h>
#include <vector>

extern "C" {
#include "cuda/exec_cpu/gq_cpu.h"
}
#include "blockdev/transport.h"
#include "tests/cuda/queue/host_queue.h"

namespace
{

using Drive = void (*)(const gq_cpu_drive *, unsigned, unsigned);

/*
 * One queue of depth 4, so CIDs 0 to 2; the first command gets the highest. The answers are posted
 * when the last command has been sent.
 */
struct Ring : nvme_transport {
    nvme_transport_ops table = {};
    std::vector<std::pair<unsigned, nvme_cqe>> answers;
    uint32_t last_tail = 0;
    HostQueue q{4};
    gq_cmd cmds[3] = {};
    uint32_t results[3] = {};
    uint32_t flags = 0;
    gq_state state = {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

    void answer(unsigned at, uint16_t cid, uint16_t status, unsigned phase = 1)
    {
        nvme_cqe cqe = {};

        cqe.cid = cid;
        cqe.status = (uint16_t)(status << 1 | phase);
        answers.push_back({at, cqe});
    }

    static void post(nvme_transport *t, unsigned)
    {
        Ring *ring = static_cast<Ring *>(t);

        if (ring->q.sq_doorbell != ring->last_tail)
            return;
        for (auto &[at, cqe] : ring->answers)
            ring->q.cq[at] = cqe;
    }

    void run(Drive drive, uint32_t n, uint64_t command_ns)
    {
        gq_port port = q.port();
        const gq_port *ports[] = {&port};
        gq_run r = {};

        table.wake = post;
        ops = &table;
        last_tail = (state.sq_tail + n) % 4;
        r.kick = this;
        r.flags = &flags;
        r.cmds = cmds;
        r.results = results;
        r.command_ns = command_ns;
        r.n_cmds = n;
        r.n_queues = 1;
        r.nsid = 1;
        r.opcode = NVME_IO_READ;
        gq_cpu_drive d = {&r, ports, &state, 1, nullptr, nullptr};
        drive(&d, 0, 1);
    }
};

constexpr uint64_t kLong = 10000000000u, kShort = 1000000u;

using GqProtocol = testing::TestWithParam<Drive>;

TEST_P(GqProtocol, FindsCommandsByCidAndKeepsTheirStatus)
{
    Ring ring;

    ring.answer(0, 0, 0x281);
    ring.answer(1, 2, 0);
    ring.answer(2, 1, 0x4006);
    ring.run(GetParam(), 3, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_DONE);
    EXPECT_EQ(ring.state.in_flight, 0u);
    EXPECT_EQ(ring.results[0], GQ_ENDED) << "CID 2";
    EXPECT_EQ(ring.results[1], GQ_ENDED | 0x4006u) << "CID 1";
    EXPECT_EQ(ring.results[2], GQ_ENDED | 0x281u) << "CID 0";
}

TEST_P(GqProtocol, WritesTheEntriesAndRingsBothDoorbells)
{
    Ring ring;

    ring.cmds[1] = {0x123456789aull, 0x1000, 0x2008, 7, 0};
    for (uint16_t cid = 0; cid < 3; cid++)
        ring.answer(cid, (uint16_t)(2 - cid), 0);
    ring.run(GetParam(), 3, kLong);
    EXPECT_EQ(ring.q.sq_doorbell, 3u);
    EXPECT_EQ(ring.q.cq_doorbell, 3u);
    EXPECT_EQ(ring.q.sq[1].opcode, NVME_IO_READ);
    EXPECT_EQ(ring.q.sq[1].cid, 1);
    EXPECT_EQ(ring.q.sq[1].nsid, 1u);
    EXPECT_EQ(ring.q.sq[1].prp1, 0x1000u);
    EXPECT_EQ(ring.q.sq[1].prp2, 0x2008u);
    EXPECT_EQ(ring.q.sq[1].cdw10, 0x3456789au);
    EXPECT_EQ(ring.q.sq[1].cdw11, 0x12u);
    EXPECT_EQ(ring.q.sq[1].cdw12, 7u);
}

TEST_P(GqProtocol, LeavesAtOnceWhenTold)
{
    Ring ring;

    ring.flags = GQ_FLAG_LEAVE;
    ring.run(GetParam(), 3, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_LEFT);
    EXPECT_EQ(ring.state.in_flight, ring.state.sent) << "what it sent is not waited for";
    EXPECT_GE(ring.state.sent, 1u);
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesACommandTwice)
{
    Ring ring;

    ring.answer(0, 2, 0);
    ring.answer(1, 2, 0);
    ring.run(GetParam(), 3, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_BROKEN);
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesAnUnknownCommand)
{
    Ring ring;

    ring.answer(0, 7, 0);
    ring.run(GetParam(), 3, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_BROKEN);
    EXPECT_EQ(ring.results[0], GQ_PENDING);
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesWhatWasNotSent)
{
    Ring ring;

    ring.q.cq[0].status = 1;
    ring.run(GetParam(), 2, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_BROKEN) << "CID 0, and 1 and 2 are in flight";
}

TEST_P(GqProtocol, TakesNoEntryOfTheLastPass)
{
    for (uint32_t n : {1u, 2u}) {
        Ring ring;

        ring.answer(0, 0, 0, 0);
        ring.run(GetParam(), n, kShort);
        EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_TIMED_OUT);
        EXPECT_EQ(ring.state.in_flight, n);
        EXPECT_EQ(ring.results[0], GQ_PENDING);
    }
}

TEST_P(GqProtocol, GoesOnWhereTheLastRunStopped)
{
    Ring ring;

    ring.state.sq_tail = ring.state.cq_head = 3;
    ring.state.phase = 0;
    ring.q.cq[3].status = 1; /* a rest of the first pass */
    ring.answer(3, 2, 0, 0);
    ring.answer(0, 1, 0, 1);
    ring.run(GetParam(), 2, kLong);
    EXPECT_EQ(ring.state.outcome, (uint32_t)GQ_OUT_DONE);
    EXPECT_EQ(ring.state.sq_tail, 1u);
    EXPECT_EQ(ring.state.cq_head, 1u);
    EXPECT_EQ(ring.state.phase, 1u);
}

std::string lanes_name(const testing::TestParamInfo<Drive> &i)
{
    return i.param == gq_cpu_drive_1 ? "Lanes1" : "Lanes32";
}

INSTANTIATE_TEST_SUITE_P(Lanes, GqProtocol, testing::Values(gq_cpu_drive_1, gq_cpu_drive_32),
                         lanes_name);

} // namespace
