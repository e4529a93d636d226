/* SPDX-License-Identifier: BSD-2-Clause */
// Devices that fail: errors come back, nothing crashes, hangs or gets lost.
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <string.h>

#include <functional>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/fs_operations.h"

class FsFault : public FsTest
{
  protected:
    void SetUp() override
    {
        FsTest::SetUp();
        fresh = device.image();
    }
    void every_operation(const std::string &tag) { fs_every_operation(fs, root, tag); }
    void start_from(const Image &image)
    {
        end_mount();
        device.put(image);
    }

    // Makes all operations on fresh mounts, of which every `stride`th transfer in turn fails.
    void run_with_faults(MemDevice::Fail failure, long stride)
    {
        bool reached = true; // there were as many transfers

        for (long n = 0; reached; n += stride) {
            start_from(fresh);
            ASSERT_EQ(mount(), 0);
            device.fail(failure, n);
            every_operation("");
            end_mount();
            reached = device.countdown() < 0;
            device.fail(MemDevice::FAIL_NONE, 0);
            ASSERT_EQ(mount(), 0) << n;
            if (failure == MemDevice::FAIL_ONCE)
                every_operation("2");
            unmount();
            ASSERT_EQ(fsck(), "") << "transfer " << n;
        }
    }

    Image fresh;
};

TEST_F(FsFault, EachTransferFailingInTurnLeavesAConsistentImage)
{
    run_with_faults(MemDevice::FAIL_ONCE, 1);
}

TEST_F(FsFault, ADeviceLostAtAnyPointLeavesAMountableImage)
{
    run_with_faults(MemDevice::FAIL_FROM, 3);
}

// One after the other: a million files may have been open without a name when the power went.
TEST_F(FsFault, ManyOrphansAreFinishedWithoutDeepRecursion)
{
    std::vector<Inode> files(20000);
    for (Inode &f : files)
        ASSERT_EQ(ffs_tmpfile(root, 0600, &cred, f.out()), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    const Image crashed = device.image();
    files.clear();
    start_from(crashed);
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
    const Image before = device.image();
    write(create("second"), 0, "2");
    ASSERT_EQ(ffs_sync(fs), 0);
    write(create("third"), 0, "3");
    ASSERT_EQ(ffs_sync(fs), 0);
    Image crashed = device.image();
    const auto *label = reinterpret_cast<lay_label *>(crashed.data());
    uint64_t at = lay_get64(label->logs[0]) * 4096;
    while (memcmp(&crashed[at], &before[at], 4096) == 0)
        at += 4096;
    crashed[at + 4096 + 100] ^= 7; // the first image of the second transaction
    start_from(crashed);
    EXPECT_EQ(mount(), -EUCLEAN);
    EXPECT_TRUE(device.has(crashed)) << "left as it was";
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_all(lookup("first")), "1");
    EXPECT_EQ(lookup_error(root, "second"), -ENOENT);
    check_at_end = false;
}

TEST_F(FsFault, AnUnfinishedTruncationIsFinishedBeforeTheFileGrows)
{
    for (bool by_write : {false, true}) {
        Inode f = create_with(by_write ? "w" : "t", std::string(4096, 'a'));
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
    Inode f = create_with("f", std::string(3 * 4096, 'a'));
    ASSERT_EQ(truncate(f, 8192), 0) << "whole blocks";
    ffs_segment segment;
    ASSERT_EQ(ffs_extents(f, 0, &segment, 1), 1);
    ASSERT_EQ(ffs_sync(fs), 0);
    device.fail(MemDevice::FAIL_ONCE, 0);
    EXPECT_EQ(truncate(f, 100), -EIO) << "the rest of the block could not be zeroed";
    ASSERT_EQ(ffs_sync(fs), 0);
    const Image crashed = device.image();
    f.reset();
    start_from(crashed);
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
    const Image crashed = device.image();
    f.reset();
    g.reset();
    unmount();
    EXPECT_EQ(fsck(), "");
    start_from(crashed);
    EXPECT_EQ(fsck(), "");
}

// An extent counts as written after its data is on the device: a write that fails in between must
// not show what the blocks held before.
TEST_F(FsFault, AFailedWriteExposesNoStaleData)
{
    for (long n = 0;; n++) {
        start_from(fresh);
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
    Inode f = create_with("f", "first");
    ASSERT_EQ(ffs_fsync(f, false), 0);
    write(f, 0, "other"); // in place
    ASSERT_EQ(ffs_sync(fs), 0);
    device.fail(MemDevice::FAIL_ONCE, 0);
    EXPECT_EQ(ffs_fsync(f, false), -EIO);
    EXPECT_EQ(ffs_fsync(f, false), -EIO) << "what the flush lost is not in the next one";
    EXPECT_EQ(ffs_sync(fs), -EIO);
    EXPECT_EQ(ffs_mknod(root, "g", S_IFREG, 0, &cred, Inode().out()), -EROFS);
    f.reset();
    end_mount();
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
    end_mount();
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(lookup_error(root, "f"), 0) << "what was there has been flushed";
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
