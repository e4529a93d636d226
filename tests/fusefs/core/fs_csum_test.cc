/* SPDX-License-Identifier: BSD-2-Clause */
// Checksums of data: what a flipped bit does to reads and changes, and what has a checksum when.
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>

#include <random>
#include <vector>

#include "tests/fusefs/core/fs_fixture.h"

extern "C" {
#define _Atomic
#include "fusefs/core/data/sums.h"
#undef _Atomic
}

namespace
{

class FsCsum : public FsTest
{
  protected:
    std::mt19937_64 random_{5};
    void SetUp() override
    {
        data_csum = true;
        log.clear();
        opts.log = [](int, const char *line) { log.emplace_back(line); };
        FsTest::SetUp();
    }
    uint8_t *at(ffs_inode *inode, uint64_t offset)
    {
        ffs_segment segment;
        EXPECT_EQ(ffs_extents(inode, offset, &segment, 1), 1);
        return device.bytes() + segment.device + (offset - segment.offset);
    }
    void flip(ffs_inode *inode, uint64_t offset) { *at(inode, offset) ^= 4; }
    // Blocks of the file from `offset` on that have a checksum.
    size_t summed(ffs_inode *inode, uint64_t offset, size_t blocks)
    {
        size_t n = 0;
        for (size_t i = 0; i < blocks; i++) {
            uint64_t bad;
            uint8_t wrong[4096];
            uint8_t *data = at(inode, offset + i * 4096);
            memcpy(wrong, data, sizeof(wrong));
            wrong[0] ^= 1;
            uint64_t block = static_cast<uint64_t>(data - device.bytes()) / 4096;
            EXPECT_EQ(ffs_sums_verify(fs, block, 1, data, &bad), 0);
            EXPECT_EQ(bad, 1u) << "block " << i << " does not match its checksum";
            EXPECT_EQ(ffs_sums_verify(fs, block, 1, wrong, &bad), 0);
            n += bad == 0;
        }
        return n;
    }
    ssize_t read_error(ffs_inode *inode, uint64_t offset, size_t len)
    {
        std::string data(len, 0);
        return ffs_read(inode, offset, data.data(), len);
    }

    static thread_local std::vector<std::string> log;
};

thread_local std::vector<std::string> FsCsum::log;

TEST_F(FsCsum, AFlippedBitIsAnErrorThatNamesTheBlock)
{
    std::string data = pattern(1, 20 * 4096);
    Inode f = create("f"), g = create("g");
    ASSERT_EQ(write(f, 0, data), static_cast<ssize_t>(data.size()));
    write(g, 0, data);
    f.reset();
    g.reset();
    remount();
    f = lookup("f");
    flip(f, 7 * 4096 + 100);
    EXPECT_EQ(read_error(f, 0, data.size()), -EIO);
    EXPECT_EQ(read_error(f, 7 * 4096 + 4000, 10), -EIO);
    ASSERT_FALSE(log.empty());
    EXPECT_NE(log.back().find("inode " + std::to_string(ffs_ino(f)) + ": block 7 of the file"),
              std::string::npos)
        << log.back();
    EXPECT_EQ(read(f, 0, 7 * 4096), data.substr(0, 7 * 4096));
    EXPECT_EQ(read(f, 8 * 4096, 12 * 4096), data.substr(8 * 4096));
    EXPECT_EQ(read_all(lookup("g")), data);
    // New contents, and the block is sound again.
    ASSERT_EQ(write(f, 7 * 4096, data.substr(0, 4096)), 4096);
    EXPECT_EQ(read(f, 7 * 4096, 4096), data.substr(0, 4096));
}

TEST_F(FsCsum, AChangeOfAPartDoesNotHideDamage)
{
    Inode f = create("f");
    std::string data = pattern(2, 3 * 4096);
    write(f, 0, data);
    flip(f, 4096 + 9);
    EXPECT_EQ(write(f, 4096 + 100, "part"), -EIO);
    EXPECT_EQ(truncate(f, 4096 + 2000), 0) << "the rest of the block becomes zeros";
    EXPECT_EQ(read_error(f, 4096, 100), -EIO);
    EXPECT_EQ(read(f, 0, 4096), data.substr(0, 4096));
    EXPECT_EQ(truncate(f, 4096), 0);
    EXPECT_EQ(write(f, 4096, "whole"), 5);
    EXPECT_EQ(read(f, 4096, 5), "whole");
}

TEST_F(FsCsum, ATransientErrorIsReadAgain)
{
    Inode f = create("f");
    std::string data = pattern(3, 4096), got(4096, 0);
    write(f, 0, data);
    uint64_t block = static_cast<uint64_t>(at(f, 0) - device.bytes()) / 4096, bad;
    got = data;
    got[5] ^= 1;
    EXPECT_EQ(ffs_verify(fs, block, 1, got.data(), &bad), 0);
    EXPECT_EQ(got, data);
}

TEST_F(FsCsum, NewBlocksHaveChecksumsAndOverwrittenOnesGetThemLater)
{
    Inode f = create_with("f", pattern(4, 64 * 4096));
    EXPECT_EQ(summed(f, 0, 64), 64u);
    write(f, 8 * 4096, pattern(5, 4 * 4096));
    EXPECT_EQ(summed(f, 0, 64), 60u);
    ffs_sums_settle(fs, false);
    write(f, 10 * 4096, pattern(6, 4096)); // waits anew
    ffs_sums_settle(fs, false);
    EXPECT_EQ(summed(f, 0, 64), 63u);
    ffs_sums_settle(fs, false);
    EXPECT_EQ(summed(f, 0, 64), 64u);
    write(f, 0, pattern(7, 4096));
    f.reset();
    remount();
    EXPECT_EQ(summed(lookup("f"), 0, 64), 64u);
}

TEST_F(FsCsum, AnAppendInPiecesCommitsNothing)
{
    Inode f = create_with("f", "begin");
    uint64_t tid = ffs_running_tid(fs);
    std::string all = "begin";
    for (int i = 0; i < 300; i++) {
        std::string piece = pattern(static_cast<uint64_t>(i), 777);
        write(f, all.size(), piece);
        all += piece;
    }
    EXPECT_EQ(ffs_running_tid(fs), tid);
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("f")), all);
    EXPECT_EQ(summed(lookup("f"), 0, all.size() / 4096), all.size() / 4096);
}

TEST_F(FsCsum, AnOverwriteRemovesChecksumsDurably)
{
    Inode f = create_with("f", pattern(8, 100 * 4096));
    ASSERT_EQ(ffs_sync(fs), 0);
    uint64_t tid = ffs_running_tid(fs);
    write(f, 4096, pattern(9, 50 * 4096));
    EXPECT_EQ(ffs_running_tid(fs), tid + 1);
    write(f, 4096, pattern(10, 50 * 4096)); // has none any more
    EXPECT_EQ(ffs_running_tid(fs), tid + 1);
}

TEST_F(FsCsum, AMappedWriteMayBringItsChecksums)
{
    const std::vector<uint8_t> block(4096, 'm');
    std::vector<uint32_t> sums(20, lay_data_sum(block.data()));
    sums[15] = FFS_NO_SUM; // not known
    for (bool brings : {false, true}) {
        Inode f = create_with(brings ? "with" : "without", pattern(11, 10 * 4096));
        ffs_map map;
        ASSERT_EQ(ffs_map_write(f, 2 * 4096, 20 * 4096, &map), 0);
        for (size_t i = 0; i < map.count; i++)
            memset(device.bytes() + map.segments[i].device, 'm', map.segments[i].len);
        ASSERT_EQ(ffs_map_write_end(&map, 20 * 4096, brings ? sums.data() : nullptr), 0);
        EXPECT_EQ(read(f, 2 * 4096, 20 * 4096), std::string(20 * 4096, 'm'));
        EXPECT_EQ(summed(f, 0, 22), brings ? 2u + 11 : 2u) << "those of new blocks at once";
        if (brings)
            ffs_sums_settle(fs, true);
        EXPECT_EQ(summed(f, 0, 22), brings ? 21u : 2u);
    }
}

// The blocks of the map are pinned, so the file's new data goes to other
// blocks.
TEST_F(FsCsum, AWatchGetsNoChecksumsOfBlocksThatTheFileHasLeft)
{
    Inode f = create_with("f", pattern(5, 8 * 4096));
    ffs_watch watch;
    ffs_map map;
    std::vector<uint32_t> sums(8, 1);
    ffs_watch_add(f, &watch);
    ASSERT_EQ(ffs_map_read(f, 0, 8 * 4096, &map), 0);
    ASSERT_EQ(truncate(f, 5 * 4096), 0);
    write(f, 5 * 4096, pattern(6, 3 * 4096));
    ASSERT_EQ(summed(f, 0, 8), 8u);
    ASSERT_EQ(ffs_watch_sums(f, &watch, &map, sums.data(), sums.size()), 0);
    for (size_t i = 0; i < sums.size(); i++)
        EXPECT_EQ(sums[i] != FFS_NO_SUM, i < 5) << i;
    ffs_watch_remove(f, &watch);
    ffs_map_release(&map);
}

TEST_F(FsCsum, ReusedBlocksDoNotKeepOldChecksums)
{
    for (int round = 0; round < 4; round++) {
        Inode f = create("f");
        std::string data = pattern(static_cast<uint64_t>(round), 40u << 20);
        ASSERT_EQ(write(f, 0, data), static_cast<ssize_t>(data.size()));
        ffs_map map;
        ASSERT_EQ(ffs_map_write(f, 41u << 20, 1u << 20, &map), 0);
        memset(device.bytes() + map.segments[0].device, 'm', map.segments[0].len);
        ASSERT_EQ(ffs_map_write_end(&map, map.segments[0].len, nullptr), 0);
        EXPECT_EQ(read(f, 0, data.size()), data);
        EXPECT_EQ(read(f, 41u << 20, 4096), std::string(4096, 'm'));
        f.reset();
        ASSERT_EQ(ffs_unlink(root, "f"), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
    }
}

TEST_F(FsCsum, RestsOfUnitsAndHolesAreZerosWithChecksums)
{
    ffs_attr a = attr(root);
    a.flags = LAY_INODE_GPU_BOUND;
    ASSERT_EQ(ffs_setattr(root, &a, FFS_SET_FLAGS, nullptr), 0);
    Inode f = create("f");
    ASSERT_EQ(write(f, 5 * 4096, pattern(12, 4096)), 4096);
    EXPECT_EQ(summed(f, 0, 512), 512u);
    ASSERT_EQ(truncate(f, 2u << 20), 0);
    EXPECT_EQ(read(f, 6 * 4096, 506 * 4096), std::string(506 * 4096, 0));
    ASSERT_EQ(write(f, 0, pattern(13, 512 * 4096)), 512 * 4096);
    ASSERT_EQ(truncate(f, 10 * 4096 + 5), 0);
    ASSERT_EQ(truncate(f, 2u << 20), 0);
    EXPECT_EQ(read(f, 11 * 4096, 4096), std::string(4096, 0));
    f.reset();
    remount();
    EXPECT_EQ(summed(lookup("f"), 0, 512), 512u);
}

TEST_F(FsCsum, PunchedAndZeroedEdgesKeepTheirBlocksValid)
{
    Inode f = create("f");
    std::string data = pattern(14, 30 * 4096);
    write(f, 0, data);
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 20000), 0);
    data.replace(5000, 20000, 20000, '\0');
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_ZERO_RANGE, 50000, 20000), 0);
    data.replace(50000, 20000, 20000, '\0');
    EXPECT_EQ(read_all(f), data);
    remount(f, "f");
    EXPECT_EQ(read_all(f), data);
    EXPECT_EQ(summed(f, 4096, 1), 1u);
    EXPECT_EQ(summed(f, 12 * 4096, 1), 1u);
}

TEST_F(FsCsum, ADamagedChecksumBlockIsRepairedAndDataStays)
{
    Inode f = create("f");
    std::string data = pattern(15, 10 * 4096);
    write(f, 0, data);
    uint64_t block = static_cast<uint64_t>(at(f, 0) - device.bytes()) / 4096;
    uint64_t sums = ffs_geometry(fs)->sums_start + block / LAY_SUMS_ENTRIES;
    f.reset();
    unmount();
    device.bytes()[sums * 4096 + 100] ^= 1;
    EXPECT_NE(fsck().find("F201"), std::string::npos);
    EXPECT_NE(fsck("-f -p").find("exit 1"), std::string::npos);
    EXPECT_EQ(fsck(), "");
    // An entry behind those of the file, and what no single bit explains.
    device.bytes()[sums * 4096 + 4000] ^= 3;
    EXPECT_NE(fsck().find("F507"), std::string::npos);
    EXPECT_NE(fsck("-f -y").find("exit 1"), std::string::npos);
    EXPECT_EQ(fsck(), "");
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(read_all(lookup("f")), data);
    EXPECT_EQ(summed(lookup("f"), 0, 10), 10u);
}

TEST_F(FsCsum, ManyExtentsHaveTheirChecksums)
{
    Inode f = create("f"), g = create("g");
    std::string all;
    for (uint64_t i = 0; i < 600; i++) {
        std::string block = pattern(i, 4096);
        write(f, i * 4096, block);
        write(g, i * 4096, block);
        all += block;
    }
    std::string again = pattern(77, all.size());
    EXPECT_EQ(read_all(f), all);
    EXPECT_EQ(summed(g, 0, 600), 600u);
    ASSERT_EQ(write(f, 0, again), static_cast<ssize_t>(again.size()));
    EXPECT_EQ(read_all(f), again);
    f.reset();
    g.reset();
    remount();
    EXPECT_EQ(read_all(lookup("f")), again);
    EXPECT_EQ(summed(lookup("f"), 0, 600), 600u);
}

// --- Scrubbing -----------------------------------------------------------------------------------

class FsScrub : public FsCsum
{
  protected:
    int scrub(ffs_inode *inode, unsigned flags = 0, uint64_t from = 0, uint64_t to = 1u << 30)
    {
        return ffs_scrub(inode, from, to, flags, &found);
    }
    // A file of n blocks that have lost their checksums.
    Inode without_sums(size_t n)
    {
        Inode f = create_with("f", pattern(4, n * 4096));
        ffs_map map;
        EXPECT_EQ(ffs_map_write(f, 0, n * 4096, &map), 0);
        EXPECT_EQ(ffs_map_write_end(&map, n * 4096, nullptr), 0);
        return f;
    }

    struct ffs_scrub found = {};
};

TEST_F(FsScrub, CountsMatchingBlocks)
{
    Inode f = create_with("f", pattern(1, 600 * 4096));
    write(f, 1000 * 4096, pattern(2, 4096));
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.matching, 601u);
    EXPECT_EQ(found.without + found.added + found.nbad, 0u);
    EXPECT_EQ(found.next, 1u << 30);
}

TEST_F(FsScrub, NamesEachBlockThatDiffers)
{
    Inode f = create_with("f", pattern(1, 600 * 4096));
    for (uint64_t block : {0, 255, 256, 599})
        flip(f, block * 4096 + block);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.matching, 596u);
    ASSERT_EQ(found.nbad, 4u);
    EXPECT_EQ(found.bad[1].offset, 255u * 4096);
    EXPECT_EQ(device.bytes() + found.bad[1].device, at(f, 255 * 4096));
    EXPECT_EQ(found.bad[3].offset, 599u * 4096);
    EXPECT_FALSE(found.bad[3].unreadable);
    ASSERT_EQ(scrub(f, FFS_SCRUB_ADD), 0);
    EXPECT_EQ(found.nbad, 4u) << "a block that differs gets no new checksum";
    EXPECT_EQ(found.added, 0u);
}

TEST_F(FsScrub, AddsMissingChecksums)
{
    Inode f = without_sums(300);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.without, 300u);
    EXPECT_EQ(summed(f, 0, 300), 0u);
    ASSERT_EQ(scrub(f, FFS_SCRUB_ADD), 0);
    EXPECT_EQ(found.added, 300u);
    EXPECT_EQ(summed(f, 0, 300), 300u);
    remount(f, "f");
    flip(f, 299 * 4096);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.matching, 299u);
    EXPECT_EQ(found.nbad, 1u);
    EXPECT_EQ(read_error(f, 299 * 4096, 1), -EIO);
}

TEST_F(FsScrub, CorrectsOneFlippedBitOnRequestOnly)
{
    std::string data = pattern(1, 10 * 4096);
    Inode f = create_with("f", data);
    flip(f, 3 * 4096 + 5); // where a metadata block has its checksum
    flip(f, 9 * 4096 + 4095);
    flip(f, 5 * 4096);
    flip(f, 5 * 4096 + 1);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.nbad, 3u);
    EXPECT_EQ(read_error(f, 3 * 4096, 1), -EIO) << "a read corrects no data";
    ASSERT_EQ(scrub(f, FFS_SCRUB_CORRECT), 0);
    ASSERT_EQ(found.nbad, 3u) << "each one is listed";
    EXPECT_TRUE(found.bad[0].corrected && !found.bad[1].corrected && found.bad[2].corrected);
    remount(f, "f");
    ASSERT_EQ(scrub(f), 0);
    ASSERT_EQ(found.nbad, 1u);
    EXPECT_EQ(found.bad[0].offset, 5u * 4096);
    EXPECT_EQ(read(f, 0, 5 * 4096), data.substr(0, 5 * 4096));
    EXPECT_EQ(read(f, 6 * 4096, 4 * 4096), data.substr(6 * 4096));
}

TEST_F(FsScrub, ComparesWithPendingChecksums)
{
    Inode f = create_with("f", pattern(1, 3 * 4096));
    write(f, 4096, pattern(2, 4096));
    EXPECT_EQ(summed(f, 0, 3), 2u);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.matching, 3u);
    flip(f, 4096);
    ASSERT_EQ(scrub(f, FFS_SCRUB_ADD), 0);
    EXPECT_EQ(found.nbad, 1u);
}

TEST_F(FsScrub, NeedsSeveralCallsForMuchData)
{
    Inode f = create("f");
    constexpr uint64_t BLOCKS = 9000;
    write(f, 0, pattern(1, BLOCKS * 4096));
    uint64_t from = 0, matching = 0, calls = 0;
    for (; from < BLOCKS * 4096 && calls < 100; calls++) {
        ASSERT_EQ(scrub(f, 0, from, BLOCKS * 4096), 0);
        EXPECT_GT(found.next, from);
        from = found.next;
        matching += found.matching;
    }
    EXPECT_EQ(matching, BLOCKS);
    EXPECT_EQ(calls, 3u) << "of 16 MiB";
}

TEST_F(FsScrub, ManyBadBlocksAreNamedInSeveralCalls)
{
    Inode f = create_with("f", pattern(1, 1000 * 4096));
    for (uint64_t block = 0; block < 1000; block++)
        flip(f, block * 4096);
    uint64_t from = 0, bad = 0;
    for (int calls = 0; from < 1000 * 4096 && calls < 100; calls++) {
        ASSERT_EQ(scrub(f, 0, from, 1000 * 4096), 0);
        bad += found.nbad;
        from = found.next;
    }
    EXPECT_EQ(bad, 1000u);
}

TEST_F(FsScrub, AHoleTakesNoTime)
{
    Inode f = create("f");
    ASSERT_EQ(truncate(f, 1ull << 60), 0);
    write(f, 1ull << 59, "data");
    ASSERT_EQ(scrub(f, 0, 0, 1ull << 60), 0);
    EXPECT_EQ(found.matching, 1u);
    EXPECT_EQ(found.next, 1ull << 60);
}

TEST_F(FsScrub, AnUnreadableBlockIsNamedAndTheOthersAreCompared)
{
    Inode f = create_with("f", pattern(1, 10 * 4096));
    device.fail(MemDevice::FAIL_ONCE, 0);
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.matching, 10u) << "one by one";
    device.fail(MemDevice::FAIL_FROM, 0);
    ASSERT_EQ(scrub(f), 0);
    device.fail(MemDevice::FAIL_NONE, 0);
    ASSERT_EQ(found.nbad, 10u);
    EXPECT_TRUE(found.bad[9].unreadable);
}

TEST_F(FsScrub, NeedsChecksums)
{
    Inode d = mkdir("d");
    EXPECT_EQ(scrub(d), -EISDIR);
    d.reset();
    unmount();
    data_csum = false;
    format();
    ASSERT_EQ(mount(), 0);
    EXPECT_EQ(scrub(create("f")), -EOPNOTSUPP);
}

TEST_F(FsScrub, AReadOnlyMountComparesAndChangesNothing)
{
    without_sums(2);
    unmount();
    opts.read_only = true;
    ASSERT_EQ(mount(), 0);
    Inode f = lookup("f");
    ASSERT_EQ(scrub(f), 0);
    EXPECT_EQ(found.without, 2u);
    for (unsigned flags : {FFS_SCRUB_ADD, FFS_SCRUB_CORRECT})
        EXPECT_EQ(scrub(f, flags), -EROFS);
    f.reset();
    unmount();
    opts.read_only = false;
}

// Beside a model, in ranges of any length: free blocks, whose checksums nothing else touches.
TEST_F(FsCsum, PendingChecksumsAreFoundDroppedAndStored)
{
    const uint64_t blocks = 300, first = ffs_geometry(fs)->blocks - 2 * blocks;
    std::vector<uint32_t> model(blocks, FFS_NO_SUM), got(blocks), sums(blocks);
    for (uint32_t &sum : sums)
        sum = static_cast<uint32_t>(random_() | 1);
    uint64_t tid = 0;
    for (unsigned i = 0; i < 2000; i++) {
        uint64_t n = i % 2 ? 1 : 1 + random_() % 200, at = random_() % (blocks - n + 1);
        bool adds = random_() % 2;
        if (adds)
            ffs_sums_wait(fs, first + at, n, &sums[at]);
        else
            ASSERT_EQ(ffs_sums_drop(fs, first + at, n, &tid), 0);
        for (uint64_t k = at; k < at + n; k++)
            model[k] = adds ? sums[k] : FFS_NO_SUM;
        if (i % 500 == 499)
            ffs_sums_settle(fs, true);
        ASSERT_EQ(ffs_sums_get(fs, first, blocks, got.data()), 0);
        ASSERT_EQ(got, model) << i;
    }
    ffs_sums_settle(fs, true);
    ASSERT_EQ(ffs_sums_get(fs, first, blocks, got.data()), 0);
    EXPECT_EQ(got, model);
    ASSERT_EQ(ffs_sums_drop(fs, first, blocks, &tid), 0);
}

} // namespace
