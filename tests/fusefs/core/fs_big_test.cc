/* SPDX-License-Identifier: BSD-2-Clause */
// Many names, many extents, and no space left.
#include <fcntl.h>
#include <linux/falloc.h>

#include <set>

#include "tests/fusefs/core/fs_fixture.h"

using FsBig = FsTest;

TEST_F(FsBig, AHundredThousandNamesAreCreatedAndRemoved)
{
    create("warm");
    uint64_t before = free_blocks();
    Inode d = mkdir("d"), f = create(d, "f0");
    // Names of one file up to its limit, then of the next: names cost less than inodes.
    for (int i = 1; i < 100000; i++) {
        if (i % 60000 == 0)
            f = create(d, "f" + std::to_string(i));
        else
            ASSERT_EQ(ffs_link(f, d, ("f" + std::to_string(i)).c_str()), 0);
    }
    std::vector<std::string> listed = names(d);
    EXPECT_EQ(listed.size(), 100002u);
    EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()).size(), 100002u);
    f.reset();
    remount(d, "d");
    for (int i = 0; i < 100000; i++)
        ASSERT_EQ(ffs_unlink(d, ("f" + std::to_string(i)).c_str()), 0) << i;
    EXPECT_EQ(attr(d).size, 4096u);
    d.reset();
    ASSERT_EQ(ffs_rmdir(root, "d"), 0);
    EXPECT_EQ(free_blocks(), before);
}

struct Page {
    std::vector<std::string> names;
    uint64_t cookie = 0;
    size_t left = 0;
};

static int take(void *arg, const char *name, size_t len, uint64_t, uint8_t, uint64_t cookie)
{
    auto *page = static_cast<Page *>(arg);
    if (page->left-- == 0)
        return 1;
    page->names.emplace_back(name, len);
    page->cookie = cookie;
    return 0;
}

TEST_F(FsBig, AListingInPiecesSurvivesChanges)
{
    Inode d = mkdir("d");
    for (int i = 0; i < 500; i++)
        create(d, "stays" + std::to_string(i));
    std::multiset<std::string> seen;
    Page page;
    for (int round = 0; round == 0 || !page.names.empty(); round++) {
        page.names.clear();
        page.left = 20;
        ASSERT_EQ(ffs_readdir(d, page.cookie, take, &page), 0);
        seen.insert(page.names.begin(), page.names.end());
        for (int i = 0; i < 10; i++)
            create(d, "new" + std::to_string(round * 10 + i));
        ASSERT_EQ(ffs_unlink(d, ("new" + std::to_string(round * 10 + 3)).c_str()), 0);
    }
    for (int i = 0; i < 500; i++)
        EXPECT_EQ(seen.count("stays" + std::to_string(i)), 1u) << i;
}

TEST_F(FsBig, ThousandsOfExtentsAreMappedAndFreed)
{
    create("warm");
    uint64_t before = free_blocks();
    Inode f = create("f");
    const int n = 6000;
    // Every other block, in an order that splits nodes in the middle.
    for (int i = 0; i < n; i++) {
        uint64_t block = 2ull * ((static_cast<uint64_t>(i) * 3541) % n);
        ASSERT_EQ(write(f, block * 4096, std::to_string(block)),
                  static_cast<ssize_t>(std::to_string(block).size()));
    }
    for (uint64_t block = 0; block < 2 * n; block += 2)
        ASSERT_EQ(read(f, block * 4096, 1)[0], std::to_string(block)[0]);
    // The holes filled, then every third block punched out again.
    ASSERT_EQ(ffs_fallocate(f, 0, 0, 2ull * n * 4096), 0);
    for (uint64_t block = 0; block < 2 * n; block += 3)
        ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block * 4096, 4096),
                  0);
    remount(f, "f");
    for (uint64_t block = 0; block < 2 * n; block += 2)
        ASSERT_EQ(read(f, block * 4096, 1)[0], block % 3 ? std::to_string(block)[0] : 0);
    ASSERT_EQ(truncate(f, 100 * 4096), 0);
    f.reset();
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
}

// Leaves that lose most of their extents join, and those that lose all are freed: the space that
// comes back is more than that of the data.
TEST_F(FsBig, LeavesThatLoseTheirExtentsAreFreed)
{
    Inode f = create("f");
    const uint64_t n = 4000, step = 32;
    for (uint64_t i = 0; i < n; i++)
        write(f, i * 8192, "x");
    uint64_t before = free_blocks();
    for (uint64_t i = 0; i < n; i += step)
        ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (i + 1) * 8192,
                                (step - 1) * 8192),
                  0);
    EXPECT_GT(free_blocks(), before + n / step * (step - 1));
    before = free_blocks();
    // Between full leaves.
    Inode g = create("g");
    for (uint64_t i = 0; i < n; i++)
        write(g, i * 8192, "x");
    uint64_t full = free_blocks();
    ASSERT_EQ(
        ffs_fallocate(g, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, n / 4 * 8192, n / 2 * 8192),
        0);
    EXPECT_GT(free_blocks(), full + n / 2);
}

// Holes that reach over the border of two leaves are filled by one range of blocks.
TEST_F(FsBig, RunsAcrossTheBordersOfLeavesAreKept)
{
    Inode f = create("f");
    const uint64_t n = 1000, hole = 16 * 4096;
    for (uint64_t i = 0; i < n; i++)
        write(f, i * 8192, "x");
    for (uint64_t at = 0; at < n * 8192; at += 20 * 4096) {
        ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, hole), 0);
        ASSERT_EQ(write(f, at, std::string(hole, 'y')), static_cast<ssize_t>(hole));
    }
    remount(f, "f");
    for (uint64_t at = 0; at < (n - 12) * 8192; at += 20 * 4096) {
        ASSERT_TRUE(read(f, at, hole) == std::string(hole, 'y')) << at;
        ASSERT_EQ(read(f, at + hole, 8193), "x" + std::string(8191, 0) + "x");
    }
}

TEST_F(FsBig, AFileNeverGrowsPastTheLargestOffset)
{
    Inode f = create("f");
    uint64_t top = INT64_MAX;
    EXPECT_EQ(truncate(f, top), 0);
    EXPECT_EQ(write(f, top - 3, "abcdef"), 3);
    EXPECT_EQ(read(f, top - 4, 10), std::string("\0abc", 4));
    EXPECT_EQ(write(f, top, "x"), -EFBIG);
    EXPECT_EQ(write(f, UINT64_MAX - 1, "x"), -EFBIG);
    EXPECT_EQ(ffs_fallocate(f, 0, top - 1, 2), -EFBIG);
    EXPECT_EQ(ffs_fallocate(f, 0, UINT64_MAX, UINT64_MAX), -EFBIG);
    EXPECT_EQ(ffs_fallocate(f, 0, 0, 0), -EINVAL);
    EXPECT_EQ(truncate(f, 0), 0);
}

TEST_F(FsBig, AFullDeviceLosesNothingAndRecovers)
{
    create("warm");
    uint64_t before = free_blocks();
    std::string data = pattern(7, 1000000);
    uint64_t total = 0;
    {
        Inode f = create("f");
        ssize_t got;
        while ((got = write(f, total, data)) > 0)
            total += static_cast<uint64_t>(got);
        EXPECT_EQ(got, -ENOSPC);
        EXPECT_EQ(attr(f).size, total);
        for (uint64_t at = 0; at < total; at += data.size())
            ASSERT_TRUE(read(f, at, data.size()) == data.substr(0, total - at));
    }
    EXPECT_GT(total, 40u << 20);
    remount();
    EXPECT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
    Inode g = create("g");
    EXPECT_EQ(write(g, 0, data), static_cast<ssize_t>(data.size()));
}

TEST_F(FsBig, NamesOnAFullDeviceFailCompletelyAndCanBeRemoved)
{
    Inode f = create("f"), d = mkdir("d");
    std::string data(1 << 20, 'x');
    for (uint64_t at = 0; write(f, at, data) > 0;)
        at = attr(f).size;
    int made = 0, err = 0;
    for (; !err; made++) {
        Inode i;
        err = ffs_symlink(d, (std::string(200, 'n') + std::to_string(made)).c_str(),
                          std::string(3000, 't').c_str(), &cred, i.out());
    }
    EXPECT_EQ(err, -ENOSPC);
    EXPECT_EQ(names(d).size(), static_cast<size_t>(made - 1 + 2));
    for (int i = 0; i < made - 1; i++)
        EXPECT_EQ(ffs_unlink(d, (std::string(200, 'n') + std::to_string(i)).c_str()), 0);
    EXPECT_EQ(truncate(f, 0), 0);
    EXPECT_EQ(write(f, 0, data), static_cast<ssize_t>(data.size()));
}

TEST_F(FsBig, AnAllocationThatCannotFitAllocatesNothing)
{
    Inode f = create("f");
    uint64_t before = free_blocks();
    EXPECT_EQ(ffs_fallocate(f, 0, 0, 1ull << 40), -ENOSPC);
    EXPECT_EQ(ffs_fallocate(f, 0, 0, (before + before / 4) * 4096), -ENOSPC);
    EXPECT_EQ(free_blocks(), before);
    EXPECT_EQ(ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, 0, 10 << 20), 0);
    EXPECT_EQ(attr(f).size, 0u);
    EXPECT_EQ(attr(f).blocks, (10u << 20) / 512);
    EXPECT_EQ(ffs_fallocate(f, 0x40, 0, 4096), -EOPNOTSUPP);
}

TEST_F(FsBig, FreedSpaceIsAvailableAtOnce)
{
    std::string data(30 << 20, 'x');
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(write(create("f"), 0, data), static_cast<ssize_t>(data.size())) << i;
        ASSERT_EQ(ffs_unlink(root, "f"), 0);
    }
}

class FsFragmented : public FsTest
{
  protected:
    FsFragmented() : FsTest(256u << 20) {}
};

TEST_F(FsFragmented, FilesOfManyHalfEmptyLeavesAreTruncatedAndFreed)
{
    create("warm");
    uint64_t before = free_blocks();
    Inode f = create("f");
    // From the end on: leaves stay half empty, so that each one freed joins another, and one handle
    // frees many.
    for (uint64_t i = 50000; i-- > 0;)
        ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, 2 * i * 4096, 4096), 0) << i;
    ASSERT_EQ(truncate(f, 0), 0);
    EXPECT_EQ(attr(f).blocks, 0u);
    f.reset();
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
}
