/* SPDX-License-Identifier: BSD-2-Clause */
// Damaged and stale labels, superblocks, commits and bitmaps: a single one of them costs nothing,
// and is never trusted.
#include <string.h>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"

namespace
{

thread_local std::vector<std::string> messages;

class FsSuper : public FsTest
{
  protected:
    explicit FsSuper(uint64_t bytes = 64u << 20) : FsTest(bytes) {}
    void SetUp() override
    {
        opts.log = [](int, const char *line) { messages.push_back(line); };
        messages.clear();
        FsTest::SetUp();
        ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
        check_at_end = false;
    }
    void damage(uint64_t block) { memset(at(block) + 1000, 0x5a, 40); }
    void zero(uint64_t block) { memset(at(block), 0, LAY_BLOCK_SIZE); }
    // Restores one block from an earlier image: a lost write.
    void put_old(const Image &old, uint64_t block)
    {
        uint64_t start = block << LAY_BLOCK_SHIFT;
        memcpy(device.bytes() + start, old.data() + start, LAY_BLOCK_SIZE);
    }
    // A file that only the log has, and the device as a power cut leaves it.
    void crash_with_file()
    {
        write(create("f"), 0, "data");
        ASSERT_EQ(ffs_sync(fs), 0);
        crash();
    }
    void unmount_with_file()
    {
        write(create("f"), 0, "data");
        unmount();
    }
    bool said(const std::string &words)
    {
        for (const std::string &line : messages) {
            if (line.find(words) != std::string::npos)
                return true;
        }
        return false;
    }
    // Mounts for writing; everything is there and in order afterwards.
    void expect_whole()
    {
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read_all(lookup("f")), "data");
        write(create("g"), 0, "more");
        unmount();
        EXPECT_EQ(fsck(), "");
    }
    // A mount of either kind changes nothing.
    void expect_refused()
    {
        const Image before = device.image();
        EXPECT_EQ(mount(), -EINVAL);
        opts.read_only = true;
        EXPECT_EQ(mount(), -EINVAL);
        opts.read_only = false;
        EXPECT_TRUE(device.has(before));
    }
    void reclaim() { EXPECT_NE(fsck("-y --reclaim").find("F409"), std::string::npos); }
    void expect_shown_read_only()
    {
        const Image before = device.image();
        opts.read_only = true;
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read_all(lookup("f")), "data");
        unmount();
        opts.read_only = false;
        EXPECT_TRUE(device.has(before)) << "a look changes nothing";
    }

    lay_geometry geo = {};
};

TEST_F(FsSuper, ADamagedLabelIsReadFromTheOtherAndRewritten)
{
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}}) {
        unmount_with_file();
        damage(block);
        expect_whole();
        EXPECT_TRUE(said("label " + std::to_string(block ? 1 : 0) + " damaged")) << "and says so";
        EXPECT_EQ(memcmp(at(0), at(LAY_LABEL_SECOND), LAY_BLOCK_SIZE), 0);
        ASSERT_EQ(mount(), 0);
        ASSERT_EQ(ffs_unlink(root, "f"), 0);
        ASSERT_EQ(ffs_unlink(root, "g"), 0);
    }
}

TEST_F(FsSuper, OneBitOfALabelIsCorrected)
{
    unmount_with_file();
    for (uint64_t block : {uint64_t{0}, uint64_t{LAY_LABEL_SECOND}})
        at(block)[200] ^= 0x10;
    expect_whole();
}

TEST_F(FsSuper, TwoDamagedLabelsAreRefused)
{
    unmount_with_file();
    damage(0);
    damage(LAY_LABEL_SECOND);
    EXPECT_EQ(mount(), -EUCLEAN);
}

// A block 0 without our magic may belong to any program; the other label is used on request only.
TEST_F(FsSuper, AZeroedLabelIsUsedOnRequestOnly)
{
    unmount_with_file();
    zero(0);
    expect_refused();
    EXPECT_NE(fsck("-y").find("--reclaim"), std::string::npos);
    expect_refused();
    reclaim();
    expect_whole();
}

TEST_F(FsSuper, ALabelWithOneWrongBitInItsMagicIsCorrected)
{
    unmount_with_file();
    at<uint8_t>(0) ^= 0x10;
    expect_whole();
}

TEST_F(FsSuper, ALabelWithTwoWrongBitsInItsMagicIsNotOurs)
{
    unmount_with_file();
    at<uint8_t>(0) ^= 0x18;
    expect_refused();
}

TEST_F(FsSuper, OfAnotherFileSystemIsNotWrittenOver)
{
    unmount_with_file();
    memset(device.bytes(), 'x', LAY_BLOCK_SIZE);
    expect_refused();
}

TEST_F(FsSuper, TwoLabelsOfOneIncarnationThatDifferAreRefused)
{
    unmount_with_file();
    auto &label = at<lay_label>(LAY_LABEL_SECOND);
    label.incarnation.id = lay_put64(lay_get64(label.incarnation.id) + 1);
    lay_seal(&label, 0);
    EXPECT_EQ(mount(), -EUCLEAN);
}

TEST_F(FsSuper, ALabelOlderThanTheLogIsRefused)
{
    unmount();
    Image old = device.image();
    ASSERT_EQ(mount(), 0);
    unmount_with_file();
    put_old(old, 0);
    ASSERT_EQ(mount(), 0) << "the other label is newer";
    unmount();
    put_old(old, 0);
    put_old(old, LAY_LABEL_SECOND);
    EXPECT_EQ(mount(), -EUCLEAN);
    expect_shown_read_only();
}

TEST_F(FsSuper, ADamagedSuperblockIsReadFromItsOtherPlaceAndRewritten)
{
    for (uint64_t place : geo.supers) {
        unmount_with_file();
        damage(place);
        expect_whole();
        EXPECT_TRUE(said("superblock at block " + std::to_string(place))) << "and says so";
        EXPECT_EQ(memcmp(at(geo.supers[0]), at(geo.supers[1]), LAY_BLOCK_SIZE), 0);
        ASSERT_EQ(mount(), 0);
        ASSERT_EQ(ffs_unlink(root, "f"), 0);
        ASSERT_EQ(ffs_unlink(root, "g"), 0);
    }
}

TEST_F(FsSuper, ASuperblockDamagedAfterACrashIsReadFromTheLog)
{
    crash_with_file();
    for (uint64_t place : geo.supers)
        damage(place);
    EXPECT_EQ(fsck().find("exit"), std::string::npos) << "fsck and mount agree";
    expect_whole();
}

TEST_F(FsSuper, TwoDamagedSuperblocksAreRefused)
{
    unmount_with_file();
    for (uint64_t place : geo.supers)
        damage(place);
    EXPECT_EQ(mount(), -EUCLEAN);
}

// Inodes made since mkfs are in both places from the first checkpoint on.
TEST_F(FsSuper, ASuperblockLostRightAfterACheckpointLosesNoInode)
{
    for (int i = 0; i < 300; i++)
        create("file" + std::to_string(i));
    write(create("f"), 0, "data");
    ASSERT_EQ(ffs_sync(fs), 0);
    crash();
    ASSERT_EQ(mount(), 0); // recovery ends with a checkpoint
    crash();
    damage(geo.supers[0]);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(names(root).size(), 303u);
    unmount();
    EXPECT_EQ(fsck(), "");
}

TEST_F(FsSuper, AnOlderSuperblockIsNotUsed)
{
    Image old = device.image();
    unmount_with_file();
    put_old(old, geo.supers[0]);
    expect_whole();
}

TEST_F(FsSuper, OlderThanTheLogSaysIsNotMountedForWriting)
{
    Image old = device.image();
    unmount_with_file();
    for (uint64_t place : geo.supers)
        put_old(old, place);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_NE(fsck(), "");
    opts.read_only = true;
    EXPECT_EQ(mount(), 0) << "but shown";
}

TEST_F(FsSuper, AnOlderLogOrOneWithoutACommitIsNotMountedForWriting)
{
    Image old = device.image();
    unmount_with_file();
    for (bool zeros : {false, true}) {
        for (uint64_t pos = 0; pos < geo.log_blocks; pos++)
            zeros ? zero(geo.log_start + pos) : put_old(old, geo.log_start + pos);
        EXPECT_EQ(mount(), -EUCLEAN) << zeros;
        EXPECT_NE(fsck(), "");
        expect_shown_read_only();
    }
}

// Of a file system that was unmounted in order, only the newest commit is needed.
TEST_F(FsSuper, OfACleanFileSystemNeedsNothingElseOfTheLog)
{
    unmount_with_file();
    const auto *newest = image_newest_commit(device.bytes(), &geo);
    uint64_t last = lay_addr_number(lay_get64(newest->head.block));
    for (uint64_t pos = 0; pos < geo.log_blocks; pos++) {
        if (pos != last)
            zero(geo.log_start + pos);
    }
    expect_whole();
}

TEST_F(FsSuper, AMountThatFailsAnywhereLeavesAFileSystem)
{
    unmount_with_file();
    Image clean = device.image();
    bool mounted = false;
    for (long n = 0; n < 1000 && !mounted; n++) {
        device.put(clean);
        device.fail(MemDevice::FAIL_FROM, n);
        mount();
        mounted = device.countdown() >= 0;
        Image crashed = device.image();
        device.fail(MemDevice::FAIL_NONE, 0);
        unmount();
        device.put(crashed);
        ASSERT_EQ(mount(), 0) << "all transfers from " << n << " on failed";
        EXPECT_EQ(read_all(lookup("f")), "data");
        unmount();
    }
    EXPECT_TRUE(mounted);
}

TEST_F(FsSuper, StaleBitmapsAllocateNoBlock)
{
    Image old = device.image();
    unmount_with_file();
    put_old(old, geo.bitmap_start);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(write(lookup("f"), 8192, "x"), -EUCLEAN);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, Inode().out()), 0) << "needs none of them";
    EXPECT_EQ(read_all(lookup("f")), "data") << "still read";
    end_mount();
    EXPECT_NE(fsck().find("F501"), std::string::npos) << "another version than the last one";
}

// Half of the device.
class SmallerThanTheDevice : public FsSuper
{
  protected:
    SmallerThanTheDevice() { fs_bytes = 40u << 20; }
};

// Behind the end, a superblock of a larger and older file system with more transactions.
TEST_F(SmallerThanTheDevice, ASuperblockOfAnotherFileSystemIsNotUsed)
{
    unmount();
    fs_bytes = 0;
    format();
    ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
    ASSERT_EQ(mount(), 0);
    for (int i = 0; i < 50; i++) {
        create("old" + std::to_string(i));
        ASSERT_EQ(ffs_sync(fs), 0);
    }
    unmount();
    fs_bytes = 40u << 20;
    format();
    ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
    ASSERT_EQ(mount(), 0);
    unmount_with_file();
    damage(geo.supers[0]);
    expect_whole();
}

// --- Writes that the device acknowledges and loses ----------------------------------------------

class LostWrite : public FsSuper
{
  protected:
    void work()
    {
        Inode d = mkdir("dir");
        for (int i = 0; i < 40; i++)
            create(d, "name" + std::to_string(i));
        Inode f = create("f");
        for (uint64_t i = 0; i < 30; i++)
            write(f, i * 8192, "x");
        ffs_sync(fs);
        ffs_unlink(d, "name7");
        ffs_setxattr(f, "user.a", "value", 5, 0);
    }
};

TEST_F(LostWrite, OfMetadataIsRepairedOrDetected)
{
    unmount();
    Image fresh = device.image();
    for (long n = 0;; n++) {
        device.put(fresh);
        ASSERT_EQ(mount(), 0);
        device.fail(MemDevice::FAIL_LOSE, n);
        work();
        unmount();
        bool reached = device.countdown() < 0;
        device.fail(MemDevice::FAIL_NONE, 0);
        std::string found = fsck();
        int err = mount();
        if (err) {
            EXPECT_EQ(err, -EUCLEAN);
            EXPECT_NE(found, "") << "write " << n << " was lost: refused by mount, clean for fsck";
        } else {
            EXPECT_EQ(names(lookup("dir")).size(), 41u) << "write " << n;
            EXPECT_EQ(names(root).size(), 4u) << "write " << n;
            unmount();
            EXPECT_EQ(fsck(), "") << "write " << n;
        }
        if (!reached)
            break;
    }
}

} // namespace
