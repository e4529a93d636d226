/* SPDX-License-Identifier: BSD-2-Clause */
// The path of transfers, chosen by measurement, of times that the test makes up.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "tests/client/lib/path_choice_rig.h"

namespace
{

constexpr uint64_t kUs = 1000, kMs = 1000000;
constexpr uint32_t kLength = 64;

// ns of the next transfer by a path.
using Time = std::function<uint64_t()>;

Time always(uint64_t ns)
{
    return [ns] { return ns; };
}

// A program whose transfers follow one another.
class Program
{
  public:
    explicit Program(bool bounces, uint32_t length = kLength)
        : choice_(path_choice_rig_new(bounces, length))
    {
    }
    ~Program()
    {
        path_choice_rig_free(choice_);
    }

    void run(unsigned n, const Time &gpu, const Time &bounce)
    {
        for (unsigned i = 0; i < n; i++) {
            uint32_t phase = path_choice_rig_ask(choice_);
            bool bounces = path_choice_rig_bounces(phase);
            uint64_t ns = bounces ? bounce() : gpu();
            path_choice_rig_add(choice_, phase, ns);
            changes += bounces != bounced_;
            regular[bounces] += !path_choice_rig_is_trial(phase);
            bounced_ = bounces;
            transfers[bounces]++;
            total += ns;
        }
    }

    // The path of transfers outside of trials.
    bool bounces() const
    {
        uint32_t phase = path_choice_rig_ask(choice_);

        return path_choice_rig_bounces(phase) != path_choice_rig_is_trial(phase);
    }
    bool is_measured() const
    {
        return path_choice_rig_is_measured(path_choice_rig_ask(choice_));
    }
    void forget()
    {
        total = changes = 0;
        for (bool bounces : {false, true})
            transfers[bounces] = regular[bounces] = 0;
    }

    uint64_t total = 0, changes = 0, transfers[2] = {};
    uint64_t regular[2] = {}; // of those, outside of trials

  private:
    path_choice_rig *choice_;
    bool bounced_ = false;
};

TEST(PathChoice, TheFirstOneStaysUntilBothAreMeasured)
{
    for (bool bounces : {false, true}) {
        Program p(bounces);
        p.run(20, always(10 * kUs), always(10 * kUs));
        EXPECT_EQ(p.bounces(), bounces);
        EXPECT_FALSE(p.is_measured());
        EXPECT_EQ(p.transfers[!bounces], 0u);
    }
}

TEST(PathChoice, TheFasterPathIsFound)
{
    for (uint32_t length : {8u, 16u, 64u}) {
        for (bool first : {false, true}) {
            for (bool better : {false, true}) {
                Program p(first, length);
                p.run(300 * length, always(better ? 20 * kUs : 10 * kUs),
                      always(better ? 10 * kUs : 20 * kUs));
                EXPECT_EQ(p.bounces(), better) << length << first;
                EXPECT_TRUE(p.is_measured());
            }
        }
    }
}

TEST(PathChoice, ADifferenceOfTenPercentIsFoundInNoise)
{
    std::mt19937 random(16);
    std::uniform_real_distribution<double> noise(0.7, 1.3);
    auto about = [&](double ns) { return [&, ns] { return uint64_t(ns * noise(random)); }; };
    Program p(false);

    p.run(20000, about(22e3), about(20e3));
    p.forget();
    p.run(100000, about(22e3), about(20e3));
    EXPECT_GT(p.transfers[true], 80000u);
}

// What a program loses beside one that knows the faster path, the first transfers included.
TEST(PathChoice, TrialsCostAFiftiethAtMost)
{
    for (uint32_t length : {8u, 64u}) {
        for (uint64_t slow : {11u, 15u, 20u, 40u, 100u, 1000u, 50000u}) {
            Program p(true, length);
            p.run(200000, always(slow * kUs), always(10 * kUs));
            uint64_t lost = p.total - 200000ull * 10 * kUs;
            // One transfer may end past the allowance, before its cost is known.
            EXPECT_LE(lost, p.total / 50 + slow * kUs) << length << " " << slow;
            EXPECT_TRUE(p.bounces());
            EXPECT_GE(p.transfers[false], 1u);
        }
    }
}

TEST(PathChoice, AChangeIsFollowed)
{
    Program p(true);

    p.run(10000, always(28 * kUs), always(10 * kUs));
    ASSERT_TRUE(p.bounces());
    p.run(10000, always(28 * kUs), always(100 * kUs)); // the page cache is cold
    EXPECT_FALSE(p.bounces());
    p.run(20000, always(28 * kUs), always(10 * kUs)); // and warm again
    EXPECT_TRUE(p.bounces());
    p.forget();
    p.run(100000, always(5 * kUs), always(10 * kUs));
    EXPECT_FALSE(p.bounces());
    EXPECT_GT(p.transfers[false], 90000u);
}

TEST(PathChoice, APathThatWasVerySlowIsTriedAgain)
{
    Program p(false);

    p.run(50000, always(28 * kUs), always(5 * kMs));
    ASSERT_FALSE(p.bounces());
    p.run(150000, always(28 * kUs), always(10 * kUs));
    EXPECT_TRUE(p.bounces());
}

// By an estimate alone it would be a hundred times slower for long.
TEST(PathChoice, APathThatWasLeftBecauseItWasSlowIsTriedAgain)
{
    Program p(true);

    p.run(20000, always(10 * kUs), always(kMs));
    ASSERT_FALSE(p.bounces());
    p.run(40000, always(10 * kUs), always(5 * kUs));
    EXPECT_TRUE(p.bounces());
}

TEST(PathChoice, OneDisturbanceChangesNothing)
{
    for (uint64_t ns : {300 * kUs, 4 * kMs}) {
        for (unsigned at = 0; at < 6000; at += 37) {
            Program p(true);
            unsigned n = 0;
            p.run(20000, always(12 * kUs), [&] { return n++ == at ? ns : 10 * kUs; });
            EXPECT_EQ(p.regular[false], 0u) << at;
            EXPECT_TRUE(p.is_measured());
        }
    }
}

// Of the means of phases with rare and long disturbances the smaller tells the difference.
TEST(PathChoice, RareDisturbancesOfBothPathsDoNotHideTheDifference)
{
    std::mt19937 random(5);
    auto disturbed = [&](uint64_t ns) {
        return [&random, ns] { return ns + (random() % 100 ? 0 : random() % (2 * kMs)); };
    };
    for (uint32_t length : {8u, 64u}) {
        uint64_t regular[2] = {};
        for (int i = 0; i < 10; i++) {
            Program p(i % 2, length);
            p.run(20000, disturbed(13 * kUs), disturbed(10 * kUs));
            p.forget();
            p.run(100000, disturbed(13 * kUs), disturbed(10 * kUs));
            for (bool bounces : {false, true})
                regular[bounces] += p.regular[bounces];
        }
        EXPECT_GT(regular[true], 8 * regular[false]) << length;
    }
}

// The first trial shows one path as very slow: another one comes in reasonable time.
TEST(PathChoice, ADisturbedTrialIsRepeated)
{
    Program p(false, 8);
    unsigned n = 0;

    p.run(20000, always(20 * kUs), [&] { return n++ == 3 ? 4 * kMs : 10 * kUs; });
    EXPECT_TRUE(p.bounces());
}

// As where a kernel has to start again.
TEST(PathChoice, WhatATrialCostsTheNextTransfersIsItsCost)
{
    Program p(true);
    bool stopped = false;
    auto gpu = [&] {
        stopped = true;
        return 10 * kUs;
    };
    auto bounce = [&] {
        uint64_t ns = stopped ? 2 * kMs : 10 * kUs;
        stopped = false;
        return ns;
    };

    p.run(200000, gpu, bounce);
    EXPECT_GT(p.transfers[false], 64u);
    EXPECT_LE(p.total - 200000ull * 10 * kUs, p.total / 50 + 2 * kMs);
}

// The kernel reads ahead: one read in 32 waits for it, and so do the first ones after a change.
TEST(PathChoice, WhatTheKernelReadsAheadCountsAsAWhole)
{
    for (uint64_t wait : {300u, 1500u}) {
        Program p(false);
        unsigned row = 0;
        auto ahead = [&] { return row++ < 4 || row % 32 == 0 ? wait * kUs : 5 * kUs; };
        auto gpu = [&] {
            row = 0;
            return 28 * kUs;
        };
        p.run(100000, gpu, ahead);
        EXPECT_EQ(p.bounces(), wait == 300) << wait; // 14 us, or 52
    }
}

// As where kernels have left the GPU meanwhile.
TEST(PathChoice, APathThatStartsSlowlyEachTimeIsFoundToo)
{
    for (uint32_t length : {8u, 32u, 64u}) {
        for (uint64_t start : {200u, 400u, 1000u}) {
            Program p(true, length);
            bool stopped = true;
            auto gpu = [&] {
                uint64_t ns = stopped ? start * kUs : 34 * kUs;
                stopped = false;
                return ns;
            };
            auto bounce = [&] {
                stopped = true;
                return 44 * kUs;
            };
            p.run(30000, gpu, bounce);
            EXPECT_FALSE(p.bounces()) << length << " " << start;
        }
    }
}

// The pipeline pins its staging for the first transfer.
TEST(PathChoice, AnExpensiveStartIsNoMeasurement)
{
    for (uint32_t length : {8u, 64u}) {
        Program p(false, length);
        bool started = false;
        auto bounce = [&] {
            uint64_t ns = started ? 10 * kUs : 20 * kMs;
            started = true;
            return ns;
        };
        p.run(120000, always(28 * kUs), bounce);
        EXPECT_TRUE(p.bounces()) << length;
    }
}

TEST(PathChoice, PathsThatAreAlikeDoNotChangeOften)
{
    for (uint32_t length : {8u, 64u}) {
        Program p(true, length);
        p.run(100000, always(10 * kUs), always(10 * kUs));
        EXPECT_LT(p.transfers[false], 10000u);
        EXPECT_LT(p.changes, 2 * 100000u / (10 * length));
        p.run(100000, always(9900), always(10 * kUs));
        EXPECT_EQ(p.regular[false], 0u);
    }
}

TEST(PathChoice, AStoppedProcessDoesNotEndTrials)
{
    Program p(true);
    bool stopped = false;
    auto gpu = [&] {
        uint64_t ns = stopped ? 5 * kUs : 3600 * 1000 * kMs;
        stopped = true;
        return ns;
    };

    p.run(1000000, gpu, always(10 * kUs));
    EXPECT_FALSE(p.bounces());
}

// Those that a trial began, and that end after it.
TEST(PathChoice, LateTransfersDoNotCountInTheNextPhase)
{
    path_choice_rig *c = path_choice_rig_new(true, 8);
    uint32_t phase;

    while (phase = path_choice_rig_ask(c), !path_choice_rig_is_trial(phase))
        path_choice_rig_add(c, phase, 10 * kUs);
    EXPECT_FALSE(path_choice_rig_bounces(phase));
    while (path_choice_rig_ask(c) == phase)
        path_choice_rig_add(c, phase, 11 * kUs);
    uint32_t next = path_choice_rig_ask(c);
    EXPECT_FALSE(path_choice_rig_is_trial(next));
    EXPECT_TRUE(path_choice_rig_bounces(next));
    for (unsigned i = 0; i < 100; i++)
        path_choice_rig_add(c, phase, kUs);
    EXPECT_EQ(path_choice_rig_ask(c), next);
    for (unsigned i = 0; i < 10; i++) // but they cost
        path_choice_rig_add(c, phase, kMs);
    for (unsigned i = 0; i < 30000; i++)
        path_choice_rig_add(c, next, 10 * kUs);
    EXPECT_EQ(path_choice_rig_ask(c), next);
    path_choice_rig_free(c);
}

TEST(PathChoice, ThreadsMeasureTogether)
{
    for (bool better : {false, true}) {
        path_choice_rig *c = path_choice_rig_new(!better, kLength);
        auto work = [&] {
            for (unsigned i = 0; i < 20000; i++) {
                uint32_t phase = path_choice_rig_ask(c);
                bool is_better = path_choice_rig_bounces(phase) == better;
                path_choice_rig_add(c, phase, is_better ? 10 * kUs : 15 * kUs);
            }
        };
        std::vector<std::thread> threads;
        for (int i = 0; i < 2; i++)
            threads.emplace_back(work);
        for (auto &t : threads)
            t.join();
        uint32_t phase = path_choice_rig_ask(c);
        EXPECT_EQ(path_choice_rig_bounces(phase) != path_choice_rig_is_trial(phase), better);
        path_choice_rig_free(c);
    }
}

} // namespace
