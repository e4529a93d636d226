/* SPDX-License-Identifier: BSD-2-Clause */
// Handles are whole or not at all; committed ones survive; write errors stop all writing.
#include <string.h>
#include <time.h>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"

namespace
{

class Tx : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(32u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
    }
};

TEST_F(Tx, AbortRestoresInodesBlocksAndSpace)
{
    const lay_inode before = root()->d;
    uint64_t free_before = free_blocks();
    uint64_t block[2], len;
    for (uint64_t &b : block) {
        Inode root = this->root(), fresh;
        EXPECT_EQ(handle([&](ffs_tx *tx) {
                      ffs_buf *buf;
                      EXPECT_EQ(ffs_inode_dirty(tx, root), 0);
                      memset(&root->d.map, 0xee, sizeof(root->d.map));
                      EXPECT_EQ(ffs_inode_new(tx, S_IFREG, fresh.out()), 0);
                      EXPECT_EQ(ffs_alloc(tx, 5000, 1, 100, 1, &b, &len), 0);
                      EXPECT_EQ(ffs_tx_new(tx, b, LAY_MAGIC_XATTR, 1, &buf), 0);
                      ffs_buf_put(buf);
                      EXPECT_EQ(ffs_free(tx, b, len), 0);
                      return -EINTR;
                  }),
                  -EINTR);
    }
    EXPECT_EQ(block[0], block[1]);
    EXPECT_EQ(free_blocks(), free_before);
    const lay_inode after = root()->d;
    EXPECT_EQ(memcmp(&before, &after, sizeof(before)), 0);
}

TEST_F(Tx, AHandleThatDirtiesTooMuchFails)
{
    int err = handle(
        [&](ffs_tx *tx) {
            for (unsigned i = 0; i < 200; i++) {
                uint64_t block;
                ffs_buf *buf;
                int e = ffs_alloc_meta(tx, 0, &block);
                if (!e)
                    e = ffs_tx_new(tx, block, LAY_MAGIC_XATTR, 1, &buf);
                if (e)
                    return e;
                ffs_buf_put(buf);
            }
            return 0;
        },
        4);
    EXPECT_EQ(err, -ENOSPC);
}

TEST_F(Tx, MoreBlocksThanTheJournalHoldsAreCommitted)
{
    std::vector<Inode> inodes(200);
    for (Inode &inode : inodes)
        ASSERT_EQ(new_inode(inode.out()), 0);
    for (uint32_t round = 0; round < 20; round++) {
        for (const Inode &inode : inodes)
            ASSERT_EQ(set_uid(ffs_ino(inode), round + 1), 0);
        ASSERT_EQ(commit(), 0);
    }
    uint64_t last = ffs_ino(inodes.back());
    inodes.clear();
    remount();
    EXPECT_EQ(uid(last), 20);
}

TEST_F(Tx, ACommitWithoutChangesWritesNothing)
{
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 1), 0);
    ASSERT_EQ(commit(), 0);
    dev->record();
    EXPECT_EQ(commit(), 0);
    EXPECT_EQ(dev->ops(), 0u);
}

TEST_F(Tx, AWriteErrorMakesItReadOnlyAndKeepsCommittedData)
{
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 1), 0);
    ASSERT_EQ(commit(), 0);
    for (long after = 0; after < 4; after++) {
        ASSERT_EQ(set_uid(LAY_INO_ROOT, 2), 0);
        dev->record();
        dev->fail_writes(after);
        if (commit() == 0)
            break;
        EXPECT_EQ(set_uid(LAY_INO_ROOT, 3), -EROFS);
        EXPECT_EQ(uid(LAY_INO_ROOT), 2);
        EXPECT_EQ(commit(), -EIO);
        dev->fail_writes(-1);
        size_t written = dev->ops();
        EXPECT_NE(unmount(), 0);
        EXPECT_EQ(dev->ops(), written);
        ASSERT_EQ(mount(), 0) << why;
        EXPECT_EQ(uid(LAY_INO_ROOT), 1);
    }
}

TEST_F(Tx, AFailedCheckpointLosesNothing)
{
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 7), 0);
    ASSERT_EQ(commit(), 0);
    dev->fail_writes(0);
    EXPECT_EQ(ffs_checkpoint_now(fs), -EIO);
    EXPECT_EQ(set_uid(LAY_INO_ROOT, 8), -EROFS);
    EXPECT_NE(unmount(), 0);
    dev->fail_writes(-1);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(uid(LAY_INO_ROOT), 7);
}

TEST_F(Tx, ShutdownWithoutFlushDropsUncommittedChanges)
{
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 5), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 6), 0);
    ASSERT_EQ(ffs_shutdown(fs, false), 0);
    remount();
    EXPECT_EQ(uid(LAY_INO_ROOT), 5);
}

// --- Recovery: what it costs, and how it ends early ----------------------------------------------

class Recover : public StorageTest
{
  protected:
    static double cpu_seconds()
    {
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
    }
    // Sealed images of blocks that look like metadata of inode 1, for the next transaction.
    std::vector<ffs_image *> images(uint64_t segment, size_t n)
    {
        const uint64_t tid = lay_get64(newest_of(dev.get())->head.tid) + 1;

        std::vector<uint8_t> block(4096, 0);
        std::vector<ffs_image *> all;
        for (uint64_t at = LAY_ADDR_CHUNK(segment, 1); all.size() < n; at++) {
            if (lay_addr_index(at) == 0)
                continue;
            lay_head_init(reinterpret_cast<lay_head *>(block.data()), LAY_MAGIC_XATTR,
                          ffs_geometry(fs)->uuid, at, 1);
            lay_seal(block.data(), tid);
            all.push_back(ffs_image_new(at, block.data()));
        }
        return all;
    }
    // Appends a transaction that no handle has made.
    void append(const std::vector<ffs_image *> &images)
    {
        struct ffs_log_tx tx = {};
        tx.images = const_cast<ffs_image **>(images.data());
        tx.n = images.size();
        ASSERT_EQ(ffs_log_write(fs, &tx), 0);
        for (ffs_image *image : images)
            free(image);
    }
    Device crash() { return dev->cut(dev->ops(), CRASH_KEEP, 0); }
};

// The space of such a segment may hold data. As many images as the log holds take no long time.
TEST_F(Recover, ImagesOfSegmentsThatAreNotMappedAreDropped)
{
    make(128u << 20, 8192);
    ASSERT_EQ(mount(), 0) << why;
    ASSERT_EQ(space_segment(fs, 2), 0u);
    dev->record();
    append(images(2, 8000));
    Device cut = crash();
    ASSERT_EQ(unmount(), 0);
    const std::vector<uint8_t> before(cut->bytes(), cut->bytes() + (128u << 20));
    const lay_geometry geo = geometry_of(cut.get());
    double start = cpu_seconds();
    ASSERT_EQ(mount(cut.get()), 0) << why;
    EXPECT_LT(cpu_seconds() - start, 5.0);
    EXPECT_EQ(unmount(), 0);
    for (uint64_t block = 0; block < geo.blocks; block++) {
        if (lay_range_ok(&geo, block, 1)) {
            EXPECT_EQ(memcmp(&before[block << 12], cut->bytes() + (block << 12), 4096), 0) << block;
        }
    }
}

// --- Power cuts while mkfs writes: nothing can be mounted, or a whole file system ----------------

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};

class MkfsCrash : public StorageTest
{
  protected:
    // With a sound label in block 0, everything is in place.
    static bool sound_as_it_is(CrashDevice *d)
    {
        const auto *label = reinterpret_cast<const lay_label *>(d->peek());
        return lay_check_label(label, nullptr, nullptr) != 0 || image_check(d->dev()) == 0;
    }
    // What is wrong after each cut of a format over what the device holds now, or "".
    std::string cut_everywhere(bool empty)
    {
        dev->record();
        EXPECT_EQ(storage_format(dev.get(), 256), 0);
        size_t all = dev->ops();
        for (size_t ops = 0; ops <= all; ops++) {
            for (uint64_t seed = 0; seed < 6; seed++) {
                Device cut = dev->cut(ops, FATES[seed % 4], seed);
                bool sound = !empty || sound_as_it_is(cut.get());
                int err = mount(cut.get());
                sound = (err || (unmount() == 0 && image_check(cut->dev()) == 0)) && sound;
                if (!sound || (err && ops == all))
                    return "after " + std::to_string(ops) + " of " + std::to_string(all) +
                           " seed " + std::to_string(seed) + ": " + why;
            }
        }
        return "";
    }
};

TEST_F(MkfsCrash, OnAnEmptyDeviceLeavesNothingOrAllOfIt)
{
    dev = std::make_unique<CrashDevice>(32u << 20, 512);
    EXPECT_EQ(cut_everywhere(true), "");
}

// With the same UUID and the same places: nothing but the order of writes tells old from new.
TEST_F(MkfsCrash, OverAnOldFileSystemLeavesOneOfThem)
{
    make(32u << 20, 256);
    ASSERT_EQ(mount(), 0) << why;
    for (int i = 0; i < 50; i++) {
        Inode inode;
        ASSERT_EQ(new_inode(inode.out()), 0);
        ASSERT_EQ(handle([&](ffs_tx *tx) {
                      int e = ffs_inode_dirty(tx, inode);
                      inode->d.nlink = lay_put32(0);
                      return e ? e : ffs_orphan_add(tx, inode);
                  }),
                  0);
    }
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(cut_everywhere(false), "");
}

TEST_F(MkfsCrash, IsNoticedByThisTestWhenFlushesDoNothing)
{
    dev = std::make_unique<CrashDevice>(32u << 20, 512);
    dev->ignore_flush(true);
    EXPECT_NE(cut_everywhere(true), "");
}

// --- Power cuts while the label and the UUID of a mount change: the old or the new ones ----------

constexpr uint8_t NEW_UUID[17] = "another-uuid-now";

class Label : public StorageTest
{
  public:
    void SetUp() override
    {
        make(16u << 20, 256);
        ASSERT_EQ(mount(), 0) << why;
        dev->record();
        ASSERT_EQ(set_uid(LAY_INO_ROOT, 7), 0);
        ASSERT_EQ(commit(), 0);
    }
    struct ffs_statfs state()
    {
        struct ffs_statfs s;
        ffs_statfs(fs, &s);
        return s;
    }
    // The fault of a device after a cut, or "".
    std::string check(CrashDevice *d)
    {
        struct ffs *whole = fs;
        std::string wrong;
        if (image_check(d->dev()) != 0)
            wrong = "fsck before";
        if (mount(d)) {
            fs = whole;
            return "mount: " + why;
        }
        const std::string label = state().label;
        if (label != "" && label != "new")
            wrong = "label";
        if (memcmp(state().uuid, NEW_UUID, 16) == 0 && label != "new")
            wrong = "a later change alone";
        if (unmount())
            wrong = "unmount";
        fs = whole;
        if (image_check(d->dev()) != 0)
            wrong = "fsck after";
        return wrong;
    }
};

TEST_F(Label, EveryCutLeavesAFileSystem)
{
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(ffs_set_uuid(fs, NEW_UUID), 0);
    size_t ops = dev->ops();
    EXPECT_GT(ops, 8u);
    for (size_t at = 0; at <= ops; at++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            Device cut = dev->cut(at, FATES[seed], seed);
            ASSERT_EQ(check(cut.get()), "") << "after " << at << " seed " << seed;
        }
    }
}

TEST_F(Label, IsDurableWhenTheCallReturns)
{
    ASSERT_EQ(ffs_set_label(fs, "new"), 0);
    ASSERT_EQ(ffs_set_uuid(fs, NEW_UUID), 0);
    Device cut = dev->cut(dev->ops(), CRASH_DROP, 0);
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(mount(cut.get()), 0) << why;
    EXPECT_STREQ(state().label, "new");
    EXPECT_EQ(memcmp(state().uuid, NEW_UUID, 16), 0);
    EXPECT_EQ(uid(LAY_INO_ROOT), 7);
    EXPECT_EQ(unmount(), 0);
}

// Each change takes one block of the log, and the log ends.
TEST_F(Label, MayChangeManyTimes)
{
    for (int i = 0; i < 600; i++)
        ASSERT_EQ(ffs_set_label(fs, std::to_string(i).c_str()), 0);
    remount();
    EXPECT_STREQ(state().label, "599");
    EXPECT_EQ(uid(LAY_INO_ROOT), 7);
}

TEST_F(Label, OfAReadOnlyMountDoesNotChange)
{
    ASSERT_EQ(unmount(), 0);
    opts.read_only = true;
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(ffs_set_label(fs, "new"), -EROFS);
    EXPECT_STREQ(state().label, "");
}

} // namespace
