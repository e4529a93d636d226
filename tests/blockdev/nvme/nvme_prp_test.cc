/* SPDX-License-Identifier: BSD-2-Clause */
/* PRP entries, walked the way a controller does that follows no chain. */
#include <gtest/gtest.h>

#include <vector>

#include "blockdev/nvme/nvme_prp.h"

namespace
{

constexpr uint64_t LIST = 0x40000000;

/* The pages a controller would use for len bytes, or none when the list leaves its page. */
std::vector<uint64_t> walk(const nvme_sqe &sqe, size_t len, const std::vector<uint64_t> &list)
{
    std::vector<uint64_t> pages = {sqe.prp1};
    size_t first = 4096 - sqe.prp1 % 4096;
    size_t rest = len > first ? (len - first + 4095) / 4096 : 0;

    if (rest == 1)
        pages.push_back(sqe.prp2);
    if (rest < 2)
        return pages;
    if (sqe.prp2 != LIST || rest > list.size())
        return {};
    pages.insert(pages.end(), list.begin(), list.begin() + (ptrdiff_t)rest);
    return pages;
}

void check(uint64_t iova, size_t len)
{
    std::vector<uint64_t> list(512);
    nvme_sqe sqe{};

    nvme_prp_fill(&sqe, iova, len, list.data(), LIST);
    std::vector<uint64_t> want = {iova};
    for (uint64_t page = (iova & ~4095ull) + 4096; page < iova + len; page += 4096)
        want.push_back(page);
    EXPECT_EQ(walk(sqe, len, list), want) << std::hex << iova << " " << len;
}

TEST(Prp, OnePageNeedsNoSecondEntry)
{
    nvme_sqe sqe{};
    nvme_prp_fill(&sqe, 0x10000, 4096, nullptr, LIST);
    EXPECT_EQ(sqe.prp1, 0x10000u);
    EXPECT_EQ(sqe.prp2, 0u);
}

TEST(Prp, TwoPagesNeedNoList)
{
    nvme_sqe sqe{};
    nvme_prp_fill(&sqe, 0x10200, 4096, nullptr, LIST);
    EXPECT_EQ(sqe.prp2, 0x11000u);
}

TEST(Prp, ListsAreWalkedToTheSamePages)
{
    for (size_t pages : {1, 2, 3, 4, 31, 510, 511, 512})
        for (uint64_t offset : {0, 4, 512, 2048, 4092})
            check(0x100000 + offset, pages * 4096);
}

TEST(Prp, LengthsNeedNotBeWholePages)
{
    for (size_t len : {1, 512, 4095, 4097, 8191, 8193, 2097151, 2097152})
        check(0x100000, len);
}

/* All 512 entries are data pages, the last one too. */
TEST(Prp, TheLongestTransferFillsOnePageAtAnyOffset)
{
    static_assert(NVME_PRP_MAX_LEN == 2u << 20, "512 pages");
    for (uint64_t offset : {4, 512, 4092}) {
        std::vector<uint64_t> list(512);
        nvme_sqe sqe{};

        nvme_prp_fill(&sqe, 0x100000 + offset, NVME_PRP_MAX_LEN, list.data(), LIST);
        EXPECT_EQ(list[511], 0x100000u + 512 * 4096) << offset;
    }
}

} // namespace
