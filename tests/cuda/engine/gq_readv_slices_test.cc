/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long lists of reads: one run after the other, each over a slice, with the gate open in between.
 */
#include <cerrno>
#include <thread>

#include "tests/cuda/engine/gq_recover_rig.h"
#include "tests/cuda/gq_file.h"

namespace
{

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
