/* SPDX-License-Identifier: BSD-2-Clause */
// Tests blocks ahead of the newest commit of the only log that can be neither read nor written.
#include <errno.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/fusefs/core/fs_everything.h"
#include "tests/fusefs/core/image_repair.h"

namespace
{

class FsBadLog : public FsEverything
{
  protected:
    void SetUp() override
    {
        meta_copies = false;
        FsTest::SetUp();
        geo = *ffs_geometry(fs);
        make_everything();
        ASSERT_EQ(ffs_sync(fs), 0);
        before = device.image();
        create("last");
        ASSERT_EQ(ffs_sync(fs), 0);
        crashed = device.image();
        unmount();
        clean = device.image();
    }
    // Returns the block of the device that is n positions behind the newest
    // commit.
    uint64_t ahead(uint64_t n)
    {
        const lay_log_commit *c = image_newest_commit(device.bytes(), &geo);
        uint64_t pos = lay_addr_number(lay_get64(c->head.block));
        return lay_log_block(&geo, 0, (pos + n) % geo.log_blocks);
    }
    void expect_everything(bool last)
    {
        FsEverything::expect_everything();
        EXPECT_EQ(lookup_error(root, "last"), last ? 0 : -ENOENT);
        create("later");
        EXPECT_EQ(ffs_sync(fs), 0);
        EXPECT_EQ(ffs_unlink(root, "later"), 0);
        unmount();
    }
    // Returns the output of `fsck -p` on a device with such a block.
    std::string repair()
    {
        std::string said;
        EXPECT_GT(preen(&said), 0) << said;
        return said;
    }

    lay_geometry geo = {};
    Image before, crashed, clean;
};

TEST_F(FsBadLog, RefusesAMountThatNamesTheRepair)
{
    struct reason why = {};
    for (const auto *image : {&crashed, &clean}) {
        device.put(*image);
        device.make_broken(ahead(1));
        EXPECT_EQ(ffs_mount(device.dev(), &opts, &fs, &why), -EIO);
        fs = nullptr;
        EXPECT_STREQ(why.text, "cannot write to the journal; run fsck.gpunvme -p");
        EXPECT_GT(image_check(device.dev()), 0) << "a check reports it";
    }
}

// Wherever the block is, a repair that loses nothing lets the mount go on.
TEST_F(FsBadLog, IsPassedByARepair)
{
    for (const auto *image : {&before, &crashed, &clean}) {
        for (uint64_t n : {1, 2, 3, 5, 9}) {
            SCOPED_TRACE(n);
            device.put(*image);
            const uint64_t place = ahead(n);
            device.make_broken(place);
            EXPECT_NE(repair().find("F1008 block " + std::to_string(place) + ": "),
                      std::string::npos);
            EXPECT_EQ(image_check(device.dev()), 0);
            expect_everything(image != &before);
            device.make_broken(UINT64_MAX);
            EXPECT_EQ(fsck(), "");
        }
    }
}

// The mount that was refused has made a new incarnation of the label.
TEST_F(FsBadLog, IsPassedAfterARefusedMount)
{
    for (const auto *image : {&crashed, &clean}) {
        device.put(*image);
        device.make_broken(ahead(1), ahead(2));
        EXPECT_EQ(mount(), -EIO);
        repair();
        expect_everything(true);
    }
}

// A repair that is cut anywhere has lost nothing, and another one completes it.
TEST_F(FsBadLog, IsPassedByARepairThatWasCut)
{
    bool cut = true;
    for (long n = 0; cut; n += 17) {
        SCOPED_TRACE(n);
        device.put(crashed);
        device.make_broken(ahead(1), ahead(3));
        device.fail(MemDevice::FAIL_FROM, n, -ENODEV);
        std::string said;
        preen(&said);
        cut = device.countdown() < 0;
        device.fail(MemDevice::FAIL_NONE, 0);
        preen(&said);
        EXPECT_EQ(image_check(device.dev()), 0) << said;
        ASSERT_NO_FATAL_FAILURE(expect_everything(true));
    }
}

// A block that can be written again is written.
TEST_F(FsBadLog, IsWrittenAgain)
{
    device.put(crashed);
    device.make_unreadable(ahead(1));
    EXPECT_GT(image_check(device.dev()), 0);
    repair();
    EXPECT_EQ(image_check(device.dev()), 0);
    expect_everything(true);
}

// A scrub reads the log, too. It writes an unreadable block again, or reports it.
TEST_F(FsBadLog, IsFoundByAScrub)
{
    ASSERT_EQ(mount(), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    const uint64_t place = ahead(geo.log_blocks / 2);
    for (bool broken : {false, true}) {
        if (broken)
            device.make_broken(place);
        else
            device.make_unreadable(place);
        auto bad = scrub_on_request();
        ASSERT_EQ(bad.size(), 1u);
        EXPECT_TRUE(bad.at(place).unreadable);
        EXPECT_EQ(bad.at(place).copied, !broken);
        EXPECT_EQ(bad.at(place).offset >> 60, static_cast<uint64_t>(LAY_KIND_LOG));
    }
    device.make_broken(UINT64_MAX);
}

// Of two logs, one that has the block suffices, and the repair reports the other place.
TEST_F(FsBadLog, OfBothLogsIsPassedToo)
{
    meta_copies = true;
    format();
    ASSERT_EQ(mount(), 0);
    geo = *ffs_geometry(fs);
    make_everything();
    create("last");
    ASSERT_EQ(ffs_sync(fs), 0);
    crash();
    crashed = device.image();
    const uint64_t first = ahead(2), second = first - geo.log_start + geo.log_copy;
    device.make_broken(first, second);
    EXPECT_EQ(repair().find("F203"), std::string::npos);
    expect_everything(true);
    device.put(crashed);
    device.make_broken(first);
    std::string said;
    EXPECT_EQ(preen(&said), -ENOTRECOVERABLE);
    EXPECT_NE(said.find("F203 block " + std::to_string(first)), std::string::npos) << said;
    expect_everything(true);
}

} // namespace
