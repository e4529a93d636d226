/* SPDX-License-Identifier: BSD-2-Clause */
// Sets of words of checks in flight, as the host gives them to kernels, in this process's memory.
#include <set>

#include <gtest/gtest.h>

#include "tests/client/lib/internal.h"

namespace
{

class Dealings : public testing::Test
{
  protected:
    void SetUp() override { ASSERT_EQ(direct_slots_open(&direct_), 0); }
    void TearDown() override { direct_slots_close(&direct_); }

    gd_check *take() { return direct_slots_take(&direct_); }
    void give_back(const gd_check *set) { direct_slots_give_back(&direct_, set); }

  private:
    gpunvme_direct direct_ = {}; // with a lock that is initialised by zeros
};

TEST_F(Dealings, EachCheckInFlightHasItsOwn)
{
    std::set<gd_check *> sets;

    for (unsigned i = 0; i < DIRECT_SLOTS; i++) {
        gd_check *set = take();
        ASSERT_NE(set, nullptr);
        EXPECT_EQ(set->refused | set->left | set->runs, 0u);
        sets.insert(set);
    }
    EXPECT_EQ(sets.size(), DIRECT_SLOTS);
    EXPECT_EQ(take(), nullptr) << "all checks are in flight";
}

TEST_F(Dealings, SetOfACheckThatHasEndedIsTakenAgain)
{
    gd_check *sets[DIRECT_SLOTS];

    for (gd_check *&set : sets)
        set = take();
    sets[5]->runs++; // as the last group of a check does
    EXPECT_EQ(take(), sets[5]);
    EXPECT_EQ(take(), nullptr);
    sets[5]->runs++;
    EXPECT_EQ(take(), sets[5]);
}

TEST_F(Dealings, SetOfACheckThatWasNotLaunchedIsGivenBack)
{
    gd_check *set = nullptr;

    for (unsigned i = 0; i < DIRECT_SLOTS; i++)
        set = take();
    give_back(set);
    EXPECT_EQ(take(), set);
    give_back(nullptr);
    EXPECT_EQ(take(), nullptr);
}

} // namespace
