/* SPDX-License-Identifier: BSD-2-Clause */
// Sets of words of checks in flight, as the host gives them to kernels, in this process's memory.
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
    void SetUp() override { ASSERT_NE(rig, nullptr); }
    void TearDown() override { dealings_rig_close(rig); }

    dealings_rig *rig = dealings_rig_open();
};

TEST_F(Dealings, EachCheckInFlightHasItsOwn)
{
    std::set<gd_check *> sets;

    for (unsigned i = 0; i < DEALING_RIG_SETS; i++) {
        gd_check *set = dealings_rig_take(rig);
        ASSERT_NE(set, nullptr);
        EXPECT_EQ(set->refused | set->left | set->runs, 0u);
        sets.insert(set);
    }
    EXPECT_EQ(sets.size(), DEALING_RIG_SETS);
    EXPECT_EQ(dealings_rig_take(rig), nullptr) << "all checks are in flight";
}

TEST_F(Dealings, SetOfACheckThatHasEndedIsTakenAgain)
{
    gd_check *sets[DEALING_RIG_SETS];

    for (gd_check *&set : sets)
        set = dealings_rig_take(rig);
    sets[5]->runs++; // as the last group of a check does
    EXPECT_EQ(dealings_rig_take(rig), sets[5]);
    EXPECT_EQ(dealings_rig_take(rig), nullptr);
    sets[5]->runs++;
    EXPECT_EQ(dealings_rig_take(rig), sets[5]);
}

TEST_F(Dealings, SetOfACheckThatWasNotLaunchedIsGivenBack)
{
    gd_check *set = nullptr;

    for (unsigned i = 0; i < DEALING_RIG_SETS; i++)
        set = dealings_rig_take(rig);
    dealings_rig_give_back(rig, set);
    EXPECT_EQ(dealings_rig_take(rig), set);
    dealings_rig_give_back(rig, nullptr);
    EXPECT_EQ(dealings_rig_take(rig), nullptr);
}

} // namespace
