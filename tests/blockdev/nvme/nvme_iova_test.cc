/* SPDX-License-Identifier: BSD-2-Clause */
/* Addresses for a controller: always inside the windows, apart from each other, never page 0. */
#include <gtest/gtest.h>

#include <cerrno>
#include <ctime>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "blockdev/nvme/nvme_iova.h"

namespace
{

constexpr uint64_t PAGE = 4096;
constexpr uint64_t MIB = 1 << 20;

class Iova : public ::testing::Test
{
  protected:
    void SetUp() override { nvme_iova_init(&v); }

    void TearDown() override { nvme_iova_destroy(&v); }

    /* 0 when there is no room. */
    uint64_t take(size_t len, size_t align = PAGE, void *owner = nullptr)
    {
        uint64_t iova = 0;
        int rc = nvme_iova_take(&v, len, align, owner, &iova);
        EXPECT_EQ(rc, iova ? 0 : -ENOSPC);
        return iova;
    }

    nvme_iova v;
};

TEST_F(Iova, PageZeroIsNeverAllocated)
{
    EXPECT_EQ(nvme_iova_allow(&v, 0, PAGE - 1), -EINVAL);
    EXPECT_EQ(take(PAGE), 0u) << "there is no window";
    ASSERT_EQ(nvme_iova_allow(&v, 0, 2 * PAGE - 1), 0);
    EXPECT_EQ(take(PAGE), PAGE);
    EXPECT_EQ(take(PAGE), 0u);
}

TEST_F(Iova, WindowsAreRoundedInwards)
{
    ASSERT_EQ(nvme_iova_allow(&v, 5 * PAGE + 1, 8 * PAGE - 2), 0);
    EXPECT_EQ(take(2 * PAGE), 0u) << "the last page of the window is not whole";
    EXPECT_EQ(take(PAGE), 6 * PAGE);
}

TEST_F(Iova, WindowsMustAscendAndHoldAPage)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    EXPECT_EQ(nvme_iova_allow(&v, 2 * MIB - PAGE, 3 * MIB - 1), -EINVAL) << "overlaps";
    EXPECT_EQ(nvme_iova_allow(&v, PAGE, MIB - 1), -EINVAL) << "lies below";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB, 3 * MIB), -EINVAL) << "ends before it starts";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB + 1, 4 * MIB + 2 * PAGE - 2), -EINVAL) << "no whole page";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB, 5 * MIB - 1), 0);
}

TEST_F(Iova, TheEndOfTheAddressSpaceDoesNotOverflow)
{
    ASSERT_EQ(nvme_iova_allow(&v, UINT64_MAX - MIB + 1, UINT64_MAX), 0);
    EXPECT_EQ(take(MIB), 0u);
    uint64_t iova = take(MIB - 2 * PAGE);
    EXPECT_EQ(iova, UINT64_MAX - MIB + 1);
    EXPECT_EQ(take(PAGE), 0u);
    EXPECT_EQ(nvme_iova_allow(&v, UINT64_MAX, UINT64_MAX), -EINVAL);
}

TEST_F(Iova, TheWholeAddressSpaceCanBeOneWindow)
{
    ASSERT_EQ(nvme_iova_allow(&v, 0, UINT64_MAX), 0);
    EXPECT_EQ(take(SIZE_MAX & ~(PAGE - 1)), 0u);
    EXPECT_EQ(take(size_t(1) << 62), PAGE);
}

TEST_F(Iova, APageStaysFreeBetweenRanges)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    uint64_t a = take(PAGE), b = take(PAGE), c = take(PAGE);
    EXPECT_EQ(b, a + 2 * PAGE);
    EXPECT_EQ(c, b + 2 * PAGE);
    ASSERT_EQ(nvme_iova_give(&v, b), 0);
    EXPECT_EQ(take(2 * PAGE), c + 2 * PAGE) << "would touch its neighbour";
    EXPECT_EQ(take(PAGE), b);
}

TEST_F(Iova, APageStaysFreeBetweenRangesOfTouchingWindows)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, MIB + PAGE - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, MIB + PAGE, MIB + 4 * PAGE - 1), 0);
    EXPECT_EQ(take(PAGE), MIB);
    EXPECT_EQ(take(PAGE), MIB + 2 * PAGE);
}

TEST_F(Iova, RangesDoNotCrossWindows)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, MIB + 2 * PAGE - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, 2 * MIB, 2 * MIB + 4 * PAGE - 1), 0);
    EXPECT_EQ(take(3 * PAGE), 2 * MIB);
    EXPECT_EQ(take(2 * PAGE), MIB);
}

TEST_F(Iova, RangesAreAligned)
{
    ASSERT_EQ(nvme_iova_allow(&v, PAGE, 8 * MIB - 1), 0);
    EXPECT_EQ(take(PAGE), PAGE);
    EXPECT_EQ(take(2 * MIB, 2 * MIB), 2 * MIB);
    EXPECT_EQ(take(PAGE, size_t(1) << 63), 0u);
}

TEST_F(Iova, OwnersAreFoundByTheirStartOnly)
{
    int a, b;
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    uint64_t x = take(2 * PAGE, PAGE, &a), y = take(PAGE, PAGE, &b);
    ASSERT_NE(nvme_iova_find(&v, x), nullptr);
    EXPECT_EQ(nvme_iova_find(&v, x)->owner, &a);
    EXPECT_EQ(nvme_iova_find(&v, x)->len, 2 * PAGE);
    EXPECT_EQ(nvme_iova_find(&v, y)->owner, &b);
    EXPECT_EQ(nvme_iova_find(&v, x + PAGE), nullptr);
    EXPECT_EQ(nvme_iova_give(&v, x + PAGE), -ENOENT);
    EXPECT_EQ(nvme_iova_give(&v, x), 0);
    EXPECT_EQ(nvme_iova_give(&v, x), -ENOENT);
    EXPECT_EQ(nvme_iova_find(&v, x), nullptr);
}

TEST_F(Iova, AFullTableIsFilledAndEmptiedWithoutMovingIt)
{
    constexpr size_t N = 65535; /* of VFIO's type 1 */
    std::vector<uint64_t> taken;
    ASSERT_EQ(nvme_iova_allow(&v, PAGE, UINT32_MAX), 0);
    auto start = std::clock();
    for (size_t i = 0; i < N; i++)
        taken.push_back(take(PAGE));
    for (uint64_t iova : taken)
        ASSERT_EQ(nvme_iova_give(&v, iova), 0);
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 2) << "a search for each takes seconds";
    EXPECT_EQ(v.n_used, 0u);
    EXPECT_EQ(take(PAGE), taken[0]);
}

/* A model of the taken ranges: every range is in a window, and a page from all other ranges. */
class TakenModel
{
  public:
    void add(uint64_t start, uint64_t len)
    {
        auto above = at.lower_bound(start);
        if (above != at.end()) {
            EXPECT_LE(start + len + PAGE, above->first);
        }
        if (above != at.begin()) {
            auto below = std::prev(above);
            EXPECT_GE(start, below->first + below->second + PAGE);
        }
        bool low = start >= 16 * PAGE && start + len <= MIB;
        bool high = start >= 3 * MIB && start + len <= 4 * MIB;
        EXPECT_TRUE(low || high) << std::hex << start << " + " << len;
        at[start] = len;
    }

    std::map<uint64_t, uint64_t> at;
};

TEST_F(Iova, RandomAllocationsDoNotOverlap)
{
    std::mt19937 rng(4);
    TakenModel taken;
    unsigned refused = 0;
    ASSERT_EQ(nvme_iova_allow(&v, 16 * PAGE, MIB - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, 3 * MIB, 4 * MIB - 1), 0);
    for (int i = 0; i < 20000; i++) {
        if (rng() % 2) {
            size_t len = (1 + rng() % 24) * PAGE, align = PAGE << rng() % 4;
            uint64_t iova = take(len, align);
            refused += iova == 0;
            EXPECT_EQ(iova % align, 0u);
            if (iova)
                taken.add(iova, len);
        } else if (!taken.at.empty()) {
            auto it = std::next(taken.at.begin(), rng() % taken.at.size());
            EXPECT_EQ(nvme_iova_give(&v, it->first), 0);
            taken.at.erase(it);
        }
        ASSERT_FALSE(HasFailure()) << "step " << i;
    }
    EXPECT_GT(refused, 0u);
    EXPECT_EQ(v.n_used, taken.at.size());
}

} // namespace
