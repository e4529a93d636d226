/* SPDX-License-Identifier: BSD-2-Clause */
// The hash of inodes and slabs, as they grow and shrink.
#include <random>

#include "tests/fusefs/core/storage_fixture.h"

extern "C" {
#define _Atomic
#include "fusefs/core/base/cache.h"
#include "fusefs/core/inode/itable.h"
#undef _Atomic
}

namespace
{

class InodeHash : public ::testing::Test
{
  protected:
    void SetUp() override { ASSERT_EQ(ffs_inode_hash_init(&hash), 0); }
    void TearDown() override { ffs_inode_hash_destroy(&hash); }
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

struct Slab : testing::TestWithParam<std::pair<size_t, size_t>> {
};

TEST_P(Slab, ReturnsMappingsAndReusesPlaces)
{
    auto [bytes, align] = GetParam();
    struct ffs_slabs slabs = {};
    ffs_slabs_init(&slabs, bytes, align);
    std::vector<uint64_t *> objects;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 3000; i++) {
            auto *object = static_cast<uint64_t *>(ffs_slab_take(&slabs));
            ASSERT_NE(object, nullptr);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(object) % align, 0u);
            object[0] = object[bytes / sizeof(uint64_t) - 1] = i;
            objects.push_back(object);
        }
        for (uint64_t i = 0; i < objects.size(); i++) {
            ASSERT_EQ(objects[i][0], i) << "a place of its own";
            ASSERT_EQ(objects[i][bytes / sizeof(uint64_t) - 1], i);
        }
#ifndef __SANITIZE_ADDRESS__
        size_t most = slabs.count;
        EXPECT_GT(most, 4u);
        EXPECT_LE(most, 3000 * bytes / (240u << 10) + 1) << "hardly any memory is lost";
#endif
        // In another order than they were taken.
        for (size_t step : {2, 1}) {
            for (size_t i = 0; i < objects.size(); i += step) {
                if (objects[i])
                    ffs_slab_give(&slabs, objects[i]);
                objects[i] = nullptr;
            }
#ifndef __SANITIZE_ADDRESS__
            EXPECT_EQ(slabs.count, step == 2 ? most : 1u);
#endif
        }
        objects.clear();
    }
    ffs_slabs_destroy(&slabs);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Slab,
                         testing::Values(std::pair(sizeof(ffs_inode), alignof(ffs_inode)),
                                         std::pair<size_t, size_t>(LAY_BLOCK_SIZE,
                                                                   LAY_BLOCK_SIZE)));

} // namespace
