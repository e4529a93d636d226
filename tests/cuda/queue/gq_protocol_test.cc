/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests the queue protocol by reads of one command each, against a controller
 * of few lines that completes in bursts and in any order.
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

constexpr uint32_t kLba = 512;
constexpr uint64_t kMemory = 0x100000; /* nothing accesses it */
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

/* The result of a read that has ended. */
uint32_t result_of(uint32_t slba)
{
    return status_of(slba) ? GQ_ENDED | status_of(slba) : GQ_READ_OK;
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
    gq_file_extent extent = {0, 0};
    gq_reads reads = {};
    gq_state state = {};

    Controller(uint32_t d, uint32_t count, uint32_t start = 0)
        : depth(d), n(count), q(d, start), results(count), seen(count)
    {
        state.sq_tail = state.cq_head = start;
        state.phase = 1;
        reads.map = {&extent, (uint64_t)n * kLba, 1, kLba};
        reads.target = {kMemory, kMemory, 0, 0, reads.map.end};
        reads.whole.len = reads.map.end;
        reads.unit = reads.max_command = reads.lane_staging = kLba;
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
        std::fill(results.begin(), results.end(), GQ_READ_OK);
        r.results = results.data();
        r.command_ns = command_ns;
        r.n_cmds = n;
        r.n_queues = 1;
        r.group_shift = 5;
        r.nsid = 1;
        r.opcode = NVME_IO_READ;
        const uint16_t area = 0;
        gq_cpu_drive d = {&r, ports, &state, 1, &reads, &area};
        way.drive(&d, 0, 1);
    }

    void expect_broken(bool in_the_first_poll)
    {
        EXPECT_EQ(state.outcome, (uint32_t)GQ_OUT_BROKEN);
        if (in_the_first_poll) {
            EXPECT_EQ(state.in_flight, state.sent) << "no CID of that round is free";
        }
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
            ASSERT_EQ(results[i], result_of(i)) << i;
        }
    }
};

using GqProtocol = testing::TestWithParam<Way>;

TEST_P(GqProtocol, WorksAtAnyDepthFromAnyPositionInAnyOrder)
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

TEST_P(GqProtocol, WritesTheWholeEntry)
{
    Controller c(4, 3);

    c.extent.lba = 0x1200000000;
    c.reads.target.head = 4096 - kLba - 256; /* the second command continues in the next page */
    c.run(GetParam());
    c.expect_all_done();
    EXPECT_EQ(c.q.sq_doorbell, 3u);
    EXPECT_EQ(c.q.sq[1].opcode, NVME_IO_READ);
    EXPECT_EQ(c.q.sq[1].cid, 1);
    EXPECT_EQ(c.q.sq[1].nsid, 1u);
    EXPECT_EQ(c.q.sq[1].prp1, kMemory + 4096 - 256);
    EXPECT_EQ(c.q.sq[1].prp2, kMemory + 4096);
    EXPECT_EQ(c.q.sq[1].cdw10, 1u);
    EXPECT_EQ(c.q.sq[1].cdw11, 0x12u);
    EXPECT_EQ(c.q.sq[1].cdw12, 0u);
}

TEST_P(GqProtocol, TakesNoEntryOfTheLastPass)
{
    for (uint32_t n : {1u, 2u}) {
        Controller c(4, n, 3); /* the entries that follow have the phase of the first pass */

        c.mute = true;
        c.command_ns = 1000000;
        c.run(GetParam());
        EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_TIMED_OUT);
        EXPECT_EQ(c.state.in_flight, n);
        EXPECT_EQ(c.results[0], GQ_READ_LOST);
    }
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesWhatWasNotSent)
{
    Controller c(4, 2);

    c.mute = true;
    c.q.post(0); /* the two that are in flight have CIDs 2 and 1 */
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_BROKEN);
}

TEST_P(GqProtocol, SendsCommandsOfAllLanesWithOneDoorbell)
{
    uint32_t lanes = GetParam().lanes;

    for (uint32_t n : {1u, lanes, lanes + 1, 1000u}) {
        Controller c(256, n);

        c.burst = 255;
        c.run(GetParam());
        c.expect_all_done();
        EXPECT_GE(c.largest, std::min(n, lanes)) << n;
    }
}

/* One peek takes an entry of each lane, two of which have the same CID here. */
TEST_P(GqProtocol, LeavesAQueueThatCompletesACommandTwiceInOnePoll)
{
    int lanes = (int)GetParam().lanes;
    std::pair<int, int> pairs[] = {
        {0, 1}, {0, lanes}, {lanes - 1, lanes}, {0, lanes - 1}, {0, 2 * lanes - 1}};

    for (auto &pair : pairs) {
        if (pair.first == pair.second)
            continue;
        for (uint32_t start : {0u, 255u, 240u, 200u}) {
            Controller c(256, 1000, start);

            SCOPED_TRACE(testing::Message() << pair.first << " " << pair.second << " " << start);
            c.burst = 128;
            c.twice = pair;
            c.run(GetParam());
            c.expect_broken(pair.second < lanes);
        }
    }
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesAnUnknownCommandInAnyPlace)
{
    int lanes = (int)GetParam().lanes;

    for (int at : {0, lanes - 1, lanes, 2 * lanes - 1}) {
        Controller c(256, 1000);

        c.burst = 128;
        c.unknown = at;
        SCOPED_TRACE(at);
        c.run(GetParam());
        c.expect_broken(at < lanes);
    }
}

TEST_P(GqProtocol, LeavesAQueueThatCompletesACommandTwiceWhereTheCidIsUsedAgain)
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
                EXPECT_EQ(c.results[i], GQ_READ_LOST) << "command " << i << " has not ended";
        }
    }
}

/* The run after it has other CIDs. */
TEST_P(GqProtocol, LeavesAQueueThatCompletesACommandOfAnEarlierRun)
{
    for (uint32_t n : {2u, 3u, 1000u}) {
        Controller c(256, n);

        c.run(GetParam());
        c.expect_all_done();
        c.again = 0;
        c.completed.clear();
        std::fill(c.seen.begin(), c.seen.end(), 0);
        c.run(GetParam());
        EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_BROKEN);
        ASSERT_FALSE(c.repeated.empty());
        for (uint32_t i : c.repeated)
            EXPECT_EQ(c.results[i], GQ_READ_LOST) << n;
    }
}

TEST_P(GqProtocol, NoCidIsReservedAndATrackerHasMany)
{
    for (auto [depth, cids] : {std::pair(64u, 1024u), {65u, 512u}, {1024u, 64u}}) {
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
            EXPECT_LT(*set.rbegin(), GQ_CID_MASK);
        }
        EXPECT_GT(of[depth - 2].size(), cids / 4 * 3);
        EXPECT_LE(of[depth - 2].size(), cids);
    }
}

TEST_P(GqProtocol, CancelledItDrainsWhatItSent)
{
    Controller c(256, 1000);

    c.flags = GQ_FLAG_CANCEL;
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_CANCELLED);
    EXPECT_EQ(c.state.in_flight, 0u);
    EXPECT_LE(c.state.sent, 2 * GetParam().lanes) << "the flags are loaded once a round";
    EXPECT_EQ(c.q.room(), c.depth - 1);
    for (uint32_t i = 0; i < c.n; i++)
        ASSERT_EQ(c.results[i], c.seen[i] ? result_of(i) : GQ_READ_LOST) << i;
}

TEST_P(GqProtocol, ToldToLeaveItLeavesWithWhatIsInFlight)
{
    Controller c(256, 1000);

    c.flags = GQ_FLAG_LEAVE;
    c.burst = 1000;
    c.run(GetParam());
    EXPECT_EQ(c.state.outcome, (uint32_t)GQ_OUT_LEFT);
    EXPECT_EQ(c.state.in_flight, c.state.sent);
    EXPECT_EQ(std::count(c.results.begin(), c.results.end(), GQ_READ_LOST), (ptrdiff_t)c.n);
}

std::string lanes_name(const testing::TestParamInfo<Way> &i)
{
    return "Lanes" + std::to_string(i.param.lanes);
}

INSTANTIATE_TEST_SUITE_P(Lanes, GqProtocol,
                         testing::Values(Way{gq_cpu_drive_1, 1}, Way{gq_cpu_drive_32, 32}),
                         lanes_name);

} // namespace
