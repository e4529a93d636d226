/* SPDX-License-Identifier: BSD-2-Clause */
/* Bringing a controller up and down, against one that fails or lies in chosen ways. */
#include <nvme/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <tuple>

#include "blockdev/device.h"
#include "blockdev/nvme/nvme_identify.h"
#include "support/clock.h"
#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

class Ctrlr : public FakeTest
{
  protected:
    Ctrlr() { opts.admin_timeout_ms = 50; }
};

TEST_F(Ctrlr, OpensAndReportsItsProperties)
{
    ASSERT_EQ(open(), 0);
    const struct nvme_ctrlr_info *info = nvme_ctrlr_info(c);
    EXPECT_STREQ(info->serial, "SERIAL 1");
    EXPECT_STREQ(info->model, "A model");
    EXPECT_STREQ(info->firmware, "1.0?") << "not printable";
    EXPECT_EQ(info->max_transfer, 128u << 10);
    EXPECT_EQ(info->max_queue_depth, 64u);
    EXPECT_EQ(info->io_queues, 4u) << "the smaller of submission and completion queues";
    EXPECT_EQ(info->namespaces, 4u);
    EXPECT_TRUE(info->volatile_cache && info->write_zeroes && info->dsm);
    EXPECT_FALSE(info->sgl);
}

TEST_F(Ctrlr, OpenSetsEntrySizesAndCloseShutsDownThenDisables)
{
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(fake.cc, NVME_CC_ENABLE | 6u << NVME_CC_IOSQES_SHIFT | 4u << NVME_CC_IOCQES_SHIFT);
    close();
    EXPECT_EQ(fake.cc & NVME_CC_SHN_BITS, NVME_CC_SHN_ORDERLY);
    EXPECT_EQ(fake.cc & NVME_CC_ENABLE, 0u);
    EXPECT_TRUE(fake.closed);
}

TEST_F(Ctrlr, CloseEndsEvenIfShutdownNeverCompletes)
{
    fake.shutdown_never_ends = true;
    ASSERT_EQ(open(), 0);
    close();
    EXPECT_TRUE(fake.closed);
}

TEST_F(Ctrlr, ResetsAControllerFoundEnabledOrFailed)
{
    for (uint32_t status : {NVME_CSTS_READY, NVME_CSTS_FATAL}) {
        fake.cc = NVME_CC_ENABLE;
        fake.csts = status;
        ASSERT_EQ(open(), 0) << status;
        EXPECT_EQ(fake.cc & NVME_CC_ENABLE, NVME_CC_ENABLE) << status;
        close();
    }
}

TEST_F(Ctrlr, ReportsTheStatusOfARefusedStep)
{
    fake.status_of_cns[NVME_CNS_CTRL] = NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR;
    EXPECT_EQ(open(), -EINVAL);
    EXPECT_NE(std::string(why.text).find("Identify Controller"), std::string::npos) << why.text;
    EXPECT_NE(std::string(why.text).find("status 0x4002"), std::string::npos) << why.text;
}

TEST_F(Ctrlr, NeverReadyIsResetFromOutsideOnce)
{
    fake.never_ready = fake.has_reset = true;
    EXPECT_EQ(open(), 0);
    EXPECT_EQ(fake.device_resets, 1u);
}

/* Another process disables it as soon as it was enabled. */
TEST_F(Ctrlr, DisabledAgainGetsNoCommand)
{
    fake.on_enable = [this] { fake.cc = fake.csts = 0; };
    EXPECT_EQ(open(), -EIO);
    EXPECT_EQ(fake.doorbells[0], 0u);
}

TEST_F(Ctrlr, NeverDisabledIsResetFromOutside)
{
    fake.cc = NVME_CC_ENABLE;
    fake.csts = NVME_CSTS_READY;
    fake.never_disabled = fake.has_reset = true;
    EXPECT_EQ(open(), 0);
    EXPECT_EQ(fake.device_resets, 1u);
}

TEST_F(Ctrlr, CloseResetsAControllerThatCannotBeDisabled)
{
    fake.has_reset = true;
    ASSERT_EQ(open(), 0);
    fake.never_disabled = true;
    close();
    EXPECT_EQ(fake.device_resets, 1u);
    EXPECT_TRUE(fake.closed);
}

TEST_F(Ctrlr, QueuesHaveNoEntryWithTheReservedCommandId)
{
    fake.cap |= 0xffff;
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_queue_depth, 65535u);
    struct nvme_qpair qp;
    EXPECT_EQ(nvme_qpair_create(c, 65536, &qp), -EINVAL);
}

TEST_F(Ctrlr, TheLongestReadyTimeIsNotWaitedOut)
{
    fake.cap |= 0xffull << 24;
    ASSERT_EQ(open(), 0);
}

TEST_F(Ctrlr, LimitsOfVersionTwoAreRead)
{
    uint32_t range = 1000;
    uint64_t size = 500;
    fake.version = 0x00020000;
    fake.id_nvm[1] = 3; /* WZSL */
    memcpy(&fake.id_nvm[4], &range, 4);
    memcpy(&fake.id_nvm[8], &size, 8);
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_zeroes, 32768u);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_dsm_lbas, 500u);
}

TEST_F(Ctrlr, EarlierVersionsAreNotAskedForTheLimits)
{
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(fake.count(NVME_ADMIN_IDENTIFY), 1u);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_zeroes + nvme_ctrlr_info(c)->max_dsm_lbas, 0u);
}

TEST_F(Ctrlr, RefusedLimitsMeanNoLimits)
{
    fake.version = 0x00020000;
    fake.status_of_cns[NVME_CNS_CTRL_NVM] = NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR;
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_zeroes + nvme_ctrlr_info(c)->max_dsm_lbas, 0u);
}

TEST_F(Ctrlr, QueueCountIsBoundedByDoorbells)
{
    fake.cap |= 7ull << 32; /* 512 bytes a doorbell: 4 pairs */
    fake.queues_result = 0xfffeu << 16 | 0xfffe;
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(nvme_ctrlr_info(c)->io_queues, 3u);
}

TEST_F(Ctrlr, RequestsTheQueuesInTheOptions)
{
    opts.io_queues = 2;
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(nvme_ctrlr_info(c)->io_queues, 2u);
}

TEST_F(Ctrlr, FatalStatusEndsAnAdminWait)
{
    ASSERT_EQ(open(), 0);
    nvme_sqe sqe{};
    sqe.opcode = NVME_ADMIN_GET_FEATURES;
    fake.csts |= NVME_CSTS_FATAL;
    fake.lose_opcode = NVME_ADMIN_GET_FEATURES;
    EXPECT_EQ(nvme_admin(c, &sqe, nullptr, 0, false, nullptr), -EIO);
}

TEST_F(Ctrlr, CommandThatIsNotReadyIsRetriedLater)
{
    opts.admin_timeout_ms = 10000;
    fake.busy = 3;
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(fake.count(NVME_ADMIN_IDENTIFY), 4u);
}

TEST_F(Ctrlr, RetriesEndAtTheDeadline)
{
    opts.admin_timeout_ms = 200;
    fake.busy = UINT32_MAX;
    EXPECT_EQ(open(), -EIO);
    EXPECT_LT(fake.busy, UINT32_MAX - 1) << "tried once only";
}

TEST_F(Ctrlr, AdminReturnsTheStatusOfTheCommand)
{
    ASSERT_EQ(open(), 0);
    nvme_sqe sqe{};
    nvme_cqe cqe{};
    sqe.opcode = NVME_ADMIN_GET_FEATURES;
    fake.status_of_opcode[NVME_ADMIN_GET_FEATURES] = NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR;
    EXPECT_EQ(nvme_admin(c, &sqe, nullptr, 0, false, &cqe), -EINVAL);
    EXPECT_EQ(NVME_STATUS(cqe.status), NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR);
}

TEST_F(Ctrlr, AdminQueueSurvivesManyWraps)
{
    ASSERT_EQ(open(), 0);
    for (int i = 0; i < 200; i++)
        ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0) << i;
}

struct Refusal {
    const char *name;
    void (*change)(Fake &);
    int error;
    const char *says = "";
};

class RefusedCtrlr : public Ctrlr, public ::testing::WithParamInterface<Refusal>
{
};

TEST_P(RefusedCtrlr, IsLeftDisabledWithAReason)
{
    GetParam().change(fake);
    EXPECT_EQ(open(), GetParam().error);
    EXPECT_NE(std::string(why.text).find(GetParam().says), std::string::npos) << why.text;
    EXPECT_EQ(fake.cc & NVME_CC_ENABLE, 0u) << "left enabled";
    EXPECT_EQ(fake.device_resets, fake.has_reset);
}

INSTANTIATE_TEST_SUITE_P(
    Registers, RefusedCtrlr,
    ::testing::Values(
        Refusal{"NeverReady", [](Fake &f) { f.never_ready = true; }, -ETIMEDOUT},
        Refusal{"NeverReadyAndItsResetFails",
                [](Fake &f) { f.never_ready = f.has_reset = f.reset_fails = true; }, -ETIMEDOUT},
        Refusal{"NeverDisabled",
                [](Fake &f) {
                    f.cc = NVME_CC_ENABLE;
                    f.csts = NVME_CSTS_READY;
                    f.never_disabled = true;
                },
                -ETIMEDOUT},
        Refusal{"FatalStatus", [](Fake &f) { f.fatal_on_enable = true; }, -EIO, "CFS"},
        Refusal{"Absent", [](Fake &f) { f.gone = true; }, -EIO},
        Refusal{"NoNvmCommandSet", [](Fake &f) { f.cap &= ~(0xffull << 37); }, -ENOTSUP},
        Refusal{"OfflineVirtualFunction", [](Fake &f) { f.cap = 0; }, -ENODEV,
                "virtual function (SR-IOV) that is offline"},
        Refusal{"No4KiBPages", [](Fake &f) { f.cap |= 1ull << 48 | 1ull << 52; }, -ENOTSUP},
        Refusal{"PageSizesInWrongOrder", [](Fake &f) { f.cap |= 1ull << 48; }, -EPROTO},
        Refusal{"QueuesOfOneEntry", [](Fake &f) { f.cap &= ~0xffffull; }, -EPROTO},
        Refusal{"StrideBeyondTheDoorbells", [](Fake &f) { f.cap |= 0xfull << 32; }, -EPROTO},
        /* A doorbell takes 2048 bytes, so 4096 bytes have those of the admin queue only. */
        Refusal{"StrideWithoutIoDoorbells", [](Fake &f) { f.cap |= 9ull << 32; }, -EPROTO}),
    [](const auto &info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Commands, RefusedCtrlr,
    ::testing::Values(
        Refusal{"LostIdentify", [](Fake &f) { f.lose_opcode = NVME_ADMIN_IDENTIFY; }, -ETIMEDOUT},
        Refusal{
            "RefusedSetFeatures",
            [](Fake &f) { f.status_of_opcode[NVME_ADMIN_SET_FEATURES] = NVME_ERR_INVALID_FIELD; },
            -EINVAL},
        Refusal{"Zeroes", [](Fake &f) { f.id_ctrl.assign(4096, 0); }, -EPROTO},
        Refusal{"Ones", [](Fake &f) { f.id_ctrl.assign(4096, 0xff); }, -ENOTSUP},
        Refusal{"NoNamespaces", [](Fake &f) { f.id_ctrl[516] = 0; }, -EPROTO},
        Refusal{"AllNamespaces", [](Fake &f) { memset(&f.id_ctrl[516], 255, 4); }, -EPROTO},
        Refusal{"BigSubmissionEntries", [](Fake &f) { f.id_ctrl[512] = 0x77; }, -EPROTO},
        Refusal{"SmallSubmissionEntries", [](Fake &f) { f.id_ctrl[512] = 0x55; }, -EPROTO},
        Refusal{"BigCompletionEntries", [](Fake &f) { f.id_ctrl[513] = 0x55; }, -EPROTO},
        Refusal{"SizesInWrongOrder", [](Fake &f) { f.id_ctrl[512] = 0x57; }, -EPROTO},
        Refusal{"DiscoveryController", [](Fake &f) { f.id_ctrl[111] = 2; }, -ENOTSUP},
        Refusal{"AdminController", [](Fake &f) { f.id_ctrl[111] = 3; }, -ENOTSUP}),
    [](const auto &info) { return info.param.name; });

TEST_F(Ctrlr, UnlimitedAndAbsurdMdtsGetTheDriversLimit)
{
    for (uint8_t mdts : {0, 20, 31, 64, 255}) {
        fake.id_ctrl[77] = mdts;
        ASSERT_EQ(open(), 0);
        EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 2u << 20) << unsigned(mdts);
        close();
    }
}

TEST_F(Ctrlr, TextWithControlCharactersIsMadePrintable)
{
    memset(&fake.id_ctrl[24], 0x1b, 40);
    ASSERT_EQ(open(), 0);
    EXPECT_EQ(std::string(nvme_ctrlr_info(c)->model), std::string(40, '?'));
}

// --- Limits of single commands -------------------------------------------------------------------

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

// --- Quirks --------------------------------------------------------------------------------------

class Quirks : public FakeTest
{
  protected:
    void open(uint16_t vendor, uint16_t device)
    {
        opts.admin_timeout_ms = opts.io_timeout_ms = 10000;
        fake.t.pci_vendor = vendor;
        fake.t.pci_device = device;
        ASSERT_EQ(FakeTest::open(), 0);
    }

    unsigned identified(uint32_t cns) const
    {
        return (unsigned)std::count_if(fake.seen.begin(), fake.seen.end(), [cns](const auto &sqe) {
            return sqe.opcode == NVME_ADMIN_IDENTIFY && sqe.cdw10 == cns;
        });
    }

    /* Opcode of the command that writes zeros. */
    int zeroes_with()
    {
        fake.sent.clear();
        EXPECT_EQ(bd_nvme_open(c, 1, 1, 8, &dev), 0);
        EXPECT_EQ(bd_write_zeroes(dev, 8192, 4096), 0);
        EXPECT_EQ(fake.sent.size(), 1u);
        return fake.sent.empty() ? -1 : fake.sent[0].opcode;
    }

    /* A reset of a controller whose namespace has another EUI-64 afterwards. */
    int reset_with_another_id()
    {
        EXPECT_EQ(nvme_ns_info(c, 1, &ns), 0);
        fake.id_ns[1][120] ^= 1;
        return nvme_ctrlr_reset(c, 0);
    }
};

TEST_F(Quirks, AreKnownByBothIds)
{
    EXPECT_EQ(nvme_quirks_of(0x1bb1, 0x0100),
              (unsigned)(NVME_QUIRK_SLOW_DISABLE | NVME_QUIRK_NO_NS_DESCRIPTORS));
    EXPECT_EQ(nvme_quirks_of(0x1bb1, 0x0101), 0u);
    EXPECT_EQ(nvme_quirks_of(0x1bb2, 0x0100), 0u);
    EXPECT_EQ(nvme_quirks_of(0, 0), 0u);
}

TEST_F(Quirks, HaveDescriptions)
{
    char text[NVME_QUIRKS_TEXT];
    nvme_quirks_text(0, text, sizeof(text));
    EXPECT_STREQ(text, "none");
    nvme_quirks_text(NVME_QUIRK_NO_WRITE_ZEROES | NVME_QUIRK_IGNORES_FUA, text, sizeof(text));
    EXPECT_STREQ(text, "no Write Zeroes, Flush after FUA");
    nvme_quirks_text(~0u, text, sizeof(text));
    EXPECT_LT(strlen(text), sizeof(text) - 1) << "all of them have room";
    nvme_quirks_text(~0u, text, 8);
    EXPECT_STREQ(text, "pause a");
}

TEST_F(Quirks, AreReportedByTheController)
{
    memcpy(&fake.id_ctrl[24], "QEMU NVMe Ctrl                          ", 40);
    open(0x1cc4, 0x6302);
    EXPECT_EQ(nvme_ctrlr_info(c)->quirks,
              (unsigned)(NVME_QUIRK_NO_WRITE_ZEROES | NVME_QUIRK_IGNORES_FUA));
}

TEST_F(Quirks, WriteZeroesIsSentToOthersOnly)
{
    open(0x2646, 0x5018);
    EXPECT_FALSE(nvme_ctrlr_info(c)->write_zeroes);
    EXPECT_EQ(zeroes_with(), NVME_IO_WRITE);
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0) << "which compares what the controller says";
    EXPECT_FALSE(nvme_ctrlr_info(c)->write_zeroes);
    close();
    open(0x2646, 0x5013);
    EXPECT_EQ(zeroes_with(), NVME_IO_WRITE_ZEROES);
}

TEST_F(Quirks, ATransferOnlyOfOthersIsAsLongAsMdts)
{
    fake.id_ctrl[77] = 8; /* MDTS: 1 MiB */
    open(0x4e58, 0x0001);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 128u << 10);
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0);
    close();
    fake.id_ctrl[77] = 4;
    open(0x4e58, 0x0001);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 64u << 10);
    close();
    fake.id_ctrl[77] = 8;
    open(0x4e58, 0x0002);
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 1u << 20);
}

TEST_F(Quirks, AbortIsSentToOthersOnly)
{
    open(0x4e58, 0x0001);
    fake.seen.clear();
    EXPECT_EQ(nvme_abort(c, 1, 0), -EAGAIN) << "as where it has no effect";
    EXPECT_TRUE(fake.seen.empty());
    close();
    open(0x4e58, 0x0002);
    fake.seen.clear();
    EXPECT_EQ(nvme_abort(c, 1, 0), -EAGAIN);
    ASSERT_EQ(fake.seen.size(), 1u);
    EXPECT_EQ(fake.seen[0].opcode, NVME_ADMIN_ABORT);
}

TEST_F(Quirks, DescriptorsOnlyOfOthersAreRead)
{
    fake.cap |= 1ull << 43; /* CAP.CSS: several command sets */
    open(0x126f, 0x2263);
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_EQ(identified(NVME_CNS_NS_DESCRIPTORS), 0u);
    EXPECT_EQ(ns.command_set, 0);
    close();
    open(0x126f, 0x2262);
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_EQ(identified(NVME_CNS_NS_DESCRIPTORS), 1u);
}

TEST_F(Quirks, OnlyTheIdOfOthersHasToBeStable)
{
    open(0x144d, 0xa80a);
    EXPECT_EQ(reset_with_another_id(), -EIO) << "another namespace";
    close();
    open(0x144d, 0xa80b);
    EXPECT_EQ(reset_with_another_id(), 0);
    fake.id_ns[1][0] = 0; /* NSZE: smaller */
    fake.id_ns[1][1] = fake.id_ns[1][9] = 0x08;
    EXPECT_EQ(nvme_ctrlr_reset(c, 1), -EIO) << "its size still counts";
}

/* Longest time between two reads of registers. */
struct Pauses {
    explicit Pauses(Fake &fake)
    {
        fake.on_read = [this] {
            auto now = std::chrono::steady_clock::now();
            longest = std::max(longest, now - last);
            last = now;
        };
    }
    uint64_t take_ms()
    {
        auto was = longest;
        longest = {};
        last = std::chrono::steady_clock::now();
        return (uint64_t)std::chrono::duration_cast<std::chrono::milliseconds>(was).count();
    }
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
    std::chrono::steady_clock::duration longest{};
};

TEST_F(Quirks, ADisabledControllerIsNotAccessedForAWhile)
{
    Pauses pauses(fake);
    open(0x1c58, 0x0003);
    EXPECT_LT(pauses.take_ms(), NVME_SLOW_DISABLE_MS) << "it was not enabled";
    EXPECT_GE(nvme_ctrlr_reset_ms(c), 7 * NVME_SLOW_DISABLE_MS);
    fake.has_reset = fake.never_disabled = true;
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.device_resets, 1u);
    EXPECT_GE(pauses.take_ms(), NVME_SLOW_DISABLE_MS);
    close();
    EXPECT_GE(pauses.take_ms(), NVME_SLOW_DISABLE_MS);
}

// --- Namespaces ----------------------------------------------------------------------------------

class Namespace : public FakeTest
{
  protected:
    void SetUp() override
    {
        opts.admin_timeout_ms = 1000;
        ASSERT_EQ(open(), 0);
    }

    /* Opens again with NN namespaces. */
    void reopen(uint32_t nn)
    {
        close();
        memcpy(&fake.id_ctrl[516], &nn, 4);
        ASSERT_EQ(open(), 0);
    }
};

TEST_F(Namespace, IsDescribed)
{
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_EQ(ns.nsid, 1u);
    EXPECT_EQ(ns.lba_size, 4096u);
    EXPECT_EQ(ns.lbas, 4096u);
    EXPECT_EQ(ns.metadata, 0u);
    EXPECT_FALSE(ns.read_only);
}

TEST_F(Namespace, InactiveIsNoDevice)
{
    EXPECT_EQ(nvme_ns_info(c, 2, &ns), -ENODEV);
    EXPECT_EQ(nvme_ns_info(c, 0, &ns), -ENODEV);
    EXPECT_EQ(nvme_ns_info(c, 5, &ns), -ENODEV);
    EXPECT_EQ(nvme_ns_info(c, UINT32_MAX, &ns), -ENODEV);
}

TEST_F(Namespace, AnUnusableNamespaceHasAReason)
{
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_EQ(nvme_ns_unusable(&ns), nullptr);
    struct nvme_ns_info bad = ns;
    bad.lba_size = 8192;
    EXPECT_STREQ(nvme_ns_unusable(&bad), "its blocks are neither 512 nor 4096 bytes");
    bad = ns;
    bad.metadata = 8;
    EXPECT_STREQ(nvme_ns_unusable(&bad), "its blocks carry metadata");
    bad = ns;
    bad.command_set = 2;
    EXPECT_STREQ(nvme_ns_unusable(&bad), "it is zoned");
    bad.command_set = 1;
    EXPECT_STREQ(nvme_ns_unusable(&bad), "it is of another command set than NVM");
    fake.id_ns[1][29] = 1; /* DPS */
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_STREQ(nvme_ns_unusable(&ns), "its blocks carry protection information");
    EXPECT_EQ(bd_nvme_open(c, 1, 1, 8, &dev), -ENOTSUP);
}

TEST_F(Namespace, GrowthIsAcceptedAndAnotherNamespaceIsNot)
{
    struct nvme_ns_info now;
    EXPECT_EQ(nvme_ns_refresh(c, 1, &now), -ENODEV) << "not in use";
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    fake.id_ns[1][3]++; /* 2^24 LBAs more */
    ASSERT_EQ(nvme_ns_refresh(c, 1, &now), 0);
    EXPECT_EQ(now.lbas, ns.lbas + (1u << 24));
    fake.id_ns[1][3]--;
    EXPECT_EQ(nvme_ns_refresh(c, 1, &now), -ENXIO);
    fake.id_ns[1][3]++;
    fake.id_ns[1][104]++; /* NGUID */
    EXPECT_EQ(nvme_ns_refresh(c, 1, &now), -ENXIO);
}

/* Descriptors that do not end, or are longer than the page. */
TEST_F(Namespace, DescriptorsAreReadWithinTheirPage)
{
    std::vector<uint8_t> page(4096, 0xff);
    nvme_parse_ns_descriptors(page.data(), &ns);
    EXPECT_EQ(ns.command_set, 0u);
    for (auto &byte : page)
        byte = 4;
    nvme_parse_ns_descriptors(page.data(), &ns);
    EXPECT_EQ(ns.command_set, 4u);
    page.assign(4096, 0);
    const uint8_t two[] = {2,  16, 0,  0,  1,  2,  3,  4, 5, 6, 7, 8, 9,
                           10, 11, 12, 13, 14, 15, 16, 4, 1, 0, 0, 2};
    memcpy(page.data(), two, sizeof(two));
    nvme_parse_ns_descriptors(page.data(), &ns);
    EXPECT_EQ(ns.command_set, 2u);
}

TEST_F(Namespace, FormatBeyondTheTableIsRefused)
{
    fake.id_ns[1][26] = 1;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EPROTO);
    EXPECT_EQ(bd_open_namespace(c, 1, 1, 8, &dev, &why), -EPROTO);
    EXPECT_STREQ(why.text,
                 "namespace 1: its Identify data cannot be right, gpunvme check shows why");
}

TEST_F(Namespace, FormatAboveSixteenUsesTheHighBits)
{
    fake.id_ns[1][25] = 17;
    fake.id_ns[1][26] = 1 | 1 << 5;
    fake.id_ns[1][128 + 4 * 17 + 2] = 9;
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_EQ(ns.lba_size, 512u);
}

TEST_F(Namespace, SizesThatCannotBeAreRefused)
{
    for (uint8_t ds : {0, 1, 8, 25, 31, 32, 63, 64, 255}) {
        fake.id_ns[1][130] = ds;
        EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EPROTO) << unsigned(ds);
    }
    fake.id_ns[1] = Fake::good_id_ns();
    fake.id_ns[1][9] = 0x11;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EPROTO) << "a capacity above the size";
    memset(&fake.id_ns[1][0], 0xff, 16);
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EPROTO) << "more bytes than 64 bits count";
}

TEST_F(Namespace, WriteProtectionIsDetected)
{
    fake.id_ns[1][99] = 1;
    ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    EXPECT_TRUE(ns.read_only);
}

TEST_F(Namespace, SharingIsDetected)
{
    for (auto [cmic, nmic, remote] : {std::tuple{0, 0, false},
                                      {2, 0, false},
                                      {8, 0, false},
                                      {0, 1, false},
                                      {0, 2, false},
                                      {0, 0, true}}) {
        fake.id_ctrl[76] = (uint8_t)cmic;
        fake.id_ns[1][30] = (uint8_t)nmic;
        fake.t.remote = remote;
        reopen(4);
        ASSERT_EQ(bd_nvme_open(c, 1, 1, 4, &dev), 0);
        EXPECT_EQ(dev->info.shared, (cmic & 7) || (nmic & 1) || remote) << cmic << " " << nmic;
    }
}

TEST_F(Namespace, ListIsInOrderAndComplete)
{
    uint32_t ids[2];
    fake.ns_list = {1, 3, 4};
    EXPECT_EQ(nvme_ns_list(c, ids, 2), 3) << "the number there is, not what fits";
    EXPECT_EQ(ids[0], 1u);
    EXPECT_EQ(ids[1], 3u);
}

TEST_F(Namespace, ListLongerThanOnePageIsFollowed)
{
    reopen(3000);
    fake.ns_list.clear();
    for (uint32_t id = 1; id <= 2500; id++)
        fake.ns_list.push_back(id);
    std::vector<uint32_t> ids(2500);
    EXPECT_EQ(nvme_ns_list(c, ids.data(), 2500), 2500);
    EXPECT_EQ(ids, fake.ns_list);
}

TEST_F(Namespace, ListsThatCannotBeAreRefused)
{
    uint32_t ids[4];
    for (const auto &list : {std::vector<uint32_t>{1, 3, 2}, {2, 2}, {1, 5}}) {
        fake.ns_list = list;
        EXPECT_EQ(nvme_ns_list(c, ids, 4), -EPROTO) << list[1];
    }
}

TEST_F(Namespace, WithoutAListEachIdIsTried)
{
    uint32_t ids[4];
    for (uint16_t refusal : {NVME_ERR_INVALID_FIELD, NVME_ERR_INVALID_OPCODE}) {
        fake.status_of_cns[NVME_CNS_ACTIVE_NS_LIST] = refusal | NVME_STATUS_DNR;
        fake.id_ns[3] = fake.id_ns[1];
        fake.id_ns[4] = Fake::good_id_ns();
        fake.id_ns[4][130] = 1; /* there, with nonsense for an LBA format */
        EXPECT_EQ(nvme_ns_list(c, ids, 2), 3);
        EXPECT_EQ(ids[0], 1u);
        EXPECT_EQ(ids[1], 3u);
    }
}

TEST_F(Namespace, ListThatFailsOtherwiseIsAnError)
{
    uint32_t ids[4];
    fake.status_of_cns[NVME_CNS_ACTIVE_NS_LIST] = NVME_ERR_INTERNAL;
    EXPECT_EQ(nvme_ns_list(c, ids, 4), -EIO);
}

TEST_F(Namespace, WithoutAListHugeNnIsNotTriedToTheEnd)
{
    uint32_t ids[4];
    reopen(UINT32_MAX - 1);
    fake.status_of_cns[NVME_CNS_ACTIVE_NS_LIST] = NVME_ERR_INVALID_FIELD | NVME_STATUS_DNR;
    EXPECT_EQ(nvme_ns_list(c, ids, 4), 1);
}

TEST_F(Namespace, FailedIdentifyKeepsItsErrno)
{
    fake.status_of_opcode[NVME_ADMIN_IDENTIFY] = NVME_ERR_INVALID_NS;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -ENODEV);
    fake.status_of_opcode[NVME_ADMIN_IDENTIFY] = NVME_ERR_INTERNAL;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EIO);
}

} // namespace
