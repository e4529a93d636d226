/* SPDX-License-Identifier: BSD-2-Clause */
// Bytes, locks, attributes, handles and listings as Linux programs expect them, on a mount.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "tests/e2e/posix.h"

namespace
{

TEST_F(Posix, SparseFilesReachPetabytes)
{
    Fd fd = make("f");
    ASSERT_EQ(ftruncate(fd, 1000000000000000), 0);
    EXPECT_EQ(st("f").st_size, 1000000000000000);
    EXPECT_EQ(st("f").st_blocks, 0);
    ASSERT_EQ(pwrite(fd, "end", 3, 999999999999000), 3);
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), 999999999999000 / 4096 * 4096);
    EXPECT_EQ(lseek(fd, 999999999999000, SEEK_HOLE), (999999999999000 / 4096 + 1) * 4096);
    EXPECT_REFUSED(lseek(fd, 1000000000000000, SEEK_DATA), ENXIO);
    ASSERT_EQ(ftruncate(fd, 100), 0);
    EXPECT_EQ(st("f").st_blocks, 0);
}

TEST_F(Posix, SeekFindsStoresThroughAMapping)
{
    constexpr off_t kLen = 1 << 20, kAt = 512 << 10;
    Fd fd = make("f");
    ASSERT_EQ(ftruncate(fd, kLen), 0);
    auto *m = static_cast<char *>(mmap(nullptr, kLen, PROT_WRITE, MAP_SHARED, fd, 0));
    ASSERT_NE(m, MAP_FAILED);
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), -1);
    m[kAt] = 1;
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), kAt);
    EXPECT_EQ(lseek(fd, 0, SEEK_HOLE), 0);
    m[kAt + 4096] = m[kAt + 8192] = 1; // in the hole that follows
    EXPECT_EQ(lseek(fd, kAt, SEEK_HOLE), kAt + 12288);
    EXPECT_EQ(lseek(fd, kAt + 12288, SEEK_DATA), -1);
    m[kLen - 1] = 1;
    EXPECT_EQ(lseek(fd, kAt + 12288, SEEK_DATA), kLen - 4096);
    EXPECT_EQ(lseek(fd, kLen - 4096, SEEK_HOLE), kLen);
    munmap(m, kLen);
}

TEST_F(Posix, UnlinkedFilesExistAsLongAsTheyAreOpen)
{
    char c = 0;
    int fd = make("f", "kept");
    ASSERT_EQ(unlink(p("f").c_str()), 0);
    struct stat s;
    ASSERT_EQ(fstat(fd, &s), 0);
    EXPECT_EQ(s.st_nlink, 0u);
    EXPECT_EQ(pwrite(fd, "more", 4, 100000), 4);
    EXPECT_EQ(pread(fd, &c, 1, 100003), 1);
    EXPECT_EQ(c, 'e');
    EXPECT_EQ(fchmod(fd, 0600) | ftruncate(fd, 10) | fsync(fd), 0);
    close(fd);
    ASSERT_EQ(mkdir(p("d").c_str(), 0755), 0);
    Fd dir = open(p("d").c_str(), O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(rmdir(p("d").c_str()), 0);
    ASSERT_EQ(fstat(dir, &s), 0);
    EXPECT_EQ(s.st_nlink, 0u);
    EXPECT_REFUSED(openat(dir, "x", O_CREAT | O_RDWR, 0644), ENOENT);
}

TEST_F(Posix, AppendAndTruncateFollowTheirFlags)
{
    char text[16] = {};
    Fd a = make("f", "0123456789");
    Fd b = open(p("f").c_str(), O_RDWR | O_APPEND);
    EXPECT_EQ(pwrite(b, "AB", 2, 0), 2); // Linux appends in spite of the offset
    EXPECT_EQ(write(a, "cd", 2), 2);     // at 10, over what b wrote
    EXPECT_EQ(write(b, "EF", 2), 2);
    EXPECT_EQ(pread(a, text, sizeof(text), 0), 14);
    EXPECT_STREQ(text, "0123456789cdEF");
    close(open(p("f").c_str(), O_WRONLY | O_TRUNC));
    EXPECT_EQ(pread(a, text, sizeof(text), 0), 0);
    EXPECT_EQ(ftruncate(a, 5), 0);
    EXPECT_EQ(pread(a, text, sizeof(text), 0), 5);
    EXPECT_EQ(std::string(text, 5), std::string(5, '\0'));
}

TEST_F(Posix, TruncatedDataDoesNotReappear)
{
    char text[8192];
    Fd fd = make("f", std::string(8192, 'x'));
    ASSERT_EQ(ftruncate(fd, 100) | ftruncate(fd, 8192), 0);
    ASSERT_EQ(pread(fd, text, sizeof(text), 0), 8192);
    EXPECT_EQ(std::string(text, 8192), std::string(100, 'x') + std::string(8092, '\0'));
    auto *m = static_cast<char *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ASSERT_EQ(ftruncate(fd, 50), 0);
    memset(m + 50, 'y', 1000); // past the end: never part of the file
    ASSERT_EQ(msync(m, 4096, MS_SYNC) | ftruncate(fd, 4096), 0);
    munmap(m, 4096);
    ASSERT_EQ(pread(fd, text, 4096, 0), 4096);
    EXPECT_EQ(std::string(text, 4096), std::string(50, 'x') + std::string(4046, '\0'));
}

TEST_F(Posix, FallocateModesKeepDataAndSize)
{
    char text[12288];
    Fd fd = make("f", std::string(12288, 'x'));
    ASSERT_EQ(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
    EXPECT_EQ(st("f").st_size, 12288);
    EXPECT_EQ(st("f").st_blocks, (1 << 20) / 512);
    ASSERT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 8000), 0);
    ASSERT_EQ(fallocate(fd, FALLOC_FL_ZERO_RANGE, 12000, 1000), 0);
    EXPECT_EQ(st("f").st_size, 13000);
    ASSERT_EQ(pread(fd, text, 12288, 0), 12288);
    EXPECT_EQ(std::string(text, 12288), std::string(100, 'x') + std::string(8000, '\0') +
                                            std::string(3900, 'x') + std::string(288, '\0'));
    ASSERT_EQ(fallocate(fd, 0, 0, 20000), 0);
    EXPECT_EQ(st("f").st_size, 20000);
    EXPECT_REFUSED(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
    EXPECT_REFUSED(fallocate(fd, 0, 0, 0), EINVAL);
    EXPECT_REFUSED(fallocate(fd, 0, 0, 1LL << 40), ENOSPC);
    EXPECT_EQ(st("f").st_size, 20000);
}

// docs/compatibility.md, "kernel": refused clearly, and the file keeps its bytes.
TEST_F(Posix, FeaturesThatFuseLacksAreRefused)
{
    const std::string data(65536, 'r');
    Fd fd = make("f", data), other = make("g", data);
    const auto map = std::make_unique<struct fiemap>(); // clang captures no flexible array
    map->fm_length = data.size();
    struct file_clone_range clone = {
        .src_fd = other, .src_offset = 0, .src_length = 0, .dest_offset = 0};
    const struct {
        const char *what;
        std::function<int()> call;
        int error;
    } cases[] = {
        {"FIEMAP", [&] { return ioctl(fd, FS_IOC_FIEMAP, map.get()); }, EOPNOTSUPP},
        {"FICLONE", [&] { return ioctl(fd, FICLONE, int{other}); }, EOPNOTSUPP},
        {"FICLONERANGE", [&] { return ioctl(fd, FICLONERANGE, &clone); }, EOPNOTSUPP},
        {"FIFREEZE", [&] { return ioctl(fd, FIFREEZE, 0); }, EOPNOTSUPP},
        {"INSERT_RANGE", [&] { return fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, 4096); },
         EOPNOTSUPP},
        {"UNSHARE_RANGE", [&] { return fallocate(fd, FALLOC_FL_UNSHARE_RANGE, 0, 4096); },
         EOPNOTSUPP},
        {"swapon", [&] { return swapon(p("f").c_str(), 0); }, EINVAL},
    };

    for (const auto &c : cases) {
        EXPECT_EQ(c.call(), -1) << c.what;
        EXPECT_EQ(errno, c.error) << c.what;
    }
    std::string now(data.size(), 0);
    ASSERT_EQ(pread(fd, now.data(), now.size(), 0), static_cast<ssize_t>(now.size()));
    EXPECT_EQ(now, data);
    EXPECT_EQ(st("f").st_size, static_cast<off_t>(data.size()));
    close(other);
}

TEST_F(Posix, CopiesInsideTheKernelArriveWhole)
{
    const std::string data(200000, 'q');
    std::string got(data.size(), 0);
    int a = make("a", data), b = make("b"), c = make("c");
    loff_t from = 0, to = 0;
    while (from < static_cast<loff_t>(data.size()))
        ASSERT_GT(copy_file_range(a, &from, b, &to, data.size(), 0), 0) << strerror(errno);
    off_t sent = 0;
    while (sent < static_cast<off_t>(data.size()))
        ASSERT_GT(sendfile(c, a, &sent, data.size()), 0) << strerror(errno);
    for (int fd : {b, c}) {
        EXPECT_EQ(pread(fd, &got[0], got.size(), 0), static_cast<ssize_t>(data.size()));
        EXPECT_EQ(got, data);
    }
    for (int fd : {a, b, c})
        close(fd);
}

// Pages of the file in the kernel's cache.
size_t cached_pages(int fd, size_t bytes)
{
    std::vector<unsigned char> present(bytes / 4096);
    void *m = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT_EQ(mincore(m, bytes, present.data()), 0);
    munmap(m, bytes);
    return static_cast<size_t>(
        std::count_if(present.begin(), present.end(), [](unsigned char c) { return c & 1; }));
}

TEST_F(Posix, CopiesBetweenFilesAreMadeByTheDaemon)
{
    const size_t size = 4 << 20;
    int a = make("a"), b = make("b");
    int direct = open(p("a").c_str(), O_WRONLY | O_DIRECT);
    void *data = aligned_alloc(4096, size);
    memset(data, 'q', size);
    ASSERT_EQ(pwrite(direct, data, size, 0), static_cast<ssize_t>(size));
    ASSERT_EQ(copy_file_range(a, nullptr, b, nullptr, size, 0), static_cast<ssize_t>(size));
    EXPECT_EQ(cached_pages(a, size) + cached_pages(b, size), 0u);
    free(data);
    for (int fd : {a, b, direct})
        close(fd);
}

TEST_F(Posix, CopiesTakeAnyOffsetAndReplaceCachedPages)
{
    std::string expected(3000000, 'b'), got(expected.size() + 1, 0);
    Fd a = make("a"), b = make("b", expected);
    ASSERT_EQ(pread(b, &got[0], got.size(), 0), static_cast<ssize_t>(expected.size()));
    ASSERT_EQ(ftruncate(a, 2500000), 0); // a hole with dirty pages at its end
    auto *m = static_cast<char *>(mmap(nullptr, 2500000, PROT_WRITE, MAP_SHARED, a, 0));
    memset(m + 2000000, 'a', 500000);
    loff_t from = 1000001, to = 4097;
    ASSERT_EQ(copy_file_range(a, &from, b, &to, 2000000, 0), 1499999); // to the end of a
    EXPECT_EQ(from, 2500000);
    munmap(m, 2500000);
    expected.replace(4097, 999999, 999999, '\0').replace(4097 + 999999, 500000, 500000, 'a');
    ASSERT_EQ(pread(b, &got[0], got.size(), 0), static_cast<ssize_t>(expected.size()));
    EXPECT_TRUE(got.compare(0, expected.size(), expected) == 0);
    from = 0, to = 2999999; // past the end of b
    ASSERT_EQ(copy_file_range(b, &from, a, &to, 10, 0), 10);
    EXPECT_EQ(st("a").st_size, 3000009);
    from = 5, to = 10;
    EXPECT_REFUSED(copy_file_range(b, &from, b, &to, 10, 0), EINVAL);
    close(b);
}

TEST_F(Posix, LocksOfOneOpenFileExcludeOthers)
{
    int a = make("f"), b = open(p("f").c_str(), O_RDWR);
    ASSERT_EQ(flock(a, LOCK_EX), 0);
    EXPECT_REFUSED(flock(b, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_len = 10;
    ASSERT_EQ(fcntl(a, F_OFD_SETLK, &range), 0);
    range.l_start = 5;
    EXPECT_EQ(fcntl(b, F_OFD_SETLK, &range), -1);
    range.l_start = 10;
    EXPECT_EQ(fcntl(b, F_OFD_SETLK, &range), 0);
    close(a);
    EXPECT_EQ(flock(b, LOCK_SH | LOCK_NB), 0);
    close(b);
}

TEST_F(Posix, ExtendedAttributesFollowTheirNameSpace)
{
    char value[16];
    touch("f", "", 0666);
    const char *path = strdup(p("f").c_str());
    for (const char *name : {"user.a", "trusted.a", "security.a"})
        EXPECT_EQ(setxattr(path, name, "v", 1, XATTR_CREATE), 0) << name;
    EXPECT_REFUSED(setxattr(path, "user.a", "v", 1, XATTR_CREATE), EEXIST);
    EXPECT_REFUSED(setxattr(path, "user.b", "v", 1, XATTR_REPLACE), ENODATA);
    EXPECT_REFUSED(setxattr(path, "strange.a", "v", 1, 0), EOPNOTSUPP);
    EXPECT_REFUSED(setxattr(path, ("user." + std::string(251, 'n')).c_str(), "v", 1, 0), ERANGE);
    EXPECT_REFUSED(setxattr(path, "user.big", std::string(65537, 'x').c_str(), 65537, 0), E2BIG);
    EXPECT_EQ(setxattr(path, "user.empty", "", 0, 0), 0);
    EXPECT_EQ(getxattr(path, "user.empty", value, sizeof(value)), 0);
    EXPECT_EQ(getxattr(path, "user.a", value, sizeof(value)), 1);
    EXPECT_REFUSED(getxattr(path, "user.none", value, sizeof(value)), ENODATA);
    EXPECT_EQ(as_user(1000, [&] { return setxattr(path, "trusted.b", "v", 1, 0); }), EPERM);
    EXPECT_EQ(as_user(1000, [&] { return setxattr(path, "user.c", "v", 1, 0); }), 0);
    make_one("fifo", "fifo");
    EXPECT_REFUSED(setxattr(p("fifo").c_str(), "user.a", "v", 1, 0), EPERM);
    free(const_cast<char *>(path));
}

TEST_F(Posix, UnknownIoctlsReturnEnotty)
{
    Fd fd = make("f");
    EXPECT_REFUSED(ioctl(fd, _IO('?', 99), 0), ENOTTY);
}

TEST_F(Posix, HandlesFindTheirFileUntilItIsRemoved)
{
    union {
        struct file_handle h;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } u;
    int id;
    u.h.handle_bytes = MAX_HANDLE_SZ;
    touch("f", "by handle");
    ASSERT_EQ(name_to_handle_at(AT_FDCWD, p("f").c_str(), &u.h, &id, 0), 0);
    Fd root = open(mounted_->mountpoint().c_str(), O_RDONLY | O_DIRECTORY);
    // The kernel drops the dentries and the inode, so the next access reaches
    // the daemon.
    ASSERT_EQ(mount(nullptr, mounted_->mountpoint().c_str(), nullptr,
                    MS_REMOUNT | MS_NOSUID | MS_NODEV, nullptr),
              0)
        << strerror(errno);
    int fd = open_by_handle_at(root, &u.h, O_RDONLY);
    ASSERT_GE(fd, 0) << strerror(errno);
    char text[9];
    EXPECT_EQ(read(fd, text, 9), 9);
    close(fd);
    ASSERT_EQ(unlink(p("f").c_str()), 0);
    touch("g"); // may well take the inode number
    EXPECT_REFUSED(open_by_handle_at(root, &u.h, O_RDONLY), ESTALE);
}

TEST_F(Posix, ListingReturnsEachStableNameOnceDuringChanges)
{
    constexpr int kNames = 1500;
    for (int i = 0; i < kNames; i++)
        touch("lasting-" + std::to_string(i));
    std::multiset<std::string> seen;
    DIR *d = opendir(dir_.c_str());
    int n = 0;
    while (dirent *e = readdir(d)) {
        seen.insert(e->d_name);
        if (n++ % 3 == 0)
            touch("new-" + std::to_string(n));
        else if (n % 3 == 0)
            unlink(p("new-" + std::to_string(n - 2)).c_str());
        if (n % 100 == 0)
            seekdir(d, telldir(d));
    }
    closedir(d);
    for (int i = 0; i < kNames; i++)
        EXPECT_EQ(seen.count("lasting-" + std::to_string(i)), 1u) << i;
}

TEST_F(Posix, SequentialReadsKeepMoreThanOneRequestUnderWay)
{
    struct stat s = st();
    std::string device =
        "/sys/class/bdi/" + std::to_string(major(s.st_dev)) + ":" + std::to_string(minor(s.st_dev));
    std::string name = device + "-fuseblk/read_ahead_kb"; // beside that of the loop device
    if (access(name.c_str(), F_OK) != 0)
        name = device + "/read_ahead_kb";
    if (access(name.c_str(), W_OK) != 0)
        GTEST_SKIP() << name << ": " << strerror(errno);
    int kib = 0;
    std::ifstream(name) >> kib;
    EXPECT_GE(kib, 4 * 1024);
}

TEST_F(Posix, StatfsReportsFreeSpace)
{
    struct statvfs a, b;
    ASSERT_EQ(statvfs(dir_.c_str(), &a), 0);
    EXPECT_EQ(a.f_frsize, 4096u);
    EXPECT_EQ(a.f_namemax, 255u);
    EXPECT_EQ(a.f_blocks, (256u << 20) / 4096);
    EXPECT_GT(a.f_bfree, 0u);
    EXPECT_GT(a.f_ffree, 0u);
    touch("f", std::string(1 << 20, 'x'));
    ASSERT_EQ(statvfs(dir_.c_str(), &b), 0);
    EXPECT_LE(b.f_bfree, a.f_bfree - 256);
}
} // namespace
