/* SPDX-License-Identifier: BSD-2-Clause */
// Attributes, times, extended attributes.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/xattr.h>

#include "layout/format.h"
#include "tests/fusefs/core/fs_fixture.h"

using FsAttr = FsTest;

static bool same(const timespec &a, const timespec &b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

TEST_F(FsAttr, EveryAttributeSetIsReadBackAfterARemount)
{
    ffs_attr a = {};
    a.mode = 07123;
    a.uid = 4000000000u;
    a.gid = 5;
    a.size = 123456789;
    a.atime = {-5, 999999999};
    a.mtime = {1ll << 35, 1};
    ffs_attr got;
    ASSERT_EQ(ffs_setattr(create("f"), &a,
                          FFS_SET_MODE | FFS_SET_UID | FFS_SET_GID | FFS_SET_SIZE | FFS_SET_ATIME |
                              FFS_SET_MTIME,
                          &got),
              0);
    remount();
    ffs_attr b = attr(lookup("f"));
    EXPECT_EQ(b.mode, uint32_t{S_IFREG | 07123});
    EXPECT_EQ(b.uid, a.uid);
    EXPECT_EQ(b.gid, a.gid);
    EXPECT_EQ(b.size, a.size);
    EXPECT_TRUE(same(b.atime, a.atime) && same(b.mtime, a.mtime));
    EXPECT_TRUE(same(b.ctime, got.ctime));
}

TEST_F(FsAttr, ARefusedChangeChangesNothing)
{
    Inode f = create("f");
    ffs_attr a = {}, before = attr(f);
    a.mode = 0;
    a.size = UINT64_MAX;
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MODE | FFS_SET_SIZE, nullptr), -EFBIG);
    a.mtime.tv_nsec = 1000000000;
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MODE | FFS_SET_MTIME, nullptr), -EINVAL);
    a.flags = 0x80;
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MODE | FFS_SET_FLAGS, nullptr), -EINVAL);
    ffs_attr after = attr(f);
    EXPECT_EQ(after.mode, before.mode);
    EXPECT_TRUE(same(after.ctime, before.ctime));
    EXPECT_EQ(ffs_setattr(root, &a, FFS_SET_SIZE, nullptr), -EISDIR);
}

TEST_F(FsAttr, SetIdBitsGoWithAWriteATruncateAndANewOwner)
{
    ffs_attr a = {};
    a.mode = 06755;
    for (int how = 0; how < 4; how++) {
        Inode f = create("f" + std::to_string(how));
        ASSERT_EQ(ffs_setattr(f, &a, FFS_SET_MODE, nullptr), 0);
        if (how == 0)
            write(f, 0, "x");
        else if (how == 1)
            truncate(f, 5);
        else if (how == 2)
            EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_UID, nullptr), 0);
        else
            EXPECT_EQ(ffs_fallocate(f, 0, 0, 10), 0);
        EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0755}) << how;
    }
}

TEST_F(FsAttr, AReadCountsAsAccessOncePerChange)
{
    Inode f = create("f");
    write(f, 0, "x");
    timespec made = attr(f).atime;
    read_all(f);
    timespec first = attr(f).atime;
    EXPECT_FALSE(same(made, first));
    read_all(f);
    EXPECT_TRUE(same(attr(f).atime, first));
}

TEST_F(FsAttr, NamesChangeTheTimesOfTheirDirectory)
{
    Inode d = mkdir("d");
    ffs_attr old = {};
    ASSERT_EQ(ffs_setattr(d, &old, FFS_SET_MTIME, nullptr), 0);
    create(d, "f");
    EXPECT_GT(attr(d).mtime.tv_sec, 0);
    ASSERT_EQ(ffs_setattr(d, &old, FFS_SET_MTIME, nullptr), 0);
    ASSERT_EQ(ffs_unlink(d, "f"), 0);
    EXPECT_GT(attr(d).mtime.tv_sec, 0);
}

TEST_F(FsAttr, AFileWithBlocksCannotBecomeGpuBound)
{
    Inode f = create("f");
    write(f, 0, "x");
    ffs_attr a = {};
    a.flags = LAY_INODE_GPU_BOUND;
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_FLAGS, nullptr), -EINVAL);
    ASSERT_EQ(truncate(f, 0), 0);
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_FLAGS, nullptr), 0);
}

TEST_F(FsAttr, GpuBoundIsInheritedAndRoundsUpToUnits)
{
    Inode d = mkdir("d");
    ffs_attr a = {};
    a.flags = LAY_INODE_GPU_BOUND;
    ASSERT_EQ(ffs_setattr(d, &a, FFS_SET_FLAGS, nullptr), 0);
    Inode sub = mkdir(d, "sub"), f = create(sub, "f");
    EXPECT_EQ(attr(f).flags, LAY_INODE_GPU_BOUND);
    write(f, 0, "x");
    EXPECT_EQ(attr(f).blocks, (2u << 20) / 512);
    EXPECT_EQ(attr(f).size, 1u);
}

// --- Extended attributes ------------------------------------------------------------------------

static int set(ffs_inode *i, const std::string &name, const std::string &value, int flags = 0)
{
    return ffs_setxattr(i, name.c_str(), value.data(), value.size(), flags);
}

TEST_F(FsAttr, XattrFlagsDecideWhatMayExist)
{
    EXPECT_EQ(set(root, "user.a", "1", XATTR_REPLACE), -ENODATA);
    EXPECT_EQ(set(root, "user.a", "1", XATTR_CREATE), 0);
    EXPECT_EQ(set(root, "user.a", "2", XATTR_CREATE), -EEXIST);
    EXPECT_EQ(set(root, "user.a", "", XATTR_REPLACE), 0);
    char c;
    EXPECT_EQ(ffs_getxattr(root, "user.a", &c, 1), 0);
    EXPECT_EQ(ffs_removexattr(root, "user.a"), 0);
    EXPECT_EQ(ffs_removexattr(root, "user.a"), -ENODATA);
    EXPECT_EQ(ffs_getxattr(root, "user.a", &c, 1), -ENODATA);
}

TEST_F(FsAttr, XattrSizesAreAskedForAndChecked)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, "user.abc", "12345"), 0);
    char buf[16];
    EXPECT_EQ(ffs_getxattr(f, "user.abc", nullptr, 0), 5);
    EXPECT_EQ(ffs_getxattr(f, "user.abc", buf, 4), -ERANGE);
    EXPECT_EQ(ffs_listxattr(f, nullptr, 0), 9);
    EXPECT_EQ(ffs_listxattr(f, buf, 8), -ERANGE);
    EXPECT_EQ(ffs_listxattr(f, buf, 9), 9);
    EXPECT_STREQ(buf, "user.abc");
}

TEST_F(FsAttr, XattrsTooLargeAreRefused)
{
    Inode f = create("f");
    EXPECT_EQ(set(f, "user.a", std::string(65537, 'v')), -E2BIG);
    EXPECT_EQ(set(f, "user.a", std::string(4033 - 8 - 6, 'v')), -ENOSPC);
    EXPECT_EQ(set(f, "user.a", std::string(4032 - 8 - 6, 'v')), 0);
    EXPECT_EQ(set(f, std::string(256, 'n'), "v"), -ERANGE);
    EXPECT_EQ(set(f, std::string(255, 'n'), "v"), 0);
    EXPECT_EQ(set(f, "", "v"), -ERANGE);
}

TEST_F(FsAttr, SeventeenBlocksOfXattrsFitAndAreGivenBack)
{
    Inode f = create("f");
    uint64_t before = free_blocks();
    std::string value(4000, 'v');
    for (int i = 0; i < 17; i++)
        ASSERT_EQ(set(f, "user." + std::to_string(i), value), 0);
    EXPECT_EQ(set(f, "user.more", value), -ENOSPC);
    EXPECT_EQ(attr(f).blocks, 17u * 8);
    for (int i = 0; i < 17; i += 2)
        ASSERT_EQ(ffs_removexattr(f, ("user." + std::to_string(i)).c_str()), 0);
    EXPECT_EQ(set(f, "user.more", value), 0);
    f.reset();
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
}
