/* PRP entries, walked the way a controller does. */
#include <gtest/gtest.h>

#include <vector>

#include "blockdev/nvme/nvme_prp.h"

namespace
{

constexpr uint64_t LIST = 0x40000000;

/* The pages a controller would use for len bytes, or none when the list breaks a rule. */
std::vector<uint64_t> walk(const nvme_sqe &sqe, size_t len, const std::vector<uint64_t> &list)
{
    std::vector<uint64_t> pages = {sqe.prp1};
    size_t first = 4096 - sqe.prp1 % 4096;
    size_t rest = len > first ? (len - first + 4095) / 4096 : 0;

    if (rest == 1)
        pages.push_back(sqe.prp2);
    for (uint64_t at = sqe.prp2; rest > 1 && pages.size() < rest + 1; at += 8) {
        size_t index = (at - LIST) / 8;
        if (at < LIST || index >= list.size())
            return {};
        bool last_of_page = at % 4096 == 4088;
        if (last_of_page && pages.size() < rest)
            at = list[index] - 8;
        else
            pages.push_back(list[index]);
    }
    return pages;
}

void check(uint64_t iova, size_t len)
{
    std::vector<uint64_t> list(nvme_prp_list_pages(len) * 512);
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
    for (size_t pages : {1, 2, 3, 4, 31, 511, 512, 513, 514, 1022, 1023, 1024, 1025, 4096})
        for (uint64_t offset : {0, 4, 512, 2048, 4092})
            check(0x100000 + offset, pages * 4096);
}

TEST(Prp, LengthsThatAreNotWholePages)
{
    for (size_t len : {1, 512, 4095, 4097, 8191, 8193, 2097151, 2097153})
        check(0x100000, len);
}

TEST(Prp, ExactlyFullPageIsNotChained)
{
    std::vector<uint64_t> list(512);
    nvme_sqe sqe{};
    nvme_prp_fill(&sqe, 0x100000, 513 * 4096, list.data(), LIST);
    EXPECT_EQ(list[511], 0x100000u + 512 * 4096);
}

} // namespace
