/* SPDX-License-Identifier: BSD-2-Clause */
// Attributes, times, extended attributes.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/posix_acl.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "layout/endian.h"
#include "layout/format.h"
#include "tests/fusefs/core/fs_fixture.h"
extern "C" {
#define _Atomic
#include "fusefs/core/storage.h"
#undef _Atomic
}

namespace
{

using FsAttr = FsTest;

bool same(const timespec &a, const timespec &b)
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

TEST_F(FsAttr, ANewOwnerClearsSetIdBits)
{
    ffs_attr a = {};
    Inode f = create("f", S_IFREG | 06755);
    ASSERT_EQ(ffs_setattr(f, &a, FFS_SET_UID, nullptr), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0755});
}

TEST_F(FsAttr, ChangesOfDataDoNotClearSetIdBits)
{
    Inode f = create("f", S_IFREG | 06755);
    write(f, 0, "x");
    truncate(f, 5);
    ASSERT_EQ(ffs_fallocate(f, 0, 0, 10), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 06755});
    ASSERT_EQ(ffs_clear_setid(f, false), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0755});
}

TEST_F(FsAttr, OutsidersClearSetGroupIdWithoutExecution)
{
    Inode f = create("f", S_IFREG | 06666);
    ASSERT_EQ(ffs_clear_setid(f, false), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 02666});
    ASSERT_EQ(ffs_clear_setid(f, true), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0666});
}

TEST_F(FsAttr, AReadCountsAsAccessOncePerChange)
{
    Inode f = create_with("f", "x");
    timespec made = attr(f).atime;
    read_all(f);
    timespec first = attr(f).atime;
    EXPECT_FALSE(same(made, first));
    read_all(f);
    EXPECT_TRUE(same(attr(f).atime, first));
}

TEST_F(FsAttr, AccessTimesFollowTheMountAndTheFlag)
{
    Inode f = create("f"), quiet = create("quiet"), d = mkdir("d");
    write(f, 0, "x");
    write(quiet, 0, "x");
    ffs_attr a = attr(quiet);
    a.flags = LAY_INODE_NOATIME;
    ASSERT_EQ(ffs_setattr(quiet, &a, FFS_SET_FLAGS, nullptr), 0);
    auto moves = [&](ffs_inode *i) {
        timespec before = attr(i).atime;
        S_ISDIR(attr(i).mode) ? (void)names(i) : (void)read_all(i);
        return !same(before, attr(i).atime);
    };
    ffs_set_access(fs, FFS_ACCESS_NEVER);
    EXPECT_FALSE(moves(f) || moves(d));
    ffs_set_access(fs, FFS_ACCESS_ALWAYS);
    EXPECT_TRUE(moves(f) && moves(f) && moves(d) && moves(d));
    EXPECT_FALSE(moves(quiet));
    ffs_set_access(fs, FFS_ACCESS_ALWAYS | FFS_ACCESS_FILES_ONLY);
    EXPECT_TRUE(moves(f));
    EXPECT_FALSE(moves(d));
    ffs_set_access(fs, FFS_ACCESS_RELATIVE);
    EXPECT_FALSE(moves(f) || moves(d));
    create(d, "new");
    EXPECT_TRUE(moves(d));
}

class FsFlags : public FsTest
{
  protected:
    int set_flags(ffs_inode *inode, uint32_t flags)
    {
        ffs_attr a = {};
        a.flags = flags;
        return ffs_setattr(inode, &a, FFS_SET_FLAGS, nullptr);
    }
};

TEST_F(FsFlags, AnImmutableFileDoesNotChange)
{
    Inode f = create("f"), d = mkdir("d");
    write(f, 0, "text");
    ASSERT_EQ(set_flags(f, LAY_INODE_IMMUTABLE), 0);
    f.reset();
    d.reset();
    remount();
    f = lookup("f");
    d = lookup("d");
    EXPECT_EQ(attr(f).flags, uint32_t{LAY_INODE_IMMUTABLE});
    ffs_attr a = {};
    ffs_map map;
    EXPECT_EQ(write(f, 4, "more"), -EPERM);
    EXPECT_EQ(ffs_map_write(f, 0, 4096, &map), -EPERM);
    EXPECT_EQ(ffs_fallocate(f, 0, 0, 10), -EPERM);
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_SIZE, nullptr), -EPERM);
    for (uint32_t set : {FFS_SET_MODE, FFS_SET_UID, FFS_SET_MTIME, FFS_SET_ATIME_NOW})
        EXPECT_EQ(ffs_setattr(f, &a, set, nullptr), -EPERM);
    EXPECT_EQ(ffs_setxattr(f, "user.a", "b", 1, 0), -EPERM);
    EXPECT_EQ(ffs_link(f, root, "g"), -EPERM);
    EXPECT_EQ(ffs_unlink(root, "f"), -EPERM);
    EXPECT_EQ(ffs_rename(root, "f", d, "g", 0), -EPERM);
    create("other");
    EXPECT_EQ(ffs_rename(root, "other", root, "f", 0), -EPERM);
    EXPECT_EQ(ffs_rename(root, "other", root, "f", RENAME_EXCHANGE), -EPERM);
    EXPECT_EQ(read_all(f), "text");
    ASSERT_EQ(set_flags(f, 0), 0);
    EXPECT_EQ(write(f, 4, "more"), 4);
    EXPECT_EQ(ffs_unlink(root, "f"), 0);
}

TEST_F(FsFlags, AnAppendOnlyFileGrowsAtItsEnd)
{
    Inode f = create_with("f", "text");
    ASSERT_EQ(set_flags(f, LAY_INODE_APPEND), 0);
    ffs_attr a = {};
    EXPECT_EQ(write(f, 3, "x"), -EPERM);
    EXPECT_EQ(write(f, 4, "more"), 4);
    EXPECT_EQ(truncate(f, 100), -EPERM);
    EXPECT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 10), -EPERM);
    EXPECT_EQ(ffs_fallocate(f, FALLOC_FL_KEEP_SIZE, 0, 10000), 0);
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MTIME_NOW, nullptr), 0);
    EXPECT_EQ(ffs_setattr(f, &a, FFS_SET_MTIME, nullptr), -EPERM);
    EXPECT_EQ(ffs_unlink(root, "f"), -EPERM);
    EXPECT_EQ(read_all(f), "textmore");
}

TEST_F(FsFlags, ADirectoryWithFlagsKeepsItsNames)
{
    Inode d = mkdir("d"), f = create(d, "f"), made;
    ASSERT_EQ(set_flags(d, LAY_INODE_APPEND), 0);
    create(d, "g");
    EXPECT_EQ(ffs_unlink(d, "g"), -EPERM);
    EXPECT_EQ(ffs_rename(d, "f", root, "f", 0), -EPERM);
    ASSERT_EQ(set_flags(d, LAY_INODE_IMMUTABLE | LAY_INODE_NOATIME), 0);
    EXPECT_EQ(ffs_mknod(d, "h", S_IFREG, 0, &cred, made.out()), -EPERM);
    EXPECT_EQ(ffs_tmpfile(d, S_IFREG, &cred, made.out()), -EPERM);
    EXPECT_EQ(ffs_link(f, d, "h"), -EPERM);
    EXPECT_EQ(ffs_unlink(d, "g"), -EPERM);
    EXPECT_EQ(ffs_rmdir(root, "d"), -EPERM);
    EXPECT_EQ(write(f, 0, "its files change"), 16);
    ASSERT_EQ(set_flags(d, LAY_INODE_NOATIME), 0);
    EXPECT_EQ(attr(create(d, "i")).flags, uint32_t{LAY_INODE_NOATIME});
}

TEST_F(FsAttr, TheLabelIsChangedWhileMounted)
{
    struct ffs_statfs s;
    EXPECT_EQ(ffs_set_label(fs, std::string(64, 'x').c_str()), -EINVAL);
    EXPECT_EQ(ffs_set_label(fs, "a\nb"), -EINVAL);
    ASSERT_EQ(ffs_set_label(fs, "a long label"), 0);
    ASSERT_EQ(ffs_set_label(fs, "short"), 0);
    ffs_statfs(fs, &s);
    EXPECT_STREQ(s.label, "short");
    remount();
    ffs_statfs(fs, &s);
    EXPECT_STREQ(s.label, "short");
    EXPECT_EQ(fsck(), "");
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
    Inode f = create_with("f", "x");
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

int set(ffs_inode *i, const std::string &name, const std::string &value, int flags = 0)
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

TEST_F(FsAttr, APrefixOfAnXattrNameIsAnotherName)
{
    char c;
    ASSERT_EQ(set(root, "user.abc", "1", 0), 0);
    EXPECT_EQ(ffs_getxattr(root, "user.ab", &c, 1), -ENODATA);
    EXPECT_EQ(ffs_removexattr(root, "user.ab"), -ENODATA);
    EXPECT_EQ(ffs_getxattr(root, "user.abc", &c, 1), 1);
}

TEST_F(FsAttr, XattrSizesAreReportedAndChecked)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, "user.abc", "12345"), 0);
    char buf[16];
    EXPECT_EQ(ffs_getxattr(f, "user.abc", nullptr, 0), 5);
    EXPECT_EQ(ffs_getxattr(f, "user.abc", buf, 4), -ERANGE);
    EXPECT_EQ(ffs_listxattr(f, true, nullptr, 0), 9);
    EXPECT_EQ(ffs_listxattr(f, true, buf, 8), -ERANGE);
    EXPECT_EQ(ffs_listxattr(f, true, buf, 9), 9);
    EXPECT_STREQ(buf, "user.abc");
}

TEST_F(FsAttr, AFileMayHaveManyBlocksOfXattrs)
{
    Inode f = create("f");
    uint64_t before = free_blocks();
    std::string value(4000, 'v');
    for (int i = 0; i < 18; i++)
        ASSERT_EQ(set(f, "user." + std::to_string(i), value), 0);
    EXPECT_EQ(free_blocks(), before - 18);
    EXPECT_EQ(attr(f).blocks, 0u) << "they are not data";
    remount(f, "f");
    for (int i = 0; i < 17; i += 2)
        ASSERT_EQ(ffs_removexattr(f, ("user." + std::to_string(i)).c_str()), 0);
    f.reset();
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
}

TEST_F(FsAttr, ValuesOfEveryLengthUpTo64KiBAreKept)
{
    Inode f = create("f");
    for (size_t len : {0, 1, 4000, 4008, 4009, 4017, 4020, 8000, 8032, 8033, 30000, 65535, 65536}) {
        std::string name = "user.v" + std::to_string(len);
        ASSERT_EQ(set(f, name, pattern(len, len)), 0) << len;
    }
    remount(f, "f");
    std::string names(4096, 0);
    names.resize(static_cast<size_t>(ffs_listxattr(f, true, names.data(), names.size())));
    EXPECT_EQ(std::count(names.begin(), names.end(), '\0'), 13);
    EXPECT_EQ(names.find_first_of("\1\2"), std::string::npos);
    for (size_t len : {0, 1, 4000, 4008, 4009, 4017, 4020, 8000, 8032, 8033, 30000, 65535, 65536}) {
        std::string name = "user.v" + std::to_string(len), got(len + 1, 0);
        EXPECT_EQ(ffs_getxattr(f, name.c_str(), nullptr, 0), static_cast<ssize_t>(len));
        EXPECT_EQ(ffs_getxattr(f, name.c_str(), got.data(), len + 1), static_cast<ssize_t>(len));
        EXPECT_EQ(got.substr(0, len), pattern(len, len)) << len;
        EXPECT_EQ(ffs_getxattr(f, name.c_str(), got.data(), len / 2),
                  len > 1 ? -ERANGE : static_cast<ssize_t>(len));
    }
    EXPECT_EQ(set(f, "user.x", std::string(65537, 'x')), -E2BIG);
    EXPECT_EQ(set(f, std::string(256, 'n'), "v"), -ERANGE);
    EXPECT_EQ(set(f, std::string(255, 'n'), "v"), 0);
    EXPECT_EQ(set(f, "", "v"), -ERANGE);
    EXPECT_EQ(set(f, "user." + std::string(250, 'n'), std::string(5000, 'x')), -ENOSPC);
}

TEST_F(FsAttr, AValueChangesBetweenOnePartAndMany)
{
    Inode f = create_with("f", "x");
    uint64_t before = free_blocks();
    for (size_t len : {10u, 60000u, 5000u, 20u, 65536u, 65536u, 4000u}) {
        ASSERT_EQ(set(f, "user.a", pattern(len, len)), 0);
        std::string got(len, 0);
        ASSERT_EQ(ffs_getxattr(f, "user.a", got.data(), len), static_cast<ssize_t>(len));
        ASSERT_EQ(got, pattern(len, len));
        ASSERT_EQ(before - free_blocks(), len <= 4018 ? 1 : (len + 4015) / 4016) << len;
    }
    EXPECT_EQ(set(f, "user.a", std::string(9000, 'x'), XATTR_CREATE), -EEXIST);
    EXPECT_EQ(set(f, "user.b", std::string(9000, 'x'), XATTR_REPLACE), -ENODATA);
    ASSERT_EQ(set(f, "user.a", std::string(9000, 'x'), XATTR_REPLACE), 0);
    EXPECT_EQ(set(f, "user.a", "", XATTR_CREATE), -EEXIST);
    ASSERT_EQ(ffs_removexattr(f, "user.a"), 0);
    EXPECT_EQ(free_blocks(), before);
    EXPECT_EQ(attr(f).blocks, 8u);
    EXPECT_EQ(ffs_listxattr(f, true, nullptr, 0), 0);
}

TEST_F(FsAttr, HundredsOfAttributesAreFreedWithTheirFile)
{
    uint64_t before = free_blocks();
    {
        Inode f = create("f");
        for (int i = 0; i < 250; i++)
            ASSERT_EQ(set(f, "user." + std::to_string(i), pattern(i, 3900)), 0) << i;
        int err = 0;
        for (int i = 250; !err; i++)
            err = set(f, "user." + std::to_string(i), pattern(i, 3900));
        EXPECT_EQ(err, -ENOSPC);
        std::string got(3900, 0);
        EXPECT_EQ(ffs_getxattr(f, "user.249", got.data(), 3900), 3900);
        EXPECT_EQ(got, pattern(249, 3900));
    }
    remount();
    EXPECT_EQ(fsck(), "");
    ASSERT_EQ(ffs_unlink(root, "f"), 0);
    EXPECT_EQ(free_blocks(), before);
}

TEST_F(FsAttr, AValueWithAMissingPartIsReplaced)
{
    Inode f = create("f");
    uint64_t before = free_blocks();
    ASSERT_EQ(set(f, "user.a", std::string(20000, 'x')), 0);
    ASSERT_EQ(ffs_removexattr(f, "\1\42user.a"), 0); // part 2, as a repair may lose it
    std::string got(20000, 0);
    EXPECT_EQ(ffs_getxattr(f, "user.a", got.data(), got.size()), -EIO);
    EXPECT_EQ(set(f, "user.a", std::string(12000, 'y')), 0);
    EXPECT_EQ(ffs_getxattr(f, "user.a", got.data(), got.size()), 12000);
    EXPECT_EQ(ffs_removexattr(f, "user.a"), 0);
    EXPECT_EQ(free_blocks(), before);
}

// --- Times: of the tick, exact after they were looked at, never backwards ------------------------

constexpr int kTries = 10000;

using FsTimes = FsTest;

bool later(const timespec &a, const timespec &b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

long tick()
{
    timespec now = {};
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

uint64_t version(const ffs_inode *i)
{
    return lay_get64(i->d.version);
}

// Calls `write` until two calls happen in one tick and one transaction; false: they never do.
template <typename Write> bool in_one_tick(struct ffs *fs, Write write)
{
    for (int i = 0; i < kTries; i++) {
        long before = tick();
        uint64_t tid = ffs_running_tid(fs);
        bool as_expected = write();
        if (tick() == before && ffs_running_tid(fs) == tid)
            return as_expected;
    }
    return false;
}

TEST_F(FsTimes, ASecondWriteOfATickChangesNoMetadata)
{
    Inode f = create_with("f", "first");
    EXPECT_TRUE(in_one_tick(fs, [&] {
        write(f, 0, "other");
        uint64_t one = version(f);
        write(f, 1, "xx");
        return version(f) == one;
    }));
    EXPECT_EQ(read_all(f), "oxxer");
}

TEST_F(FsTimes, AWriteThatMovesTheEndOrFillsAHoleChangesMetadata)
{
    Inode f = create_with("f", "first");
    for (int i = 1; i < 100; i++) {
        write(f, 0, "other");
        write(f, i, "longer");
        ASSERT_EQ(attr(f).size, static_cast<uint64_t>(i) + 6);
    }
    truncate(f, 1 << 20);
    for (uint64_t block = 1; block < 100; block++) {
        write(f, 0, "other");
        write(f, block * 4096, "text");
        ASSERT_EQ(attr(f).blocks, (block + 1) * 8);
    }
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("f")).substr(99 * 4096, 4), "text");
}

TEST_F(FsTimes, AChangeAfterTimesWereReadIsVisible)
{
    Inode f = create_with("f", "first");
    for (int i = 0; i < 2000; i++) {
        ffs_attr before = attr(f);
        if (i % 2) { // a change that fails in between
            ASSERT_EQ(ffs_removexattr(f, "user.none"), -ENODATA);
        }
        write(f, 0, "other");
        ffs_attr after = attr(f);
        ASSERT_TRUE(later(after.mtime, before.mtime) && later(after.ctime, before.ctime)) << i;
    }
}

TEST_F(FsTimes, AReadOfTimesIsRememberedAfterEviction)
{
    for (int i = 0; i < 20; i++) {
        std::string name = "f" + std::to_string(i);
        {
            Inode f = create_with(name, "first");
        }
        ffs_attr before = attr(lookup(name));
        remount();
        Inode f = lookup(name);
        write(f, 0, "other");
        ASSERT_TRUE(later(attr(f).mtime, before.mtime)) << i;
    }
}

TEST_F(FsTimes, NoChangeIsEarlierThanThePreviousOne)
{
    Inode looked = create("looked");
    for (int i = 0; i < 100; i++) {
        attr(looked);
        write(looked, 0, "x");
        Inode next = create(std::to_string(i)); // its times were never looked at
        ASSERT_FALSE(later(attr(looked).mtime, attr(next).mtime)) << i;
    }
}

TEST_F(FsTimes, TheCallerMaySetTimesOfData)
{
    ffs_set_data_times(fs, true);
    Inode f = create("f");
    ffs_attr before = attr(f), set = {};
    usleep(20000);
    write(f, 0, "data");
    write(f, 0, "more");
    truncate(f, 100000);
    ASSERT_EQ(ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_FALSE(later(attr(f).mtime, before.mtime));
    set.mtime = set.ctime = {1000000000, 7};
    ASSERT_EQ(ffs_setattr(f, &set, FFS_SET_MTIME | FFS_SET_CTIME, &set), 0);
    write(f, 0, "last");
    remount(f, "f");
    EXPECT_EQ(attr(f).mtime.tv_sec, 1000000000);
    EXPECT_EQ(attr(f).ctime.tv_nsec, 7);
    EXPECT_EQ(attr(f).size, 100000u);
    write(f, 0, "text");
    EXPECT_GT(attr(f).mtime.tv_sec, 1000000000) << "of another mount";
}

TEST_F(FsTimes, AnAccessIsLaterThanTheChangeBeforeIt)
{
    Inode f = create("f");
    for (int i = 0; i < 1000; i++) {
        write(f, 0, "x");
        ffs_note_access(f);
        ffs_attr a = attr(f);
        ASSERT_TRUE(later(a.atime, a.mtime)) << i;
    }
}

// --- POSIX ACLs: validity, the mode beside them, inheritance -------------------------------------

struct Entry {
    uint16_t tag, perm;
    uint32_t id;
};

void append(std::string &to, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to += static_cast<char>(value >> 8 * i);
}

std::string acl_of(const std::vector<Entry> &entries, uint32_t version = 2)
{
    std::string acl;
    append(acl, version, 4);
    for (const Entry &e : entries) {
        append(acl, e.tag, 2);
        append(acl, e.perm, 2);
        append(acl, e.id, 4);
    }
    return acl;
}

constexpr uint32_t kNone = UINT32_MAX;

// What `setfacl -m u:7:rw` makes of mode 0640, with another mask.
std::string one_user(uint16_t mask, uint16_t other = 0)
{
    return acl_of({{ACL_USER_OBJ, 6, kNone},
                   {ACL_USER, 6, 7},
                   {ACL_GROUP_OBJ, 4, kNone},
                   {ACL_MASK, mask, kNone},
                   {ACL_OTHER, other, kNone}});
}

class FsAcl : public FsTest
{
  protected:
    static int set(ffs_inode *inode, const std::string &acl, bool is_default = false,
                   bool keep_setgid = true)
    {
        return ffs_set_acl(inode, is_default, acl.data(), acl.size(), keep_setgid);
    }
    static std::string get(ffs_inode *inode, const char *name = FFS_ACL_ACCESS)
    {
        char buf[4096];
        ssize_t n = ffs_getxattr(inode, name, buf, sizeof(buf));
        return n < 0 ? "" : std::string(buf, static_cast<size_t>(n));
    }
    int chmod(ffs_inode *inode, uint32_t mode)
    {
        ffs_attr a = {};
        a.mode = mode;
        return ffs_setattr(inode, &a, FFS_SET_MODE, nullptr);
    }
};

TEST_F(FsAcl, TheModeShowsTheMask)
{
    Inode f = create("f", S_IFREG | 02640);
    ASSERT_EQ(set(f, one_user(6, 1)), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 02661});
    remount(f, "f");
    EXPECT_EQ(get(f), one_user(6, 1));
    ASSERT_EQ(set(f, one_user(4), false, false), 0);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0640});
}

TEST_F(FsAcl, AChangedModeChangesTheMask)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, one_user(6)), 0);
    ASSERT_EQ(chmod(f, 0617), 0);
    EXPECT_EQ(get(f), one_user(1, 7));
    ASSERT_EQ(ffs_set_acl(f, false, nullptr, 0, true), 0);
    EXPECT_EQ(get(f), "");
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0617});
    EXPECT_EQ(ffs_set_acl(f, false, nullptr, 0, true), 0);
}

TEST_F(FsAcl, AnAclEquivalentToAModeIsNotStored)
{
    Inode f = create("f");
    ASSERT_EQ(set(f, one_user(6)), 0);
    ASSERT_EQ(
        set(f,
            acl_of({{ACL_USER_OBJ, 7, kNone}, {ACL_GROUP_OBJ, 1, kNone}, {ACL_OTHER, 2, kNone}})),
        0);
    EXPECT_EQ(get(f), "");
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0712});
    EXPECT_EQ(attr(f).blocks, 0u);
}

// setfacl -b and -k do both to every file that they visit.
TEST_F(FsAcl, AnAclThatChangesNothingLeavesTheTimeOfTheChange)
{
    const std::string mode_0644 =
        acl_of({{ACL_USER_OBJ, 6, kNone}, {ACL_GROUP_OBJ, 4, kNone}, {ACL_OTHER, 4, kNone}});
    Inode d = mkdir("d", 0644);
    timespec before = attr(d).ctime;
    auto changed = [&](int err) {
        timespec last = before;
        EXPECT_EQ(err, 0);
        before = attr(d).ctime;
        return before.tv_sec != last.tv_sec || before.tv_nsec != last.tv_nsec;
    };
    EXPECT_FALSE(changed(ffs_set_acl(d, false, nullptr, 0, true)));
    EXPECT_FALSE(changed(ffs_set_acl(d, true, nullptr, 0, true)));
    EXPECT_FALSE(changed(set(d, mode_0644)));
    EXPECT_TRUE(changed(set(d, one_user(6))));
    EXPECT_TRUE(changed(set(d, one_user(6), true)));
    EXPECT_TRUE(changed(set(d, mode_0644)));
    EXPECT_TRUE(changed(ffs_set_acl(d, true, nullptr, 0, true)));
    EXPECT_EQ(get(d), "");
    EXPECT_EQ(get(d, FFS_ACL_DEFAULT), "");
}

TEST_F(FsAcl, ADefaultAclIsInherited)
{
    Inode d = mkdir("d", 0755);
    ASSERT_EQ(set(d, one_user(7, 4), true), 0);
    EXPECT_EQ(attr(d).mode, uint32_t{S_IFDIR | 0755});
    cred.umask = 077; // counts only where there is no default ACL
    Inode f = create(d, "f", S_IFREG | 0666), sub = mkdir(d, "sub", 0777);
    EXPECT_EQ(attr(f).mode, uint32_t{S_IFREG | 0664});
    EXPECT_EQ(get(f), one_user(6, 4));
    EXPECT_EQ(get(f, FFS_ACL_DEFAULT), "");
    EXPECT_EQ(attr(sub).mode, uint32_t{S_IFDIR | 0674});
    EXPECT_EQ(get(sub), one_user(7, 4));
    EXPECT_EQ(get(sub, FFS_ACL_DEFAULT), one_user(7, 4));
    Inode tmp, link;
    ASSERT_EQ(ffs_tmpfile(d, S_IFREG | 0600, &cred, tmp.out()), 0);
    EXPECT_EQ(get(tmp), one_user(0));
    ASSERT_EQ(ffs_symlink(d, "l", "f", &cred, link.out()), 0);
    EXPECT_EQ(get(link), "");
    EXPECT_EQ(attr(link).mode, uint32_t{S_IFLNK | 0777});
    EXPECT_EQ(attr(create("elsewhere", S_IFREG | 0666)).mode, uint32_t{S_IFREG | 0600});
}

TEST_F(FsAcl, InvalidAclsAreRefused)
{
    Inode f = create("f"), l;
    ASSERT_EQ(ffs_symlink(root, "l", "f", &cred, l.out()), 0);
    const Entry user = {ACL_USER_OBJ, 6, kNone}, group = {ACL_GROUP_OBJ, 6, kNone},
                other = {ACL_OTHER, 6, kNone}, named = {ACL_USER, 6, 7}, mask = {ACL_MASK, 6, 0};
    const std::vector<std::string> bad = {
        "",
        acl_of({}),
        acl_of({user, group, other}, 1),
        acl_of({user, group, other}) + "x",
        acl_of({user, group}),
        acl_of({group, user, other}),
        acl_of({user, user, group, other}),
        acl_of({user, named, group, other}),
        acl_of({user, named, group, mask, mask, other}),
        acl_of({user, group, {ACL_OTHER, 8, kNone}}),
        acl_of({user, group, other, {0x40, 1, kNone}}),
    };
    for (size_t i = 0; i < bad.size(); i++)
        EXPECT_EQ(set(f, bad[i]), -EINVAL) << i;
    EXPECT_EQ(set(f, one_user(6), true), -EACCES);
    EXPECT_EQ(set(l, one_user(6)), -EOPNOTSUPP);
    std::vector<Entry> many(600, named);
    EXPECT_EQ(set(f, acl_of(many)), -ENOSPC);
    EXPECT_EQ(get(f), "");
}

TEST_F(FsAcl, TheLargestAclFitsTogetherWithOtherAttributes)
{
    Inode d = mkdir("d");
    std::vector<Entry> entries = {{ACL_USER_OBJ, 7, kNone}};
    for (uint32_t i = 0; i < 492; i++)
        entries.push_back({ACL_USER, 5, i});
    entries.push_back({ACL_GROUP_OBJ, 5, kNone});
    entries.push_back({ACL_MASK, 7, kNone});
    entries.push_back({ACL_OTHER, 0, kNone});
    ASSERT_EQ(ffs_setxattr(d, "user.a", "b", 1, 0), 0);
    ASSERT_EQ(set(d, acl_of(entries), true), 0);
    ASSERT_EQ(set(d, acl_of(entries)), 0);
    EXPECT_EQ(get(mkdir(d, "sub", 0777)), acl_of(entries));
    EXPECT_EQ(ffs_rmdir(d, "sub"), 0);
}

} // namespace
