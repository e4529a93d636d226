/* SPDX-License-Identifier: BSD-2-Clause */
/* Single commands stay within what the controller says it can do. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "support/clock.h"
#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

/* A device of 4096 LBAs of 4 KiB. */
class Limits : public FakeTest
{
  protected:
    void open(uint8_t wzsl, uint32_t dmrsl, uint64_t dmsl, unsigned depth = 8)
    {
        opts.admin_timeout_ms = opts.io_timeout_ms = timeout_ms;
        fake.version = 0x00020000;
        fake.id_nvm[1] = wzsl;
        memcpy(&fake.id_nvm[4], &dmrsl, 4);
        memcpy(&fake.id_nvm[8], &dmsl, 8);
        ASSERT_EQ(FakeTest::open(), 0);
        ASSERT_EQ(bd_nvme_open(c, 1, 1, depth, &dev), 0);
    }

    unsigned timeout_ms = 10000;
};

TEST_F(Limits, WriteZeroesIsSplit)
{
    open(4, 0, 0); /* 64 KiB */
    EXPECT_EQ(bd_write_zeroes(dev, 8192, 200 << 10), 0);
    ASSERT_EQ(fake.sent.size(), 4u);
    for (const auto &sqe : fake.sent) {
        EXPECT_EQ(sqe.opcode, NVME_IO_WRITE_ZEROES);
        EXPECT_LE(sqe.cdw12 + 1, 16u);
    }
    EXPECT_EQ(fake.sent[3].cdw10, 2u + 48);
    EXPECT_EQ(fake.sent[3].cdw12, 1u) << "two LBAs, 0-based";
}

TEST_F(Limits, DiscardIsSplitByTheLimitsOfARangeAndOfAll)
{
    for (auto [range, all] : {std::pair{100u, 1000u}, {1000u, 100u}}) {
        open(0, range, all);
        EXPECT_EQ(bd_discard(dev, 0, 4096ull * 250), 0);
        EXPECT_EQ(fake.sent.size(), 3u);
        fake.sent.clear();
        close();
    }
}

TEST_F(Limits, WithoutLimitsOneCommandSuffices)
{
    open(0, 0, 0);
    EXPECT_EQ(bd_discard(dev, 0, dev->info.bytes), 0);
    EXPECT_EQ(bd_write_zeroes(dev, 0, dev->info.bytes), 0);
    EXPECT_EQ(fake.sent.size(), 2u);
}

TEST_F(Limits, AnLbaPastFourBillionIsSentWhole)
{
    fake.id_ns[1][5] = fake.id_ns[1][13] = 3; /* NSZE, NCAP: over 3 * 2^40 LBAs */
    open(0, 0, 0);
    EXPECT_EQ(bd_write_zeroes(dev, 0x2fedcba98ull * 4096, 4096), 0);
    ASSERT_EQ(fake.sent.size(), 1u);
    EXPECT_EQ(fake.sent[0].cdw10, 0xfedcba98u);
    EXPECT_EQ(fake.sent[0].cdw11, 2u);
}

/* What follows a region in memory need not follow it for the controller. */
TEST_F(Limits, DataThatLeavesARegionIsBounced)
{
    open(0, 0, 0);
    auto *region = static_cast<uint8_t *>(bd_dma_alloc(dev, 8192));
    auto *after = static_cast<uint8_t *>(bd_dma_alloc(dev, 8192));
    ASSERT_EQ(region + 12288, after) << "a page between them can be read";
    memset(region, 0x5a, 8192);
    EXPECT_EQ(bd_write(dev, 0, region + 4096, 4096, 0), 0);
    EXPECT_EQ(bd_write(dev, 4096, region + 4096, 8192, 0), 0);
    ASSERT_EQ(fake.sent.size(), 2u);
    EXPECT_EQ(fake.at(fake.sent[0].prp1), region + 4096);
    EXPECT_NE(fake.at(fake.sent[1].prp1), region + 4096);
    const uint8_t *media = fake.media.get();
    EXPECT_EQ(std::count(media, media + Fake::MEDIA_BYTES, 0x5a), 2 * 4096);
    bd_dma_free(dev, region, 8192);
    bd_dma_free(dev, after, 8192);
}

TEST_F(Limits, SmallestQueueIsEnough)
{
    fake.cap = (fake.cap & ~0xffffull) | 1; /* MQES: two entries */
    open(0, 0, 0, 256);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_queue_depth, 2u);
    std::vector<uint8_t> data(1 << 20, 0x33), back(1 << 20);
    ASSERT_EQ(bd_write(dev, 0, data.data(), data.size(), 0), 0);
    ASSERT_EQ(bd_read(dev, 0, back.data(), back.size()), 0);
    EXPECT_EQ(back, data);
}

constexpr unsigned RETRIES = 3; /* of a command that fails */

TEST_F(Limits, CommandThatIsNotReadyIsNotCounted)
{
    open(0, 0, 0);
    unsigned left = RETRIES + 1;
    fake.io_status = [&left](const nvme_sqe &) -> uint16_t {
        return left && left-- ? NVME_ERR_NS_NOT_READY : 0;
    };
    std::vector<uint8_t> page(4096);
    EXPECT_EQ(bd_read(dev, 0, page.data(), page.size()), 0);
    EXPECT_EQ(fake.sent.size(), RETRIES + 2);
}

TEST_F(Limits, NamespaceThatIsNeverReadyIsAnErrorInTheEnd)
{
    timeout_ms = 100;
    open(0, 0, 0);
    fake.io_status = [](const nvme_sqe &) -> uint16_t { return NVME_ERR_NS_NOT_READY; };
    std::vector<uint8_t> page(4096);
    EXPECT_EQ(bd_read(dev, 0, page.data(), page.size()), -EIO);
    EXPECT_GE(fake.sent.size(), RETRIES + 1);
    EXPECT_LT(fake.sent.size(), 100u) << "tried without a pause";
}

/* A controller that reports asymmetric access, whose changes take up to a second. */
struct Access : Limits {
    Access()
    {
        fake.id_ctrl[76] = 8;  /* CMIC: ANA reporting */
        fake.id_ctrl[342] = 1; /* ANATT */
        timeout_ms = 100;
    }
    int read_while(uint16_t status, uint64_t ms)
    {
        uint64_t until = now_ns() + ms * 1000000;
        std::vector<uint8_t> page(4096);
        open(0, 0, 0);
        fake.io_status = [=](const nvme_sqe &) -> uint16_t {
            return now_ns() < until ? status : 0;
        };
        return bd_read(dev, 0, page.data(), page.size());
    }
};

TEST_F(Access, AChangeIsWaitedForLongerThanACommand)
{
    EXPECT_EQ(read_while(NVME_ERR_ANA_TRANSITION, 700), 0);
    EXPECT_LT(fake.sent.size(), 100u) << "tried without a pause";
}

TEST_F(Access, ANamespaceMayBeInaccessibleForAWhile)
{
    EXPECT_EQ(read_while(NVME_ERR_ANA_INACCESSIBLE, 700), 0);
}

TEST_F(Access, AChangeThatTakesLongerIsAnError)
{
    uint64_t begin = now_ns();
    EXPECT_EQ(read_while(NVME_ERR_ANA_TRANSITION, 60000), -EIO);
    EXPECT_GE(now_ns() - begin, 1000000000u) << "ANATT was not waited for";
    EXPECT_LT(now_ns() - begin, 10000000000u);
}

TEST_F(Access, ALossForGoodIsNotWaitedFor)
{
    EXPECT_EQ(read_while(NVME_ERR_ANA_LOST, 60000), -EIO);
    EXPECT_EQ(fake.sent.size(), 1u);
}

} // namespace
