/* SPDX-License-Identifier: BSD-2-Clause */
/* Controllers that are known by their PCI ids: what the driver does differently for each quirk. */
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

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

} // namespace
