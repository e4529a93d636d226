/* SPDX-License-Identifier: BSD-2-Clause */
// Handles are whole or not at all; committed ones survive; write errors stop all writing.
#include <string.h>

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
    lay_inode root_on_record()
    {
        ffs_inode *root;
        EXPECT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
        lay_inode d = root->d;
        ffs_iput(root, 1);
        return d;
    }
};

TEST_F(Tx, AbortRestoresInodesBlocksAndSpace)
{
    lay_inode before = root_on_record();
    uint64_t free_before = free_blocks();
    uint64_t block[2], len;
    for (uint64_t &b : block) {
        ffs_inode *root, *fresh = nullptr;
        ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
        EXPECT_EQ(handle([&](ffs_tx *tx) {
                      ffs_buf *buf;
                      EXPECT_EQ(ffs_inode_dirty(tx, root), 0);
                      memset(&root->d.map, 0xee, sizeof(root->d.map));
                      EXPECT_EQ(ffs_inode_new(tx, S_IFREG, &fresh), 0);
                      EXPECT_EQ(ffs_alloc(tx, 5000, 1, 100, 1, &b, &len), 0);
                      EXPECT_EQ(ffs_tx_new(tx, b, LAY_MAGIC_XATTR, 1, &buf), 0);
                      ffs_buf_put(buf);
                      EXPECT_EQ(ffs_free(tx, b, len), 0);
                      return -EINTR;
                  }),
                  -EINTR);
        ffs_iput(fresh, 1);
        ffs_iput(root, 1);
    }
    EXPECT_EQ(block[0], block[1]);
    EXPECT_EQ(free_blocks(), free_before);
    lay_inode after = root_on_record();
    EXPECT_EQ(memcmp(&before, &after, sizeof(before)), 0);
}

TEST_F(Tx, EndedHandlesSurviveARemount)
{
    ffs_inode *inode;
    ASSERT_EQ(new_inode(&inode), 0);
    uint64_t ino = ffs_ino(inode);
    uint32_t generation = ffs_generation(inode);
    ffs_iput(inode, 1);
    ASSERT_EQ(set_uid(ino, 4711), 0);
    remount();
    EXPECT_EQ(uid(ino), 4711);
    ASSERT_EQ(ffs_iget(fs, ino, &inode), 0);
    EXPECT_EQ(ffs_generation(inode), generation);
    ffs_iput(inode, 1);
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
    std::vector<ffs_inode *> inodes(200);
    for (ffs_inode *&inode : inodes)
        ASSERT_EQ(new_inode(&inode), 0);
    for (uint32_t round = 0; round < 20; round++) {
        for (ffs_inode *inode : inodes)
            ASSERT_EQ(set_uid(ffs_ino(inode), round + 1), 0);
        ASSERT_EQ(commit(), 0);
    }
    uint64_t last = ffs_ino(inodes.back());
    for (ffs_inode *inode : inodes)
        ffs_iput(inode, 1);
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

TEST_F(Tx, AfterShutdownEveryCallFailsWithEio)
{
    ffs_inode *root;
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 5), 0);
    ASSERT_EQ(ffs_shutdown(fs, true), 0);
    EXPECT_EQ(set_uid(LAY_INO_ROOT, 6), -EIO);
    EXPECT_EQ(uid(LAY_INO_ROOT), -EIO);
    EXPECT_EQ(ffs_sync(fs), -EIO);
    ffs_iput(root, 1);
    remount();
    EXPECT_EQ(uid(LAY_INO_ROOT), 5);
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

TEST_F(Tx, ADamagedBlockRequestsFsckAndStopsNothingElse)
{
    lay_expect expect = {};
    expect.magic = LAY_MAGIC_BITMAP;
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 9), 0);
    remount();
    uint8_t *bitmap = dev->bytes() + (ffs_geometry(fs)->bitmap_start << 12);
    bitmap[100] ^= 6;
    ffs_buf *buf;
    ASSERT_EQ(set_uid(LAY_INO_ROOT, 10), 0);
    ffs_meta_read(fs);
    EXPECT_EQ(ffs_buf_get(fs, LAY_ADDR(LAY_KIND_BITMAP, 0), &expect, &buf), -EUCLEAN);
    ffs_meta_done(fs);
    EXPECT_EQ(set_uid(LAY_INO_ROOT, 11), 0);
    EXPECT_EQ(unmount(), 0);
    bitmap[100] ^= 6;
    EXPECT_EQ(lay_get32(super_of(dev.get())->state), LAY_STATE_ERROR);
    ASSERT_EQ(mount(), 0) << why;
    EXPECT_EQ(uid(LAY_INO_ROOT), 11);
}

} // namespace
