/* SPDX-License-Identifier: BSD-2-Clause */
// The life of a file, a directory and a name.
#include "tests/fusefs/core/fs_fixture.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>

using FsBasic = FsTest;

TEST_F(FsBasic, AnEmptyFileSystemHasOnlyTheDots)
{
    EXPECT_EQ(names(root), (std::vector<std::string>{".", ".."}));
    EXPECT_EQ(attr(root).nlink, 2u);
}

TEST_F(FsBasic, AFileIsFoundByItsNameAfterARemount)
{
    uint64_t ino = ffs_ino(create("a"));
    remount();
    EXPECT_EQ(ffs_ino(lookup("a")), ino);
    EXPECT_EQ(lookup_error(root, "b"), -ENOENT);
}

TEST_F(FsBasic, ANewFileHasTheRequestedAttributes)
{
    Inode f = create("a", S_IFREG | 0640);
    ffs_attr a = attr(f);
    EXPECT_EQ(a.mode, uint32_t{S_IFREG | 0640});
    EXPECT_EQ(a.uid, 1000u);
    EXPECT_EQ(a.nlink, 1u);
    EXPECT_EQ(a.size, 0u);
    EXPECT_EQ(a.blocks, 0u);
    EXPECT_GT(a.btime.tv_sec, 1700000000);
}

TEST_F(FsBasic, WrittenDataIsReadBackAfterARemount)
{
    std::string data = pattern(1, 3000000);
    {
        Inode f = create("a");
        EXPECT_EQ(write(f, 0, data), static_cast<ssize_t>(data.size()));
        EXPECT_EQ(read_all(f), data);
    }
    remount();
    EXPECT_EQ(read_all(lookup("a")), data);
}

TEST_F(FsBasic, AHoleReadsAsZerosAndHasNoBlocks)
{
    Inode f = create("a");
    EXPECT_EQ(write(f, 1000000, "end"), 3);
    EXPECT_EQ(read_all(f), std::string(1000000, 0) + "end");
    EXPECT_EQ(attr(f).blocks, 8u);
}

TEST_F(FsBasic, ARangeIsZeroedToTheByte)
{
    const std::string data(30000, 'x');
    std::string want = data;
    want.replace(100, 20000, 20000, 0);
    for (uint32_t mode : {FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE}) {
        Inode f = create_with("f" + std::to_string(mode), data);
        ASSERT_EQ(ffs_fallocate(f, mode, 100, 20000), 0);
        EXPECT_TRUE(read_all(f) == want) << mode;
    }
}

TEST_F(FsBasic, AReadPastTheEndIsEmpty)
{
    Inode f = create_with("a", "12345");
    EXPECT_EQ(read(f, 4, 10), "5");
    for (uint64_t at : {5u, 6u, 5000u})
        EXPECT_EQ(read(f, at, 10), "") << at;
}

TEST_F(FsBasic, RemovingEverythingFreesAllSpace)
{
    create("warm");
    EXPECT_EQ(ffs_unlink(root, "warm"), 0);
    uint64_t before = free_blocks();
    write(create("a"), 0, std::string(5000000, 'x'));
    mkdir("d");
    EXPECT_LT(free_blocks(), before);
    EXPECT_EQ(ffs_unlink(root, "a"), 0);
    EXPECT_EQ(ffs_rmdir(root, "d"), 0);
    EXPECT_EQ(free_blocks(), before);
}

TEST_F(FsBasic, SeekDistinguishesDataFromHolesAndUnwrittenBlocks)
{
    Inode f = create_with("a", std::string(4096, 'a'));
    ASSERT_EQ(ffs_fallocate(f, 0, 8192, 4096), 0);
    write(f, 16384, "tail");
    EXPECT_EQ(ffs_seek(f, 0, SEEK_HOLE), 4096);
    EXPECT_EQ(ffs_seek(f, 4096, SEEK_DATA), 16384);
    ASSERT_EQ(truncate(f, 40960), 0);
    EXPECT_EQ(ffs_seek(f, 20480, SEEK_DATA), -ENXIO);
    EXPECT_EQ(ffs_seek(f, 20480, SEEK_HOLE), 20480);
    char c;
    EXPECT_EQ(ffs_read(f, 40962, &c, 1), 0);
}

TEST_F(FsBasic, AnUnlinkedFileExistsWhileItIsReferenced)
{
    Inode f = create_with("a", "still here");
    EXPECT_EQ(ffs_unlink(root, "a"), 0);
    EXPECT_EQ(lookup_error(root, "a"), -ENOENT);
    EXPECT_EQ(read_all(f), "still here");
    EXPECT_EQ(attr(f).nlink, 0u);
    EXPECT_EQ(write(f, 4, "!"), 1);
}

TEST_F(FsBasic, ADirectoryListsItsEntries)
{
    Inode d = mkdir("d");
    create(d, "x");
    mkdir(d, "y");
    std::vector<std::string> all = names(d);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, (std::vector<std::string>{".", "..", "x", "y"}));
    EXPECT_EQ(attr(d).nlink, 3u);
    EXPECT_EQ(attr(root).nlink, 3u);
}

TEST_F(FsBasic, InvalidNamesAreRefused)
{
    Inode i;
    EXPECT_EQ(ffs_mknod(root, std::string(256, 'n').c_str(), S_IFREG, 0, &cred, i.out()),
              -ENAMETOOLONG);
    EXPECT_EQ(ffs_mknod(root, "a/b", S_IFREG, 0, &cred, i.out()), -EINVAL);
    EXPECT_EQ(ffs_mknod(root, "", S_IFREG, 0, &cred, i.out()), -ENOENT);
    EXPECT_EQ(ffs_mknod(root, ".", S_IFREG, 0, &cred, i.out()), -EEXIST);
    create(std::string(255, 'n'));
    EXPECT_EQ(ffs_mknod(root, std::string(255, 'n').c_str(), S_IFREG, 0, &cred, i.out()), -EEXIST);
}

TEST_F(FsBasic, AFileIsNoDirectory)
{
    Inode f = create("a"), i;
    EXPECT_EQ(lookup_error(f, "x"), -ENOTDIR);
    EXPECT_EQ(ffs_mknod(f, "x", S_IFREG, 0, &cred, i.out()), -ENOTDIR);
    EXPECT_EQ(ffs_rmdir(root, "a"), -ENOTDIR);
    mkdir("d");
    EXPECT_EQ(ffs_unlink(root, "d"), -EISDIR);
    char c;
    EXPECT_EQ(ffs_read(root, 0, &c, 1), -EISDIR);
    EXPECT_EQ(ffs_write(root, 0, &c, 1), -EISDIR);
}

// Data; blocks of the log; flush; block of the commit: each has to wait for the one before.
TEST_F(FsBasic, ASmallNewFileIsDurableAfterFourWaitsForTheDevice)
{
    std::atomic<unsigned> waits{0};

    write(create("before"), 0, "text"); // reads the metadata that a new file needs
    device.before_submit = [&](bd_io *, size_t) {
        waits++;
        return 0;
    };
    Inode f = create_with("f", "text");
    EXPECT_EQ(ffs_fsync(f, false), 0);
    device.before_submit = nullptr;
    EXPECT_LE(waits, 4u);
    EXPECT_GE(waits, 3u) << "the log precedes its commit";
}
