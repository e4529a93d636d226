/* SPDX-License-Identifier: BSD-2-Clause */
// Damaged extents: what reads, writes and maps of a file make of data that a repair has lost.
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>

#include <memory>

#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/sealed_blocks.h"

namespace
{

constexpr uint64_t kBlock = LAY_BLOCK_SIZE;
// The file "f" has the blocks 0 to 19, of which 7 to 9 are damaged.
constexpr uint64_t kFirst = 7, kLast = 9, kAll = 20;

class FsExtent : public FsTest
{
  protected:
    void SetUp() override
    {
        opts.log = [](int, const char *) {};
        FsTest::SetUp();
        data = pattern(1, kAll * kBlock);
        ASSERT_EQ(write(create("f"), 0, data), static_cast<ssize_t>(data.size()));
        ASSERT_EQ(ffs_sync(fs), 0);
        uint64_t ino = ffs_ino(lookup("f"));
        unmount();
        damage(ino);
        // The blocks that the extent had are free again.
        EXPECT_NE(fsck("-y").find("F502"), std::string::npos);
        EXPECT_EQ(fsck(), "");
        ASSERT_EQ(mount(), 0);
        f = lookup("f");
    }
    void TearDown() override
    {
        f.reset();
        FsTest::TearDown();
    }
    // Replaces the middle of the only extent by a damaged one without blocks.
    void damage(uint64_t ino)
    {
        uint8_t *at = inode_block(ino);
        ASSERT_NE(at, nullptr);
        auto *inode = &reinterpret_cast<lay_inode_block *>(at)->inodes[ino % 8];
        lay_extent *e = inode->map.extents;
        ASSERT_EQ(lay_get16(inode->map_count), 1);
        uint64_t block = lay_get64(e[0].block), after = kLast + 1;
        e[0].len = lay_put32(kFirst);
        e[1] = {lay_put64(kFirst), lay_put64(LAY_NONE), lay_put32(after - kFirst),
                lay_put16(LAY_EXTENT_DAMAGED), lay_put16(0)};
        e[2] = {lay_put64(after), lay_put64(block + after), lay_put32(kAll - after), lay_put16(0),
                lay_put16(0)};
        inode->map_count = lay_put16(3);
        inode->blocks = lay_put64(lay_get64(inode->blocks) - (after - kFirst));
        lay_geometry geo;
        ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
        image_seal_block(device.bytes(), &geo, at);
    }
    uint8_t *inode_block(uint64_t ino)
    {
        lay_geometry geo;
        EXPECT_EQ(image_geometry(device.bytes(), &geo), 0);
        for (uint64_t b = 1; b < geo.blocks; b++) {
            uint8_t *at = device.bytes() + b * kBlock;
            auto *block = reinterpret_cast<lay_inode_block *>(at);
            const uint64_t addr = lay_get64(block->head.block);
            if (!is_in_log(geo, b) &&
                lay_check_inode_block(&geo, block, ino / 8, addr, nullptr) == 0)
                return at;
        }
        return nullptr;
    }
    ssize_t read_result(uint64_t offset, size_t len)
    {
        std::string buf(len, 0);
        return ffs_read(f, offset, buf.data(), len);
    }
    std::string part(uint64_t block, uint64_t n) { return data.substr(block * kBlock, n * kBlock); }

    std::string data;
    Inode f;
};

TEST_F(FsExtent, ReadsFailThereAndNowhereElse)
{
    for (uint64_t b = 0; b < kAll; b++) {
        if (b < kFirst || b > kLast)
            EXPECT_EQ(read(f, b * kBlock, kBlock), part(b, 1)) << b;
        else
            EXPECT_EQ(read_result(b * kBlock + 100, 10), -EIO) << b;
    }
    EXPECT_EQ(read(f, 0, kAll * kBlock), part(0, kFirst)) << "ends before the damage";
    EXPECT_EQ(read_result(kFirst * kBlock, kAll * kBlock), -EIO);
    EXPECT_EQ(attr(f).size, kAll * kBlock);
}

TEST_F(FsExtent, CountsAsDataAndIsInNoMap)
{
    ffs_segment segments[8];
    ffs_map map;
    EXPECT_EQ(ffs_seek(f, 0, SEEK_HOLE), static_cast<int64_t>(kAll * kBlock));
    EXPECT_EQ(ffs_seek(f, kFirst * kBlock, SEEK_DATA), static_cast<int64_t>(kFirst * kBlock));
    EXPECT_EQ(ffs_extents(f, 0, segments, 8), 1);
    EXPECT_EQ(ffs_extents(f, kFirst * kBlock, segments, 8), -EIO);
    EXPECT_EQ(ffs_map_read(f, 0, kAll * kBlock, &map), -EIO);
    EXPECT_EQ(ffs_map_write(f, kFirst * kBlock, kBlock, &map), -EIO);
    ASSERT_EQ(ffs_map_read(f, 0, kFirst * kBlock, &map), 0);
    ffs_map_release(&map);
}

TEST_F(FsExtent, EndsWhereItIsOverwritten)
{
    std::string fresh = pattern(2, kBlock);
    uint64_t blocks = attr(f).blocks;
    EXPECT_EQ(write(f, 8 * kBlock + 10, "part"), -EIO) << "the rest of the block is not known";
    ASSERT_EQ(write(f, 8 * kBlock, fresh), static_cast<ssize_t>(kBlock));
    EXPECT_EQ(read(f, 8 * kBlock, kBlock), fresh);
    EXPECT_EQ(read_result(7 * kBlock, 1), -EIO);
    EXPECT_EQ(read_result(9 * kBlock, 1), -EIO);
    EXPECT_GT(attr(f).blocks, blocks);
    remount(f, "f");
    EXPECT_EQ(read(f, 8 * kBlock, kBlock), fresh);
    EXPECT_EQ(read_result(7 * kBlock, 1), -EIO);
    ASSERT_EQ(write(f, 5 * kBlock, part(5, 10)), static_cast<ssize_t>(10 * kBlock));
    EXPECT_EQ(read_all(f), data);
}

// The kernel writes whole pages; the last block of a file ends earlier.
TEST_F(FsExtent, EndsInTheLastBlockWhenAllOfTheFileThereIsWritten)
{
    ASSERT_EQ(truncate(f, 9 * kBlock + 100), 0);
    EXPECT_EQ(write(f, 9 * kBlock, std::string(99, 'x')), -EIO);
    EXPECT_EQ(write(f, 9 * kBlock, std::string(100, 'x')), 100);
    EXPECT_EQ(read(f, 9 * kBlock, 100), std::string(100, 'x'));
    ASSERT_EQ(truncate(f, 10 * kBlock), 0);
    EXPECT_EQ(read(f, 9 * kBlock + 100, kBlock - 100), std::string(kBlock - 100, '\0'));
}

TEST_F(FsExtent, AllocationAloneKeepsIt)
{
    ASSERT_EQ(ffs_fallocate(f, 0, 0, kAll * kBlock), 0);
    remount(f, "f");
    EXPECT_EQ(read_result(8 * kBlock, 1), -EIO);
    EXPECT_EQ(ffs_seek(f, 0, SEEK_HOLE), static_cast<int64_t>(kAll * kBlock));
    ASSERT_EQ(write(f, 8 * kBlock, part(8, 1)), static_cast<ssize_t>(kBlock));
    EXPECT_EQ(read(f, 8 * kBlock, kBlock), part(8, 1));
    EXPECT_EQ(read_result(7 * kBlock, 1), -EIO);
}

TEST_F(FsExtent, TruncationAndHolesRemoveIt)
{
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 7 * kBlock, kBlock), 0);
    EXPECT_EQ(read(f, 7 * kBlock, kBlock), std::string(kBlock, '\0'));
    EXPECT_EQ(read_result(8 * kBlock, 1), -EIO);
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_ZERO_RANGE, 8 * kBlock, kBlock), 0);
    EXPECT_EQ(read(f, 8 * kBlock, kBlock), std::string(kBlock, '\0'));
    ASSERT_EQ(truncate(f, 9 * kBlock + 10), 0);
    EXPECT_EQ(read_result(9 * kBlock, 10), -EIO) << "truncation keeps the damage before the end";
    ASSERT_EQ(truncate(f, 9 * kBlock), 0);
    ASSERT_EQ(truncate(f, 20 * kBlock), 0);
    EXPECT_EQ(read(f, 9 * kBlock, kBlock), std::string(kBlock, '\0'));
}

TEST_F(FsExtent, ScrubReportsIt)
{
    if (!data_csum)
        GTEST_SKIP() << "only data with checksums is scrubbed";
    auto out = std::make_unique<struct ffs_scrub>();
    ASSERT_EQ(ffs_scrub(f, 0, kAll * kBlock, false, out.get()), 0);
    ASSERT_EQ(out->nbad, 3u);
    EXPECT_EQ(out->bad[0].offset, kFirst * kBlock);
    EXPECT_EQ(out->bad[0].device, 0u);
    EXPECT_TRUE(out->bad[0].unreadable);
}

} // namespace
