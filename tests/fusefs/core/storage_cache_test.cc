/* SPDX-License-Identifier: BSD-2-Clause */
// Metadata in memory: read once, dropped when clean, never when changed.

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/threads.h"

namespace
{

class Cache : public StorageTest
{
  protected:
    void SetUp() override
    {
        opts.cache_bytes = 1; // the least there is
        make(256u << 20, 4096);
        ASSERT_EQ(mount(), 0) << why;
    }
    uint64_t new_block(uint64_t owner)
    {
        uint64_t block = 0;
        EXPECT_EQ(handle([&](ffs_tx *tx) {
                      ffs_buf *buf;
                      int err = ffs_alloc_meta(tx, 0, &block);
                      if (!err)
                          err = ffs_tx_new(tx, block, LAY_MAGIC_XATTR, owner, &buf);
                      if (!err)
                          ffs_buf_put(buf);
                      return err;
                  }),
                  0);
        return block;
    }
    // The byte of the device at which the block is.
    uint64_t place(uint64_t block)
    {
        return (space_segment(fs, lay_addr_segment(block)) + lay_addr_index(block)) << 12;
    }
    int get(uint64_t block, uint64_t owner)
    {
        lay_expect expect = {};
        ffs_buf *buf;
        expect.magic = LAY_MAGIC_XATTR;
        expect.owner = owner;
        ffs_meta_read(fs);
        int err = ffs_buf_get(fs, block, &expect, &buf);
        if (!err)
            ffs_buf_put(buf);
        ffs_meta_done(fs);
        return err;
    }
};

TEST_F(Cache, ChangedBlocksStayUntilTheyAreWrittenInPlace)
{
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < 300; i++)
        blocks.push_back(new_block(i + 1));
    for (uint64_t i = 0; i < 300; i++)
        EXPECT_EQ(get(blocks[i], i + 1), 0) << "running";
    ASSERT_EQ(commit(), 0);
    for (uint64_t i = 0; i < 300; i++)
        EXPECT_EQ(get(blocks[i], i + 1), 0) << "in the log only";
    ASSERT_EQ(ffs_checkpoint_now(fs), 0);
    for (uint64_t i = 0; i < 300; i++)
        EXPECT_EQ(get(blocks[i], i + 1), 0) << "in place";
    EXPECT_GE(dev->reads(place(blocks[0])), 1u);
}

TEST_F(Cache, KeepsNoMoreCleanBlocksThanItsBound)
{
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < 300; i++)
        blocks.push_back(new_block(i + 1));
    remount();
    for (uint64_t i = 0; i < 300; i++)
        ASSERT_EQ(get(blocks[i], i + 1), 0);
    uint64_t first = dev->reads(place(blocks[0]));
    uint64_t last = dev->reads(place(blocks[299]));
    EXPECT_EQ(get(blocks[299], 300), 0);
    EXPECT_EQ(dev->reads(place(blocks[299])), last) << "the latest is kept";
    EXPECT_EQ(get(blocks[0], 1), 0);
    EXPECT_EQ(dev->reads(place(blocks[0])), first + 1) << "the oldest is not";
}

TEST_F(Cache, OneReadServesAllWaiters)
{
    uint64_t block = new_block(1);
    remount();
    uint64_t before = dev->reads(place(block));
    dev->slow(20000);
    in_threads(8, [&](int) { EXPECT_EQ(get(block, 1), 0); });
    EXPECT_EQ(dev->reads(place(block)), before + 1);
}

TEST_F(Cache, AReadErrorIsNotCached)
{
    uint64_t block = new_block(1);
    remount();
    dev->fail_reads(place(block), 4096);
    EXPECT_EQ(get(block, 1), -EIO);
    dev->fail_reads(0, 0);
    EXPECT_EQ(get(block, 1), 0);
}

TEST_F(Cache, ABlockOfAnotherOwnerIsCorrupt)
{
    uint64_t block = new_block(1);
    EXPECT_EQ(get(block, 1), 0);
    EXPECT_EQ(get(block, 2), -EUCLEAN);
}

TEST_F(Cache, AnAddressPastTheEndIsCorrupt)
{
    EXPECT_EQ(get(UINT64_MAX, 1), -EUCLEAN);
}

TEST_F(Cache, AFreedBlockIsForgotten)
{
    uint64_t block = new_block(1);
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(handle([&](ffs_tx *tx) { return ffs_free_meta(tx, block); }), 0);
    ASSERT_EQ(commit(), 0);
    ASSERT_EQ(ffs_checkpoint_now(fs), 0);
    std::vector<uint8_t> data(4096, 0x77);
    ASSERT_EQ(bd_write(ffs_dev(fs), place(block), data.data(), 4096, 0), 0);
    EXPECT_EQ(get(block, 1), -EUCLEAN) << "it is read from the device";
}

} // namespace
