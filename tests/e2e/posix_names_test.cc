/* SPDX-License-Identifier: BSD-2-Clause */
// Names, types, owners and times as POSIX has them, on a mount.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include "tests/e2e/posix.h"

namespace
{

struct Refused {
    const char *what;
    std::function<int()> call;
    int want;
};

void expect_all(const std::vector<Refused> &rows)
{
    for (const Refused &row : rows) {
        int got = row.call() < 0 ? errno : 0;
        EXPECT_EQ(got, row.want) << row.what << ": " << strerror(got);
    }
}

TEST_F(Posix, OpensAndNamesReturnTheErrnoOfTheStandard)
{
    make_each_type();
    const std::string n255(255, 'n'), n256(256, 'n');
    auto op = [&](const std::string &n, int flags) { return open(p(n).c_str(), flags, 0644); };
    expect_all({
        {"open O_CREAT|O_EXCL existing", [&] { return op("file", O_CREAT | O_EXCL | O_RDWR); },
         EEXIST},
        {"open O_EXCL symlink", [&] { return op("dangling", O_CREAT | O_EXCL | O_RDWR); }, EEXIST},
        {"open O_NOFOLLOW", [&] { return op("link", O_RDONLY | O_NOFOLLOW); }, ELOOP},
        {"open loop", [&] { return op("loop", O_RDONLY); }, ELOOP},
        {"open dir for writing", [&] { return op("dir", O_WRONLY); }, EISDIR},
        {"open O_DIRECTORY file", [&] { return op("file", O_RDONLY | O_DIRECTORY); }, ENOTDIR},
        {"open below a file", [&] { return op("file/x", O_RDONLY); }, ENOTDIR},
        {"open nothing", [&] { return op("nothing", O_RDONLY); }, ENOENT},
        {"open fifo without reader", [&] { return op("fifo", O_WRONLY | O_NONBLOCK); }, ENXIO},
        {"open socket", [&] { return op("socket", O_RDONLY); }, ENXIO},
        {"create 256", [&] { return op(n256, O_CREAT | O_RDWR); }, ENAMETOOLONG},
        {"mkdir 256", [&] { return mkdir(p(n256).c_str(), 0755); }, ENAMETOOLONG},
        {"lookup 256", [&] { return access(p(n256).c_str(), F_OK); }, ENAMETOOLONG},
        {"mkdir 255", [&] { return mkdir(p(n255).c_str(), 0755); }, 0},
        {"rename 256", [&] { return rename(p("file").c_str(), p(n256).c_str()); }, ENAMETOOLONG},
    });
}

TEST_F(Posix, ChangesOfTheWrongObjectReturnTheErrnoOfTheStandard)
{
    char target[8];
    make_each_type();
    expect_all({
        {"mkdir existing", [&] { return mkdir(p("file").c_str(), 0755); }, EEXIST},
        {"mkdir dot", [&] { return mkdir(p("dir/.").c_str(), 0755); }, EEXIST},
        {"mkdir below link loop", [&] { return mkdir(p("loop/x").c_str(), 0755); }, ELOOP},
        {"rmdir file", [&] { return rmdir(p("file").c_str()); }, ENOTDIR},
        {"rmdir link", [&] { return rmdir(p("link").c_str()); }, ENOTDIR},
        {"rmdir full", [&] { return rmdir(p("full").c_str()); }, ENOTEMPTY},
        {"rmdir dot", [&] { return rmdir(p("dir/.").c_str()); }, EINVAL},
        {"rmdir dotdot", [&] { return rmdir(p("full/..").c_str()); }, ENOTEMPTY},
        {"unlink dir", [&] { return unlink(p("dir").c_str()); }, EISDIR},
        {"unlink nothing", [&] { return unlink(p("nothing").c_str()); }, ENOENT},
        {"link dir", [&] { return link(p("dir").c_str(), p("d2").c_str()); }, EPERM},
        {"link onto existing", [&] { return link(p("file").c_str(), p("fifo").c_str()); }, EEXIST},
        {"link nothing", [&] { return link(p("nothing").c_str(), p("l2").c_str()); }, ENOENT},
        {"symlink existing", [&] { return symlink("x", p("file").c_str()); }, EEXIST},
        {"symlink empty", [&] { return symlink("", p("s2").c_str()); }, ENOENT},
        {"symlink of 4095",
         [&] { return symlink(std::string(4095, 's').c_str(), p("s3").c_str()); }, 0},
        {"symlink of 4096",
         [&] { return symlink(std::string(4096, 's').c_str(), p("s4").c_str()); }, ENAMETOOLONG},
        {"mknod existing", [&] { return mknod(p("dir").c_str(), S_IFIFO | 0600, 0); }, EEXIST},
        {"truncate dir", [&] { return truncate(p("dir").c_str(), 0); }, EISDIR},
        {"truncate fifo", [&] { return truncate(p("fifo").c_str(), 0); }, EINVAL},
        {"truncate negative", [&] { return truncate(p("file").c_str(), -1); }, EINVAL},
        {"rename dir below itself", [&] { return rename(p("dir").c_str(), p("dir/x").c_str()); },
         EINVAL},
        {"rename nothing", [&] { return rename(p("nothing").c_str(), p("x").c_str()); }, ENOENT},
        {"rename noreplace",
         [&] {
             return renameat2(AT_FDCWD, p("file").c_str(), AT_FDCWD, p("fifo").c_str(),
                              RENAME_NOREPLACE);
         },
         EEXIST},
        {"exchange with nothing",
         [&] {
             return renameat2(AT_FDCWD, p("file").c_str(), AT_FDCWD, p("nothing").c_str(),
                              RENAME_EXCHANGE);
         },
         ENOENT},
        {"readlink file",
         [&] { return readlink(p("file").c_str(), target, sizeof(target)) < 0 ? -1 : 0; }, EINVAL},
    });
}

bool is_dir(const std::string &type)
{
    return type == "dir" || type == "full";
}

int errno_of_rename(const std::string &from, const std::string &to)
{
    if (is_dir(from) != is_dir(to))
        return is_dir(from) ? ENOTDIR : EISDIR;
    return to == "full" ? ENOTEMPTY : 0;
}

TEST_F(Posix, RenameOverEachTypeFollowsTheStandard)
{
    ASSERT_EQ(mkdir(p("a").c_str(), 0755), 0);
    for (const std::string from : kTypes) {
        for (const std::string to : kTypes) {
            const std::string what = from + " over " + to, b = "b-" + from + "-" + to;
            ASSERT_EQ(mkdir(p(b).c_str(), 0755), 0);
            make_one(from, "a/" + what);
            make_one(to, b + "/to");
            ino_t ino = st("a/" + what).st_ino;
            struct stat before = st(b);
            int got = rename(p("a/" + what).c_str(), p(b + "/to").c_str()) < 0 ? errno : 0;
            EXPECT_EQ(got, errno_of_rename(from, to)) << what << ": " << strerror(got);
            EXPECT_EQ(st(b + "/to").st_ino == ino, got == 0) << what;
            EXPECT_EQ(st(b).st_nlink, is_dir(to) ? 3u : 2u) << what;
            EXPECT_EQ(later(st(b).st_mtim, before.st_mtim), got == 0) << what;
        }
    }
}

TEST_F(Posix, ExchangeSwapsAnyTwoTypes)
{
    for (const std::string from : kTypes) {
        for (const std::string to : kTypes) {
            const std::string what = from + " with " + to;
            ASSERT_EQ(mkdir(p(what).c_str(), 0755), 0);
            make_one(from, what + "/a");
            make_one(to, "b" + what);
            struct stat a = st(what + "/a"), b = st("b" + what);
            ASSERT_EQ(renameat2(AT_FDCWD, p(what + "/a").c_str(), AT_FDCWD, p("b" + what).c_str(),
                                RENAME_EXCHANGE),
                      0)
                << what;
            EXPECT_EQ(st(what + "/a").st_ino, b.st_ino) << what;
            EXPECT_EQ(st("b" + what).st_ino, a.st_ino) << what;
            EXPECT_EQ(st(what).st_nlink, is_dir(to) ? 3u : 2u) << what;
        }
    }
}

// The effect of an operation on times and link count.
enum { kA = 1, kM = 2, kC = 4 };

unsigned changes(const struct stat &a, const struct stat &b)
{
    return (later(b.st_atim, a.st_atim) ? kA : 0) | (later(b.st_mtim, a.st_mtim) ? kM : 0) |
           (later(b.st_ctim, a.st_ctim) ? kC : 0);
}

TEST_F(Posix, EachOperationUpdatesItsTimesAndLinkCounts)
{
    touch("f", "some bytes");
    ASSERT_EQ(mkdir(p("d").c_str(), 0755), 0);
    Fd fd = open(p("f").c_str(), O_RDWR);
    const struct {
        const char *what;
        std::function<int()> call;
        const char *object;
        unsigned times;
        int links;
    } table[] = {
        {"write", [&] { return static_cast<int>(pwrite(fd, "x", 1, 0)); }, "f", kM | kC, 0},
        {"ftruncate", [&] { return ftruncate(fd, 3); }, "f", kM | kC, 0},
        {"truncate to the same", [&] { return truncate(p("f").c_str(), 3); }, "f", kM | kC, 0},
        {"chmod", [&] { return chmod(p("f").c_str(), 0600); }, "f", kC, 0},
        {"chown", [&] { return chown(p("f").c_str(), 1, 1); }, "f", kC, 0},
        {"setxattr", [&] { return setxattr(p("f").c_str(), "user.a", "1", 1, 0); }, "f", kC, 0},
        {"removexattr", [&] { return removexattr(p("f").c_str(), "user.a"); }, "f", kC, 0},
        {"fallocate", [&] { return fallocate(fd, 0, 0, 9000); }, "f", kM | kC, 0},
        {"punch",
         [&] { return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096); }, "f",
         kM | kC, 0},
        {"link", [&] { return link(p("f").c_str(), p("d/l").c_str()); }, "f", kC, 1},
        {"link's directory", [&] { return link(p("f").c_str(), p("d/m").c_str()); }, "d", kM | kC,
         0},
        {"rename", [&] { return rename(p("d/m").c_str(), p("d/n").c_str()); }, "f", kC, 0},
        {"rename's directory", [&] { return rename(p("d/n").c_str(), p("d/m").c_str()); }, "d",
         kM | kC, 0},
        {"unlink of one name", [&] { return unlink(p("d/l").c_str()); }, "f", kC, -1},
        {"replaced by rename",
         [&] {
             touch("g");
             return rename(p("g").c_str(), p("d/m").c_str());
         },
         "f", kC, -1},
        {"mkdir's parent", [&] { return mkdir(p("d/sub").c_str(), 0755); }, "d", kM | kC, 1},
        {"rmdir's parent", [&] { return rmdir(p("d/sub").c_str()); }, "d", kM | kC, -1},
        {"mmap and msync",
         [&] {
             void *m = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
             *static_cast<char *>(m) = 'm';
             return msync(m, 4096, MS_SYNC) | munmap(m, 4096);
         },
         "f", kA | kM | kC, 0},
        {"open O_TRUNC", [&] { return close(open(p("f").c_str(), O_WRONLY | O_TRUNC)); }, "f",
         kM | kC, 0},
        {"stat",
         [&] {
             struct stat s;
             return stat(p("f").c_str(), &s);
         },
         "f", 0, 0},
    };
    for (const auto &row : table) {
        struct stat before = st(row.object);
        usleep(10000); // the kernel's clock for files is a tick behind
        ASSERT_GE(row.call(), 0) << row.what << ": " << strerror(errno);
        struct stat after = st(row.object);
        EXPECT_EQ(changes(before, after), row.times) << row.what;
        EXPECT_EQ(static_cast<int>(after.st_nlink - before.st_nlink), row.links) << row.what;
    }
}

TEST_F(Posix, TimesAreKeptToTheNanosecondBefore1970AndAfter2038)
{
    touch("f");
    for (time_t sec :
         {time_t{-2000000000}, time_t{-1}, time_t{0}, time_t{4000000000}, time_t{16000000000}}) {
        timespec t[2] = {{sec, 123456789}, {sec, 999999999}};
        ASSERT_EQ(utimensat(AT_FDCWD, p("f").c_str(), t, 0), 0);
        struct stat s = st("f");
        EXPECT_EQ(s.st_atim.tv_sec, sec);
        EXPECT_EQ(s.st_atim.tv_nsec, 123456789);
        EXPECT_EQ(s.st_mtim.tv_sec, sec);
        EXPECT_EQ(s.st_mtim.tv_nsec, 999999999);
    }
    timespec omit[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    ASSERT_EQ(utimensat(AT_FDCWD, p("f").c_str(), omit, 0), 0);
    EXPECT_EQ(st("f").st_atim.tv_sec, 16000000000);
    EXPECT_NEAR(static_cast<double>(st("f").st_mtim.tv_sec), static_cast<double>(time(nullptr)), 5);
    ASSERT_EQ(symlink("f", p("l").c_str()), 0);
    timespec t[2] = {{7, 8}, {9, 10}};
    ASSERT_EQ(utimensat(AT_FDCWD, p("l").c_str(), t, AT_SYMLINK_NOFOLLOW), 0);
    EXPECT_EQ(st("l").st_mtim.tv_sec, 9);
    EXPECT_EQ(st("f").st_atim.tv_sec, 16000000000);
}

TEST_F(Posix, DeviceNumbersAndTypesAreKept)
{
    for (const char *type : kTypes)
        make_one(type, type);
    EXPECT_EQ(st("null").st_rdev, makedev(1, 3));
    EXPECT_EQ(st("block").st_rdev, makedev(300, 70000));
    EXPECT_TRUE(S_ISFIFO(st("fifo").st_mode) && S_ISSOCK(st("socket").st_mode));
    std::set<unsigned char> seen;
    DIR *d = opendir(dir_.c_str());
    while (dirent *e = readdir(d))
        seen.insert(e->d_type);
    closedir(d);
    EXPECT_EQ(seen,
              (std::set<unsigned char>{DT_REG, DT_DIR, DT_LNK, DT_FIFO, DT_SOCK, DT_CHR, DT_BLK}));
    EXPECT_EQ(st("link").st_size, 4);
    ASSERT_EQ(link(p("link").c_str(), p("link2").c_str()), 0);
    ASSERT_EQ(link(p("fifo").c_str(), p("fifo2").c_str()), 0);
    EXPECT_EQ(st("link2").st_ino, st("link").st_ino);
    EXPECT_EQ(st("fifo2").st_nlink, 2u);
}

TEST_F(Posix, StickyDirectoriesProtectTheFilesOfOthers)
{
    ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
    ASSERT_EQ(as_user(1000, [&] { return close(make("mine")); }), 0);
    EXPECT_EQ(as_user(1001, [&] { return unlink(p("mine").c_str()); }), EPERM);
    EXPECT_EQ(as_user(1001, [&] { return rename(p("mine").c_str(), p("x").c_str()); }), EPERM);
    EXPECT_EQ(as_user(1001, [&] { return chmod(p("mine").c_str(), 0666); }), EPERM);
    EXPECT_EQ(as_user(1001, [&] { return open(p("mine").c_str(), O_RDWR); }), EACCES);
    EXPECT_EQ(as_user(1000, [&] { return chown(p("mine").c_str(), 1001, -1); }), EPERM);
    EXPECT_EQ(as_user(1000, [&] { return unlink(p("mine").c_str()); }), 0);
}

TEST_F(Posix, SetgidDirectoriesPassOnTheirGroup)
{
    ASSERT_EQ(chown(dir_.c_str(), 0, 77), 0);
    ASSERT_EQ(chmod(dir_.c_str(), 02777), 0);
    EXPECT_EQ(as_user(1000, [&] { return close(make("f")); }), 0);
    EXPECT_EQ(as_user(1000, [&] { return mkdir(p("d").c_str(), 0755); }), 0);
    EXPECT_EQ(as_user(1000, [&] { return close(make("x", "", 02775)); }), 0);
    EXPECT_EQ(st("f").st_gid, 77u);
    EXPECT_EQ(st("f").st_uid, 1000u);
    EXPECT_EQ(st("d").st_mode & 07777, 02755u);
    EXPECT_EQ(st("x").st_mode & 07777, 0775u);
}

TEST_F(Posix, SetIdBitsAreClearedWhenOthersWriteOrTheOwnerChanges)
{
    touch("f", "x", 0666);
    ASSERT_EQ(chmod(p("f").c_str(), 06777), 0);
    EXPECT_EQ(as_user(1000,
                      [&] {
                          int fd = open(p("f").c_str(), O_WRONLY);
                          return static_cast<int>(write(fd, "y", 1));
                      }),
              0);
    EXPECT_EQ(st("f").st_mode & 07777, 0777u);
    ASSERT_EQ(chmod(p("f").c_str(), 06777), 0);
    ASSERT_EQ(chown(p("f").c_str(), 5, 5), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 0777u);
    ASSERT_EQ(chmod(p("f").c_str(), 02766), 0); // mandatory locking, not set-gid
    ASSERT_EQ(chown(p("f").c_str(), 6, 6), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 02766u);
    ASSERT_EQ(chmod(p("f").c_str(), 06777), 0);
    EXPECT_EQ(as_user(1000, [&] { return truncate(p("f").c_str(), 0); }), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 0777u);
}

} // namespace
