/* SPDX-License-Identifier: BSD-2-Clause */
/* Bringing a controller up and down, against one that fails or lies in chosen ways. */
#include <gtest/gtest.h>
#include <nvme/types.h>

#include <cerrno>
#include <string>

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

TEST_F(Ctrlr, AfterALostAdminCommandNothingIsSent)
{
    ASSERT_EQ(open(), 0);
    fake.lose_opcode = NVME_ADMIN_IDENTIFY;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -ETIMEDOUT);
    size_t sent = fake.seen.size();
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EIO);
    EXPECT_EQ(fake.seen.size(), sent);
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

} // namespace
