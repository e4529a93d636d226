/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists of commands, with several entries for each lane in a round, against a controller of few
 * lines that completes in bursts and in any order.
 */
#include <algorithm>
#include <climits>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <vector>

extern "C" {
#include "cuda/exec_cpu/gq_cpu.h"
}
#include "blockdev/transport.h"
#include "tests/cuda/queue/host_queue.h"

namespace
{

struct Way {
    void (*drive)(const gq_cpu_drive *, unsigned, unsigned);
    uint32_t lanes;
};

constexpr uint32_t kEach = 4; /* entries of a lane in a round */
constexpr uint64_t kLong = 10000000000u;

/* The bits of a CID that are the index of a tracker. */
uint32_t index_bits(uint32_t depth)
{
    uint32_t bits = 1;

    while (bits < depth - 1)
        bits = bits << 1 | 1;
    return bits;
}

uint16_t status_of(uint64_t slba)
{
    return slba % 5 ? 0 : slba % 2 ? 0x281 : 0x4006;
}

/* Completes when `burst` commands wait, when the queue is full, or when all have been sent. */
struct Controller : nvme_transport {
    nvme_transport_ops table = {};
    const uint32_t depth, n;
    uint32_t burst = 1, largest = 0;
    bool shuffle = true, mute = false;
    uint64_t command_ns = kLong;
    /* Completion number first says the CID that number second has: -1, none. */
    std::pair<int, int> twice = {-1, -1};
    int unknown = -1; /* the completion of this number has a CID that is not in flight */
    /* From this number on the last command of the same tracker is completed again instead. */
    int again = INT_MAX;
    std::map<uint16_t, uint16_t> last; /* CID of each tracker */
    std::mt19937 random{7};
    HostQueue q;
    std::vector<nvme_sqe> waiting;
    uint32_t flags = 0;
    std::vector<uint16_t> completed;
    std::vector<uint32_t> results, seen, repeated;
    std::vector<gq_cmd> cmds;
    gq_state state = {};

    Controller(uint32_t d, uint32_t count, uint32_t start = 0)
        : depth(d), n(count), q(d, start), results(count), seen(count), cmds(count)
    {
        state.sq_tail = state.cq_head = start;
        state.phase = 1;
        for (uint32_t i = 0; i < n; i++)
            cmds[i].slba = i;
        table.wake = [](nvme_transport *t, unsigned) { static_cast<Controller *>(t)->serve(); };
        ops = &table;
    }

    void fetch()
    {
        largest = std::max(largest, q.fresh());
        while (q.fresh()) {
            waiting.push_back(q.fetch());
            seen.at(waiting.back().cdw10)++;
        }
        EXPECT_LT(waiting.size(), depth);
    }

    void post(const nvme_sqe &sqe)
    {
        int number = (int)completed.size();
        uint16_t cid = number == unknown ? (uint16_t)(depth - 1) : sqe.cid;

        if (number == twice.second)
            cid = completed[(size_t)twice.first];
        uint16_t at = (uint16_t)(cid & index_bits(depth));
        if (number >= again && last.count(at)) {
            cid = last[at];
            repeated.push_back(sqe.cdw10);
        }
        last[at] = cid;
        completed.push_back(cid);
        q.post(cid, status_of(sqe.cdw10));
    }

    void serve()
    {
        fetch();
        if (mute || (waiting.size() < burst && waiting.size() < depth - 1 &&
                     std::count(seen.begin(), seen.end(), 0u) != 0))
            return;
        if (shuffle)
            std::shuffle(waiting.begin(), waiting.end(), random);
        for (uint32_t room = q.room(); room && !waiting.empty(); room--) {
            post(waiting.front());
            waiting.erase(waiting.begin());
        }
    }

    void run(const Way &way)
    {
        gq_port port = q.port();
        const gq_port *ports[] = {&port};
        gq_run r = {};

        r.kick = this;
        r.flags = &flags;
        r.cmds = cmds.data();
        r.results = results.data();
        r.command_ns = command_ns;
        r.n_cmds = n;
        r.n_queues = 1;
        r.nsid = 1;
        r.opcode = NVME_IO_READ;
        gq_cpu_drive d = {&r, ports, &state, 1, nullptr, nullptr};
        way.drive(&d, 0, 1);
    }

    void expect_broken_in_the_first_round()
    {
        EXPECT_EQ(state.outcome, (uint32_t)GQ_OUT_BROKEN);
        EXPECT_EQ(state.in_flight, state.sent) << "no CID of that round is free";
    }

    void expect_all_done()
    {
        EXPECT_EQ(state.outcome, (uint32_t)GQ_OUT_DONE);
        EXPECT_EQ(state.cq_head, q.tail());
        EXPECT_EQ(state.sq_tail, q.tail());
        EXPECT_EQ(state.phase, (q.posted / depth & 1) ^ 1);
        EXPECT_EQ(q.room(), depth - 1 - state.cq_db_pending);
        EXPECT_LE(state.cq_db_pending, n == 1 ? 1u : 0u) << "a command alone leaves its doorbell";
        for (uint32_t i = 0; i < n; i++) {
            ASSERT_EQ(seen[i], 1u) << i;
            ASSERT_EQ(results[i], GQ_ENDED | status_of(i)) << i;
        }
    }
};

using GqListProtocol = testing::TestWithParam<Way>;

TEST_P(GqListProtocol, WorksAtAnyDepthFromAnyPositionInAnyOrder)
{
    for (uint32_t depth : {2u, 3u, 4u, 5u, 32u, 63u, 64u, 65u, 66u, 129u, 256u}) {
        for (uint32_t burst : {1u, 2u, 31u, 33u, 64u, 65u, 255u}) {
            for (uint32_t start : {0u, 1u, depth / 2, depth - 1}) {
                Controller c(depth, 3 * depth + 7, start);

                SCOPED_TRACE(testing::Message() << depth << " " << burst << " " << start);
                c.burst = burst;
                c.run(GetParam());
                c.expect_all_done();
            }
        }
    }
}

TEST_P(GqListProtocol, WritesTheWholeEntry)
{
    Controller c(4, 3);

    c.cmds[1] = {0x1200000001, 0x1000, 0x2008, 7, 0};
    c.run(GetParam());
    c.expect_all_done();
    EXPECT_EQ(c.q.sq_doorbell, 3u);
    EXPECT_EQ(c.q.sq[1].opcode, NVME_IO_READ);
    EXPECT_EQ(c.q.sq[1].cid, 1);
    EXPECT_EQ(c.q.sq[1].nsid, 1u);
    EXPECT_EQ(c.q.sq[1].prp1, 0x1000u);
    EXPECT_EQ(c.q.sq[1].prp2, 0x2008u);
    EXPECT_EQ(c.q.sq[1].cdw10, 1u);
    EXPECT_EQ(c.q.sq[1].cdw11, 0x12u);
    EXPECT_EQ(c.q.sq[1].cdw12, 7u);
}

TEST_P(GqListProtocol, TakesNoEntryOfTheLastPass)
{
    for (uint32_t n : {1u, 2u}) {
        Controller c(4, n, 3); /* the entries that follow have the phase of the first pass */

        c.mute = true;
        c.command_ns = 1000000;
        c.run(GetParam());
        EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_TIMED_OUT);
        EXPECT_EQ(c.state.in_flight, n);
        EXPECT_EQ(c.results[0], GQ_PENDING);
    }
}

TEST_P(GqListProtocol, LeavesAQueueThatCompletesWhatWasNotSent)
{
    Controller c(4, 2);

    c.mute = true;
    c.q.post(0); /* the two that are in flight have CIDs 2 and 1 */
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_BROKEN);
}

TEST_P(GqListProtocol, SendsSeveralCommandsOfALaneWithOneDoorbell)
{
    uint32_t places = GetParam().lanes * kEach;

    for (uint32_t n : {1u, places - 1, places, places + 1, 1000u}) {
        Controller c(256, n);

        c.burst = 255;
        c.run(GetParam());
        c.expect_all_done();
        EXPECT_EQ(c.largest, std::min(n, places)) << n;
    }
}

/* A peek beside new commands takes all entries, two of which have the same CID here. */
TEST_P(GqListProtocol, LeavesAQueueThatCompletesACommandTwiceInOnePoll)
{
    int lanes = (int)GetParam().lanes, places = lanes * (int)kEach;
    std::pair<int, int> pairs[] = {
        {0, 1}, {0, lanes}, {lanes - 1, lanes}, {lanes - 1, places - 1}, {0, places - 1}};

    for (auto &pair : pairs) {
        if (pair.first == pair.second)
            continue;
        for (uint32_t start : {0u, 255u, 240u, 200u}) {
            Controller c(256, 1000, start);

            SCOPED_TRACE(testing::Message() << pair.first << " " << pair.second << " " << start);
            c.burst = 128;
            c.twice = pair;
            c.run(GetParam());
            c.expect_broken_in_the_first_round();
        }
    }
}

TEST_P(GqListProtocol, LeavesAQueueThatCompletesAnUnknownCommandInAnyPlace)
{
    int lanes = (int)GetParam().lanes;

    for (int at : {0, lanes - 1, lanes, lanes * (int)kEach - 1}) {
        Controller c(256, 1000);

        c.burst = 128;
        c.unknown = at;
        SCOPED_TRACE(at);
        c.run(GetParam());
        c.expect_broken_in_the_first_round();
    }
}

TEST_P(GqListProtocol, LeavesAQueueThatCompletesACommandTwiceWhereTheCidIsUsedAgain)
{
    for (uint32_t depth : {2u, 5u, 64u, 65u, 256u, 1024u, 16384u}) {
        for (int again : {1, 100, 777}) {
            Controller c(depth, 2000 + 2 * depth);

            SCOPED_TRACE(testing::Message() << depth << " " << again);
            c.again = again;
            c.run(GetParam());
            EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_BROKEN);
            ASSERT_FALSE(c.repeated.empty());
            for (uint32_t i : c.repeated)
                EXPECT_EQ(c.results[i], GQ_PENDING) << "command " << i << " has not ended";
        }
    }
}

/* The run after it has other CIDs. */
TEST_P(GqListProtocol, LeavesAQueueThatCompletesACommandOfAnEarlierRun)
{
    for (uint32_t n : {2u, 3u, 1000u}) {
        Controller c(256, n);

        c.run(GetParam());
        c.expect_all_done();
        c.again = 0;
        c.completed.clear();
        std::fill(c.seen.begin(), c.seen.end(), 0);
        std::fill(c.results.begin(), c.results.end(), GQ_PENDING);
        c.run(GetParam());
        EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_BROKEN);
        ASSERT_FALSE(c.repeated.empty());
        for (uint32_t i : c.repeated)
            EXPECT_EQ(c.results[i], GQ_PENDING) << n;
    }
}

TEST_P(GqListProtocol, NoCidIsReservedAndATrackerHasMany)
{
    for (auto [depth, cids] : {std::pair(64u, 512u), {65u, 256u}, {1024u, 32u}}) {
        std::map<uint32_t, std::set<uint16_t>> of;
        Controller c(depth, 20 * depth);

        for (int run = 0; run < 60; run++) {
            c.completed.clear();
            std::fill(c.seen.begin(), c.seen.end(), 0);
            c.run(GetParam());
            c.expect_all_done();
            for (uint16_t cid : c.completed)
                of[cid & index_bits(depth)].insert(cid);
        }
        for (auto &[at, set] : of) {
            EXPECT_LT(at, depth - 1);
            EXPECT_LT(*set.rbegin(), GQ_CID_LONE);
        }
        EXPECT_GT(of[depth - 2].size(), cids / 4 * 3);
        EXPECT_LE(of[depth - 2].size(), cids);
    }
}

TEST_P(GqListProtocol, CancelledItDrainsWhatItSent)
{
    Controller c(256, 1000);

    c.flags = GQ_FLAG_CANCEL;
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_CANCELLED);
    EXPECT_EQ(c.state.in_flight, 0u);
    EXPECT_EQ(c.state.sent, GetParam().lanes * kEach) << "the flags are loaded once a round";
    EXPECT_EQ(c.q.room(), c.depth - 1);
    for (uint32_t i = 0; i < c.n; i++)
        ASSERT_EQ(c.results[i], i < c.state.sent ? (GQ_ENDED | status_of(i)) : GQ_PENDING) << i;
}

TEST_P(GqListProtocol, ToldToLeaveItLeavesWithWhatIsInFlight)
{
    Controller c(256, 1000);

    c.flags = GQ_FLAG_LEAVE;
    c.burst = 1000;
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_LEFT);
    EXPECT_EQ(c.state.in_flight, c.state.sent);
    EXPECT_EQ(std::count(c.results.begin(), c.results.end(), GQ_PENDING), (ptrdiff_t)c.n);
}

std::string lanes_name(const testing::TestParamInfo<Way> &i)
{
    return "Lanes" + std::to_string(i.param.lanes);
}

INSTANTIATE_TEST_SUITE_P(Lanes, GqListProtocol,
                         testing::Values(Way{gq_cpu_drive_1, 1}, Way{gq_cpu_drive_32, 32}),
                         lanes_name);

} // namespace
