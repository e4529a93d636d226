/* SPDX-License-Identifier: BSD-2-Clause */
// Damaged and stale superblocks, journal headers and bitmaps: a single one of them costs nothing,
// and is never trusted.
#include <string.h>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"

namespace
{

thread_local std::vector<std::string> messages;

class FsSuper : public FsTest
{
  protected:
    using Image = std::vector<uint8_t>;

    explicit FsSuper(uint64_t bytes = 64u << 20) : FsTest(bytes)
    {
    }
    void SetUp() override
    {
        opts.log = [](int, const char *line) { messages.push_back(line); };
        messages.clear();
        FsTest::SetUp();
        ASSERT_EQ(lay_check_super(&at<lay_super>(0), 0, 0, &geo, nullptr, nullptr), 0);
        check_at_end = false;
    }
    template <typename T> T &at(uint64_t block)
    {
        return *reinterpret_cast<T *>(device.bytes() + (block << LAY_BLOCK_SHIFT));
    }
    void damage(uint64_t block)
    {
        at<uint8_t[LAY_BLOCK_SIZE]>(block)[1000] ^= 1;
    }
    void zero(uint64_t block)
    {
        memset(&at<uint8_t>(block), 0, LAY_BLOCK_SIZE);
    }
    Image image()
    {
        return Image(device.bytes(), device.bytes() + device.size());
    }
    void put(const Image &image)
    {
        memcpy(device.bytes(), image.data(), image.size());
    }
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
        Image crashed = image();
        unmount();
        put(crashed);
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
        Image before = image();
        EXPECT_EQ(mount(), -EINVAL);
        opts.read_only = true;
        EXPECT_EQ(mount(), -EINVAL);
        opts.read_only = false;
        EXPECT_TRUE(image() == before);
    }
    void reclaim()
    {
        EXPECT_NE(fsck("-y --reclaim").find("F401"), std::string::npos);
    }
    void expect_shown_read_only()
    {
        Image before = image();
        opts.read_only = true;
        ASSERT_EQ(mount(), 0);
        EXPECT_EQ(read_all(lookup("f")), "data");
        unmount();
        opts.read_only = false;
        EXPECT_TRUE(image() == before) << "a look changes nothing";
    }

    lay_geometry geo = {};
};

TEST_F(FsSuper, DamagedIsReadFromACopyAndRewritten)
{
    unmount_with_file();
    damage(0);
    expect_whole();
    EXPECT_TRUE(said("superblock damaged")) << "and says so";
}

// A block 0 without our magic may belong to any program; a copy is used on explicit request only.
TEST_F(FsSuper, ZeroedIsUsedOnRequestOnly)
{
    unmount_with_file();
    zero(0);
    expect_refused();
    EXPECT_NE(fsck("-y").find("--reclaim"), std::string::npos);
    expect_refused();
    reclaim();
    expect_whole();
}

TEST_F(FsSuper, WithAWrongByteInItsMagicIsReadFromACopy)
{
    unmount_with_file();
    at<uint8_t>(0) ^= 0x10;
    expect_whole();
}

TEST_F(FsSuper, DamagedAfterACrashIsReadFromTheLog)
{
    crash_with_file();
    memset(device.bytes() + sizeof(lay_head), 0, LAY_BLOCK_SIZE - sizeof(lay_head));
    EXPECT_EQ(fsck().find("exit"), std::string::npos) << "fsck and mount agree";
    expect_whole();
}

TEST_F(FsSuper, WithTwoWrongBitsInItsMagicIsNotOurs)
{
    unmount_with_file();
    at<uint8_t>(0) ^= 0x18;
    expect_refused();
}

TEST_F(FsSuper, DamagedWithACopyIsReadFromTheOther)
{
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        unmount();
        ASSERT_NO_FATAL_FAILURE(format());
        ASSERT_EQ(mount(), 0);
        unmount_with_file();
        damage(0);
        damage(geo.copies[i]);
        expect_whole();
        ASSERT_EQ(mount(), 0);
    }
}

// Inodes made since mkfs are in the copies from the first checkpoint on.
TEST_F(FsSuper, LostRightAfterACheckpointLosesNoInode)
{
    for (int i = 0; i < 300; i++)
        create("file" + std::to_string(i));
    write(create("f"), 0, "data");
    ASSERT_EQ(ffs_sync(fs), 0);
    Image crashed = image();
    unmount();
    put(crashed);
    ASSERT_EQ(mount(), 0); // recovery ends with a checkpoint
    crashed = image();
    unmount();
    put(crashed);
    damage(0);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(names(root).size(), 303u);
    unmount();
    EXPECT_EQ(fsck(), "");
}

TEST_F(FsSuper, OfAnotherFileSystemIsNotWrittenOver)
{
    unmount_with_file();
    memset(device.bytes(), 'x', LAY_BLOCK_SIZE);
    expect_refused();
}

// The magic is ours, but it is that of a newer file system.
TEST_F(FsSuper, OfANewerFileSystemIsNotWrittenOver)
{
    unmount_with_file();
    memset(device.bytes() + 4, 'x', LAY_BLOCK_SIZE - 4);
    Image before = image();
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_TRUE(image() == before);
    expect_shown_read_only();
}

TEST_F(FsSuper, OlderThanACopyIsNotUsed)
{
    Image old = image();
    unmount_with_file();
    put_old(old, 0);
    expect_whole();
    EXPECT_TRUE(said("older than a copy"));
}

TEST_F(FsSuper, OlderThanTheJournalSaysIsNotMountedForWriting)
{
    Image old = image();
    unmount_with_file();
    put_old(old, 0);
    put_old(old, geo.copies[0]);
    put_old(old, geo.copies[1]);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_NE(fsck().find("F407"), std::string::npos);
    opts.read_only = true;
    EXPECT_EQ(mount(), 0) << "but shown";
}

TEST_F(FsSuper, NewerThanTheJournalIsNotMountedForWriting)
{
    Image old = image();
    unmount_with_file();
    put_old(old, geo.journal_start);
    // The log as mkfs leaves it: the header's tail is the log's end.
    for (uint64_t pos = 1; pos < geo.journal_blocks; pos++)
        zero(geo.journal_start + pos);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_NE(fsck().find("F1003"), std::string::npos);
    expect_shown_read_only();
}

TEST_F(FsSuper, OfACleanFileSystemNeedsNoJournalHeader)
{
    unmount_with_file();
    damage(geo.journal_start);
    expect_whole();
    EXPECT_TRUE(said("journal header damaged"));
}

TEST_F(FsSuper, OfACleanFileSystemIsNotInUseBeforeTheJournalHeaderIsWhole)
{
    unmount_with_file();
    damage(geo.journal_start);
    Image clean = image();
    bool mounted = false;
    for (long n = 0; n < 1000 && !mounted; n++) {
        put(clean);
        device.fail(MemDevice::FAIL_FROM, n);
        mount();
        mounted = device.countdown() >= 0;
        Image crashed = image();
        device.fail(MemDevice::FAIL_NONE, 0);
        unmount();
        put(crashed);
        ASSERT_EQ(mount(), 0) << "all transfers from " << n << " on failed";
        EXPECT_EQ(read_all(lookup("f")), "data");
        unmount();
    }
    EXPECT_TRUE(mounted);
}

TEST_F(FsSuper, AfterACrashNeedsTheJournalHeader)
{
    crash_with_file();
    damage(geo.journal_start);
    Image before = image();
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_TRUE(image() == before);
    opts.read_only = true;
    ASSERT_EQ(mount(), 0) << "what is in place is shown";
    EXPECT_EQ(lookup_error(root, "f"), -ENOENT);
}

TEST_F(FsSuper, StaleBitmapsAllocateNoBlock)
{
    Image old = image();
    unmount_with_file();
    put_old(old, geo.bitmap_start);
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(write(lookup("f"), 8192, "x"), -EUCLEAN);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, Inode().out()), -EROFS);
    EXPECT_EQ(read_all(lookup("f")), "data") << "still read";
    root.reset();
    ffs_unmount(fs);
    fs = nullptr;
    EXPECT_NE(fsck().find("F504"), std::string::npos);
}

// Half of the device: the copies are not where a file system that fills it has them.
class SmallerThanTheDevice : public FsSuper
{
  protected:
    SmallerThanTheDevice()
    {
        fs_bytes = 40u << 20;
    }
};

TEST_F(SmallerThanTheDevice, DamagedIsReadFromACopyThatItNames)
{
    unmount_with_file();
    damage(0);
    expect_whole();
}

// Behind the end, a copy of a larger and older file system with more transactions.
TEST_F(SmallerThanTheDevice, ACopyOfAnotherFileSystemIsNoneOfThisOne)
{
    unmount();
    fs_bytes = 0;
    format();
    ASSERT_EQ(mount(), 0);
    for (int i = 0; i < 50; i++) {
        create("old" + std::to_string(i));
        ASSERT_EQ(ffs_sync(fs), 0);
    }
    unmount();
    Image larger = image();
    uint64_t places[LAY_SUPER_COPIES];
    lay_super_places(device.size() >> LAY_BLOCK_SHIFT, places);
    fs_bytes = 40u << 20;
    format();
    ASSERT_EQ(mount(), 0);
    unmount_with_file();
    for (uint64_t place : places)
        if (place > fs_bytes >> LAY_BLOCK_SHIFT)
            put_old(larger, place);
    damage(0);
    expect_whole();
}

// Two groups and a half on a device of three: the first copy begins the second group.
class SearchedFor : public FsSuper
{
  protected:
    SearchedFor() : FsSuper(380u << 20)
    {
        fs_bytes = 300u << 20;
    }
};

TEST_F(SearchedFor, DamagedIsFoundAtTheStartOfAGroup)
{
    unmount_with_file();
    at<lay_super>(0).copies[0] = at<lay_super>(0).copies[1] = lay_put64(0);
    expect_whole();
}

TEST_F(SearchedFor, ZeroedIsFoundAtTheStartOfAGroupOnRequest)
{
    unmount_with_file();
    zero(0);
    expect_refused();
    reclaim();
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
    Image fresh = image();
    for (long n = 0;; n++) {
        put(fresh);
        ASSERT_EQ(mount(), 0);
        device.fail(MemDevice::FAIL_LOSE, n);
        work();
        root.reset();
        ASSERT_EQ(ffs_unmount(fs), 0);
        fs = nullptr;
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
