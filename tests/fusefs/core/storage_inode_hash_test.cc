/* SPDX-License-Identifier: BSD-2-Clause */
// The hash of inodes, as it grows and shrinks.
#include <random>

#include "tests/fusefs/core/storage_fixture.h"

extern "C" {
#define _Atomic
#include "fusefs/core/inode_hash.h"
#undef _Atomic
}

namespace
{

class InodeHash : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(ffs_inode_hash_init(&hash), 0);
    }
    void TearDown() override
    {
        ffs_inode_hash_destroy(&hash);
    }
    // Inodes of the numbers first, first + step and so on.
    void add(size_t n, uint64_t first, uint64_t step)
    {
        inodes = std::vector<ffs_inode>(n);
        for (size_t i = 0; i < n; i++) {
            inodes[i].ino = first + i * step;
            ffs_inode_hash_add(&hash, &inodes[i]);
        }
    }
    size_t longest_chain() const
    {
        size_t longest = 0;
        for (size_t b = 0; b < hash.count; b++) {
            size_t n = 0;
            for (const ffs_inode *inode = hash.buckets[b]; inode; inode = inode->hash_next)
                n++;
            longest = std::max(longest, n);
        }
        return longest;
    }

    ffs_inode_hash hash = {};
    std::vector<ffs_inode> inodes;
};

TEST_F(InodeHash, EveryInodeIsFoundAtEverySize)
{
    inodes = std::vector<ffs_inode>(5000);
    for (size_t i = 0; i < inodes.size(); i++) {
        inodes[i].ino = i * 3 + 1;
        ffs_inode_hash_add(&hash, &inodes[i]);
        for (size_t k = i % 7; k <= i; k += 97)
            ASSERT_EQ(ffs_inode_hash_find(&hash, inodes[k].ino), &inodes[k]) << i;
    }
    EXPECT_EQ(hash.count, inodes.size());
    EXPECT_EQ(ffs_inode_hash_find(&hash, 2), nullptr);
    while (!inodes.empty()) {
        ffs_inode_hash_remove(&hash, &inodes.back());
        ASSERT_EQ(ffs_inode_hash_find(&hash, inodes.back().ino), nullptr);
        inodes.pop_back();
        for (size_t k = inodes.size() % 7; k < inodes.size(); k += 97)
            ASSERT_EQ(ffs_inode_hash_find(&hash, inodes[k].ino), &inodes[k]);
    }
    EXPECT_EQ(hash.count, FFS_INODE_BUCKETS_MIN);
    EXPECT_EQ(hash.inodes, 0u);
}

TEST_F(InodeHash, ChainsStayShort)
{
    for (uint64_t step : {1, 8, 4096}) {
        add(100000, 1, step);
        EXPECT_LE(longest_chain(), 16u) << step;
        for (ffs_inode &inode : inodes)
            ffs_inode_hash_remove(&hash, &inode);
    }
}

TEST_F(InodeHash, RemovingTwiceChangesNothing)
{
    add(3, 1, 1);
    ffs_inode_hash_remove(&hash, &inodes[1]);
    ffs_inode_hash_remove(&hash, &inodes[1]);
    EXPECT_EQ(hash.inodes, 2u);
    EXPECT_EQ(ffs_inode_hash_find(&hash, 1), &inodes[0]);
    EXPECT_EQ(ffs_inode_hash_find(&hash, 3), &inodes[2]);
}

} // namespace
