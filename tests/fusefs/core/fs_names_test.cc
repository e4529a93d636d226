/* SPDX-License-Identifier: BSD-2-Clause */
// rename in all its cases, links, symbolic links, attributes and their inheritance.
#include <sys/sysmacros.h>

#include "tests/fusefs/core/fs_fixture.h"

// What stands at the two names of a rename.
enum Thing { NOTHING, FILE_, OTHER_FILE, SAME_FILE, EMPTY_DIR, FULL_DIR, SYMLINK_ };

struct RenameCase {
    const char *name;
    Thing from, to;
    unsigned flags;
    int want;
};

class FsRename : public FsTest, public ::testing::WithParamInterface<RenameCase>
{
  protected:
    void make(ffs_inode *dir, const std::string &name, Thing thing)
    {
        Inode link;
        if (thing == FILE_ || thing == OTHER_FILE)
            write(create(dir, name), 0, name);
        else if (thing == SAME_FILE)
            EXPECT_EQ(ffs_link(lookup(a, "from"), dir, name.c_str()), 0);
        else if (thing == SYMLINK_)
            EXPECT_EQ(ffs_symlink(dir, name.c_str(), "target", &cred, link.out()), 0);
        else if (thing != NOTHING)
            link = mkdir(dir, name);
        if (thing == FULL_DIR)
            create(link, "inside");
    }
    uint64_t ino_of(ffs_inode *dir, const std::string &name)
    {
        Inode i;
        return ffs_lookup(dir, name.c_str(), i.out()) ? 0 : ffs_ino(i);
    }
    // Between two directories, or within one.
    void check(ffs_inode *to_dir);
    void TearDown() override
    {
        a.reset();
        b.reset();
        FsTest::TearDown();
    }

    Inode a, b;
};

void FsRename::check(ffs_inode *to_dir)
{
    const RenameCase &c = GetParam();
    make(a, "from", c.from);
    make(to_dir, "to", c.to);
    uint64_t from = ino_of(a, "from"), to = ino_of(to_dir, "to");
    ASSERT_EQ(ffs_rename(a, "from", to_dir, "to", c.flags), c.want);
    bool unchanged = c.want != 0 || c.to == SAME_FILE;
    bool swapped = !unchanged && (c.flags & RENAME_EXCHANGE);
    EXPECT_EQ(ino_of(to_dir, "to"), unchanged ? to : from);
    EXPECT_EQ(ino_of(a, "from"), unchanged ? from : swapped ? to : 0);
}

TEST_P(FsRename, FollowsTheTableBetweenDirectories)
{
    a = mkdir("a");
    b = mkdir("b");
    check(b);
}

TEST_P(FsRename, FollowsTheTableWithinADirectory)
{
    a = mkdir("a");
    check(a);
}

INSTANTIATE_TEST_SUITE_P(
    Table, FsRename,
    ::testing::Values(RenameCase{"MissingSource", NOTHING, FILE_, 0, -ENOENT},
                      RenameCase{"FileToNew", FILE_, NOTHING, 0, 0},
                      RenameCase{"FileOverFile", FILE_, OTHER_FILE, 0, 0},
                      RenameCase{"FileOverSameFile", FILE_, SAME_FILE, 0, 0},
                      RenameCase{"FileOverSymlink", FILE_, SYMLINK_, 0, 0},
                      RenameCase{"FileOverDir", FILE_, EMPTY_DIR, 0, -EISDIR},
                      RenameCase{"SymlinkOverFile", SYMLINK_, FILE_, 0, 0},
                      RenameCase{"SymlinkOverDir", SYMLINK_, EMPTY_DIR, 0, -EISDIR},
                      RenameCase{"DirToNew", FULL_DIR, NOTHING, 0, 0},
                      RenameCase{"DirOverFile", EMPTY_DIR, FILE_, 0, -ENOTDIR},
                      RenameCase{"DirOverEmptyDir", FULL_DIR, EMPTY_DIR, 0, 0},
                      RenameCase{"DirOverFullDir", EMPTY_DIR, FULL_DIR, 0, -ENOTEMPTY},
                      RenameCase{"NoReplaceNew", FILE_, NOTHING, RENAME_NOREPLACE, 0},
                      RenameCase{"NoReplaceFile", FILE_, OTHER_FILE, RENAME_NOREPLACE, -EEXIST},
                      RenameCase{"NoReplaceSame", FILE_, SAME_FILE, RENAME_NOREPLACE, -EEXIST},
                      RenameCase{"ExchangeFiles", FILE_, OTHER_FILE, RENAME_EXCHANGE, 0},
                      RenameCase{"ExchangeFileAndDir", FILE_, FULL_DIR, RENAME_EXCHANGE, 0},
                      RenameCase{"ExchangeDirAndSymlink", FULL_DIR, SYMLINK_, RENAME_EXCHANGE, 0},
                      RenameCase{"ExchangeDirs", FULL_DIR, EMPTY_DIR, RENAME_EXCHANGE, 0},
                      RenameCase{"ExchangeSame", FILE_, SAME_FILE, RENAME_EXCHANGE, 0},
                      RenameCase{"ExchangeMissing", FILE_, NOTHING, RENAME_EXCHANGE, -ENOENT},
                      RenameCase{"BothFlags", FILE_, OTHER_FILE, RENAME_EXCHANGE | RENAME_NOREPLACE,
                                 -EINVAL}),
    [](const auto &info) { return info.param.name; });

using FsNames = FsTest;

TEST_F(FsNames, ADirectoryCannotMoveBelowItself)
{
    Inode a = mkdir("a"), b = mkdir(a, "b"), c = mkdir(b, "c");
    EXPECT_EQ(ffs_rename(root, "a", a, "x", 0), -EINVAL);
    EXPECT_EQ(ffs_rename(root, "a", c, "x", 0), -EINVAL);
    EXPECT_EQ(ffs_rename(b, "c", root, "a", RENAME_EXCHANGE), -EINVAL);
    EXPECT_EQ(ffs_rename(b, "c", root, "c", 0), 0);
    EXPECT_EQ(ffs_rename(root, "a", c, "a", 0), 0);
}

TEST_F(FsNames, MovingADirectoryChangesItsParentAndTheCounts)
{
    Inode a = mkdir("a"), b = mkdir("b"), d = mkdir(a, "d");
    EXPECT_EQ(ffs_rename(a, "d", b, "d", 0), 0);
    Inode parent;
    ASSERT_EQ(ffs_parent(d, parent.out()), 0);
    EXPECT_EQ(ffs_ino(parent), ffs_ino(b));
    EXPECT_EQ(attr(a).nlink, 2u);
    EXPECT_EQ(attr(b).nlink, 3u);
}

TEST_F(FsNames, ARemovedDirectoryAcceptsNoNames)
{
    Inode d = mkdir("d"), f = create("f"), i;
    ASSERT_EQ(ffs_rmdir(root, "d"), 0);
    EXPECT_EQ(ffs_mknod(d, "x", S_IFREG, 0, &cred, i.out()), -ENOENT);
    EXPECT_EQ(ffs_link(f, d, "x"), -ENOENT);
    EXPECT_EQ(ffs_rename(root, "f", d, "x", 0), -ENOENT);
}

TEST_F(FsNames, AFullDirectoryIsNotRemoved)
{
    Inode d = mkdir("d");
    create(d, "x");
    EXPECT_EQ(ffs_rmdir(root, "d"), -ENOTEMPTY);
    EXPECT_EQ(ffs_unlink(d, "x"), 0);
    EXPECT_EQ(ffs_rmdir(root, "d"), 0);
}

TEST_F(FsNames, AFileHasAsManyLinksAsNames)
{
    Inode f = create("a"), d = mkdir("d");
    EXPECT_EQ(ffs_link(f, d, "b"), 0);
    EXPECT_EQ(ffs_link(f, d, "b"), -EEXIST);
    EXPECT_EQ(ffs_link(d, root, "e"), -EPERM);
    EXPECT_EQ(attr(f).nlink, 2u);
    EXPECT_EQ(ffs_unlink(root, "a"), 0);
    EXPECT_EQ(attr(f).nlink, 1u);
    EXPECT_EQ(ffs_ino(lookup(d, "b")), ffs_ino(f));
}

TEST_F(FsNames, LinksAreLimited)
{
    Inode f = create("f"), d = mkdir("d");
    for (int i = 1; i < 65000; i++)
        ASSERT_EQ(ffs_link(f, d, std::to_string(i).c_str()), 0);
    EXPECT_EQ(ffs_link(f, d, "one more"), -EMLINK);
    EXPECT_EQ(attr(f).nlink, 65000u);
}

TEST_F(FsNames, AFileWithoutANameCanBeGivenOne)
{
    Inode f;
    ASSERT_EQ(ffs_tmpfile(root, 0600, &cred, f.out()), 0);
    EXPECT_EQ(attr(f).nlink, 0u);
    write(f, 0, "data");
    EXPECT_EQ(ffs_link(f, root, "named"), 0);
    f.reset();
    remount();
    EXPECT_EQ(read_all(lookup("named")), "data");
}

TEST_F(FsNames, AFileThatNeverGetsANameLeavesNothing)
{
    create("warm");
    uint64_t before = free_blocks();
    {
        Inode f;
        ASSERT_EQ(ffs_tmpfile(root, 0600, &cred, f.out()), 0);
        write(f, 0, std::string(100000, 'x'));
    }
    EXPECT_EQ(free_blocks(), before);
}

TEST_F(FsNames, AWhiteoutReplacesAMovedName)
{
    Inode f = create("f"), d = mkdir("d");
    write(f, 0, "data");
    EXPECT_EQ(ffs_rename(root, "f", d, "g", RENAME_WHITEOUT | RENAME_EXCHANGE), -EINVAL);
    ASSERT_EQ(ffs_rename(root, "f", d, "g", RENAME_WHITEOUT), 0);
    ASSERT_EQ(ffs_rename(root, "d", root, "e", RENAME_WHITEOUT | RENAME_NOREPLACE), 0);
    f.reset();
    d.reset();
    remount();
    for (const char *name : {"f", "d"}) {
        ffs_attr a = attr(lookup(name));
        EXPECT_EQ(a.mode, uint32_t{S_IFCHR});
        EXPECT_EQ(a.rdev, 0u);
        EXPECT_EQ(a.nlink, 1u);
        EXPECT_EQ(a.uid, cred.uid);
    }
    EXPECT_EQ(read_all(lookup(lookup("e"), "g")), "data");
    EXPECT_EQ(attr(root).nlink, 3u);
}

TEST_F(FsNames, TargetsOfEveryLengthAreKept)
{
    for (size_t len = 1; len <= 4095; len += len < 400 || len > 4000 ? 1 : 61) {
        Inode l;
        std::string name = std::to_string(len), target(len, 'a' + len % 26);
        ASSERT_EQ(ffs_symlink(root, name.c_str(), target.c_str(), &cred, l.out()), 0);
        char buf[4096];
        ASSERT_EQ(ffs_readlink(l, buf, sizeof(buf)), static_cast<ssize_t>(len));
        ASSERT_EQ(std::string(buf, len), target);
        EXPECT_EQ(attr(l).size, len);
    }
    Inode l;
    EXPECT_EQ(ffs_symlink(root, "x", std::string(4096, 't').c_str(), &cred, l.out()),
              -ENAMETOOLONG);
    EXPECT_EQ(ffs_symlink(root, "x", "", &cred, l.out()), -ENOENT);
}

TEST_F(FsNames, ASetGidDirectoryPassesOnItsGroup)
{
    Inode d = mkdir("d", 02775);
    ffs_attr a = {};
    a.gid = 77;
    ASSERT_EQ(ffs_setattr(d, &a, FFS_SET_GID, nullptr), 0);
    EXPECT_EQ(attr(create(d, "f")).gid, 77u);
    Inode sub = mkdir(d, "sub", 0755);
    EXPECT_EQ(attr(sub).gid, 77u);
    EXPECT_EQ(attr(sub).mode, uint32_t{S_IFDIR | 02755});
    EXPECT_EQ(attr(create(d, "s", S_IFREG | 02775)).mode, uint32_t{S_IFREG | 0775});
}

TEST_F(FsNames, DeviceNumbersAreKept)
{
    Inode i;
    uint32_t rdev = static_cast<uint32_t>(makedev(259, 70000));
    ASSERT_EQ(ffs_mknod(root, "n", S_IFBLK | 0600, rdev, &cred, i.out()), 0);
    EXPECT_EQ(attr(i).rdev, rdev);
    i.reset();
    remount();
    EXPECT_EQ(attr(lookup("n")).rdev, rdev);
}

TEST_F(FsNames, TypesWithSeparateCallsAreRefused)
{
    Inode i;
    EXPECT_EQ(ffs_mknod(root, "d", S_IFDIR | 0700, 0, &cred, i.out()), -EINVAL);
    EXPECT_EQ(ffs_mknod(root, "l", S_IFLNK | 0777, 0, &cred, i.out()), -EINVAL);
    EXPECT_EQ(ffs_mknod(root, "p", S_IFIFO | 0600, 0, &cred, i.out()), 0);
    EXPECT_EQ(ffs_mknod(root, "s", S_IFSOCK | 0600, 0, &cred, i.out()), 0);
}
