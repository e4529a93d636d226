/* SPDX-License-Identifier: BSD-2-Clause */
// The number of queues of large staged transfers, chosen by measurement.
#include <climits>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "tests/cuda/gq_rig.h"

extern "C" {
#include "cuda/engine/gq_tuner.h"
}

namespace
{

constexpr uint64_t kBytes = GQ_TUNER_BYTES, kMs = 1000000;

// A transfer of a search, or after it, whose time the function gives.
void transfer(gq_tuner *t, const std::function<uint64_t(unsigned queues)> &ns)
{
    unsigned queues = gq_tuner_next(t);

    gq_tuner_add(t, queues, kBytes, ns(queues));
}

// Transfers until the search has ended; their number.
unsigned settle(gq_tuner *t, const std::function<uint64_t(unsigned queues)> &ns)
{
    unsigned n = 0;

    for (; t->searches && n < 1000; n++)
        transfer(t, ns);
    return n;
}

// A controller with so many processors: the one with the most queues ends last.
uint64_t ns_of(unsigned queues, unsigned processors)
{
    unsigned of_one = (queues + processors - 1) / processors;

    return kMs * 64 * of_one / queues + kMs * queues / 8;
}

TEST(Tuner, FindsTheFastestNumber)
{
    for (unsigned best : {18u, 16u, 12u, 8u, 6u, 4u, 3u, 2u, 1u}) {
        gq_tuner t;
        gq_tuner_init(&t, 18);
        unsigned n = settle(&t, [=](unsigned queues) {
            unsigned away = queues > best ? queues - best : best - queues;
            return kMs * (10 + away);
        });
        EXPECT_EQ(gq_tuner_choice(&t), best);
        EXPECT_EQ(gq_tuner_next(&t), best);
        EXPECT_LE(n, 18u) << best;
    }
}

TEST(Tuner, FindsTheNumberOfProcessorsInFewTransfers)
{
    for (unsigned processors : {2u, 3u, 4u, 6u, 8u}) {
        gq_tuner t;
        gq_tuner_init(&t, 12);
        unsigned n = settle(&t, [=](unsigned queues) { return ns_of(queues, processors); });
        EXPECT_EQ(gq_tuner_choice(&t), processors);
        EXPECT_LE(n, 14u) << processors;
    }
}

TEST(Tuner, BeginsWithAGoodGuessAndGivesItToOtherTransfers)
{
    gq_tuner t;

    gq_tuner_init(&t, 18);
    EXPECT_EQ(gq_tuner_next(&t), 6u);
    transfer(&t, [](unsigned) { return kMs; });
    EXPECT_NE(gq_tuner_next(&t), 6u);
    EXPECT_EQ(gq_tuner_choice(&t), 6u);
    gq_tuner_init(&t, 3);
    EXPECT_EQ(gq_tuner_next(&t), 3u);
}

TEST(Tuner, TakesTheFewestOfEquals)
{
    gq_tuner t;

    gq_tuner_init(&t, 18);
    settle(&t, [](unsigned queues) { return queues < 4 ? 2 * kMs : kMs + queues; });
    EXPECT_EQ(gq_tuner_choice(&t), 4u);
}

TEST(Tuner, OneDisturbedTransferOfEachNumberChangesNothing)
{
    gq_tuner t;
    std::set<unsigned> seen;

    gq_tuner_init(&t, 12);
    settle(&t, [&](unsigned queues) {
        bool disturbed = seen.insert(queues).second;
        return ns_of(queues, 4) * (disturbed ? 5 : 4) / 4;
    });
    EXPECT_EQ(gq_tuner_choice(&t), 4u);
}

// Slower by up to a quarter at random: the choice is at most a tenth slower than the best.
TEST(Tuner, FindsAGoodNumberUnderNoise)
{
    std::minstd_rand random(17);
    unsigned bad = 0;

    for (int i = 0; i < 1000; i++) {
        gq_tuner t;
        gq_tuner_init(&t, 12);
        settle(&t, [&](unsigned queues) { return ns_of(queues, 4) * (100 + random() % 25) / 100; });
        bad += ns_of(gq_tuner_choice(&t), 4) * 10 > ns_of(4, 4) * 11;
    }
    EXPECT_LT(bad, 100u);
}

TEST(Tuner, ABadNumberDoesNotStay)
{
    unsigned processors = 2;
    auto ns = [&](unsigned queues) { return ns_of(queues, processors); };
    gq_tuner t;

    gq_tuner_init(&t, 12);
    settle(&t, ns);
    EXPECT_EQ(gq_tuner_choice(&t), 2u);
    processors = 8;
    for (int i = 0; i < 1000; i++)
        transfer(&t, ns);
    EXPECT_EQ(gq_tuner_choice(&t), 8u);
}

TEST(Tuner, SearchesAreAFewOfAllTransfers)
{
    unsigned other = 0;
    gq_tuner t;

    gq_tuner_init(&t, 12);
    for (unsigned i = 0; i < 10000; i++) {
        other += gq_tuner_next(&t) != 4;
        transfer(&t, [](unsigned queues) { return ns_of(queues, 4); });
    }
    EXPECT_LT(other, 200u);
    EXPECT_GT(other, 20u);
}

TEST(Tuner, NumbersThatCannotBeHadAreLeftOut)
{
    gq_tuner t;

    gq_tuner_init(&t, 12);
    for (unsigned n = 0; t.searches && n < 1000; n++) {
        unsigned queues = gq_tuner_next(&t);
        gq_tuner_add(&t, queues < 5 ? queues : 5, kBytes, kMs);
    }
    EXPECT_FALSE(t.searches);
    EXPECT_LE(gq_tuner_choice(&t), 4u);
    gq_tuner_init(&t, 12);
    for (unsigned n = 0; t.searches && n < 1000; n++)
        gq_tuner_add(&t, gq_tuner_next(&t), kBytes, 0); // all fail
    EXPECT_FALSE(t.searches);
    EXPECT_EQ(gq_tuner_choice(&t), 6u);
}

TEST(Tuner, WithoutLevelsLimitsNothing)
{
    gq_tuner t = {};

    gq_tuner_add(&t, 3, kBytes, kMs);
    EXPECT_EQ(gq_tuner_next(&t), UINT_MAX);
    EXPECT_EQ(gq_tuner_choice(&t), UINT_MAX);
    EXPECT_FALSE(t.has_chosen);
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

    rig.opts.queues = 12; // of which a transfer takes a part
    rig.open();
    Memory memory(rig.x.kind, kBytes);
    gq_buffer *b = rig.add(memory, 0, kBytes);
    for (int i = 0; i < 32; i++)
        ASSERT_NO_FATAL_FAILURE(read_much(&rig, b));
    EXPECT_EQ(memory.read(kBytes / 2, 4096), rig.peek(0, 4096));
    gq_engine_tuned(rig.e, text, sizeof(text));
    EXPECT_EQ(std::string(text).find("; queues as measured: reads ") == 0, rig.x.staged) << text;
    EXPECT_EQ(std::string(text).find("writes"), std::string::npos);
}

TEST_P(GqTuner, WritesOfSixteenMiBAreMeasuredApart)
{
    Rig rig(GetParam());
    char text[256];

    rig.opts.queues = 12;
    rig.open();
    Memory memory(rig.x.kind, kBytes);
    gq_buffer *b = rig.add(memory, 0, kBytes);
    std::vector<Extent> extents(8, {0, GQ_TUNER_SHORT_BYTES / 8});
    for (int i = 0; i < 32; i++)
        ASSERT_EQ(rig.move(GQ_WRITE, b, 0, extents, 0, GQ_TUNER_SHORT_BYTES), 0);
    gq_engine_tuned(rig.e, text, sizeof(text));
    EXPECT_EQ(std::string(text).find("; queues as measured: 16 MiB writes ") == 0, rig.x.staged)
        << text;
    ASSERT_EQ(rig.move(GQ_WRITE, b, 0, extents, 0, GQ_TUNER_SHORT_BYTES - 4096), 0);
    gq_engine_tuned(rig.e, text, sizeof(text));
    EXPECT_EQ(std::string(text).find(','), std::string::npos) << text;
}

const Executor kSome[] = {{"Cpu32", GQ_EXECUTOR_CPU, 32},
                          {"Cpu32Tier1Staged", GQ_EXECUTOR_CPU, 32, GQ_DOORBELLS_AUTO, true},
                          {"CudaTier1Staged", GQ_EXECUTOR_CUDA, 0, GQ_DOORBELLS_AUTO, true}};
GQ_FOR_SOME_EXECUTORS(GqTuner, kSome);

} // namespace
