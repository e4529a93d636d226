/* SPDX-License-Identifier: BSD-2-Clause */
// Linux beyond POSIX on a mount: birth times, files without names, whiteouts, overlayfs.
#include <dirent.h>
#include <linux/stat.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <fstream>

#include "tests/e2e/posix.h"

namespace
{

struct statx extended(const std::string &path)
{
    struct statx s = {};
    EXPECT_EQ(statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_ALL, &s), 0) << path;
    return s;
}

bool kernel_has(int major, int minor)
{
    std::ifstream in("/proc/sys/kernel/osrelease");
    int a = 0, b = 0;
    char dot;
    in >> a >> dot >> b;
    return a > major || (a == major && b >= minor);
}

TEST_F(Posix, TheBirthTimeStaysWhenTheFileChanges)
{
    if (!kernel_has(6, 6))
        GTEST_SKIP() << "FUSE asks for birth times from Linux 6.6 on";
    make_each_type();
    for (const char *type : kTypes) {
        struct statx s = extended(p(type));
        ASSERT_TRUE(s.stx_mask & STATX_BTIME) << type;
        struct stat plain = st(type);
        EXPECT_EQ(s.stx_ino, plain.st_ino);
        EXPECT_EQ(s.stx_mode, plain.st_mode);
        EXPECT_EQ(s.stx_nlink, plain.st_nlink);
        EXPECT_EQ(s.stx_size, static_cast<uint64_t>(plain.st_size));
        EXPECT_EQ(makedev(s.stx_rdev_major, s.stx_rdev_minor), plain.st_rdev) << type;
    }
    struct statx before = extended(p("file"));
    timespec old[2] = {{5, 0}, {5, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, p("file").c_str(), old, 0), 0);
    struct statx after = extended(p("file"));
    EXPECT_EQ(after.stx_mtime.tv_sec, 5);
    EXPECT_EQ(after.stx_btime.tv_sec, before.stx_btime.tv_sec);
    EXPECT_EQ(after.stx_btime.tv_nsec, before.stx_btime.tv_nsec);
    EXPECT_GT(after.stx_btime.tv_sec, 1600000000);
}

TEST_F(Posix, AFileWithoutANameIsOpenedAndNamed)
{
    if (!kernel_has(6, 1))
        GTEST_SKIP() << "FUSE passes O_TMPFILE on from Linux 6.1 on";
    int fd = open(dir_.c_str(), O_TMPFILE | O_RDWR, 0640);
    ASSERT_GE(fd, 0) << strerror(errno);
    ASSERT_EQ(write(fd, "text", 4), 4);
    struct stat s;
    ASSERT_EQ(fstat(fd, &s), 0);
    EXPECT_EQ(s.st_nlink, 0u);
    EXPECT_EQ(s.st_mode, mode_t{S_IFREG | 0640});
    std::string self = "/proc/self/fd/" + std::to_string(fd);
    ASSERT_EQ(linkat(AT_FDCWD, self.c_str(), AT_FDCWD, p("named").c_str(), AT_SYMLINK_FOLLOW), 0);
    close(fd);
    EXPECT_EQ(st("named").st_size, 4);
    EXPECT_EQ(st("named").st_nlink, 1u);
    fd = open(dir_.c_str(), O_TMPFILE | O_RDWR | O_EXCL, 0600);
    ASSERT_GE(fd, 0);
    self = "/proc/self/fd/" + std::to_string(fd);
    EXPECT_EQ(linkat(AT_FDCWD, self.c_str(), AT_FDCWD, p("not").c_str(), AT_SYMLINK_FOLLOW), -1);
    EXPECT_EQ(errno, ENOENT);
    close(fd);
    EXPECT_EQ(open(p("named").c_str(), O_TMPFILE | O_RDWR, 0600), -1);
    EXPECT_EQ(errno, ENOTDIR);
}

TEST_F(Posix, ARenameLeavesAWhiteout)
{
    touch("a", "text");
    touch("old");
    ASSERT_EQ(mkdir(p("d").c_str(), 0755), 0);
    ASSERT_EQ(mkdir(p("e").c_str(), 0755), 0);
    auto whiteout = [&](const char *from, const char *to, unsigned more) {
        return renameat2(AT_FDCWD, p(from).c_str(), AT_FDCWD, p(to).c_str(),
                         RENAME_WHITEOUT | more);
    };
    EXPECT_EQ(whiteout("a", "old", RENAME_NOREPLACE), -1);
    EXPECT_EQ(errno, EEXIST);
    EXPECT_EQ(whiteout("a", "old", RENAME_EXCHANGE), -1);
    EXPECT_EQ(errno, EINVAL);
    ASSERT_EQ(whiteout("a", "old", 0), 0);
    EXPECT_EQ(st("old").st_size, 4);
    EXPECT_EQ(st("a").st_mode, mode_t{S_IFCHR});
    EXPECT_EQ(st("a").st_rdev, 0u);
    EXPECT_EQ(st("a").st_nlink, 1u);
    ASSERT_EQ(whiteout("d", "e", 0), 0);
    EXPECT_EQ(st("d").st_mode, mode_t{S_IFCHR});
    EXPECT_EQ(st().st_nlink, 3u); // itself and e
    EXPECT_EQ(unlink(p("a").c_str()) | unlink(p("d").c_str()), 0);
}

class Overlay : public Posix
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(Posix::set_up());
        for (const char *name : {"lower", "upper", "work", "merged"})
            ASSERT_EQ(mkdir(p(name).c_str(), 0755), 0);
        touch("lower/kept", "lower");
        touch("lower/gone", "lower");
        ASSERT_EQ(mkdir(p("lower/dir").c_str(), 0755), 0);
        touch("lower/dir/inside");
        std::string options =
            "lowerdir=" + p("lower") + ",upperdir=" + p("upper") + ",workdir=" + p("work");
        if (::mount("overlay", p("merged").c_str(), "overlay", 0, options.c_str()) == 0)
            return;
        ASSERT_TRUE(errno == ENODEV || errno == EPERM) << strerror(errno);
        GTEST_SKIP() << "overlayfs: " << strerror(errno);
    }
    void TearDown() override { umount2(p("merged").c_str(), 0); }
};

TEST_F(Overlay, AMountIsAnUpperLayer)
{
    touch("merged/new", "new");
    ASSERT_EQ(unlink(p("merged/gone").c_str()), 0);
    EXPECT_EQ(st("upper/gone").st_mode & S_IFMT, mode_t{S_IFCHR});
    std::ofstream(p("merged/kept"), std::ios::app) << "+upper";
    std::string text;
    std::getline(std::ifstream(p("merged/kept")), text);
    EXPECT_EQ(text, "lower+upper");
    EXPECT_EQ(st("lower/kept").st_size, 5);
    ASSERT_EQ(rename(p("merged/kept").c_str(), p("merged/moved").c_str()), 0) << strerror(errno);
    EXPECT_EQ(st("upper/kept").st_mode & S_IFMT, mode_t{S_IFCHR});
    ASSERT_EQ(unlink(p("merged/dir/inside").c_str()), 0);
    ASSERT_EQ(rmdir(p("merged/dir").c_str()), 0) << strerror(errno);
    ASSERT_EQ(mkdir(p("merged/dir").c_str(), 0755), 0);
    std::string names;
    DIR *d = opendir(p("merged").c_str());
    while (dirent *e = d ? readdir(d) : nullptr)
        names += e->d_name[0] == '.' ? "" : std::string(e->d_name) + " ";
    closedir(d);
    EXPECT_NE(names.find("moved"), std::string::npos) << names;
    EXPECT_EQ(names.find("gone"), std::string::npos) << names;
    d = opendir(p("merged/dir").c_str());
    int count = 0;
    while (d && readdir(d))
        count++;
    closedir(d);
    EXPECT_EQ(count, 2); // the directory of the lower layer stays hidden
}

using Sync = MountingTest;

// Stands in for syncfs(2), which the kernel does not pass on.
TEST_F(Sync, FsyncOfTheRootMakesEveryFileDurable)
{
    Mounted m(64u << 20);
    ASSERT_TRUE(m.mount("commit=3600")) << m.log();
    ASSERT_EQ(mkdir(m.path("d").c_str(), 0755), 0);
    std::ofstream(m.path("d/f")) << "text";
    int root = open(m.mountpoint().c_str(), O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(fsync(root), 0);
    close(root);
    std::ofstream(m.path("d/later")) << "text";
    kill(m.pid(), SIGKILL);
    m.ended();
    umount2(m.mountpoint().c_str(), MNT_DETACH);
    ASSERT_TRUE(m.mount()) << m.log();
    struct stat s;
    ASSERT_EQ(stat(m.path("d/f").c_str(), &s), 0);
    EXPECT_EQ(s.st_size, 4);
    EXPECT_EQ(stat(m.path("d/later").c_str(), &s), -1);
}

} // namespace
