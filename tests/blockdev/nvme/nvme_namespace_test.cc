/* SPDX-License-Identifier: BSD-2-Clause */
/* Namespaces of a controller that may lie about them. */
#include <gtest/gtest.h>

#include <cerrno>
#include <tuple>

#include "blockdev/device.h"
#include "blockdev/nvme/nvme_identify.h"
#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

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
