/* SPDX-License-Identifier: BSD-2-Clause */
/* The protocol of reads against a controller of few lines, as programs with queues of their own use
 * it. */
#include <algorithm>
#include <cstring>
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

constexpr uint32_t kLba = 512, kDepth = 8, kUnit = 8192, kQueues = 3;
constexpr uint64_t kMedia = 1u << 20, kPages = 64;

struct Queue : HostQueue {
    gq_state state = {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

    Queue() : HostQueue(kDepth) {}
};

/* Addresses of the controller are those of the process; all memory is mapped once. */
struct Fake : nvme_transport {
    nvme_transport_ops table = {};
    Queue queues[kQueues];
    std::vector<uint8_t> media = host_media(kMedia);
    std::vector<Page> target = std::vector<Page>(kPages), staging = std::vector<Page>(12);
    uint64_t bad_lba = UINT64_MAX;
    bool mute = false;
    uint32_t most_at_once = 0; /* new commands of a queue */
    gq_file_extent map[3] = {{0, 1000}, {20480, GQ_LBA_ZERO}, {30720, 24}};
    gq_reads reads = {};
    gq_run run = {};
    std::vector<uint32_t> results;

    Fake()
    {
        table.wake = [](nvme_transport *t, unsigned) { static_cast<Fake *>(t)->serve(); };
        ops = &table;
        reads.map = {map, 200000, 3, kLba};
        reads.target = {(uint64_t)target.data(), (uint64_t)target.data(), 0, 100,
                        kPages * 4096 - 100};
        reads.staging = {(uint64_t)staging.data(), (uint64_t)staging.data(), 0, 0, 0};
        reads.lane_staging = kLba;
        reads.queue_area = GQ_STAGING_LANES * kLba;
        reads.unit = kUnit;
        reads.max_command = kUnit;
        run.kick = this;
        run.command_ns = 10000000000u;
        run.n_queues = kQueues;
        run.nsid = 1;
        run.opcode = NVME_IO_READ;
    }

    void serve()
    {
        for (Queue &q : queues) {
            most_at_once = std::max(most_at_once, q.fresh());
            while (!mute && q.fresh())
                execute(q, q.fetch());
        }
    }

    void execute(Queue &q, const nvme_sqe &sqe)
    {
        uint64_t slba = sqe.cdw10 | (uint64_t)sqe.cdw11 << 32, len = (sqe.cdw12 + 1) * kLba;
        bool bad = bad_lba >= slba && bad_lba < slba + len / kLba;
        uint64_t first = sqe.prp1 % 4096 ? 4096 - sqe.prp1 % 4096 : 4096;

        EXPECT_LE(len, kUnit);
        if (len > first && len <= first + 4096) {
            EXPECT_EQ(sqe.prp2, sqe.prp1 / 4096 * 4096 + 4096);
        }
        if (!bad)
            memcpy((void *)sqe.prp1, &media[slba * kLba], len);
        q.post(sqe.cid, bad ? 0x281 : 0);
    }

    void go(Drive drive, uint64_t offset, uint64_t at, uint64_t len, bool keep_results = true)
    {
        uint64_t n = std::min(len, reads.map.end - offset);

        reads.whole = {offset, at, len};
        run.n_cmds = (uint32_t)((offset + n - 1) / kUnit - offset / kUnit + 1);
        results.assign(run.n_cmds, 0);
        run.results = keep_results ? results.data() : nullptr;
        run_all(drive);
    }

    /* The same as one piece of a list. Returns its result. */
    int32_t go_as_piece(Drive drive, uint64_t offset, uint64_t at, uint32_t len)
    {
        gq_read_desc piece = {offset, at, len, INT32_MIN};

        reads.desc = &piece;
        run.n_cmds = 1;
        run_all(drive);
        return piece.result;
    }

    void run_all(Drive drive)
    {
        gq_port ports[kQueues];
        const gq_port *list[kQueues];
        gq_state states[kQueues];
        const uint16_t areas[kQueues] = {0, 1, 2};

        for (unsigned i = 0; i < kQueues; i++) {
            ports[i] = queues[i].port();
            list[i] = &ports[i];
            states[i] = queues[i].state;
        }
        gq_cpu_drive d = {&run, list, states, kQueues, &reads, areas};
        drive(&d, 0, 1);
        for (unsigned i = 0; i < kQueues; i++)
            queues[i].state = states[i];
    }

    uint8_t file_byte(uint64_t i) const
    {
        if (i < 20480)
            return media[1000 * kLba + i];
        return i < 30720 ? 0 : media[24 * kLba + i - 30720];
    }

    void expect_bytes(uint64_t offset, uint64_t at, uint64_t len)
    {
        const uint8_t *got = target[0].bytes + 100 + at;

        for (uint64_t i = 0; i < len; i++)
            ASSERT_EQ(got[i], file_byte(offset + i)) << "byte " << i;
    }

    void expect_outcome(uint32_t outcome)
    {
        for (const Queue &q : queues)
            EXPECT_EQ(q.state.outcome, outcome);
    }
};

using GqReadsProtocol = testing::TestWithParam<Drive>;

TEST_P(GqReadsProtocol, OneReadInUnitsComesWhole)
{
    struct {
        uint64_t offset, at, len;
    } reads[] = {{0, 0, 200000}, {0, 0, 1},         {512, 412, 65536}, {4096, 0, 8192},
                 {1, 5, 100000}, {20000, 3, 15000}, {8191, 0, 2},      {199999, 50000, 1}};

    for (auto &r : reads) {
        Fake drive;

        SCOPED_TRACE(testing::Message() << r.offset << " " << r.at << " " << r.len);
        drive.go(GetParam(), r.offset, r.at, r.len);
        drive.expect_outcome(GQ_OUT_DONE);
        drive.expect_bytes(r.offset, r.at, r.len);
        EXPECT_EQ(drive.target[0].bytes[100 + r.at + r.len], 0) << "no byte more";
        EXPECT_EQ(std::count(drive.results.begin(), drive.results.end(), GQ_READ_OK),
                  (ptrdiff_t)drive.results.size());
    }
}

TEST_P(GqReadsProtocol, GoesOnWithItsQueues)
{
    Fake drive;

    for (uint64_t i = 0; i < 50; i++) {
        drive.go(GetParam(), i * 1000, i * 8, 100000 + i);
        drive.expect_outcome(GQ_OUT_DONE);
        drive.expect_bytes(i * 1000, i * 8, 100000 + i);
    }
}

TEST_P(GqReadsProtocol, OnlyTheUnitThatFailsIsMarked)
{
    Fake drive;

    drive.bad_lba = 24 + (100000 - 30720) / kLba;
    drive.go(GetParam(), 3000, 412, 190000);
    drive.expect_outcome(GQ_OUT_DONE);
    for (size_t i = 0; i < drive.results.size(); i++)
        EXPECT_EQ(drive.results[i], i == 100000 / kUnit ? (GQ_ENDED | 0x281u) : GQ_READ_OK) << i;
}

TEST_P(GqReadsProtocol, TellsBytesAndWhatFailed)
{
    Fake drive;
    uint64_t bytes = 0;

    drive.bad_lba = 1000;
    drive.go(GetParam(), 0, 412, 200000);
    for (const Queue &q : drive.queues)
        bytes += q.state.bytes;
    EXPECT_EQ(bytes, 200000u) << "also of those that fail";
    EXPECT_EQ(drive.queues[0].state.status, 0x281u);
    EXPECT_EQ(drive.queues[0].state.status_of, 0u);
    EXPECT_EQ(drive.queues[0].state.bad, 0u);
    EXPECT_EQ(drive.queues[1].state.bad, UINT32_MAX);
    EXPECT_EQ(drive.queues[1].state.status, 0u);
}

/* Each lane has one staged command at a time: of the last reads idle lanes take halves. */
TEST_P(GqReadsProtocol, AStagedPieceIsReadByAllLanes)
{
    struct {
        uint64_t offset, at;
        uint32_t len;
    } pieces[] = {{0, 0, 20480}, {1, 3, 20479}, {511, 0, 9000}, {700, 5, 100000}, {0, 1, 1025}};
    bool shares = GetParam() != gq_cpu_drive_1;

    for (auto &p : pieces) {
        Fake drive;
        SCOPED_TRACE(testing::Message() << p.offset << " " << p.at << " " << p.len);
        drive.reads.staged = true;
        EXPECT_EQ(drive.go_as_piece(GetParam(), p.offset, p.at, p.len), (int32_t)p.len);
        drive.expect_outcome(GQ_OUT_DONE);
        drive.expect_bytes(p.offset, p.at, p.len);
        EXPECT_EQ(drive.target[0].bytes[100 + p.at + p.len], 0) << "no byte more";
        EXPECT_GE(drive.most_at_once, shares && p.len > 8 * kLba ? kDepth / 2 : 1u);
    }
}

TEST_P(GqReadsProtocol, AnErrorInAnyPartIsThePiecesError)
{
    for (uint64_t lba = 1000; lba < 1040; lba++) {
        Fake drive;

        drive.reads.staged = true;
        drive.bad_lba = lba;
        EXPECT_EQ(drive.go_as_piece(GetParam(), 0, 0, 20480), -EIO) << lba;
        drive.expect_outcome(GQ_OUT_DONE);
    }
}

TEST_P(GqReadsProtocol, LeavesAtAWordThatSaysSo)
{
    Fake drive;
    uint32_t valid = 1, gone = 2;

    drive.mute = true;
    drive.run.leave[0] = &valid;
    drive.run.leave[1] = &gone;
    drive.run.leave_value = 2;
    drive.go(GetParam(), 0, 412, 200000);
    drive.expect_outcome(GQ_OUT_LEFT);
    for (uint32_t r : drive.results)
        EXPECT_EQ(r, GQ_READ_LOST);
}

TEST_P(GqReadsProtocol, NeedsNeitherResultsNorFlags)
{
    Fake drive;
    uint32_t valid = 1;

    drive.run.leave[0] = &valid;
    drive.run.leave_value = 2;
    drive.bad_lba = 1000;
    drive.go(GetParam(), 0, 412, 200000, false);
    drive.expect_outcome(GQ_OUT_DONE);
}

TEST_P(GqReadsProtocol, LosesWhatDoesNotComplete)
{
    Fake drive;

    drive.mute = true;
    drive.run.command_ns = 1000000;
    drive.go(GetParam(), 0, 0, 10000);
    for (uint32_t r : drive.results)
        EXPECT_EQ(r, GQ_READ_LOST);
    EXPECT_EQ(drive.queues[0].state.outcome, (uint32_t)GQ_OUT_TIMED_OUT);
    EXPECT_GE(drive.queues[0].state.in_flight, 1u);
    EXPECT_EQ(drive.queues[2].state.outcome, (uint32_t)GQ_OUT_DONE) << "it had nothing to do";
}

std::string lanes_name(const testing::TestParamInfo<Drive> &i)
{
    return i.param == gq_cpu_drive_1 ? "Lanes1" : "Lanes32";
}

INSTANTIATE_TEST_SUITE_P(Lanes, GqReadsProtocol, testing::Values(gq_cpu_drive_1, gq_cpu_drive_32),
                         lanes_name);

} // namespace
