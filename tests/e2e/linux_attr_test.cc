/* SPDX-License-Identifier: BSD-2-Clause */
// Linux beyond POSIX on a mount: inode flags, the label, access times.
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <dirent.h>
#include <fstream>
#include <linux/stat.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <vector>

#include "gpunvme/gpunvme_ioctl.h"
#include "tests/e2e/posix.h"

namespace
{

int set_flags(const std::string &path, int flags)
{
    Fd fd = open(path.c_str(), O_RDONLY);
    int got = ioctl(fd, FS_IOC_SETFLAGS, &flags);

    return got;
}

int flags_of(const std::string &path)
{
    int flags = -1, fd = open(path.c_str(), O_RDONLY);

    EXPECT_EQ(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0) << strerror(errno);
    close(fd);
    return flags & ~FS_EXTENT_FL;
}

// user::rw-, group::r--, other::r--
constexpr unsigned char ACL[] = {2,    0,    0, 0, 1,    0,    6,    0,    0xff, 0xff,
                                 0xff, 0xff, 4, 0, 4,    0,    0xff, 0xff, 0xff, 0xff,
                                 0x20, 0,    4, 0, 0xff, 0xff, 0xff, 0xff};

TEST_F(Posix, AnImmutableFileRefusesEveryChange)
{
    touch("f", "text");
    ASSERT_EQ(setxattr(p("f").c_str(), "user.a", "a", 1, 0), 0);
    int open_before = open(p("f").c_str(), O_RDWR);
    ASSERT_EQ(set_flags(p("f"), FS_IMMUTABLE_FL | FS_NOATIME_FL), 0) << strerror(errno);
    EXPECT_EQ(flags_of(p("f")), FS_IMMUTABLE_FL | FS_NOATIME_FL);
    EXPECT_REFUSED(open(p("f").c_str(), O_WRONLY), EPERM);
    EXPECT_REFUSED(open(p("f").c_str(), O_WRONLY | O_TRUNC), EPERM);
    EXPECT_REFUSED(write(open_before, "x", 1), EPERM);
    EXPECT_REFUSED(ftruncate(open_before, 1), EPERM);
    EXPECT_REFUSED(chmod(p("f").c_str(), 0600), EPERM);
    EXPECT_REFUSED(setxattr(p("f").c_str(), "user.a", "b", 1, 0), EPERM);
    EXPECT_REFUSED(removexattr(p("f").c_str(), "user.a"), EPERM);
    EXPECT_REFUSED(setxattr(p("f").c_str(), "user.gpunvme.gpu_bound", "1", 1, 0), EPERM);
    EXPECT_REFUSED(setxattr(p("f").c_str(), "system.posix_acl_access", ACL, sizeof(ACL), 0), EPERM);
    EXPECT_REFUSED(unlink(p("f").c_str()), EPERM);
    EXPECT_REFUSED(link(p("f").c_str(), p("g").c_str()), EPERM);
    EXPECT_REFUSED(rename(p("f").c_str(), p("g").c_str()), EPERM);
    close(open_before);
    EXPECT_EQ(st("f").st_size, 4);
    ASSERT_EQ(set_flags(p("f"), 0), 0);
    EXPECT_EQ(unlink(p("f").c_str()), 0);
}

TEST_F(Posix, AnAppendOnlyFileIsOpenedOnlyForAppending)
{
    touch("f", "text");
    ASSERT_EQ(set_flags(p("f"), FS_APPEND_FL), 0);
    EXPECT_REFUSED(open(p("f").c_str(), O_WRONLY), EPERM);
    EXPECT_REFUSED(open(p("f").c_str(), O_WRONLY | O_APPEND | O_TRUNC), EPERM);
    int fd = open(p("f").c_str(), O_WRONLY | O_APPEND);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(write(fd, "more", 4), 4);
    close(fd);
    EXPECT_EQ(st("f").st_size, 8);
    ASSERT_EQ(set_flags(p("f"), 0), 0);
}

TEST_F(Posix, FlagsBelongToTheOwnerAndTheFirstTwoToRoot)
{
    touch("f");
    ASSERT_EQ(chown(p("f").c_str(), 1000, 1000), 0);
    EXPECT_EQ(as_user(1000, [&] { return set_flags(p("f"), FS_NOATIME_FL); }), 0);
    EXPECT_EQ(flags_of(p("f")), FS_NOATIME_FL);
    EXPECT_EQ(as_user(1000, [&] { return set_flags(p("f"), FS_IMMUTABLE_FL); }), EPERM);
    EXPECT_EQ(as_user(1001, [&] { return set_flags(p("f"), 0); }), EPERM);
    EXPECT_EQ(flags_of(p("f")), FS_NOATIME_FL);
    EXPECT_REFUSED(set_flags(p("f"), FS_COMPR_FL), EOPNOTSUPP);
    struct fsxattr x = {};
    int fd = open(p("f").c_str(), O_RDONLY);
    ASSERT_EQ(ioctl(fd, FS_IOC_FSGETXATTR, &x), 0) << strerror(errno);
    EXPECT_EQ(x.fsx_xflags, uint32_t{FS_XFLAG_NOATIME});
    x.fsx_xflags = FS_XFLAG_APPEND;
    EXPECT_EQ(ioctl(fd, FS_IOC_FSSETXATTR, &x), 0) << strerror(errno);
    close(fd);
    EXPECT_EQ(flags_of(p("f")), FS_APPEND_FL);
    ASSERT_EQ(set_flags(p("f"), 0), 0);
}

TEST_F(Posix, AttributesHaveValuesOf64KiB)
{
    touch("f");
    const std::string value(65536, 'v');
    ASSERT_EQ(setxattr(p("f").c_str(), "user.large", value.data(), value.size(), 0), 0)
        << strerror(errno);
    ASSERT_EQ(setxattr(p("f").c_str(), "user.small", "v", 1, 0), 0);
    std::string got(65536, 0);
    EXPECT_EQ(getxattr(p("f").c_str(), "user.large", got.data(), got.size()), 65536);
    EXPECT_EQ(got, value);
    char names[64];
    EXPECT_EQ(listxattr(p("f").c_str(), names, sizeof(names)), 22);
    EXPECT_EQ(removexattr(p("f").c_str(), "user.large"), 0);
    EXPECT_EQ(st("f").st_blocks, 0) << "attributes are in no file's blocks";
}

TEST_F(Posix, OnlyRootSeesNamesOfTrustedAttributes)
{
    touch("f");
    for (const char *name : {"trusted.first", "user.seen", "trusted.last"})
        ASSERT_EQ(setxattr(p("f").c_str(), name, "v", 1, 0), 0) << strerror(errno);
    char names[64];
    EXPECT_EQ(listxattr(p("f").c_str(), names, sizeof(names)), 37);
    EXPECT_EQ(as_user(1000,
                      [&] {
                          ssize_t room = listxattr(p("f").c_str(), nullptr, 0);
                          ssize_t len = listxattr(p("f").c_str(), names, 10);
                          errno = EBADMSG;
                          return room == 10 && len == 10 && !strcmp(names, "user.seen") ? 0 : -1;
                      }),
              0);
}

TEST_F(Posix, AnAttributeHasANameBehindItsSpace)
{
    touch("f");
    for (const char *name : {"user.", "trusted.", "security."}) {
        EXPECT_REFUSED(setxattr(p("f").c_str(), name, "v", 1, 0), EINVAL);
        EXPECT_REFUSED(removexattr(p("f").c_str(), name), EINVAL);
    }
}

TEST_F(Posix, TheLabelIsReadAndSet)
{
    char label[FSLABEL_MAX] = "chosen";
    Fd fd = open(dir_.c_str(), O_RDONLY);
    EXPECT_EQ(as_user(1000,
                      [&] {
                          int mine = open(dir_.c_str(), O_RDONLY);
                          return ioctl(mine, FS_IOC_SETFSLABEL, label);
                      }),
              EPERM);
    ASSERT_EQ(ioctl(fd, FS_IOC_SETFSLABEL, label), 0) << strerror(errno);
    memset(label, 'x', sizeof(label));
    ASSERT_EQ(ioctl(fd, FS_IOC_GETFSLABEL, label), 0) << strerror(errno);
    EXPECT_STREQ(label, "chosen");
}

// Drops CAP_SYS_ADMIN, which root in a container lacks.
void drop_admin()
{
    __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    ASSERT_EQ(syscall(SYS_capget, &head, data), 0);
    for (uint32_t *set : {&data[0].effective, &data[0].permitted, &data[0].inheritable})
        *set &= ~(1u << CAP_SYS_ADMIN);
    ASSERT_EQ(syscall(SYS_capset, &head, data), 0);
}

// Enters a user namespace in which root has all capabilities and remains root
// outside.
bool enter_namespace()
{
    if (unshare(CLONE_NEWUSER) != 0)
        return false;
    std::ofstream("/proc/self/uid_map") << "0 0 1\n";
    return getuid() == 0;
}

// Calls each ioctl that changes the whole file system. Returns EPERM, or
// another number for the first one that was not refused with it.
int first_permitted(int fd)
{
    char label[FSLABEL_MAX] = "stolen";
    struct fstrim_range range = {0, UINT64_MAX, UINT64_MAX};
    struct gpunvme_ioc_resize resize = {};
    uint32_t shutdown = 0;
    resize.abi = {sizeof(resize), GPUNVME_ABI_VERSION};
    const struct {
        unsigned long number;
        void *arg;
    } calls[] = {{FS_IOC_SETFSLABEL, label},
                 {FITRIM, &range},
                 {GPUNVME_IOC_RESIZE, &resize},
                 {0x8004587d, &shutdown}}; // FS_IOC_SHUTDOWN
    for (const auto &call : calls) {
        int err = ioctl(fd, call.number, call.arg) == 0 ? 0 : errno;
        if (err != EPERM)
            return 200 + static_cast<int>(&call - calls);
    }
    return EPERM;
}

TEST_F(Posix, OnlyPrivilegedRootChangesTheWholeFileSystem)
{
    Fd fd = open(dir_.c_str(), O_RDONLY | O_DIRECTORY);
    Fd root = open(mounted_->mountpoint().c_str(), O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(as_user(0,
                      [&] {
                          drop_admin();
                          errno = first_permitted(root);
                          return -1;
                      }),
              EPERM);
    EXPECT_EQ(as_user(0,
                      [&] {
                          errno = enter_namespace() ? first_permitted(root) : EPERM;
                          return -1;
                      }),
              EPERM);
    char label[FSLABEL_MAX] = "";
    ASSERT_EQ(ioctl(fd, FS_IOC_GETFSLABEL, label), 0);
    EXPECT_STRNE(label, "stolen");
}

// Does a read of a file, made and read before, set its access time?
bool second_read_counts(const Mounted &m)
{
    std::string path = m.path("f");
    struct stat before, after;
    char c;

    for (struct stat *s : {&before, &after}) {
        int fd = open(path.c_str(), O_RDWR | O_CREAT, 0644);
        EXPECT_EQ(s == &before ? pwrite(fd, "x", 1, 0) : 1, 1);
        close(fd);
        usleep(2000);
        for (int i = 0; i < 2; i++) {
            fd = open(path.c_str(), O_RDONLY);
            EXPECT_EQ(read(fd, &c, 1), 1);
            close(fd);
        }
        EXPECT_EQ(stat(path.c_str(), s), 0);
    }
    return later(after.st_atim, before.st_atim);
}

using AccessTimes = MountingTest;

TEST_F(AccessTimes, FollowTheOptionsOfTheMount)
{
    for (auto [options, first, second] :
         {std::tuple{"", true, false}, {"noatime", false, false}, {"strictatime", true, true}}) {
        Mounted m(64u << 20);
        ASSERT_TRUE(m.mount(options)) << m.log();
        EXPECT_EQ(second_read_counts(m), second) << options;
        struct stat s;
        ASSERT_EQ(stat(m.path("f").c_str(), &s), 0);
        EXPECT_EQ(later(s.st_atim, s.st_mtim), first) << options;
        EXPECT_TRUE(m.unmount());
    }
}

// Reads the path with these flags. Is its access time later than before?
bool read_moves_access(const std::string &path, int flags)
{
    struct stat before, after;
    char c[4096];
    EXPECT_EQ(stat(path.c_str(), &before), 0);
    int fd = open(path.c_str(), O_RDONLY | flags);
    if (flags & O_DIRECTORY)
        EXPECT_GT(syscall(SYS_getdents64, fd, c, sizeof(c)), 0);
    else
        EXPECT_EQ(read(fd, c, 1), 1);
    close(fd);
    EXPECT_EQ(stat(path.c_str(), &after), 0);
    return later(after.st_atim, before.st_atim);
}

// strictatime: each read counts unless the descriptor says that it does not.
TEST_F(AccessTimes, DoNotChangeByReadsWithNoatime)
{
    Mounted m(64u << 20);
    ASSERT_TRUE(m.mount("strictatime")) << m.log();
    close(open(m.path("f").c_str(), O_WRONLY | O_CREAT, 0644));
    ASSERT_EQ(truncate(m.path("f").c_str(), 10), 0);
    EXPECT_FALSE(read_moves_access(m.path("f"), O_NOATIME));
    EXPECT_TRUE(read_moves_access(m.path("f"), 0));
    ASSERT_EQ(mkdir(m.path("d").c_str(), 0755), 0);
    EXPECT_FALSE(read_moves_access(m.path("d"), O_DIRECTORY | O_NOATIME));
    ASSERT_EQ(close(open(m.path("d/f").c_str(), O_WRONLY | O_CREAT, 0644)), 0); // ends its cache
    EXPECT_TRUE(read_moves_access(m.path("d"), O_DIRECTORY));
    EXPECT_TRUE(m.unmount());
}

uint64_t bytes_of(const Mounted &m)
{
    struct stat s = {};

    EXPECT_EQ(stat(m.image().c_str(), &s), 0);
    return static_cast<uint64_t>(s.st_blocks) * 512;
}

void write_file(const Mounted &m, const std::string &name, size_t len)
{
    Fd fd = open(m.path(name).c_str(), O_WRONLY | O_CREAT, 0644);

    EXPECT_EQ(write(fd, std::string(len, 'x').data(), len), static_cast<ssize_t>(len));
    EXPECT_EQ(fsync(fd), 0);
}

class Space : public MountingTest
{
  protected:
    void set_up() override
    {
        if (getenv("GPUNVME_TEST_DEVICE"))
            GTEST_SKIP() << "only the size of an image can be seen";
    }
    static constexpr size_t kLen = 16u << 20;
};

TEST_F(Space, AnImageShrinksWhenAFileIsRemovedFromAMountWithDiscard)
{
    for (bool discard : {false, true}) {
        Mounted m(128u << 20);
        ASSERT_TRUE(m.mount(discard ? "discard" : "")) << m.log();
        write_file(m, "f", kLen);
        // An image in memory also has pages for the holes that were read, so the
        // file may lie in pages that exist, and only the sum is known.
        uint64_t full = bytes_of(m);
        EXPECT_GE(full, kLen);
        ASSERT_EQ(unlink(m.path("f").c_str()), 0);
        write_file(m, "commits", 1);
        write_file(m, "commits again", 1);
        EXPECT_EQ(bytes_of(m) + kLen / 2 < full, discard) << bytes_of(m);
        EXPECT_TRUE(m.unmount());
    }
}

TEST_F(Space, FstrimShrinksTheImage)
{
    Mounted m(128u << 20);
    ASSERT_TRUE(m.mount()) << m.log();
    uint64_t empty = bytes_of(m);
    write_file(m, "f", kLen);
    write_file(m, "kept", 4096);
    ASSERT_EQ(unlink(m.path("f").c_str()), 0);
    write_file(m, "commits", 1);
    struct fstrim_range range = {0, UINT64_MAX, 0};
    int root = open(m.mountpoint().c_str(), O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(ioctl(root, FITRIM, &range), 0) << strerror(errno);
    EXPECT_GE(range.len, kLen);
    EXPECT_LT(range.len, 128u << 20);
    EXPECT_LT(bytes_of(m), empty + kLen / 2);
    range = {1ull << 40, UINT64_MAX, 0};
    EXPECT_REFUSED(ioctl(root, FITRIM, &range), EINVAL);
    ASSERT_EQ(chmod((m.mountpoint() + "/..").c_str(), 0755), 0);
    EXPECT_EQ(as_user(1000, [&] { return ioctl(root, FITRIM, &range); }), EPERM);
    close(root);
    EXPECT_TRUE(m.unmount());
    std::string output;
    EXPECT_EQ(m.fsck(&output), 0) << output;
}

// --- POSIX ACLs: the kernel checks access by what the file system keeps --------------------------

constexpr char kAccess[] = "system.posix_acl_access";
constexpr char kDefault[] = "system.posix_acl_default";
constexpr uint32_t kNone = UINT32_MAX;

struct Entry {
    uint16_t tag, perm;
    uint32_t id;
};

int set_acl(const std::string &path, const char *name, const std::vector<Entry> &entries)
{
    std::vector<char> value(sizeof(posix_acl_xattr_header) + sizeof(Entry) * entries.size());
    const uint32_t version = POSIX_ACL_XATTR_VERSION;

    memcpy(value.data(), &version, sizeof(version));
    memcpy(value.data() + sizeof(version), entries.data(), sizeof(Entry) * entries.size());
    return setxattr(path.c_str(), name, value.data(), value.size(), 0);
}

std::vector<Entry> one_user(uint32_t uid, uint16_t perm, uint16_t mask)
{
    return {{ACL_USER_OBJ, 6, kNone},
            {ACL_USER, perm, uid},
            {ACL_GROUP_OBJ, 0, kNone},
            {ACL_MASK, mask, kNone},
            {ACL_OTHER, 0, kNone}};
}

bool can(uid_t uid, const std::string &path, int flags)
{
    return as_user(uid, [&] { return open(path.c_str(), flags); }) == 0;
}

TEST_F(Posix, ANamedUserHasTheAccessThatTheMaskLeaves)
{
    touch("f", "text", 0600);
    EXPECT_FALSE(can(7, p("f"), O_RDONLY));
    ASSERT_EQ(set_acl(p("f"), kAccess, one_user(7, 6, 6)), 0) << strerror(errno);
    EXPECT_TRUE(can(7, p("f"), O_RDWR));
    EXPECT_FALSE(can(8, p("f"), O_RDONLY));
    EXPECT_EQ(st("f").st_mode & 0777, 0660u);
    ASSERT_EQ(chmod(p("f").c_str(), 0640), 0);
    EXPECT_TRUE(can(7, p("f"), O_RDONLY));
    EXPECT_FALSE(can(7, p("f"), O_WRONLY));
    ASSERT_EQ(removexattr(p("f").c_str(), kAccess), 0);
    EXPECT_FALSE(can(7, p("f"), O_RDONLY));
}

TEST_F(Posix, NewFilesGetTheDefaultAclOrTheUmask)
{
    umask(022);
    touch("plain", "", 0666);
    EXPECT_EQ(st("plain").st_mode & 0777, 0644u);
    ASSERT_EQ(mkdir(p("d").c_str(), 0777), 0);
    EXPECT_EQ(st("d").st_mode & 0777, 0755u);
    ASSERT_EQ(set_acl(p("d"), kDefault, one_user(7, 7, 7)), 0) << strerror(errno);
    touch("d/f", "", 0666);
    EXPECT_EQ(st("d/f").st_mode & 0777, 0660u);
    EXPECT_TRUE(can(7, p("d/f"), O_RDWR));
    ASSERT_EQ(mkdir(p("d/sub").c_str(), 0777), 0);
    EXPECT_GT(getxattr(p("d/sub").c_str(), kDefault, nullptr, 0), 0);
    touch("d/sub/g", "", 0600);
    EXPECT_FALSE(can(7, p("d/sub/g"), O_RDONLY)); // the mask is that of the mode
    umask(0);
}

TEST_F(Posix, AnAclOfAStrangerToTheGroupClearsSetGid)
{
    touch("f", "", 0600);
    ASSERT_EQ(chown(p("f").c_str(), 1000, 50), 0);
    ASSERT_EQ(chmod(p("f").c_str(), 02750), 0);
    ASSERT_EQ(as_user(0, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 02670u);
    ASSERT_EQ(as_user(1000, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), 0);
    EXPECT_EQ(st("f").st_mode & 07777, 0670u);
    EXPECT_EQ(as_user(1001, [&] { return set_acl(p("f"), kAccess, one_user(7, 7, 7)); }), EPERM);
}

// --- Birth times, files without names, whiteouts, overlayfs --------------------------------------

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
    EXPECT_REFUSED(linkat(AT_FDCWD, self.c_str(), AT_FDCWD, p("not").c_str(), AT_SYMLINK_FOLLOW),
                   ENOENT);
    close(fd);
    EXPECT_REFUSED(open(p("named").c_str(), O_TMPFILE | O_RDWR, 0600), ENOTDIR);
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
    EXPECT_REFUSED(whiteout("a", "old", RENAME_NOREPLACE), EEXIST);
    EXPECT_REFUSED(whiteout("a", "old", RENAME_EXCHANGE), EINVAL);
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
