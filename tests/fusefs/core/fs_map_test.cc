/* SPDX-License-Identifier: BSD-2-Clause */
// Extents for transfers that go around the ordinary path.
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "layout/format.h"
#include "layout/layout.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/fusefs/core/sealed_blocks.h"

namespace
{

using FsMap = FsTest;

// The writes reach the first and the last block of a preallocated extent, and
// then the block between them.
TEST_F(FsMap, ABlockBetweenTwoExtentsJoinsThem)
{
    Inode f = create("f");
    ffs_segment segments[4];
    ASSERT_EQ(ffs_fallocate(f, 0, 0, 3 * 4096), 0);
    for (auto [block, extents] : {std::pair{0u, 2}, {2u, 3}, {1u, 1}}) {
        write(f, block * 4096, std::string(4096, 'x'));
        EXPECT_EQ(ffs_extents(f, 0, segments, 4), extents);
    }
    EXPECT_EQ(segments[0].len, 3u * 4096);
}

TEST_F(FsMap, ShowsDataHolesAndUnwrittenBlocksUpToTheEnd)
{
    Inode f = create_with("f", std::string(4096, 'a'));
    ASSERT_EQ(ffs_fallocate(f, 0, 8192, 4096), 0);
    write(f, 16384, "tail");
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 1, 1u << 20, &map), 0);
    EXPECT_EQ(map.start, 0u);
    EXPECT_EQ(map.len, 16384u + 4 - 1);
    ASSERT_EQ(map.count, 5u);
    EXPECT_EQ(device.bytes()[map.segments[0].device], 'a');
    EXPECT_EQ(map.segments[1].device, FFS_HOLE);
    EXPECT_TRUE(map.segments[2].unwritten);
    EXPECT_EQ(map.segments[3].offset, 12288u);
    EXPECT_EQ(memcmp(device.bytes() + map.segments[4].device, "tail", 5), 0);
    EXPECT_EQ(map.segments[4].len, 4096u);
    ffs_map_release(&map);
}

TEST_F(FsMap, BeyondTheEndIsEmpty)
{
    Inode f = create_with("f", "x");
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 1, 10, &map), 0);
    EXPECT_EQ(map.len, 0u);
    EXPECT_EQ(map.count, 0u);
    ffs_map_release(&map);
    EXPECT_EQ(ffs_map_read(root, 0, 1, &map), -EISDIR);
}

TEST_F(FsMap, MappedBlocksAreNotReusedAfterTheFileIsGone)
{
    std::string data(8u << 20, 'k');
    Inode f = create_with("f", data);
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 0, data.size(), &map), 0);
    ASSERT_EQ(truncate(f, 0), 0);
    EXPECT_EQ(read_all(f), "");
    f.reset();
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    Inode g = create("g");
    for (uint64_t at = 0; write(g, at, data = std::string(1u << 20, 'z')) > 0;)
        at = attr(g).size;
    for (size_t i = 0; i < map.count; i++) {
        const char *kept = reinterpret_cast<char *>(device.bytes()) + map.segments[i].device;
        EXPECT_EQ(std::string(kept, map.segments[i].len), std::string(map.segments[i].len, 'k'));
    }
    ffs_map_release(&map);
    ASSERT_EQ(truncate(g, 0), 0);
}

TEST_F(FsMap, AnAbandonedReadKeepsItsBlocksForTheMount)
{
    Inode f = create_with("f", std::string(8u << 20, 'k'));
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 0, 8u << 20, &map), 0);
    uint64_t kept = map.segments[0].device;
    ffs_map_abandon(&map);
    ASSERT_EQ(truncate(f, 0), 0);
    Inode g = create("g");
    for (uint64_t at = 0; write(g, at, std::string(1u << 20, 'z')) > 0;)
        at = attr(g).size;
    EXPECT_EQ(device.bytes()[kept], 'k');
    ASSERT_EQ(truncate(g, 0), 0);
}

TEST_F(FsMap, AnAbandonedWriteEndsAllChangesButKeepsCompleteOnes)
{
    Inode f = create("f"), g = create("g"), i;
    write(g, 0, "complete");
    ffs_map map;
    ASSERT_EQ(ffs_map_write(f, 0, 8192, &map), 0);
    ffs_map_abandon(&map);
    EXPECT_EQ(ffs_unlink(root, "f"), -EROFS);
    EXPECT_EQ(ffs_mknod(root, "h", S_IFREG, 0, &cred, i.out()), -EROFS);
    EXPECT_EQ(read_all(f), "");
    EXPECT_EQ(ffs_fsync(g, false), 0);
    f.reset();
    g.reset();
    root.reset();
    EXPECT_EQ(ffs_unmount(fs), -EROFS);
    fs = nullptr;
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_all(lookup("g")), "complete");
}

TEST_F(FsMap, TheGenerationGrowsWithEveryChangeOfTheMapping)
{
    Inode f = create("f");
    uint64_t last = 0;
    auto generation = [&] {
        ffs_map map;
        EXPECT_EQ(ffs_map_read(f, 0, 4096, &map), 0);
        uint64_t g = map.generation;
        ffs_map_release(&map);
        return g;
    };
    write(f, 0, std::string(8192, 'x'));
    EXPECT_GT(last = generation(), 0u);
    write(f, 0, "in place");
    EXPECT_EQ(generation(), last);
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    uint64_t punched = generation();
    EXPECT_GT(punched, last);
    ASSERT_EQ(truncate(f, 0), 0);
    EXPECT_GT(generation(), punched);
}

TEST_F(FsMap, AnUnusedMapForWritingChangesNothingVisible)
{
    Inode f = create_with("f", "abc");
    ffs_map map;
    ASSERT_EQ(ffs_map_write(f, 0, 20000, &map), 0);
    EXPECT_EQ(map.count, 2u);
    ASSERT_EQ(ffs_map_write_end(&map, 0, nullptr), 0);
    ASSERT_EQ(ffs_map_write(f, 100001, 10, &map), 0); // past the end
    ASSERT_EQ(ffs_map_write_end(&map, 0, nullptr), 0);
    EXPECT_EQ(read_all(f), "abc");
    EXPECT_EQ(attr(f).size, 3u);
}

TEST_F(FsMap, AShortWriteLeavesZerosAfterTheWrittenPart)
{
    Inode f = create("f");
    ffs_map map;
    ASSERT_EQ(truncate(f, 8192), 0);
    ASSERT_EQ(ffs_map_write(f, 0, 8192, &map), 0);
    memset(device.bytes() + map.segments[0].device, 'w', 100); // the rest is the device's garbage
    ASSERT_EQ(ffs_map_write_end(&map, 100, nullptr), 0);
    EXPECT_EQ(read_all(f), std::string(100, 'w') + std::string(8092, 0));
}

// The transfer has written all of a block that was written before, but only a part of it counts.
TEST_F(FsMap, BytesWrittenPastTheEndOfATransferAreZeroed)
{
    Inode f = create_with("f", std::string(4096, 'a'));
    ASSERT_EQ(truncate(f, 10), 0);
    ffs_map map;
    ASSERT_EQ(ffs_map_write(f, 0, 4096, &map), 0);
    memset(device.bytes() + map.segments[0].device, 'w', 4096);
    ASSERT_EQ(ffs_map_write_end(&map, 50, nullptr), 0);
    ASSERT_EQ(truncate(f, 4096), 0);
    EXPECT_EQ(read_all(f), std::string(50, 'w') + std::string(4046, 0));
}

// What an append that no commit followed has left behind the end of a file, for example.
TEST_F(FsMap, AMapForWritingPastTheEndLeavesZerosInBetween)
{
    Inode f = create_with("f", std::string(100, 'a'));
    ffs_map map;
    ASSERT_EQ(ffs_map_read(f, 0, 100, &map), 0);
    memset(device.bytes() + map.segments[0].device + 100, 's', 3996);
    ffs_map_release(&map);
    ASSERT_EQ(ffs_map_write(f, 8192, 4096, &map), 0);
    memset(device.bytes() + map.segments[0].device, 'w', 4096);
    ASSERT_EQ(ffs_map_write_end(&map, 4096, nullptr), 0);
    EXPECT_EQ(read_all(f), std::string(100, 'a') + std::string(8092, 0) + std::string(4096, 'w'));
}

TEST_F(FsMap, InvalidRequestsAreRefused)
{
    Inode f = create("f");
    ffs_map map;
    EXPECT_EQ(ffs_map_write(f, 0, 0, &map), -EINVAL);
    EXPECT_EQ(ffs_map_write(f, INT64_MAX, 2, &map), -EFBIG);
    EXPECT_EQ(ffs_map_write(f, UINT64_MAX, UINT64_MAX, &map), -EFBIG);
    EXPECT_EQ(ffs_map_write(f, 0, 1u << 30, &map), -ENOSPC);
    ASSERT_EQ(ffs_map_read(f, UINT64_MAX, UINT64_MAX, &map), 0);
    EXPECT_EQ(map.len, 0u);
    ffs_map_release(&map);
    EXPECT_EQ(truncate(f, 0), 0);
}

TEST_F(FsMap, ExtentsAreListedUnchanged)
{
    Inode f = create("f");
    write(f, 4096, "x");
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, 8192, 8192), 0);
    ASSERT_EQ(truncate(f, 40000), 0);
    ffs_segment s[8];
    ASSERT_EQ(ffs_extents(f, 0, s, 8), 4);
    EXPECT_EQ(s[0].device, FFS_HOLE);
    EXPECT_EQ(s[1].offset, 4096u);
    EXPECT_EQ(s[1].len, 4096u);
    EXPECT_FALSE(s[1].unwritten);
    EXPECT_TRUE(s[2].unwritten);
    EXPECT_EQ(s[2].len, 8192u);
    EXPECT_EQ(s[3].device, FFS_HOLE);
    EXPECT_EQ(s[3].offset + s[3].len, 40960u);
    EXPECT_EQ(ffs_extents(f, 40960, s, 8), 0);
    EXPECT_EQ(ffs_extents(f, 4096, s, 1), 1);
    EXPECT_EQ(ffs_extents(root, 0, s, 1), -EINVAL);
}

// More extents than a leaf of the tree holds, some of them next to each other, some far apart.
TEST_F(FsMap, AMapOfManyExtentsEqualsTheListing)
{
    Inode f = create("f");
    constexpr uint64_t kExtents = 700, kBlock = 4096, kEnd = 3 * kExtents * kBlock;
    for (uint64_t i = 0; i < kExtents; i++) {
        uint64_t at = (3 * i + (i % 5 == 0)) * kBlock;
        if (i < 250 || i > 600) {
            ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, at, kBlock), 0);
        }
        if (i % 7 == 0)
            write(f, at, "written");
    }
    ASSERT_EQ(truncate(f, kEnd), 0);
    std::vector<ffs_segment> all(3 * kExtents);
    ssize_t n = ffs_extents(f, 0, all.data(), all.size());
    ASSERT_GT(n, 600);
    for (uint64_t from : {uint64_t{0}, 9 * kBlock, 500 * kBlock, 1300 * kBlock}) {
        ffs_map map;
        uint64_t len = std::min(kEnd - from, 800 * kBlock), at = from;
        ASSERT_EQ(ffs_map_read(f, from, len, &map), 0);
        EXPECT_EQ(map.size, kEnd);
        EXPECT_EQ(map.len, len);
        for (size_t i = 0, j = 0; i < map.count; i++) {
            const ffs_segment &got = map.segments[i];
            while (all[j].offset + all[j].len <= got.offset)
                j++;
            uint64_t skip = got.offset - all[j].offset;
            ASSERT_EQ(got.offset, at) << "no gap";
            ASSERT_EQ(got.len, std::min(all[j].len - skip, from + len - at));
            ASSERT_EQ(got.device, all[j].device == FFS_HOLE ? FFS_HOLE : all[j].device + skip);
            ASSERT_EQ(got.unwritten, all[j].unwritten);
            at += got.len;
        }
        EXPECT_EQ(at, from + len);
        ffs_map_release(&map);
    }
}

TEST_F(FsMap, AMapOfSomeSegmentsEndsWithTheLastOfThem)
{
    Inode f = create("f");
    for (uint64_t i = 0; i < 100; i++)
        write(f, 8192 * i, "x");
    ffs_map map;
    ASSERT_EQ(ffs_map_read_some(f, 8200, 500000, 37, &map), 0);
    ASSERT_EQ(map.count, 37u);
    const ffs_segment &last = map.segments[36];
    EXPECT_EQ(8200 + map.len, last.offset + last.len);
    ffs_map_release(&map);
    ASSERT_EQ(ffs_map_read_some(f, 8200, 5000, 37, &map), 0);
    EXPECT_EQ(map.len, 5000u);
    EXPECT_EQ(map.count, 2u);
    ffs_map_release(&map);
}

// --- What a crash leaves ------------------------------------------------------------------------

class FsCut : public FsTest
{
  protected:
    // Cuts the device off at transfer n of `work`, mounts again. False: all of it was done before.
    template <class Work> bool cut(long n, Work work)
    {
        device.fail(MemDevice::FAIL_FROM, n);
        work();
        end_mount();
        bool reached = device.countdown() < 0;
        device.fail(MemDevice::FAIL_NONE, 0);
        EXPECT_EQ(mount(), 0);
        return reached;
    }
};

TEST_F(FsCut, NothingOlderThanTheFileIsEverSeenInIt)
{
    bool more = true;
    for (long n = 0; more && !HasFailure(); n++) {
        more = cut(n, [&] {
            Inode f;
            ffs_mknod(root, ("f" + std::to_string(n)).c_str(), S_IFREG | 0600, 0, &cred, f.out());
            if (!f)
                return;
            write(f, 100, std::string(9000, 'a'));
            ffs_fsync(f, false);
            truncate(f, 5000);
            write(f, 20000, std::string(5000, 'b'));
            ffs_sync(fs);
            truncate(f, 21000);
            truncate(f, 50000);
        });
        Inode f;
        ffs_lookup(root, ("f" + std::to_string(n)).c_str(), f.out());
        EXPECT_TRUE(!f || read_all(f).find(FS_GARBAGE) == std::string::npos) << n;
    }
}

TEST_F(FsCut, ATruncationIsFinishedAtTheNextMount)
{
    bool more = true;
    for (long n = 0; more && !HasFailure(); n += 5) {
        std::string name = "f" + std::to_string(n);
        {
            Inode f = create(name);
            for (uint64_t i = 0; i < 600; i++)
                write(f, i * 8192, "x");
            ASSERT_EQ(ffs_sync(fs), 0);
        }
        more = cut(n, [&] {
            truncate(lookup(name), 10);
            ffs_sync(fs);
        });
        ffs_attr a = attr(lookup(name));
        EXPECT_TRUE((a.size == 10 && a.blocks == 8) || a.size == 599 * 8192 + 1) << n;
        EXPECT_EQ(ffs_unlink(root, name.c_str()), 0);
    }
}

TEST_F(FsCut, DataThatATruncationCouldNotZeroIsZeroedAtTheNextMount)
{
    {
        Inode f = create_with("f", std::string(4096, 'x'));
        device.fail(MemDevice::FAIL_ONCE, 0);
        EXPECT_EQ(truncate(f, 10), -EIO);
        ASSERT_EQ(ffs_sync(fs), 0);
    }
    cut(0, [] {});
    Inode f = lookup("f");
    ASSERT_EQ(attr(f).size, 10u);
    ASSERT_EQ(truncate(f, 4096), 0);
    EXPECT_EQ(read_all(f), std::string(10, 'x') + std::string(4086, 0));
}

TEST_F(FsCut, SyncedDataSurvives)
{
    std::string data = pattern(5, 300000);
    cut(1000000, [&] {});
    {
        Inode f = create_with("f", data);
        ASSERT_EQ(ffs_fsync(f, true), 0);
    }
    cut(0, [&] {});
    EXPECT_TRUE(read_all(lookup("f")) == data);
}

TEST_F(FsCut, SyncedAttributesSurvive)
{
    {
        Inode f = create("f");
        ASSERT_EQ(ffs_fsync(f, false), 0);
        ffs_attr a = {};
        a.mode = S_IFREG | 0400;
        ASSERT_EQ(ffs_setattr(f, &a, FFS_SET_MODE, nullptr), 0);
        ASSERT_EQ(ffs_fsync(f, false), 0);
    }
    cut(0, [] {});
    EXPECT_EQ(attr(lookup("f")).mode, S_IFREG | 0400u);
}

TEST_F(FsCut, AnUnlinkedFileThatWasTruncatedIsFreedAtTheNextMount)
{
    create("f");
    uint64_t before = free_blocks();
    Inode f = lookup("f");
    write(f, 0, std::string(300000, 'x'));
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    ASSERT_EQ(truncate(f, 5000), 0);
    ASSERT_EQ(ffs_sync(fs), 0);
    cut(0, [&] { f.reset(); });
    EXPECT_EQ(free_blocks(), before);
}

// --- Damaged extents: reads, writes and maps of data that a repair has lost ----------------------

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
