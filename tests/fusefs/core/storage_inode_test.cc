/* SPDX-License-Identifier: BSD-2-Clause */
// The inode table: slots, generations, references, the orphan list.
#include <set>

#include "tests/fusefs/core/storage_fixture.h"

namespace
{

class Inodes : public StorageTest
{
  protected:
    void SetUp() override
    {
        make(64u << 20, 512);
        ASSERT_EQ(mount(), 0) << why;
    }
    // Frees the slot of an inode that owns nothing; drops the reference.
    int release(ffs_inode *inode)
    {
        int err = handle([&](ffs_tx *tx) {
            int e = ffs_inode_dirty(tx, inode);
            inode->d.nlink = lay_put32(0);
            return e ? e : ffs_inode_release(tx, inode);
        });
        ffs_iput(inode, 1);
        return err;
    }
    uint64_t in_use()
    {
        struct ffs_statfs st;
        ffs_statfs(fs, &st);
        return st.inodes;
    }
    int orphan(ffs_inode *inode, bool add)
    {
        return handle([&](ffs_tx *tx) {
            return add ? ffs_orphan_add(tx, inode) : ffs_orphan_del(tx, inode);
        });
    }
    // The list as it is on record, from the newest.
    std::vector<uint64_t> orphans()
    {
        std::vector<uint64_t> list;
        EXPECT_EQ(ffs_sync(fs), 0);
        EXPECT_EQ(ffs_checkpoint_now(fs), 0);
        uint64_t ino = lay_get64(super_of(dev.get())->orphan);
        while (ino != LAY_NONE) {
            ffs_inode *inode;
            list.push_back(ino);
            EXPECT_EQ(ffs_iget(fs, ino, &inode), 0);
            ino = lay_get64(inode->d.next_orphan);
            ffs_iput(inode, 1);
        }
        return list;
    }
};

TEST_F(Inodes, ManyRemainDistinct)
{
    std::set<uint64_t> inos;
    for (int i = 0; i < 1000; i++) {
        Inode inode;
        ASSERT_EQ(new_inode(inode.out()), 0);
        inos.insert(ffs_ino(inode));
    }
    EXPECT_EQ(inos.size(), 1000u);
    EXPECT_EQ(in_use(), 1001u);
    remount();
    EXPECT_EQ(in_use(), 1001u);
    for (uint64_t ino : inos)
        EXPECT_EQ(uid(ino), 0);
}

TEST_F(Inodes, ASlotIsReusedWithAnotherGeneration)
{
    std::set<std::pair<uint64_t, uint32_t>> seen;
    for (int i = 0; i < 100; i++) {
        ffs_inode *inode;
        ASSERT_EQ(new_inode(&inode), 0);
        EXPECT_TRUE(seen.insert({ffs_ino(inode), ffs_generation(inode)}).second);
        ASSERT_EQ(release(inode), 0);
        if (i % 10 == 0)
            remount();
    }
    EXPECT_EQ(in_use(), 1u);
    EXPECT_LE(seen.rbegin()->first, 7u) << "one inode block is enough";
}

TEST_F(Inodes, AReleasedOneIsStale)
{
    ffs_inode *inode;
    ASSERT_EQ(new_inode(&inode), 0);
    uint64_t ino = ffs_ino(inode);
    ASSERT_EQ(release(inode), 0);
    EXPECT_EQ(ffs_iget(fs, ino, &inode), -ESTALE);
    EXPECT_EQ(ffs_iget(fs, 0, &inode), -ESTALE);
    EXPECT_EQ(ffs_iget(fs, 1u << 30, &inode), -ESTALE);
    EXPECT_EQ(ffs_iget(fs, UINT64_MAX, &inode), -ESTALE);
    // Right behind the end of the inode file, too.
    for (uint64_t block = 1; block < 20; block++)
        EXPECT_EQ(ffs_iget(fs, block * LAY_INODES_PER_BLOCK, &inode), -ESTALE);
}

TEST_F(Inodes, AnAbortedOneDoesNotExist)
{
    ffs_inode *inode, *again;
    EXPECT_EQ(handle([&](ffs_tx *tx) {
                  EXPECT_EQ(ffs_inode_new(tx, S_IFREG, &inode), 0);
                  return -EINTR;
              }),
              -EINTR);
    EXPECT_EQ(ffs_iget(fs, ffs_ino(inode), &again), -ESTALE);
    ffs_iput(inode, 1);
    EXPECT_EQ(in_use(), 1u);
}

TEST_F(Inodes, TheSameNumberIsTheSameObject)
{
    ffs_inode *a, *b;
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &a), 0);
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &b), 0);
    EXPECT_EQ(a, b);
    ffs_iref(a, 3);
    ffs_iput(a, 5);
}

TEST_F(Inodes, EvictedOnesAreReadAgainFromDisk)
{
    std::vector<uint64_t> inos;
    for (uint32_t i = 0; i < 9000; i++) {
        Inode inode;
        ASSERT_EQ(new_inode(inode.out()), 0);
        inos.push_back(ffs_ino(inode));
    }
    ASSERT_EQ(set_uid(inos[0], 123), 0);
    for (uint64_t ino : inos)
        ASSERT_GE(uid(ino), 0);
    EXPECT_EQ(uid(inos[0]), 123);
}

TEST_F(Inodes, TheOrphanListLosesAnyOfItsMembers)
{
    Inode inode[6];
    for (Inode &i : inode) {
        ASSERT_EQ(new_inode(i.out()), 0);
        ASSERT_EQ(orphan(i, true), 0);
        ASSERT_EQ(orphan(i, true), 0) << "adding twice changes nothing";
    }
    auto ino = [&](int i) { return ffs_ino(inode[i]); };
    EXPECT_EQ(orphans(), (std::vector<uint64_t>{ino(5), ino(4), ino(3), ino(2), ino(1), ino(0)}));
    ASSERT_EQ(orphan(inode[3], false), 0);
    ASSERT_EQ(orphan(inode[2], false), 0);
    EXPECT_EQ(orphans(), (std::vector<uint64_t>{ino(5), ino(4), ino(1), ino(0)}));
    ASSERT_EQ(orphan(inode[5], false), 0);
    ASSERT_EQ(orphan(inode[0], false), 0);
    ASSERT_EQ(orphan(inode[0], false), 0) << "removing twice changes nothing";
    EXPECT_EQ(orphans(), (std::vector<uint64_t>{ino(4), ino(1)}));
    for (const Inode &i : inode)
        ASSERT_EQ(orphan(i, false), 0);
    EXPECT_TRUE(orphans().empty());
}

TEST_F(Inodes, AWrongHintIntoTheOrphanListIsNotFollowed)
{
    Inode inode[4];
    for (Inode &i : inode) {
        ASSERT_EQ(new_inode(i.out()), 0);
        ASSERT_EQ(orphan(i, true), 0);
    }
    inode[1]->orphan_prev = ffs_ino(inode[0]);
    ASSERT_EQ(orphan(inode[1], false), 0);
    inode[0]->orphan_prev = 12345;
    ASSERT_EQ(orphan(inode[0], false), 0);
    EXPECT_EQ(orphans(), (std::vector<uint64_t>{ffs_ino(inode[3]), ffs_ino(inode[2])}));
    for (const Inode &i : inode)
        ASSERT_EQ(orphan(i, false), 0);
}

} // namespace
