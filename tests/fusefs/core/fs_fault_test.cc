/* SPDX-License-Identifier: BSD-2-Clause */
// Devices that fail and images that lie: errors come back, nothing crashes, hangs or gets lost.
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <string.h>

#include <functional>
#include <random>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/fs_operations.h"
#include "tests/rounds.h"

class FsFault : public FsTest
{
  protected:
    void SetUp() override
    {
        FsTest::SetUp();
        fresh.assign(device.bytes(), device.bytes() + device.size());
    }
    void every_operation(const std::string &tag)
    {
        fs_every_operation(fs, root, tag);
    }
    void populate();
    void mount_again_from(const std::vector<uint8_t> &image)
    {
        root.reset();
        if (fs)
            ffs_unmount(fs);
        fs = nullptr;
        memcpy(device.bytes(), image.data(), image.size());
    }

    // All operations on a fresh mount, of which transfer n fails, and the next mount. *reached:
    // there were as many transfers.
    void run_with_fault(MemDevice::Fail failure, long n, bool *reached)
    {
        mount_again_from(fresh);
        ASSERT_EQ(mount(), 0);
        device.fail(failure, n);
        every_operation("");
        root.reset();
        ffs_unmount(fs);
        fs = nullptr;
        *reached = device.countdown() < 0;
        device.fail(MemDevice::FAIL_NONE, 0);
        ASSERT_EQ(mount(), 0) << n;
    }

    std::vector<uint8_t> fresh;
};

TEST_F(FsFault, EachTransferFailingInTurnLeavesAConsistentImage)
{
    for (long n = 0;; n++) {
        bool reached;
        ASSERT_NO_FATAL_FAILURE(run_with_fault(MemDevice::FAIL_ONCE, n, &reached));
        every_operation("2");
        unmount();
        ASSERT_EQ(fsck(), "") << "transfer " << n;
        if (!reached)
            break;
    }
}

TEST_F(FsFault, ADeviceLostAtAnyPointLeavesAMountableImage)
{
    for (long n = 0;; n += 3) {
        bool reached;
        ASSERT_NO_FATAL_FAILURE(run_with_fault(MemDevice::FAIL_FROM, n, &reached));
        unmount();
        ASSERT_EQ(fsck(), "") << "transfer " << n;
        if (!reached)
            break;
    }
}

// One after the other: a million files may have been open without a name when the power went.
TEST_F(FsFault, ManyOrphansAreFinishedWithoutDeepRecursion)
{
    std::vector<Inode> files(20000);
    for (Inode &f : files)
        ASSERT_EQ(ffs_tmpfile(root, 0600, &cred, f.out()), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    std::vector<uint8_t> crashed(device.bytes(), device.bytes() + device.size());
    files.clear();
    mount_again_from(crashed);
    pthread_attr_t small;
    pthread_t thread;
    int err = -1;
    std::function<void()> body = [&] { err = mount(); };
    pthread_attr_init(&small);
    ASSERT_EQ(pthread_attr_setstacksize(&small, 1u << 20), 0);
    auto run = [](void *arg) -> void * {
        (*static_cast<std::function<void()> *>(arg))();
        return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &small, run, &body), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&small);
    EXPECT_EQ(err, 0);
}

// Everything from the damage on was durable once: it must not vanish without a word.
TEST_F(FsFault, ADamagedLogIsNotReplayedInPart)
{
    write(create("first"), 0, "1");
    ASSERT_EQ(ffs_sync(fs), 0);
    std::vector<uint8_t> before(device.bytes(), device.bytes() + device.size());
    write(create("second"), 0, "2");
    ASSERT_EQ(ffs_sync(fs), 0);
    write(create("third"), 0, "3");
    ASSERT_EQ(ffs_sync(fs), 0);
    std::vector<uint8_t> crashed(device.bytes(), device.bytes() + device.size());
    const auto *label = reinterpret_cast<lay_label *>(crashed.data());
    uint64_t at = lay_get64(label->logs[0]) * 4096;
    while (memcmp(&crashed[at], &before[at], 4096) == 0)
        at += 4096;
    crashed[at + 4096 + 100] ^= 7; // the first image of the second transaction
    mount_again_from(crashed);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_EQ(memcmp(device.bytes(), crashed.data(), crashed.size()), 0) << "left as it was";
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_all(lookup("first")), "1");
    EXPECT_EQ(lookup_error(root, "second"), -ENOENT);
    check_at_end = false;
}

TEST_F(FsFault, AnUnfinishedTruncationIsFinishedBeforeTheFileGrows)
{
    for (bool by_write : {false, true}) {
        Inode f = create(by_write ? "w" : "t");
        write(f, 0, std::string(4096, 'a'));
        device.fail(MemDevice::FAIL_ONCE, 0);
        EXPECT_EQ(truncate(f, 100), -EIO) << "the rest of the block could not be zeroed";
        if (by_write)
            write(f, 8000, "b");
        else
            EXPECT_EQ(truncate(f, 4096), 0);
        EXPECT_EQ(read(f, 0, 4096), std::string(100, 'a') + std::string(3996, 0));
    }
}

// The orphan list tells the mount after a crash what to finish.
TEST_F(FsFault, AnUnfinishedTruncationIsFinishedByTheNextMount)
{
    Inode f = create("f");
    write(f, 0, std::string(3 * 4096, 'a'));
    ASSERT_EQ(truncate(f, 8192), 0) << "whole blocks";
    ffs_segment segment;
    ASSERT_EQ(ffs_extents(f, 0, &segment, 1), 1);
    ASSERT_EQ(ffs_sync(fs), 0);
    device.fail(MemDevice::FAIL_ONCE, 0);
    EXPECT_EQ(truncate(f, 100), -EIO) << "the rest of the block could not be zeroed";
    ASSERT_EQ(ffs_sync(fs), 0);
    std::vector<uint8_t> crashed(device.bytes(), device.bytes() + device.size());
    f.reset();
    mount_again_from(crashed);
    ASSERT_EQ(mount(), 0);
    const char *data = reinterpret_cast<const char *>(device.bytes()) + segment.device;
    EXPECT_TRUE(std::string(data, 4096) == std::string(100, 'a') + std::string(3996, 0));
}

// The inode is on the orphan list already.
TEST_F(FsFault, ARemovedFileIsTruncated)
{
    Inode f = create("f"), g = create("g");
    for (ffs_inode *inode : {static_cast<ffs_inode *>(f), static_cast<ffs_inode *>(g)})
        write(inode, 0, std::string(3 * 4096, 'a'));
    EXPECT_EQ(ffs_unlink(root, "g"), 0);
    EXPECT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(truncate(g, 100), 0);
    EXPECT_EQ(truncate(f, 8192), 0);
    EXPECT_EQ(truncate(f, 100), 0);
    EXPECT_EQ(read(f, 0, 4096), std::string(100, 'a'));
    ASSERT_EQ(ffs_sync(fs), 0);
    std::vector<uint8_t> crashed(device.bytes(), device.bytes() + device.size());
    f.reset();
    g.reset();
    unmount();
    EXPECT_EQ(fsck(), "");
    mount_again_from(crashed);
    EXPECT_EQ(fsck(), "");
}

// An extent counts as written after its data is on the device: a write that fails in between must
// not show what the blocks held before.
TEST_F(FsFault, AFailedWriteExposesNoStaleData)
{
    for (long n = 0;; n++) {
        mount_again_from(fresh);
        ASSERT_EQ(mount(), 0);
        Inode f = create("f");
        ASSERT_EQ(ffs_sync(fs), 0);
        device.fail(MemDevice::FAIL_ONCE, n);
        write(f, 0, std::string(20000, 'w'));
        bool reached = device.countdown() < 0;
        device.fail(MemDevice::FAIL_NONE, 0);
        truncate(f, 65536);
        std::string data = read_all(f);
        EXPECT_EQ(data.find_first_not_of(std::string("w\0", 2)), std::string::npos) << n;
        f.reset();
        if (!reached)
            break;
    }
}

TEST_F(FsFault, TheNextSyncReportsAFailedFlush)
{
    Inode f = create("f");
    write(f, 0, "first");
    ASSERT_EQ(ffs_fsync(f, false), 0);
    write(f, 0, "other"); // in place
    ASSERT_EQ(ffs_sync(fs), 0);
    device.fail(MemDevice::FAIL_ONCE, 0);
    EXPECT_EQ(ffs_fsync(f, false), -EIO);
    EXPECT_EQ(ffs_fsync(f, false), -EIO) << "what the flush lost is not in the next one";
    EXPECT_EQ(ffs_sync(fs), -EIO);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, Inode().out()), -EROFS);
    f.reset();
    root.reset();
    ffs_unmount(fs);
    ASSERT_EQ(mount(), 0);
}

TEST_F(FsFault, AfterShutdownEverythingFails)
{
    Inode f = create("f"), i;
    char c = 0;
    struct ffs_attr a = {};
    ASSERT_EQ(ffs_shutdown(fs, true), 0);
    EXPECT_EQ(ffs_read(f, 0, &c, 1), -EIO);
    EXPECT_EQ(ffs_write(f, 0, &c, 1), -EIO);
    EXPECT_EQ(ffs_lookup(root, "f", i.out()), -EIO);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, i.out()), -EIO);
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MODE, nullptr), -EIO);
    EXPECT_EQ(ffs_fsync(f, true), -EIO);
    f.reset();
    check_at_end = false;
}

TEST_F(FsFault, AReadOnlyMountReadsAndRefusesToChange)
{
    write(create("f"), 0, "data");
    unmount();
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    Inode f = lookup("f"), i;
    EXPECT_EQ(read_all(f), "data");
    EXPECT_EQ(write(f, 0, "x"), -EROFS);
    EXPECT_EQ(truncate(f, 0), -EROFS);
    EXPECT_EQ(ffs_unlink(root, "f"), -EROFS);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, i.out()), -EROFS);
    EXPECT_EQ(ffs_setxattr(f, "user.a", "", 0, 0), -EROFS);
    EXPECT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2), -EROFS);
    ffs_map map;
    EXPECT_EQ(ffs_map_write(f, 0, 2, &map), -EROFS);
    EXPECT_EQ(read_all(f), "data") << "nothing of it, not even in place";
    f.reset();
}

// --- Corrupt images -----------------------------------------------------------------------------

// A tree of all shapes: split nodes, extents in trees, chains.
void FsFault::populate()
{
    Inode d = mkdir("big"), f = create("file"), g = create("xattrs");
    for (int i = 0; i < 200; i++)
        create(d, std::string(60, 'n') + std::to_string(i));
    for (uint64_t i = 0; i < 400; i++)
        write(f, i * 8192, "x");
    for (int i = 0; i < 6; i++)
        ffs_setxattr(g, ("user." + std::to_string(i)).c_str(), fresh.data(), 2000, 0);
    Inode l;
    ffs_symlink(root, "link", std::string(3000, 't').c_str(), &cred, l.out());
}

static int count(void *arg, const char *, size_t, uint64_t, uint8_t, uint64_t)
{
    return ++*static_cast<long *>(arg) > 100000;
}

class FsCorrupt : public FsFault, public ::testing::WithParamInterface<int>
{
  protected:
    void SetUp() override
    {
        FsFault::SetUp();
        populate();
        unmount();
        check_at_end = false;
        image.assign(device.bytes(), device.bytes() + device.size());
        for (uint64_t b = 0; b < image.size() / 4096; b++) {
            if (is_metadata(image.data() + b * 4096))
                blocks.push_back(b);
        }
    }
    static bool is_metadata(const uint8_t *block)
    {
        return block[0] == 'G' && block[1] == 'N';
    }
    void use_everything();
    void flip(bool reseal);

    std::vector<uint8_t> image;
    std::vector<uint64_t> blocks;
    std::mt19937_64 rng{static_cast<uint64_t>(GetParam())};
};

void FsCorrupt::use_everything()
{
    char buf[5000];
    for (const char *name : {"big", "file", "xattrs", "link"}) {
        Inode i;
        if (ffs_lookup(root, name, i.out()))
            continue;
        long entries = 0;
        ffs_readdir(i, 0, count, &entries);
        EXPECT_LT(entries, 100000);
        std::string all(4u << 20, 0);
        ffs_read(i, 0, all.data(), all.size());
        ffs_readlink(i, buf, sizeof(buf));
        ffs_listxattr(i, buf, sizeof(buf));
        ffs_getxattr(i, "user.3", buf, sizeof(buf));
        ffs_removexattr(i, "user.3");
        ffs_setxattr(i, "user.7", buf, 3000, 0);
        ffs_fallocate(i, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1u << 20);
        ffs_write(i, 3u << 20, buf, sizeof(buf));
        truncate(i, 5);
        for (int n = 0; n < 200; n += 7)
            ffs_unlink(i, (std::string(60, 'n') + std::to_string(n)).c_str());
    }
    every_operation("x");
    for (const char *name : {"file", "xattrs", "link"})
        ffs_unlink(root, name);
    ffs_sync(fs);
}

// Changes one byte of a metadata block; with `reseal` the checksum fits again, as in a crafted
// image.
void FsCorrupt::flip(bool reseal)
{
    uint64_t b = blocks[rng() % blocks.size()];
    uint8_t *block = device.bytes() + b * 4096;
    size_t used = 4096;
    while (used > 64 && block[used - 1] == 0)
        used--;
    block[rng() % used] ^= static_cast<uint8_t>(1 + rng() % 255);
    if (!reseal)
        return;
    lay_head head;
    memcpy(&head, block, sizeof(head));
    lay_seal(block, lay_get64(head.tid));
}

TEST_P(FsCorrupt, FlippedBytesCauseErrorsOnly)
{
    for (int round = 0; round < 12; round++) {
        mount_again_from(image);
        flip(false);
        if (mount() == 0)
            use_everything();
    }
}

TEST_P(FsCorrupt, CraftedBlocksCauseErrorsOnly)
{
    for (int round = 0; round < 40; round++) {
        mount_again_from(image);
        for (int n = 0; n < 1 + round % 3; n++)
            flip(true);
        if (mount() == 0)
            use_everything();
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FsCorrupt, ::testing::Range(1, 1 + test_rounds(2, 24)));
