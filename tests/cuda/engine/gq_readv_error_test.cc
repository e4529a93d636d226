/* SPDX-License-Identifier: BSD-2-Clause */
/* Batches of reads in which something goes wrong: statuses, lost commands, cancel, resets. */
#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/cuda/engine/gq_recover_rig.h"
#include "tests/cuda/gq_file.h"

namespace
{

using GqReadvError = GqTest;
using GqReadvErrorWaits = GqTest;

using GqReadvReset = GqTest;

TEST_P(GqReadvError, OnlyReadsWhoseCommandsFailAreMarked)
{
    Whole w(GetParam());

    w.rig.cfg.reorder = true;
    w.open();
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 900, NVME_ERR_INTERNAL));
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 100, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(w.batch->run(w.rig), 0) << "all have ended";
    EXPECT_EQ(w.batch->results[100 / 8], -EIO);
    EXPECT_EQ(w.batch->results[900 / 8], -EIO);
    EXPECT_EQ(w.batch->count_good(), 254u);
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_EQ(w.rig.result.taken, kMib);
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
    EXPECT_EQ(w.batch->results, (std::vector<int32_t>{65536, -EIO, 65536}));
    EXPECT_EQ(w.rig.result.nvme_status & 0x7ff, NVME_ERR_UNRECOVERED_READ);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, LongReadsFailAloneWithAnyOfTheirCommands)
{
    constexpr size_t kLen = 100001;
    Whole w(GetParam());
    std::vector<int32_t> want(10, (int32_t)kLen);

    w.rig.opts.max_command = 65536;
    w.open();
    w.batch->reads.clear();
    for (size_t i = 0; i < want.size(); i++)
        w.batch->reads.push_back({i * kLen + 77, i * kLen, kLen});
    w.rig.fault(fault_at(SIM_FAULT_STATUS, (4 * kLen + kLen / 2) / 512, NVME_ERR_INTERNAL));
    w.rig.fault(fault_at(SIM_FAULT_STATUS, (9 * kLen + kLen / 2) / 512, NVME_ERR_INTERNAL));
    want[4] = want[9] = -EIO;
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_EQ(w.batch->results, want);
    w.expect_what_is_ok();
}

TEST_P(GqReadvErrorWaits, LostCommandOfLongReadsEndsThemInTime)
{
    Whole w(GetParam());

    w.rig.opts.max_command = 65536;
    w.open();
    w.batch->reads.clear();
    for (uint64_t at = 0; at < kMib; at += 65536)
        w.batch->reads.push_back({at, at, 65536});
    w.rig.fault(once(SIM_FAULT_LOSE));
    w.rig.req.deadline_ms = 1000; /* the other queues take less on a busy machine, too */
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    w.rig.req.deadline_ms = 0;
    EXPECT_GE(w.batch->count(-ETIMEDOUT), 1u);
    EXPECT_EQ(w.batch->count(-ETIMEDOUT) + w.batch->count_good(), 16u);
    w.expect_what_is_ok();
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    w.expect_all_right();
}

TEST_P(GqReadvError, FailedStagedReadLeavesTheBufferAlone)
{
    Whole w(GetParam());

    w.open();
    w.batch->reads = {{100, 0, 300}};
    ASSERT_EQ(w.batch->run(w.rig), 0) << "leaves bytes in staging";
    w.memory->fill(0x5a);
    w.rig.fault(fault_at(SIM_FAULT_STATUS, 7, NVME_ERR_UNRECOVERED_READ));
    w.batch->reads = {{7 * 512 + 1, 0, 300}};
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_EQ(w.batch->results[0], -EIO);
    EXPECT_EQ(w.rig.result.bytes, 0u);
    EXPECT_TRUE(w.memory->read(0, kMib) == Bytes(kMib, 0x5a));
}

TEST_P(GqReadvErrorWaits, LostCommandLosesItsReadAndQuarantinesItsQueue)
{
    Whole w(GetParam());

    w.open();
    w.rig.fault(once(SIM_FAULT_LOSE));
    w.rig.req.deadline_ms = 1000; /* the other queues take less on a busy machine, too */
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    w.rig.req.deadline_ms = 0;
    EXPECT_TRUE(w.rig.result.timed_out);
    EXPECT_TRUE(w.rig.result.unsettled);
    EXPECT_GE(w.batch->count(-ETIMEDOUT), 1u);
    EXPECT_EQ(w.batch->count(-ETIMEDOUT) + w.batch->count_good(), 256u);
    EXPECT_EQ(w.rig.stats().quarantined, 1u);
    EXPECT_EQ(w.rig.stats().timeouts, 1u);
    w.expect_what_is_ok();
    w.expect_all_right();
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
    for (unsigned i = 0; i < 5; i++)
        w.expect_all_right();
}

TEST_P(GqReadvError, ASecondCompletionDoesNotEndTheNextRead)
{
    Whole w(GetParam());
    sim_fault repeat = once(SIM_FAULT_REPEAT);

    repeat.delay_ns = 2000000000;
    repeat.skip = 1;
    w.rig.cfg.latency_ns = 1000000;
    w.rig.opts.queues = 1;
    w.open();
    w.batch->reads = {{0, 0, 4096}, {4096, 4096, 4096}};
    for (unsigned i = 0; i < 3; i++)
        ASSERT_EQ(w.batch->run(w.rig), 0);
    w.rig.fault(repeat);
    w.memory->fill(0x5a);
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT) << "commands are lost";
    EXPECT_LT(w.batch->count_good(), 2u);
    w.expect_what_is_ok();
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    EXPECT_EQ(w.rig.stats().recreates, 1u);
    EXPECT_EQ(w.batch->run(w.rig), 0);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, LostStagedCommandWritesNothingLater)
{
    Whole w(GetParam());
    sim_fault late = once(SIM_FAULT_LATE);

    late.delay_ns = 800000000; // a thread that is not scheduled for a while still sees the deadline
    w.rig.opts.queues = 1;
    w.open();
    w.rig.fault(late);
    w.batch->reads = {{1, 0, 100}};
    w.rig.req.deadline_ms = 50;
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    EXPECT_EQ(w.batch->results[0], -ETIMEDOUT);
    w.rig.req.deadline_ms = 0;
    EXPECT_EQ(w.batch->run(w.rig), -ENODEV);
    EXPECT_EQ(w.batch->results[0], -ECANCELED);
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0);
    std::this_thread::sleep_for(milliseconds(850));
    EXPECT_TRUE(w.memory->read(0, kMib) == Bytes(kMib, 0xa5));
    EXPECT_EQ(w.batch->run(w.rig), 0);
    w.expect_what_is_ok();
}

TEST_P(GqReadvError, DeadlineOfALongListLosesTheRest)
{
    Whole w(GetParam());

    w.rig.opts.depth = 4;
    w.rig.cfg.latency_ns = 3000000;
    w.open();
    for (unsigned i = 0; i < 5; i++)
        w.batch->reads.insert(w.batch->reads.end(), w.batch->reads.begin(), w.batch->reads.end());
    w.rig.req.deadline_ms = 60;
    EXPECT_EQ(w.batch->run(w.rig), -ETIMEDOUT);
    EXPECT_EQ(w.batch->count(-ETIMEDOUT) + w.batch->count_good(), 8192u);
    EXPECT_GE(w.batch->count(-ETIMEDOUT), 4096u);
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
    EXPECT_GE(w.batch->count(-ECANCELED), 1u);
    EXPECT_EQ(w.batch->count(-ECANCELED) + w.batch->count_good(), 256u);
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
    EXPECT_EQ(w.batch->count(-ECANCELED), 256u);
    EXPECT_EQ(w.rig.stats().commands, 0u);
    EXPECT_EQ(w.rig.stats().cancelled, 1u);
}

/* A slow drive, and 8,192 pieces of one block for one queue. */
class Slow : public Whole
{
  public:
    explicit Slow(const Executor &x) : Whole(x)
    {
        rig.opts.queues = 1;
        rig.opts.depth = 8;
        rig.cfg.latency_ns = 200000;
        open();
        batch->reads.clear();
        for (uint64_t i = 0; i < 8192; i++)
            batch->reads.push_back({i % 2048 * 512, i % 2048 * 512, 512});
    }
};

TEST_P(GqReadvError, ListOfJustAsManyBytesAsItMayHaveIsReadWhole)
{
    Slow w(GetParam());

    w.batch->reads.resize(1000);
    w.batch->reads.push_back({UINT64_MAX / 4, 0, 4096});
    w.batch->most = 1000 * 512;
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_EQ(w.batch->count_good(), 1001u) << "what is past the end is no byte";
    EXPECT_EQ(w.rig.result.bytes, 1000u * 512);
    EXPECT_FALSE(w.rig.result.partial);
}

TEST_P(GqReadvError, LongerListIsReadAsFarAsItMayBe)
{
    Slow w(GetParam());

    w.batch->most = 100 * 512;
    EXPECT_EQ(w.batch->run(w.rig), 0);
    EXPECT_GT(w.rig.result.taken, w.batch->most);
    EXPECT_GE(w.batch->count_good(), 100u - 32) << "what the lanes have taken on is not sent";
    EXPECT_GE(w.batch->count(-E2BIG), 1u);
    EXPECT_EQ(w.batch->count_good() + w.batch->count(-E2BIG), 8192u);
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_FALSE(w.rig.result.cancelled);
    EXPECT_EQ(w.rig.stats().quarantined, 0u);
    w.expect_what_is_ok();
    w.batch->reads.resize(256);
    w.batch->most = UINT64_MAX;
    EXPECT_EQ(w.batch->run(w.rig), 0) << "the queue is as good as ever";
    w.expect_what_is_ok();
}

/* The same list with the file's second half for a map: what the first half's run left is there. */
class SecondHalf : public Slow
{
  public:
    explicit SecondHalf(const Executor &x)
        : Slow(x), half({{kMib / 2, kMib / 2 / 512}}, kMib), part(*memory, half, batch->reads),
          list(rig, part.reads.size())
    {
        for (size_t i = 0; i < part.reads.size(); i++) {
            const gq_read &r = part.reads[i];

            list.pieces[i] = {r.file_offset, r.at, 512, is_inside(i) ? kUntouched : 512};
        }
    }

    bool is_inside(size_t i) const { return part.reads[i].file_offset >= kMib / 2; }

    /* All pieces that were not begun are unchanged. Returns their number. */
    size_t count_untouched(int32_t error)
    {
        Bytes got = memory->read(0, kMib);
        size_t n = 0;

        for (size_t i = 0; i < part.reads.size(); i++) {
            const gq_read_desc &p = list.pieces[i];

            n += p.result == kUntouched;
            if (!is_inside(i))
                EXPECT_EQ(p.result, 512) << i;
            else if (p.result == 512)
                EXPECT_TRUE(std::equal(&got[p.at], &got[p.at] + 512, &rig.media[p.file_offset]));
            else
                EXPECT_TRUE(p.result == kUntouched || p.result == error) << i << ": " << p.result;
        }
        return n;
    }

    File half;
    Batch part;
    List list;
};

TEST_P(GqReadvError, CancelOfARunOfAPartLeavesWhatItHasNotBegunWith)
{
    SecondHalf w(GetParam());
    uint32_t cancel = 0;

    w.rig.req.cancel = &cancel;
    std::thread canceller([&] {
        while (w.rig.sent() == 0)
            std::this_thread::yield();
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(w.part.run_list(w.rig, w.list), -ECANCELED);
    canceller.join();
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_GE(w.count_untouched(-ECANCELED), 1u);
}

TEST_P(GqReadvError, DeadlineOfARunOfAPartLeavesWhatItHasNotBegunWith)
{
    SecondHalf w(GetParam());

    w.rig.req.deadline_ms = 20;
    EXPECT_EQ(w.part.run_list(w.rig, w.list), -ETIMEDOUT);
    EXPECT_EQ(gq_engine_recover(w.rig.e), 0) << "nothing moves from here on";
    EXPECT_GE(w.count_untouched(-ETIMEDOUT), 1u);
}

TEST_P(GqReadvError, LongerListOfAPartLeavesWhatItHasNotBegunWith)
{
    SecondHalf w(GetParam());

    w.part.most = 100 * 512;
    EXPECT_EQ(w.part.run_list(w.rig, w.list), 0);
    EXPECT_GT(w.rig.result.taken, w.part.most);
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_GE(w.count_untouched(-E2BIG), 1u);
}

TEST_P(GqReadvError, RunOfAPartThatIsCancelledBeforeItStartsLeavesAll)
{
    SecondHalf w(GetParam());
    uint32_t cancel = 1;

    w.rig.req.cancel = &cancel;
    EXPECT_EQ(w.part.run_list(w.rig, w.list), -ECANCELED);
    EXPECT_TRUE(w.rig.result.partial);
    EXPECT_EQ(w.count_untouched(0), 4096u);
    EXPECT_EQ(w.rig.result.bytes, 0u);
}

TEST_P(GqReadvError, RunOfAPartCountsItsOwnBytes)
{
    SecondHalf w(GetParam());

    w.rig.fault(fault_at(SIM_FAULT_STATUS, 2000, NVME_ERR_UNRECOVERED_READ));
    EXPECT_EQ(w.part.run_list(w.rig, w.list), 0);
    EXPECT_EQ(w.count_untouched(-EIO), 0u);
    auto refused = [](const gq_read_desc &p) { return p.result == -EIO; };
    auto n = (uint64_t)std::count_if(w.list.pieces, w.list.pieces + 8192, refused);
    EXPECT_GE(n, 1u);
    EXPECT_EQ(w.rig.result.taken, 4096u * 512);
    EXPECT_EQ(w.rig.result.bytes, (4096u - n) * 512);
}

/*
 * A piece that is changed during the call. Two pieces read to one place are a
 * race in the buffer, caused by the list alone: tests that look for other races
 * keep pieces inside their own places, or outside of the buffer.
 */
void change(volatile gq_read_desc &p, size_t own, uint64_t room, std::mt19937_64 &rng)
{
    auto len = (uint32_t)(rng() >> (32 + rng() % 32));
    uint64_t at = rng() >> (rng() % 64);

#ifdef __SANITIZE_THREAD__
    len = len <= room ? len % 9 : len;
    at = at < room ? own * 8 : at;
#else
    (void)own;
    (void)room;
#endif
    p.len = len;
    p.at = at;
    p.file_offset = rng() >> (rng() % 64);
    p.result = (int32_t)rng();
}

/* Pieces that grow, shrink and point elsewhere: nothing but the buffer is written to. */
TEST_P(GqReadvError, ListThatChangesUnderWayLeavesNeitherBufferNorLimit)
{
    Slow w(GetParam());
    constexpr size_t kPart = 65536;
    std::atomic<bool> stop{false};
    std::mt19937_64 rng(17);

    gq_buffer *inside = w.rig.add(*w.memory, 4096 + 12, kPart);
    Batch batch(inside, *w.file, w.batch->reads);
    batch.most = 2 * kPart;
    batch.odd_most = 8192;
    List list(w.rig, batch.reads.size());
    for (size_t i = 0; i < batch.reads.size(); i++)
        list.pieces[i] = {i * 512, i * 8 % kPart, 8, kUntouched};
    auto *pieces = static_cast<volatile gq_read_desc *>(list.pieces);
    std::thread changer([&] {
        while (!stop) {
            size_t i = rng() % batch.reads.size();

            change(pieces[i], i, kPart, rng);
        }
    });
    for (unsigned i = 0; i < 3; i++) {
        EXPECT_EQ(batch.run_list(w.rig, list), 0);
        EXPECT_LT(w.rig.result.taken, 64 * kPart) << "of 8,192 that may have so many";
        EXPECT_LE(w.rig.result.bytes, w.rig.result.taken);
    }
    stop = true;
    changer.join();
    gq_buffer_unregister(inside);
    Bytes got = w.memory->read(0, kMib);
    auto clean = [](uint8_t c) { return c == 0xa5; };
    EXPECT_TRUE(std::all_of(got.begin(), got.begin() + 4096 + 12, clean));
    EXPECT_TRUE(std::all_of(got.begin() + 4096 + 12 + kPart, got.end(), clean));
    w.batch->reads.resize(256);
    EXPECT_EQ(w.batch->run(w.rig), 0);
    w.expect_what_is_ok();
}

/* Of every size and alignment, in long batches, during resets by another thread. */
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
GQ_FOR_SOME_EXECUTORS(GqReadvErrorWaits, kForWaits);
GQ_FOR_SOME_EXECUTORS(GqReadvReset, kForBusy);

// --- Long lists: one run after the other, each over a slice, with the gate open in between -------

using GqReadvSlices = GqTest;
using GqReadvSlicesWaits = GqTest;

constexpr size_t kReads = 64, kFakes = 7;
/* The read whose command is lost, after few: a GPU that is shared may take 60 ms for a slice. */
constexpr size_t kLost = 4;

/*
 * Reads of a block, each behind some that only seem long, because they are not
 * inside the buffer: so every piece is a slice.
 */
class Sliced : public Whole
{
  public:
    explicit Sliced(const Executor &x, size_t n = kReads) : Whole(x)
    {
        rig.cfg.latency_ns = 2000000;
        open();
        batch->reads.clear();
        for (size_t i = 0; i < n; i++) {
            batch->reads.insert(batch->reads.end(), kFakes, {0, 0, INT32_MAX});
            batch->reads.push_back({i * 512 % kMib, i * 512 % kMib, 512});
        }
    }

    /* Read number i, and those in front of it. */
    void expect(size_t i, int32_t before, int32_t result)
    {
        const int32_t *results = &batch->results[(kFakes + 1) * i];

        for (size_t j = 0; j < kFakes; j++)
            EXPECT_EQ(results[j], before) << i;
        EXPECT_EQ(results[kFakes], result) << i;
        if (result == 512) {
            EXPECT_TRUE(memory->read(i * 512, 512) == file->part(i * 512, 512)) << i;
        }
    }
};

TEST_P(GqReadvSlices, TogetherReadTheWholeList)
{
    Sliced s(GetParam());

    EXPECT_EQ(s.batch->run(s.rig), 0);
    for (size_t i = 0; i < kReads; i++)
        s.expect(i, -EFAULT, 512);
    EXPECT_TRUE(s.rig.result.partial);
    EXPECT_EQ(s.rig.result.bytes, kReads * 512);
    EXPECT_EQ(s.rig.result.taken, kReads * 512);
    EXPECT_EQ(s.rig.result.commands, kReads);
}

TEST_P(GqReadvSlicesWaits, BehindOneThatFailsAreNotBegun)
{
    Sliced s(GetParam());

    s.rig.fault(once_at(SIM_FAULT_LOSE, kLost));
    s.rig.req.deadline_ms = 1000;
    EXPECT_EQ(s.batch->run(s.rig), -ETIMEDOUT);
    for (size_t i = 0; i < kLost; i++)
        s.expect(i, -EFAULT, 512);
    s.expect(kLost, -EFAULT, -ETIMEDOUT);
    for (size_t i = kLost + 1; i < kReads; i++)
        s.expect(i, -ECANCELED, -ECANCELED);
    EXPECT_EQ(s.rig.result.bytes, kLost * 512);
    EXPECT_EQ(s.rig.result.taken, (kLost + 1) * 512);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
}

TEST_P(GqReadvSlices, TheFirstStatusIsThatOfTheList)
{
    Sliced s(GetParam());
    sim_fault f = once(SIM_FAULT_STATUS);

    f.status = NVME_ERR_INTERNAL;
    s.rig.fault(f);
    f.status = NVME_ERR_UNRECOVERED_READ;
    s.rig.fault(f);
    EXPECT_EQ(s.batch->run(s.rig), 0);
    EXPECT_EQ(s.batch->count(-EIO), 2u);
    EXPECT_EQ(s.rig.result.nvme_status & 0x7ff, NVME_ERR_INTERNAL);
}

/* After a reset the one that was under way begins anew, and none before it. */
TEST_P(GqReadvSlices, AreNotReadAgainAfterAReset)
{
    Sliced s(GetParam());

    std::thread resetter([&] {
        while (s.rig.sent() < 5)
            std::this_thread::yield();
        EXPECT_EQ(nvme_ctrlr_reset(s.rig.c, 0), 0);
    });
    EXPECT_EQ(s.batch->run(s.rig), 0);
    resetter.join();
    for (size_t i = 0; i < kReads; i++)
        s.expect(i, -EFAULT, 512);
    EXPECT_LE(s.rig.result.commands, kReads + 1);
}

/* Where registering waits for runs to end, it waits for a slice. */
TEST_P(GqReadvSlices, LetBuffersComeAndGoInBetween)
{
    Sliced s(GetParam(), 8192);
    Memory other(GetParam().kind, 65536);
    uint32_t cancel = 0;

    s.rig.req.cancel = &cancel;
    std::thread registrar([&] {
        while (s.rig.sent() == 0)
            std::this_thread::yield();
        for (unsigned i = 0; i < 5; i++)
            gq_buffer_unregister(s.rig.add(other, 0, 65536));
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(s.batch->run(s.rig), -ECANCELED) << "was not yet at its end";
    registrar.join();
    s.expect(0, -EFAULT, 512);
    s.expect(8191, -ECANCELED, -ECANCELED);
}

/* A list made up for that has no more slices than the longest permitted one. */
TEST_P(GqReadvSlicesWaits, AreFewInAListThatMayNotBeLong)
{
    Sliced s(GetParam());

    s.batch->most = 1u << 30;
    s.rig.fault(once_at(SIM_FAULT_LOSE, 20));
    s.rig.req.deadline_ms = 1000;
    EXPECT_EQ(s.batch->run(s.rig), -ETIMEDOUT);
    EXPECT_EQ(s.batch->count(-ECANCELED), 0u) << "the rest was one run";
    s.expect(kReads - 1, -EFAULT, 512);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
}

/* 6 GiB of zeros in slices of 1 GiB, by four queues none of which comes to 2 GiB alone. */
TEST_P(GqReadvSlices, EndWhereTogetherTheyHadTooMuch)
{
    constexpr uint64_t kPiece = 4u << 20, kAGib = (1u << 30) / kPiece;
    OpenRig rig(GetParam(), 512, kMib);
    Target memory(rig, kPiece);
    File zeros({{0, GQ_LBA_ZERO}}, kPiece);
    Batch batch(memory, zeros, std::vector<gq_read>(6 * kAGib, {0, 0, kPiece}));
    batch.most = 2u << 30;
    EXPECT_EQ(batch.run(rig), 0);
    EXPECT_GE(batch.count_good(), 2 * kAGib);
    EXPECT_LE(batch.count_good(), 3 * kAGib);
    EXPECT_EQ(batch.count_good() + batch.count(-E2BIG), 6 * kAGib);
    EXPECT_TRUE(rig.result.partial);
    EXPECT_EQ(rig.result.bytes, batch.count_good() * kPiece);
}

GQ_FOR_EXECUTORS(GqReadvSlices);
GQ_FOR_SOME_EXECUTORS(GqReadvSlicesWaits, kForWaits);

} // namespace
