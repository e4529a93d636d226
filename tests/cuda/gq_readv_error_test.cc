/* Batches of reads in which something goes wrong: statuses, lost commands, cancel, resets. */
#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/cuda/gq_file.h"
#include "tests/cuda/gq_recover_rig.h"

namespace
{

class GqReadvError : public GqTest
{
};

class GqReadvReset : public GqTest
{
};

sim_fault fault_at(sim_fault_kind kind, uint64_t lba, uint16_t status = 0)
{
    sim_fault f = {};

    f.kind = kind;
    f.first_lba = lba;
    f.lbas = 1;
    f.status = status;
    return f;
}

/* One file over the whole namespace of a MiB, read in pieces of 4 KiB, to memory of the same size.
 */
class Whole
{
  public:
    explicit Whole(const Executor &x) : rig(x, 512, kMib), memory(x.kind, kMib)
    {
        rig.opts.max_command = 4096;
    }

    void open()
    {
        rig.open();
        file = std::make_unique<File>(rig, std::vector<gq_file_extent>{{0, 0}}, kMib);
        b = rig.add(memory, 0, kMib);
        batch = std::make_unique<Batch>(b, *file, std::vector<gq_read>());
        for (uint64_t at = 0; at < kMib; at += 4096)
            batch->reads.push_back({at, at, 4096});
    }

    ~Whole()
    {
        if (b)
            gq_buffer_unregister(b);
    }

    /* What is said to be there is there; what is not may be anything. */
    void expect_what_is_ok()
    {
        Bytes got = memory.read(0, kMib);
        uint64_t bytes = 0;

        for (size_t i = 0; i < batch->reads.size(); i++) {
            const gq_read &r = batch->reads[i];

            if (batch->results[i] != GQ_READ_OK)
                continue;
            bytes += r.len;
            ASSERT_TRUE(std::equal(got.begin() + (ptrdiff_t)r.at,
                                   got.begin() + (ptrdiff_t)(r.at + r.len),
                                   rig.media.begin() + (ptrdiff_t)r.file_offset))
                << i;
        }
        EXPECT_EQ(rig.result.bytes, bytes);
    }

    void expect_all_right()
    {
        memory.fill(0x77);
        EXPECT_EQ(batch->run(rig), 0);
        EXPECT_EQ(batch->count(GQ_READ_OK), batch->reads.size());
        EXPECT_TRUE(memory.read(0, kMib) == rig.media);
    }

    Rig rig;
    Memory memory;
    std::unique_ptr<File> file;
    std::unique_ptr<Batch> batch;
    gq_buffer *b = nullptr;
};

TEST_P(GqReadvError, OnlyReadsWhoseCommandsFailAreMarked)
{
    Whole w(GetParam());

    w.rig.cfg.reorder = true;
    w.open();
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 900, NVME_ERR_INTERNAL));
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 100, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(w.batch->run(w.rig), 0) << "all have ended";
    EXPECT_EQ(w.batch->results[100 / 8] & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(w.batch->results[900 / 8] & 0x7ff, NVME_ERR_INTERNAL);
    EXPECT_TRUE(w.batch->results[100 / 8] & GQ_ENDED);
    EXPECT_EQ(w.batch->count(GQ_READ_OK), 254u);
    EXPECT_EQ(w.rig.result.nvme_status & 0x7ff, NVME_ERR_UNRECOVERED_READ) << "the first";
    EXPECT_EQ(w.rig.stats().errors, 1u);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, ReadOfManyCommandsFailsWithAnyOfThem)
{
    Whole w(GetParam());

    w.open();
    w.batch->reads = {{0, 0, 65536}, {65536, 65536, 65536}, {131072, 131072, 65536}};
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 200, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_EQ(w.batch->results[0], GQ_READ_OK);
    EXPECT_EQ(w.batch->results[1] & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(w.batch->results[2], GQ_READ_OK);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, FailedStagedReadLeavesTheBufferAlone)
{
    Whole w(GetParam());

    w.open();
    w.batch->reads = {{100, 0, 300}};
    ASSERT_EQ(w.batch->run(w.rig), 0) << "leaves bytes in staging";
    w.memory.fill(0x5a);
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 7, NVME_ERR_UNRECOVERED_READ));
    w.batch->reads = {{7 * 512 + 1, 0, 300}};
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_EQ(w.batch->results[0] & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(w.rig.result.bytes, 0u);
    EXPECT_TRUE(w.memory.read(0, kMib) == Bytes(kMib, 0x5a));
}

TEST_P(GqReadvError, LostCommandLosesItsReadAndQuarantinesItsQueue)
{
    Whole w(GetParam());

    w.open();
    w.rig.fault(once(SIM_FAULT_LOSE));
    w.rig.req.deadline_ms = 1000; /* the other queues take less on a busy machine, too */
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    w.rig.req.deadline_ms = 0;
    EXPECT_TRUE(w.rig.result.timed_out);
    EXPECT_TRUE(w.rig.result.unsettled);
    EXPECT_GE(w.batch->count(GQ_READ_LOST), 1u);
    EXPECT_EQ(w.batch->count(GQ_READ_LOST) + w.batch->count(GQ_READ_OK), 256u);
    EXPECT_EQ(w.rig.stats().quarantined, 1u);
    EXPECT_EQ(w.rig.stats().timeouts, 1u);
    w.expect_what_is_ok();
    w.expect_all_right();
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
    for (unsigned i = 0; i < 5; i++)
        w.expect_all_right();
}

TEST_P(GqReadvError, LostStagedCommandWritesNothingLater)
{
    Whole w(GetParam());
    sim_fault late = once(SIM_FAULT_LATE);

    late.delay_ns = 150000000;
    w.rig.opts.queues = 1;
    w.open();
    w.rig.fault(late);
    w.batch->reads = {{1, 0, 100}};
    w.rig.req.deadline_ms = 50;
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    EXPECT_EQ(w.batch->results[0], GQ_READ_LOST);
    w.rig.req.deadline_ms = 0;
    EXPECT_EQ(w.batch->run(w.rig), -ENODEV);
    EXPECT_EQ(w.batch->results[0], GQ_READ_LOST);
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    std::this_thread::sleep_for(milliseconds(200));
    EXPECT_TRUE(w.memory.read(0, kMib) == Bytes(kMib, 0xa5));
    EXPECT_EQ(w.batch->run(w.rig), 0);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, DeadlineOfAListOfManyPartsLosesTheRest)
{
    Whole w(GetParam());

    w.rig.opts.depth = 4;
    w.rig.cfg.latency_ns = 3000000;
    w.open();
    for (unsigned i = 0; i < 5; i++)
        w.batch->reads.insert(w.batch->reads.end(), w.batch->reads.begin(), w.batch->reads.end());
    w.rig.req.deadline_ms = 60;
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    EXPECT_EQ(w.batch->count(GQ_READ_LOST) + w.batch->count(GQ_READ_OK), 8192u);
    EXPECT_GE(w.batch->count(GQ_READ_LOST), 4096u);
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0) << "nothing moves from here on";
    w.expect_what_is_ok();
    w.rig.req.deadline_ms = 0;
    w.batch->reads.resize(256);
    w.expect_all_right();
}

TEST_P(GqReadvError, CancelDrainsAndLosesTheRest)
{
    Whole w(GetParam());
    uint32_t cancel = 0;

    w.rig.opts.max_command = 512;
    w.rig.opts.depth = 4;
    w.rig.cfg.latency_ns = 1000000;
    w.open();
    w.rig.req.cancel = &cancel;
    std::thread canceller([&] {
        std::this_thread::sleep_for(milliseconds(20));
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(w.batch->run(w.rig), -ECANCELED);
    canceller.join();
    EXPECT_TRUE(w.rig.result.cancelled);
    EXPECT_FALSE(w.rig.result.unsettled);
    EXPECT_GE(w.batch->count(GQ_READ_LOST), 1u);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
    w.expect_what_is_ok();
    cancel = 0;
    w.expect_all_right();
}

TEST_P(GqReadvError, CancelledBeforeItStartsSendsNothing)
{
    Whole w(GetParam());
    uint32_t cancel = 1;

    w.open();
    w.rig.req.cancel = &cancel;
    EXPECT_EQ(w.batch->run(w.rig), -ECANCELED);
    EXPECT_EQ(w.batch->count(GQ_READ_LOST), 256u);
    EXPECT_EQ(w.rig.stats().commands, 0u);
    EXPECT_EQ(w.rig.stats().cancelled, 1u);
}

/* Of every size and alignment, in batches of more than one part, while others reset the drive. */
TEST_P(GqReadvReset, ResetsByOthersAreNotSeen)
{
    Whole w(GetParam());
    std::atomic<unsigned> rounds{0};
    std::atomic<bool> stop{false};
    std::mt19937 rng(4);

    w.rig.opts.queues = 8;
    w.rig.opts.depth = 16;
    w.rig.cfg.latency_ns = 100000;
    w.rig.cfg.reorder = true;
    w.open();
    w.batch->reads.clear();
    for (uint64_t at = 0; at < kMib;) {
        uint64_t len = std::min<uint64_t>(1 + rng() % 800, kMib - at);

        w.batch->reads.push_back({at, at, len});
        at += len;
    }
    ASSERT_GT(w.batch->reads.size(), 2048u);
    std::thread reader([&] {
        while (!stop && !testing::Test::HasFailure()) {
            w.expect_all_right();
            rounds++;
        }
    });
    for (unsigned i = 0; i < 5; i++) {
        unsigned before = rounds;

        std::this_thread::sleep_for(milliseconds(7 * i));
        EXPECT_EQ(nvme_ctrlr_reset(w.rig.c, i), 0);
        while (rounds == before && !testing::Test::HasFailure())
            std::this_thread::sleep_for(milliseconds(1));
    }
    stop = true;
    reader.join();
    EXPECT_EQ(w.rig.stats().resets, 5u);
    EXPECT_EQ(w.rig.stats().timeouts, 0u);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
}

GQ_FOR_EXECUTORS(GqReadvError);
GQ_FOR_SOME_EXECUTORS(GqReadvReset, kForBusy);

} // namespace
