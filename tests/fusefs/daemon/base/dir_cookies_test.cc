/* SPDX-License-Identifier: BSD-2-Clause */
// Tests positions of 31 bits in listings that stop anywhere, while names are
// added and removed.
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/base/dir_cookies.h"

namespace
{

using Keys = std::set<uint64_t>;

class Cookies : public ::testing::Test
{
  protected:
    ~Cookies() override { dir_cookies_free(c_); }
    // Makes a reply of at most `most` entries after a position, like the
    // daemon.
    std::vector<dir_cookie> reply(const Keys &dir, uint64_t after, size_t most)
    {
        std::vector<dir_cookie> entries;
        uint64_t key = dir_cookies_begin(c_, after);
        for (auto k = dir.upper_bound(key); k != dir.end() && entries.size() < most; k++) {
            uint64_t cookie = dir_cookies_next(c_, *k);
            if (!cookie)
                break;
            dir_cookies_add(c_, *k, cookie);
            entries.push_back({cookie, *k});
        }
        dir_cookies_end(c_);
        return entries;
    }
    // Returns keys of "." and "..", and of names with equal upper bits, also at
    // both ends of the range.
    Keys colliding(size_t names, uint64_t groups)
    {
        Keys keys = {1, 2};
        const uint64_t ends[] = {0, 1, 2, 3, (UINT64_C(1) << 31) - 1, (UINT64_C(1) << 31) - 2};
        while (keys.size() < names + 2) {
            uint64_t upper = random_() % groups, lower = (random_() & 0xffffff) << 8;
            upper = random_() % 8 ? upper * (UINT64_C(1) << 31) / groups + upper % 3
                                  : ends[random_() % 6];
            keys.insert(upper << 32 | (lower ? lower : 256));
        }
        return keys;
    }

    std::mt19937_64 random_{31};
    dir_cookies *c_ = dir_cookies_new();
};

TEST_F(Cookies, AreSmallAndIncrease)
{
    Keys dir = colliding(3000, 1000);
    uint64_t last = 0;
    for (uint64_t at = 0;;) {
        auto entries = reply(dir, at, 100);
        if (entries.empty())
            break;
        for (auto &e : entries) {
            EXPECT_GT(e.cookie, last);
            EXPECT_LT(e.cookie, UINT64_C(1) << 31);
            last = e.cookie;
        }
        at = last;
    }
    EXPECT_EQ(reply(dir, 0, 2)[1].cookie, 2u);
}

// The kernel takes some entries of a reply, and continues after the last of
// these.
TEST_F(Cookies, EveryNameThatStaysIsListedOnce)
{
    for (int round = 0; round < 300; round++) {
        Keys all = colliding(200 + random_() % 800, 1 + random_() % 400), dir = all, gone;
        std::map<uint64_t, unsigned> seen;
        for (uint64_t at = 0;;) {
            auto entries = reply(dir, at, 1 + random_() % 200);
            if (entries.empty())
                break;
            size_t taken = 1 + random_() % entries.size();
            for (size_t i = 0; i < taken; i++)
                seen[entries[i].key]++;
            at = entries[taken - 1].cookie;
            for (int i = 0; i < 3; i++) { // often a name that was just listed, as rm -r does
                uint64_t key = entries[random_() % entries.size()].key;
                if (key > 2 && dir.erase(key))
                    gone.insert(key);
                dir.insert(key + 1);
            }
        }
        for (uint64_t key : all)
            ASSERT_TRUE(seen[key] == 1 || (seen[key] == 0 && gone.count(key)))
                << std::hex << key << ": " << seen[key];
    }
}

TEST_F(Cookies, SeekdirReturnsToAPosition)
{
    Keys dir = colliding(600, 100000);
    std::vector<dir_cookie> order;
    for (uint64_t at = 0;;) {
        auto entries = reply(dir, at, 70);
        if (entries.empty())
            break;
        order.insert(order.end(), entries.begin(), entries.end());
        at = order.back().cookie;
    }
    ASSERT_EQ(order.size(), dir.size());
    unsigned wrong = 0;
    for (int i = 0; i < 2000; i++) {
        size_t k = random_() % (order.size() - 1);
        auto entries = reply(dir, order[k].cookie, 1);
        wrong += entries.empty() || entries[0].key != order[k + 1].key ||
                 entries[0].cookie != order[k + 1].cookie;
    }
    EXPECT_EQ(wrong, 0u);
}

TEST_F(Cookies, AnyNumberIsAPosition)
{
    Keys dir = colliding(100, 10);
    for (uint64_t at : {UINT64_C(0), UINT64_C(5), UINT64_C(1) << 31, ~UINT64_C(0)})
        reply(dir, at, 50);
    EXPECT_EQ(reply(dir, INT64_MAX, 50).size(), 0u);
}

// Names that a user has chosen for equal positions only end the reply.
TEST_F(Cookies, TooManyOfOnePositionEndTheReply)
{
    Keys dir = {1, 2};
    for (uint64_t i = 1; i <= 5000; i++)
        dir.insert(UINT64_C(1000) << 32 | i << 8);
    size_t seen = 0;
    for (uint64_t at = 0; seen < 6000;) {
        auto entries = reply(dir, at, 10000);
        if (entries.empty())
            break;
        EXPECT_LT(entries.size(), DIR_COOKIES_MAX + 3);
        seen += entries.size();
        at = entries.back().cookie;
    }
    EXPECT_EQ(seen, dir.size());
}

} // namespace
