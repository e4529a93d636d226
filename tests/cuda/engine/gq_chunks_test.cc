/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests transfers of several lists. The next list is planned while one runs, so
 * the order of the stream counts.
 */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/gq_rig.h"

namespace
{

using GqChunks = GqTest;
using GqChunksWaits = GqTest;

constexpr uint64_t kBytes = 4u << 20, kPart = 1u << 20; /* 8,192 commands in lists of 2,048 */
constexpr uint64_t kFirstChunk = 2048;
constexpr uint64_t kSecondChunk = 2 * kFirstChunk;

/* A command for each block of 512 bytes. */
class Chunks
{
  public:
    explicit Chunks(const Executor &x) : rig(x, 512, kBytes)
    {
        rig.opts.max_command = 512;
        rig.opts.part = kPart;
        listener.ended = [](gq_listener *, uint64_t) {};
        rig.req.listener = &listener;
    }

    void open()
    {
        rig.open();
        memory = std::make_unique<Target>(rig, kBytes);
    }

    int read() { return rig.move(GQ_READ, *memory, 0, {{0, kBytes}}, 0, kBytes); }

    /* The bytes that the last read answers for. */
    bool is_right()
    {
        Bytes got = memory->read(0, rig.result.bytes);

        return std::equal(got.begin(), got.end(), rig.media.begin());
    }

    /*
     * Waits for more reads than the queues hold, so that some of them have completed. False: stop.
     * A controller whose resets bring no progress is given up, however healthy it is: resets at
     * fixed times find none on a busy machine.
     */
    bool wait_for_progress(const std::atomic<bool> &stop)
    {
        uint64_t enough = rig.sent() + rig.opts.queues * rig.opts.depth;

        while (!stop && rig.sent() <= enough)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return !stop;
    }

    Rig rig;
    gq_listener listener = {};
    std::unique_ptr<Target> memory;
};

TEST_P(GqChunks, ReadsAndWritesAllOfThem)
{
    Chunks c(GetParam());
    Bytes data = random_bytes(kBytes, 7);

    c.open();
    ASSERT_EQ(c.read(), 0);
    EXPECT_EQ(c.rig.result.bytes, kBytes);
    EXPECT_EQ(c.rig.result.commands, kBytes / 512);
    EXPECT_TRUE(c.is_right());
    c.memory->write(0, data);
    ASSERT_EQ(c.rig.move(GQ_WRITE, *c.memory, 0, {{0, kBytes}}, 0, kBytes), 0);
    EXPECT_TRUE(c.rig.peek(0, kBytes) == data);
}

TEST_P(GqChunks, ErrorOfTheFirstHidesThoseOfTheNext)
{
    Chunks c(GetParam());

    c.open();
    c.rig.fault(fault_at(SIM_FAULT_STATUS, kFirstChunk + 1, NVME_ERR_INTERNAL));
    c.rig.fault(fault_at(SIM_FAULT_STATUS, kFirstChunk - 1, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(c.read(), -EIO);
    EXPECT_EQ(c.rig.result.nvme_status & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(c.rig.result.bytes, (kFirstChunk - 1) * 512);
    EXPECT_TRUE(c.is_right());
    EXPECT_EQ(c.rig.stats().quarantined, 0u);
}

TEST_P(GqChunks, EveryChunkMayFail)
{
    for (uint64_t lba : {kFirstChunk, kSecondChunk - 1, kSecondChunk, kBytes / 512 - 1}) {
        Chunks c(GetParam());

        c.open();
        c.rig.fault(fault_at(SIM_FAULT_STATUS, lba, NVME_ERR_UNRECOVERED_READ));
        EXPECT_EQ(c.read(), -EIO);
        EXPECT_EQ(c.rig.result.bytes, lba * 512);
        EXPECT_TRUE(c.is_right());
        EXPECT_FALSE(c.rig.result.timed_out || c.rig.result.cancelled || c.rig.result.unsettled);
    }
}

TEST_P(GqChunksWaits, LostCommandCostsOnlyItsQueue)
{
    Chunks c(GetParam());

    c.rig.opts.deadline_ms = 1000; /* the other queues take less on a busy machine, too */
    c.open();
    c.rig.fault(once_at(SIM_FAULT_LOSE, 10));
    EXPECT_EQ(c.read(), -ETIMEDOUT);
    EXPECT_TRUE(c.rig.result.timed_out && c.rig.result.unsettled);
    EXPECT_EQ(c.rig.result.bytes, 10u * 512);
    EXPECT_EQ(c.rig.stats().quarantined, 1u);
    EXPECT_EQ(c.read(), 0) << "by the other queues";
    EXPECT_EQ(gq_engine_recover(c.rig.e), 0);
    EXPECT_EQ(c.read(), 0);
    EXPECT_TRUE(c.is_right());
}

TEST_P(GqChunks, DeadlineIsThatOfAll)
{
    Chunks c(GetParam());
    auto start = std::chrono::steady_clock::now();

    c.rig.cfg.latency_ns = 20000000;
    c.rig.opts.queues = 2;
    c.rig.opts.depth = 32;
    c.open();
    c.rig.req.deadline_ms = 100;
    EXPECT_EQ(c.read(), -ETIMEDOUT);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    EXPECT_TRUE(c.rig.result.timed_out);
    EXPECT_LT(c.rig.result.bytes, kBytes);
    EXPECT_TRUE(c.is_right());
    EXPECT_EQ(gq_engine_recover(c.rig.e), 0);
}

TEST_P(GqChunks, CancelTellsWhatIsCertain)
{
    Chunks c(GetParam());
    uint32_t cancel = 0;

    c.rig.opts.depth = 8;
    c.rig.cfg.latency_ns = 2000000;
    c.open();
    c.rig.req.cancel = &cancel;
    std::thread canceller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(c.read(), -ECANCELED);
    canceller.join();
    EXPECT_TRUE(c.rig.result.cancelled);
    EXPECT_LT(c.rig.result.bytes, kBytes);
    EXPECT_TRUE(c.is_right());
    EXPECT_EQ(c.rig.stats().quarantined, 0u);
}

TEST_P(GqChunks, ResetsRunThemAgain)
{
    Chunks c(GetParam());
    std::atomic<bool> stop{false};

    c.rig.opts.depth = 16;
    c.rig.cfg.latency_ns = 200000;
    c.open();
    std::thread resetter([&] {
        for (unsigned i = 0; i < 5 && c.wait_for_progress(stop); i++)
            EXPECT_EQ(nvme_ctrlr_reset(c.rig.c, i), 0);
    });
    for (unsigned i = 0; i < 3; i++) {
        c.memory->fill(0xa5);
        EXPECT_EQ(c.read(), 0);
        EXPECT_EQ(c.rig.result.bytes, kBytes);
        EXPECT_TRUE(c.is_right());
    }
    stop = true;
    resetter.join();
    EXPECT_GE(c.rig.stats().restarts, 1u);
    EXPECT_EQ(c.rig.stats().timeouts, 0u);
}

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

/* What a listener is told; the bytes of a part are compared when it has ended. */
struct Told : gq_listener {
    explicit Told(Chunks &of) : chunks(of)
    {
        begins = [](gq_listener *l, uint64_t to) {
            auto *t = static_cast<Told *>(l);
            t->overlap |= !t->ended_ones.empty();
            t->begun.emplace_back(end_of(t->begun), to);
        };
        ended = [](gq_listener *l, uint64_t to) {
            auto *t = static_cast<Told *>(l);
            uint64_t from = end_of(t->ended_ones);

            t->ended_ones.emplace_back(from, to);
            t->wrong += t->chunks.rig.x.kind == GQ_EXECUTOR_CPU && !t->is_there(from, to);
        };
    }
    bool is_there(uint64_t from, uint64_t to) const
    {
        Bytes got = chunks.memory->read(from, to - from);

        return std::equal(got.begin(), got.end(),
                          chunks.rig.media.begin() + static_cast<ptrdiff_t>(from));
    }
    /* A range begins where the last one has ended. */
    static uint64_t end_of(const Ranges &ranges)
    {
        return ranges.empty() ? 0 : ranges.back().second;
    }
    /* The ranges reach the end. */
    static bool is_all(const Ranges &ranges)
    {
        for (const auto &[from, to] : ranges) {
            if (to <= from || to - from > kPart)
                return false;
        }
        return end_of(ranges) == kBytes;
    }

    Chunks &chunks;
    Ranges begun, ended_ones;
    bool overlap = false;
    unsigned wrong = 0;
};

TEST_P(GqChunks, AListenerIsToldOfEach)
{
    Chunks c(GetParam());
    Told told(c);

    c.open();
    c.rig.req.listener = &told;
    ASSERT_EQ(c.read(), 0);
    EXPECT_TRUE(Told::is_all(told.begun));
    EXPECT_EQ(told.wrong, 0u);
    EXPECT_EQ(told.begun.size(), kBytes / kPart);
    EXPECT_EQ(told.ended_ones, told.begun);
    EXPECT_TRUE(told.overlap) << "lists are planned while others are under way";
}

TEST_P(GqChunks, AListenerIsToldOfTheEndOnceInSpiteOfResets)
{
    Chunks c(GetParam());
    std::atomic<bool> stop{false};

    c.rig.opts.depth = 16;
    /* A lane has one staged command at a time. */
    c.rig.cfg.latency_ns = GetParam().staged ? 20000 : 200000;
    c.open();
    std::thread resetter([&] {
        for (unsigned i = 0; i < 3 && c.wait_for_progress(stop); i++)
            EXPECT_EQ(nvme_ctrlr_reset(c.rig.c, i), 0);
    });
    for (unsigned i = 0; i < 2; i++) {
        Told told(c);
        c.rig.req.listener = &told;
        c.memory->fill(0xa5);
        EXPECT_EQ(c.read(), 0);
        EXPECT_TRUE(Told::is_all(told.ended_ones));
        EXPECT_EQ(told.wrong, 0u);
    }
    stop = true;
    resetter.join();
    EXPECT_GE(c.rig.stats().restarts, 1u);
}

/* Registering waits for runs to end, and a transfer must not wait for it between two of its own. */
TEST_P(GqChunks, BuffersComeAndGoMeanwhile)
{
    Chunks c(GetParam());
    std::atomic<bool> stop{false};

    c.open();
    Memory other(c.rig.x.kind, 65536);
    std::thread registrar([&] {
        while (!stop) {
            gq_buffer_unregister(c.rig.add(other, 0, 65536));
            std::this_thread::sleep_for(std::chrono::microseconds(100)); /* they stop the drive */
        }
    });
    for (unsigned i = 0; i < 5; i++) {
        EXPECT_EQ(c.read(), 0);
        EXPECT_TRUE(c.is_right());
    }
    stop = true;
    registrar.join();
    EXPECT_EQ(c.rig.stats().timeouts, 0u);
}

GQ_FOR_EXECUTORS(GqChunks);
GQ_FOR_SOME_EXECUTORS(GqChunksWaits, kForWaits);

} // namespace
