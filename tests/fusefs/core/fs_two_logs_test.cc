/* SPDX-License-Identifier: BSD-2-Clause */
// Tests a file system with two logs after a crash: each log has what the other one lacks.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fusefs/core/fs_everything.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/sealed_blocks.h"

namespace
{

class FsTwoLogs : public FsEverything
{
  protected:
    // The device has what a crash behind the last of two commits leaves.
    void SetUp() override
    {
        meta_copies = true;
        FsTest::SetUp();
        remount();
        ASSERT_EQ(ffs_sync(fs), 0);
        make_everything();
        ASSERT_EQ(ffs_sync(fs), 0);
        create("last");
        ASSERT_EQ(ffs_sync(fs), 0);
        geo = *ffs_geometry(fs);
        crash();
        crashed = device.image();
        find_records();
    }
    void restore() { device.put(crashed); }
    // Positions from the tail to the newest commit.
    void find_records()
    {
        const lay_log_commit *c = image_newest_commit(device.bytes(), &geo);
        uint64_t last = newest();
        for (uint64_t pos = lay_get64(c->tail_pos); pos != last; pos = lay_log_after(&geo, pos))
            records.push_back(pos);
        records.push_back(last);
    }
    // The position of the newest commit.
    uint64_t newest()
    {
        const lay_log_commit *c = image_newest_commit(device.bytes(), &geo);
        return lay_addr_number(lay_get64(c->head.block));
    }
    uint8_t *in_log(unsigned log, uint64_t pos) { return at(lay_log_block(&geo, log, pos)); }
    void zero(unsigned log, uint64_t pos) { memset(in_log(log, pos), 0, 4096); }
    bool logs_are_equal() { return memcmp(in_log(0, 0), in_log(1, 0), geo.log_blocks * 4096) == 0; }
    bool records_are_equal()
    {
        bool equal = true;
        for (uint64_t pos : records)
            equal = equal && memcmp(in_log(0, pos), in_log(1, pos), 4096) == 0;
        return equal;
    }
    bool failed()
    {
        struct ffs_statfs st;
        ffs_statfs(fs, &st);
        return st.failed;
    }
    void expect_everything()
    {
        FsEverything::expect_everything();
        EXPECT_EQ(lookup_error(root, "last"), 0);
        unmount();
    }

    lay_geometry geo = {};
    Image crashed;
    std::vector<uint64_t> records;
};

TEST_F(FsTwoLogs, HaveTheSameBlocksFarApart)
{
    EXPECT_EQ(lay_logs(&geo), 2u);
    EXPECT_LT(geo.log_start + geo.log_blocks, geo.supers[1]);
    EXPECT_GT(geo.log_copy, geo.supers[1]);
    EXPECT_GT(records.size(), 10u);
    EXPECT_TRUE(logs_are_equal());
}

TEST_F(FsTwoLogs, OneMayBeLost)
{
    for (unsigned log : {0, 1}) {
        restore();
        for (uint64_t pos = 0; pos < geo.log_blocks; pos++)
            memset(in_log(log, pos), 0xa5, 4096);
        EXPECT_EQ(fsck(), "") << "it is no damage: the other log is whole";
        ASSERT_EQ(mount(), 0);
        EXPECT_TRUE(records_are_equal());
        unmount();
        expect_everything();
        EXPECT_EQ(fsck(), "");
    }
}

// A log that was lost is written in large commands.
TEST_F(FsTwoLogs, OneIsWrittenAgainInLargeCommands)
{
    long writes[2];
    for (bool lost : {false, true}) {
        restore();
        for (uint64_t pos = 0; lost && pos < geo.log_blocks; pos++)
            zero(0, pos);
        writes[lost] = -device.changes();
        ASSERT_EQ(mount(), 0);
        writes[lost] += device.changes();
        unmount();
    }
    EXPECT_LE(writes[true], writes[false] + 2) << "records follow each other, but for one wrap";
    restore();
    for (uint64_t pos = 0; pos < geo.log_blocks; pos++)
        zero(1, pos);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_everything(), 0);
    EXPECT_TRUE(records_are_equal());
    unmount();
}

TEST_F(FsTwoLogs, EachMayLackOtherBlocks)
{
    for (unsigned log : {0, 1}) {
        restore();
        for (size_t i = 0; i < records.size(); i++)
            zero((i + log) % 2, records[i]);
        expect_everything();
        EXPECT_TRUE(records_are_equal());
    }
}

// A mount that crashes when it has made the logs equal has lost neither.
TEST_F(FsTwoLogs, AreEqualBeforeTheFirstCommit)
{
    for (unsigned log : {0, 1}) {
        restore();
        for (uint64_t pos : records)
            zero(log, pos);
        ASSERT_EQ(mount(), 0);
        EXPECT_TRUE(records_are_equal());
        crash();
        for (uint64_t pos = 0; pos < geo.log_blocks; pos++)
            zero(!log, pos);
        expect_everything();
    }
}

TEST_F(FsTwoLogs, AReadOnlyMountWritesNothing)
{
    for (uint64_t pos : records)
        zero(0, pos);
    const Image before = device.image();
    opts.read_only = true;
    expect_everything();
    EXPECT_TRUE(device.has(before));
}

TEST_F(FsTwoLogs, ARepairReplaysTheUnion)
{
    for (unsigned log : {0, 1}) {
        restore();
        for (uint64_t pos : records)
            zero(log, pos);
        at(LAY_LABEL_SECOND)[100] ^= 3;
        EXPECT_NE(fsck("-p -f").find("exit 1"), std::string::npos);
        EXPECT_TRUE(records_are_equal());
        EXPECT_EQ(fsck(), "");
        expect_everything();
    }
}

// After an unmount, too, the log may lie in one place only.
TEST_F(FsTwoLogs, OneMayLackTheCommitOfACleanUnmount)
{
    expect_everything();
    uint64_t pos = newest();
    const Image clean = device.image();
    for (unsigned log : {0, 1}) {
        device.put(clean);
        zero(log, pos);
        EXPECT_EQ(fsck(), "");
        expect_everything();
        EXPECT_EQ(memcmp(in_log(log, pos), in_log(!log, pos), 4096), 0);
    }
}

// A place that can be neither read nor written stops neither a mount nor a repair, since the other
// log has the block.
TEST_F(FsTwoLogs, APlaceMayBeBroken)
{
    for (unsigned log : {0, 1}) {
        for (uint64_t pos : {records.front(), records[records.size() / 2], records.back()}) {
            const uint64_t place = lay_log_block(&geo, log, pos);
            SCOPED_TRACE(place);
            restore();
            device.make_broken(place);
            expect_everything();
            restore();
            at(LAY_LABEL_SECOND)[100] ^= 3; // something to repair
            std::string said;
            EXPECT_EQ(preen(&said), -ENOTRECOVERABLE);
            EXPECT_NE(said.find("F203 block " + std::to_string(place) + ": "), std::string::npos)
                << said;
            expect_everything();
            device.make_broken(UINT64_MAX);
            EXPECT_EQ(fsck(), "");
        }
    }
}

// A place ahead of the newest commit that can be neither read nor written does not end a mount: the
// other log gets the block.
TEST_F(FsTwoLogs, APlaceAheadMayBeBroken)
{
    const uint64_t last = newest();
    for (unsigned log : {0, 1}) {
        for (uint64_t ahead : {1, 2, 3, 6, 9}) {
            const uint64_t place = lay_log_block(&geo, log, (last + ahead) % geo.log_blocks);
            SCOPED_TRACE(place);
            restore();
            device.make_broken(place);
            ASSERT_EQ(mount(), 0);
            create("later");
            EXPECT_EQ(ffs_sync(fs), 0);
            EXPECT_FALSE(failed());
            const uint64_t unwritten = counts().unwritten;
            crash(); // behind the commit: nothing is lost
            FsEverything::expect_everything();
            EXPECT_EQ(lookup_error(root, "later"), 0);
            unmount();
            expect_everything();
            device.make_broken(UINT64_MAX);
            EXPECT_EQ(fsck(), "");
            EXPECT_TRUE(ahead > 2 || unwritten > 0);
        }
    }
}

// A place that breaks while the file system is mounted does not end the mount
// either. If neither log can hold a block, the mount becomes read-only.
TEST_F(FsTwoLogs, APlaceMayBreakWhileMounted)
{
    ASSERT_EQ(mount(), 0);
    uint64_t ahead = lay_log_after(&geo, newest());
    device.make_broken(lay_log_block(&geo, 0, ahead));
    create("first");
    EXPECT_EQ(ffs_sync(fs), 0);
    ahead = lay_log_after(&geo, newest());
    device.make_broken(lay_log_block(&geo, 0, ahead), lay_log_block(&geo, 1, ahead));
    create("second");
    EXPECT_EQ(ffs_sync(fs), -EIO);
    EXPECT_TRUE(failed());
    device.make_broken(UINT64_MAX);
    EXPECT_EQ(end_mount(), -EROFS);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(lookup_error(root, "first"), 0);
    EXPECT_EQ(lookup_error(root, "second"), -ENOENT);
}

// A scrub writes what one log has where the other one cannot be read.
TEST_F(FsTwoLogs, AScrubMendsAPlaceInUse)
{
    ASSERT_EQ(mount(), 0);
    create("other");
    ASSERT_EQ(ffs_sync(fs), 0);
    struct ffs_scrub found = {};
    ASSERT_EQ(ffs_scrub_metadata(fs, 0, &found), 0); // settles the log
    const uint64_t pos = newest();
    for (unsigned log : {0, 1}) {
        zero(log, pos);
        device.make_unreadable(lay_log_block(&geo, log, pos));
        scrub_on_request(LAY_ADDR(LAY_KIND_LOG, 0));
        EXPECT_TRUE(logs_are_equal());
    }
}

// One block is damaged in both: the rest is kept, and can be mended in either log.
TEST_F(FsTwoLogs, AreKeptByARepairIfBothAreDamaged)
{
    uint64_t pos = records.back() - 1;
    char file[] = "/tmp/two_logs_XXXXXX";
    int fd = mkstemp(file);
    ASSERT_GE(fd, 0);
    for (unsigned log : {0, 1}) {
        restore();
        zero(0, pos);
        zero(1, pos);
        EXPECT_NE(mount(), 0);
        std::string said = fsck("-y");
        EXPECT_NE(said.find("The damaged log is kept: lost+found/journal-"), std::string::npos)
            << said;
        EXPECT_EQ(fsck(), "");
        opts.read_only = true; // a mount that writes would make the kept log useless
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(lookup_error(root, "last"), -ENOENT);
        Inode found = lookup("lost+found");
        std::vector<std::string> all = names(found);
        auto name = std::find_if(all.begin(), all.end(), [](const std::string &n) {
            return n.compare(0, 8, "journal-") == 0;
        });
        ASSERT_NE(name, all.end());
        std::string bytes = read_all(lookup(found, *name));
        found.reset();
        unmount();
        opts.read_only = false;
        ASSERT_EQ(bytes.size(), (2 * geo.log_blocks + 2) * 4096);
        bytes.replace((log * geo.log_blocks + pos) * 4096, 4096,
                      std::string(reinterpret_cast<const char *>(
                                      &crashed[lay_log_block(&geo, log, pos) * 4096]),
                                  4096));
        std::ofstream(file, std::ios::binary) << bytes;
        said = fsck(std::string("-y --replay ") + file);
        EXPECT_EQ(said.find("exit 4"), std::string::npos) << said;
        EXPECT_EQ(fsck(), "");
        expect_everything();
    }
    close(fd);
    unlink(file);
}

TEST_F(FsTwoLogs, MoveWhenTheFileSystemShrinks)
{
    ASSERT_EQ(mount(), 0);
    const uint64_t end = geo.log_copy + 5, before = newest();
    ASSERT_LE(ffs_shrink_least(fs), end);
    EXPECT_EQ(ffs_shrink(fs, end), 0);
    const lay_geometry old = geo;
    geo = *ffs_geometry(fs);
    EXPECT_NE(geo.log_copy, old.log_copy);
    EXPECT_EQ(geo.log_start, old.log_start) << "it was not past the end";
    EXPECT_LE(geo.log_copy + geo.log_blocks, end);
    EXPECT_GT(newest(), before) << "the new log follows the newest commit in the place that stays";
    create("after");
    ASSERT_EQ(ffs_sync(fs), 0);
    crashed = device.image();
    unmount();
    EXPECT_EQ(fsck(), "");
    for (unsigned log : {0, 1}) {
        restore();
        for (uint64_t pos = 0; pos < geo.log_blocks; pos++)
            zero(log, pos);
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(lookup_error(root, "after"), 0);
        unmount();
        expect_everything();
        EXPECT_EQ(fsck(), "");
    }
}

// Copies of metadata alone do not make a second log.
TEST_F(FsTwoLogs, AFileSystemMayHaveCopiesAndOneLog)
{
    expect_everything();
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}}) {
        auto *label = reinterpret_cast<lay_label *>(at(block));
        label->incompat = lay_put64(lay_get64(label->incompat) & ~LAY_INCOMPAT_TWO_LOGS);
        label->logs[1] = lay_put64(LAY_NONE);
        lay_seal(label, 0);
    }
    memset(in_log(1, 0), 0x5a, geo.log_blocks * 4096);
    expect_everything();
    EXPECT_EQ(*in_log(1, 0), 0x5a);
    EXPECT_EQ(*in_log(1, geo.log_blocks - 1), 0x5a);
    check_at_end = false; // the place of the second log belongs to nobody
}

// --- One log, with blocks ahead of the newest commit that can be neither read nor written --------

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
