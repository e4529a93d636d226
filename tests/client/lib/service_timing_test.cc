// SPDX-License-Identifier: BSD-2-Clause
// What the persistent kernel learns of the times at which words come, and what words wait then.
#include <algorithm>
#include <functional>
#include <memory>
#include <random>

#include <gtest/gtest.h>

extern "C" {
#include "tests/client/lib/service_timing_rig.h"
}

namespace
{

constexpr double kPoll = TIMING_RIG_POLL;
constexpr unsigned kWords = 4000;

class Timing : public ::testing::Test
{
  protected:
    // Of n words, in polls, that come as many polls after their events.
    double mean_wait(unsigned n, const std::function<double()> &late)
    {
        double sum = 0;
        for (unsigned i = 0; i < n; i++)
            sum += static_cast<double>(
                timing_rig_await(rig_.get(), static_cast<uint64_t>(std::max(0.0, late()) * kPoll)));
        return sum / n / kPoll;
    }
    double about(double late)
    {
        return std::normal_distribution<double>(late, 0.05)(random_);
    }
    double between(double least, double most)
    {
        return std::uniform_real_distribution<double>(least, most)(random_);
    }
    std::mt19937 random_{1};
    std::unique_ptr<timing_rig, decltype(&timing_rig_free)> rig_{timing_rig_new(), timing_rig_free};
};

// Without a delay they wait for 0.1 to 0.9 of a poll.
TEST_F(Timing, WordsThatComeAsLateEachTimeWaitAFourthOfAPollAtMost)
{
    for (double late : {0.6, 0.9, 1.4, 1.6, 2.55, 2.7, 7.3, 20.6}) {
        rig_.reset(timing_rig_new());
        (void)mean_wait(kWords, [&] { return about(late); });
        EXPECT_LT(mean_wait(kWords, [&] { return about(late); }), 0.25) << late;
    }
}

TEST_F(Timing, AFewWordsAreEnough)
{
    (void)mean_wait(30, [&] { return about(2.6); });
    EXPECT_LT(mean_wait(30, [&] { return about(2.6); }), 0.3);
    (void)mean_wait(30, [&] { return about(4.1); });
    EXPECT_LT(mean_wait(30, [&] { return about(4.1); }), 0.3) << "later than before";
}

TEST_F(Timing, WordsThatComeAtRandomWaitAsLongAsWithoutADelay)
{
    const std::pair<double, double> spans[] = {{0.5, 2.5}, {0.5, 20.5}, {50, 70}, {3, 4}};
    for (auto [least, most] : spans) {
        rig_.reset(timing_rig_new());
        double mean =
            mean_wait(kWords, [&, least = least, most = most] { return between(least, most); });
        EXPECT_LT(mean, 0.55) << least << " to " << most;
    }
}

TEST_F(Timing, NoPollIsLeftOut)
{
    for (unsigned i = 0; i < kWords; i++) {
        (void)timing_rig_await(rig_.get(), static_cast<uint64_t>(between(0, 12) * kPoll));
        ASSERT_LE(timing_rig_delay(rig_.get()), TIMING_RIG_POLL);
    }
}

TEST_F(Timing, ARestBetweenWordsTeachesNothing)
{
    (void)mean_wait(kWords, [&] { return about(2.6); });
    for (unsigned i = 0; i < 200; i++)
        (void)timing_rig_await(rig_.get(), static_cast<uint64_t>(between(40, 90) * kPoll));
    EXPECT_LT(mean_wait(30, [&] { return about(2.6); }), 0.3);
}

TEST_F(Timing, WordsThatNoPollHasReturnedTeachNothing)
{
    (void)mean_wait(kWords, [&] { return about(2.6); });
    uint64_t delay = timing_rig_delay(rig_.get());
    for (unsigned i = 0; i < 2 * kWords; i++)
        timing_rig_find_otherwise(rig_.get());
    EXPECT_EQ(timing_rig_delay(rig_.get()), delay);
}

TEST_F(Timing, ReadersOfAQueueLearnFromOneAnother)
{
    timing_rig_hand_on(rig_.get());
    EXPECT_EQ(timing_rig_delay(rig_.get()), 0u) << "nothing is learned";
    auto late = [&] {
        timing_rig_hand_on(rig_.get());
        return about(2.6);
    };
    (void)mean_wait(30, late);
    EXPECT_LT(mean_wait(30, late), 0.3);
    (void)mean_wait(30, [&] { return about(31.9); });
    uint64_t delay = timing_rig_delay(rig_.get());
    timing_rig_hand_on(rig_.get());
    EXPECT_EQ(timing_rig_delay(rig_.get()), delay);
}

TEST_F(Timing, APollThatWasHeldUpDelaysNothing)
{
    timing_rig_hold_up(rig_.get(), 1000000000);
    (void)mean_wait(kWords, [&] { return about(2.6); });
    timing_rig_hold_up(rig_.get(), 1000000000);
    EXPECT_LE(timing_rig_delay(rig_.get()), TIMING_RIG_POLL);
    EXPECT_LT(mean_wait(30, [&] { return about(2.6); }), 0.3);
}

} // namespace
