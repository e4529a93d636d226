/* SPDX-License-Identifier: BSD-2-Clause */
// The number of queues of large staged transfers, chosen by measurement.
#include <climits>
#include <functional>
#include <vector>

#include "tests/cuda/gq_rig.h"

extern "C" {
#include "cuda/engine/gq_tuner.h"
}

namespace
{

constexpr uint64_t kBytes = GQ_TUNER_BYTES, kEach = 4096;

// Transfers until the choice, whose time the function gives; their number.
unsigned settle(gq_tuner *t, const std::function<uint64_t(unsigned queues)> &ns)
{
    unsigned n = 0;

    for (; !gq_tuner_has_chosen(t) && n < 1000; n++) {
        unsigned queues = gq_tuner_queues(t);
        gq_tuner_add(t, queues, kEach, kBytes, ns(queues));
    }
    return n;
}

TEST(Tuner, FindsTheFastestNumber)
{
    for (unsigned best : {12u, 8u, 6u, 4u, 3u, 2u, 1u}) {
        gq_tuner t;
        gq_tuner_init(&t, 12);
        unsigned n = settle(&t, [=](unsigned queues) {
            unsigned away = queues > best ? queues - best : best - queues;
            return 1000000u * (10 + away);
        });
        EXPECT_EQ(gq_tuner_queues(&t), best);
        EXPECT_LE(n, 24u) << best;
    }
}

TEST(Tuner, TakesTheFewestOfEquals)
{
    gq_tuner t;

    gq_tuner_init(&t, 18);
    settle(&t, [](unsigned queues) { return queues < 4 ? 2000000u : 1000000u + queues; });
    EXPECT_EQ(gq_tuner_queues(&t), 4u);
}

TEST(Tuner, OneDisturbedTransferChangesNothing)
{
    gq_tuner t;
    bool disturbed = false;

    gq_tuner_init(&t, 12);
    settle(&t, [&](unsigned queues) {
        bool now = queues == 4 && gq_tuner_queues(&t) == 4 && t.rounds == 2 && !disturbed;
        disturbed |= now;
        return (now ? 9u : queues == 4 ? 1u : 2u) * 1000000u;
    });
    EXPECT_TRUE(disturbed);
    EXPECT_EQ(gq_tuner_queues(&t), 4u);
}

TEST(Tuner, ShortTransfersOtherQueuesAndOtherReadsAreNoSamples)
{
    gq_tuner t;

    gq_tuner_init(&t, 12);
    gq_tuner_add(&t, 12, kEach, kBytes - 1, 1000000);
    gq_tuner_add(&t, 11, kEach, kBytes, 1000000);
    EXPECT_EQ(gq_tuner_queues(&t), 12u);
    gq_tuner_add(&t, 12, kEach, kBytes, 1000000);
    EXPECT_EQ(gq_tuner_queues(&t), 8u);
    gq_tuner_add(&t, 8, 4 * kEach, kBytes, 1000000);
    EXPECT_EQ(gq_tuner_queues(&t), 8u);
}

TEST(Tuner, WithoutLevelsLimitsNothing)
{
    gq_tuner t = {};

    gq_tuner_add(&t, 3, kEach, kBytes, 1000000);
    EXPECT_EQ(gq_tuner_queues(&t), UINT_MAX);
    EXPECT_FALSE(gq_tuner_has_chosen(&t));
}

class GqTuner : public GqTest
{
};

// Reads 32 MiB, by extents of the same LBAs.
void read_much(Rig *rig, gq_buffer *b)
{
    std::vector<Extent> extents(8, {0, kBytes / 8});

    ASSERT_EQ(rig->move(GQ_READ, b, 0, extents, 0, kBytes), 0);
}

TEST_P(GqTuner, LargeReadsSettleWhereDataIsStaged)
{
    Rig rig(GetParam());
    char text[128];

    rig.opts.queues = 0; // a number that is set is not changed
    rig.open();
    Memory memory(rig.x.kind, kBytes);
    gq_buffer *b = rig.add(memory, 0, kBytes);
    for (int i = 0; i < 32; i++)
        ASSERT_NO_FATAL_FAILURE(read_much(&rig, b));
    EXPECT_EQ(memory.read(kBytes / 2, 4096), rig.peek(0, 4096));
    gq_engine_tuned(rig.e, text, sizeof(text));
    EXPECT_EQ(std::string(text).find("; large reads use ") == 0, rig.x.staged) << text;
    EXPECT_EQ(std::string(text).find("writes"), std::string::npos);
}

const Executor kSome[] = {{"Cpu32", GQ_EXECUTOR_CPU, 32},
                          {"Cpu32Tier1Staged", GQ_EXECUTOR_CPU, 32, GQ_DOORBELLS_AUTO, true},
                          {"CudaTier1Staged", GQ_EXECUTOR_CUDA, 0, GQ_DOORBELLS_AUTO, true}};
GQ_FOR_SOME_EXECUTORS(GqTuner, kSome);

} // namespace
