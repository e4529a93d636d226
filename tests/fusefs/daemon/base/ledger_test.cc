// SPDX-License-Identifier: BSD-2-Clause
// Shares of users in a limited number of things.
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "fusefs/daemon/base/ledger.h"

namespace
{

ledger of(unsigned total, unsigned for_root)
{
    ledger l = {};
    l.total = total;
    l.for_root = for_root;
    return l;
}

TEST(Ledger, AUserTakesHalfOfWhatTheOthersLeave)
{
    ledger l = of(64, 8);
    EXPECT_EQ(ledger_left(&l, 1), 28u);
    EXPECT_FALSE(ledger_take(&l, 1, 29));
    EXPECT_TRUE(ledger_take(&l, 1, 28));
    EXPECT_EQ(ledger_left(&l, 1), 0u);
    EXPECT_EQ(ledger_left(&l, 2), 14u);
    EXPECT_TRUE(ledger_take(&l, 2, 14));
    EXPECT_EQ(ledger_left(&l, 3), 7u);
    ledger_give(&l, 1, 28);
    EXPECT_EQ(ledger_left(&l, 2), 14u) << "half of 56";
    EXPECT_EQ(ledger_left(&l, 3), 21u);
}

TEST(Ledger, RootHasItsPartAndWhatIsFree)
{
    ledger l = of(16, 2);
    for (uid_t uid = 1; ledger_take(&l, uid, 1); uid++)
        ;
    EXPECT_EQ(l.of_users, 14u);
    EXPECT_EQ(ledger_left(&l, 0), 2u);
    ledger_give(&l, 3, 1);
    EXPECT_TRUE(ledger_take(&l, 0, 3));
    EXPECT_EQ(ledger_left(&l, 3), 0u);
    ledger_give(&l, 0, 3);
    EXPECT_EQ(ledger_left(&l, 3), 1u) << "the last one is whole";
}

TEST(Ledger, ASingleThingIsAnybodys)
{
    ledger l = of(1, 0);
    EXPECT_TRUE(ledger_take(&l, 5, 1));
    EXPECT_EQ(ledger_left(&l, 6), 0u);
    EXPECT_EQ(ledger_left(&l, 0), 0u);
    ledger_give(&l, 5, 1);
    EXPECT_TRUE(ledger_take(&l, 6, 1));
}

TEST(Ledger, ManyUsersAreCounted)
{
    ledger l = of(100000, 0);
    for (uid_t uid = 1; uid <= LEDGER_USERS; uid++)
        ASSERT_TRUE(ledger_take(&l, uid, 1));
    EXPECT_FALSE(ledger_take(&l, LEDGER_USERS + 1, 1));
    EXPECT_TRUE(ledger_take(&l, 7, 1));
    EXPECT_TRUE(ledger_take(&l, 0, 1)) << "root has no entry";
    ledger_give(&l, 9, 1);
    EXPECT_TRUE(ledger_take(&l, LEDGER_USERS + 1, 1));
}

// Against a model with a map.
TEST(Ledger, HoldsDuringRandomOperations)
{
    std::mt19937 random(20);
    ledger l = of(200, 20);
    std::map<uid_t, unsigned> held;
    for (int i = 0; i < 20000; i++) {
        uid_t uid = random() % 12;
        unsigned n = random() % 30, all = 0;
        if (random() % 2) {
            unsigned left = ledger_left(&l, uid);
            EXPECT_EQ(ledger_take(&l, uid, n), n <= left);
            held[uid] += n <= left ? n : 0;
        } else {
            n = std::min(n, held[uid]);
            ledger_give(&l, uid, n);
            held[uid] -= n;
        }
        for (auto &[user, count] : held)
            all += count;
        ASSERT_EQ(l.of_root + l.of_users, all);
        ASSERT_EQ(l.of_root, held[0]);
        ASSERT_LE(all, 200u);
    }
}

} // namespace
