/* SPDX-License-Identifier: BSD-2-Clause */
// Sets of words of lists in flight, as the host gives them to kernels, in this process's memory.
#include <set>

#include <gtest/gtest.h>

extern "C" {
#include "tests/client/lib/direct_dealing_rig.h"
}

namespace
{

class Dealings : public testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_NE(rig, nullptr);
    }
    void TearDown() override
    {
        dealings_rig_close(rig);
    }

    dealings_rig *rig = dealings_rig_open();
};

TEST_F(Dealings, EachListInFlightHasItsOwn)
{
    std::set<gq_dealing *> sets;

    for (unsigned i = 0; i < DEALING_RIG_SETS; i++) {
        gq_dealing *set = dealings_rig_take(rig);
        ASSERT_NE(set, nullptr);
        EXPECT_EQ(set->next | set->left | set->runs, 0u);
        sets.insert(set);
    }
    EXPECT_EQ(sets.size(), DEALING_RIG_SETS);
    EXPECT_EQ(dealings_rig_take(rig), nullptr) << "all lists are in flight";
}

TEST_F(Dealings, SetOfAListThatHasEndedIsTakenAgain)
{
    gq_dealing *sets[DEALING_RIG_SETS];

    for (gq_dealing *&set : sets)
        set = dealings_rig_take(rig);
    sets[5]->runs++; // as the last group of a list does
    EXPECT_EQ(dealings_rig_take(rig), sets[5]);
    EXPECT_EQ(dealings_rig_take(rig), nullptr);
    sets[5]->runs++;
    EXPECT_EQ(dealings_rig_take(rig), sets[5]);
}

TEST_F(Dealings, SetOfAListThatWasNotLaunchedIsGivenBack)
{
    gq_dealing *set = nullptr;

    for (unsigned i = 0; i < DEALING_RIG_SETS; i++)
        set = dealings_rig_take(rig);
    dealings_rig_give_back(rig, set);
    EXPECT_EQ(dealings_rig_take(rig), set);
    dealings_rig_give_back(rig, nullptr);
    EXPECT_EQ(dealings_rig_take(rig), nullptr);
}

} // namespace
