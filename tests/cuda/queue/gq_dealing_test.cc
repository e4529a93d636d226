/* SPDX-License-Identifier: BSD-2-Clause */
// Lists that groups of different speed deal among themselves.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "tests/cuda/queue/gq_dealing_rig.h"
}

namespace
{

constexpr uint32_t kGroups = DEALING_RIG_GROUPS;

class Dealing : public dealing_rig
{
  public:
    Dealing(uint32_t n, uint32_t shift, bool by_counter) : dealing_rig(), reads(n)
    {
        run.n_cmds = n;
        run.n_queues = kGroups;
        run.group_shift = (uint16_t)shift;
        run.dealing = by_counter ? &dealing : nullptr;
    }

    // The group's next portion; its number of reads, 0 when there is none.
    uint32_t take(uint32_t rank)
    {
        uint32_t first, end;

        if (!dealing_rig_take(this, rank, &first, &end))
            return 0;
        for (uint32_t i = first; i < end; i++)
            reads.at(i)++;
        return end - first;
    }

    // Group 0 needs `slower` times the time of the other groups for a read. When each group ends.
    std::vector<uint64_t> run_all(uint64_t slower)
    {
        std::vector<uint64_t> time(kGroups), ended(kGroups);
        size_t running = kGroups;

        while (running) {
            size_t next = kGroups;
            for (size_t g = 0; g < kGroups; g++) {
                if (!ended[g] && (next == kGroups || time[g] < time[next]))
                    next = g;
            }
            uint32_t n = take(static_cast<uint32_t>(next));
            time[next] += n * (next ? 1 : slower);
            ended[next] = n ? 0 : std::max<uint64_t>(time[next], 1);
            running -= n == 0;
        }
        return ended;
    }

    std::vector<uint32_t> reads; // times that each was taken
};

using Lists = testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool>>;

TEST_P(Lists, EachReadIsTakenOnce)
{
    auto [n, shift, by_counter] = GetParam();
    Dealing d(n, shift, by_counter);

    d.run_all(3);
    EXPECT_EQ(std::count(d.reads.begin(), d.reads.end(), 1u), n);
}

INSTANTIATE_TEST_SUITE_P(Dealing, Lists,
                         testing::Combine(testing::Values(1u, 7u, 8u, 9u, 1000u, 100001u),
                                          testing::Values(0u, 3u, 5u, 7u), testing::Bool()));

TEST(Dealing, SlowGroupGetsFewerReadsAndAllEndTogether)
{
    Dealing counter(100000, 7, true), in_turn(100000, 7, false);
    auto with = counter.run_all(4), without = in_turn.run_all(4);
    auto spread = [](const std::vector<uint64_t> &t) {
        auto [least, most] = std::minmax_element(t.begin(), t.end());
        return static_cast<double>(*most - *least) / static_cast<double>(*most);
    };

    EXPECT_LT(spread(with), 0.01);
    EXPECT_GT(spread(without), 0.5);
}

TEST(Dealing, GroupsEndTogetherByPortionsOfOneRead)
{
    auto spread = [](uint16_t least) {
        Dealing d(512, 5, true);
        d.run.least_portion = least;
        std::vector<uint64_t> ended = d.run_all(4);
        auto [first, last] = std::minmax_element(ended.begin(), ended.end());
        EXPECT_EQ(std::count(d.reads.begin(), d.reads.end(), 1u), 512);
        return *last - *first;
    };

    EXPECT_LE(spread(1), 4u) << "one read of the slow group";
    EXPECT_GT(spread(0), 8u);
}

TEST(Dealing, LastGroupLearnsWhatNoneHasTakenAndTheWordsAreZero)
{
    Dealing d(10000, 5, true);
    uint32_t rest = 0;

    for (uint32_t g = 0; g < kGroups; g++) {
        d.take(g);
        EXPECT_EQ(dealing_rig_leave(&d, g, &rest), g == kGroups - 1) << g;
    }
    EXPECT_EQ(rest, 32 * kGroups);
    EXPECT_EQ(d.dealing.next, 0u);
    EXPECT_EQ(d.dealing.left, 0u);
}

TEST(Dealing, GroupThatBeginsLateFindsNothing)
{
    Dealing d(1000, 5, true);
    uint32_t rest = 0;

    while (d.take(0))
        ;
    for (uint32_t g = 1; g < kGroups; g++)
        EXPECT_EQ(d.take(g), 0u);
    for (uint32_t g = 0; g < kGroups; g++)
        dealing_rig_leave(&d, g, &rest);
    EXPECT_GE(rest, 1000u);
}

} // namespace
