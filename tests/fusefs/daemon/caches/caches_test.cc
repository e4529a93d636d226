// SPDX-License-Identifier: BSD-2-Clause
// Cache directories: a limit that no write passes, and which files make room.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "fusefs/daemon/caches/caches.h"
#include "layout/format.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"
#include "tests/threads.h"

namespace
{

constexpr uint64_t MIB = 1u << 20;

// As the daemon has it: an inode that the kernel knows, and perhaps an open file of it.
class CachesTest : public FsTest
{
  protected:
    CachesTest() : FsTest(96 * MIB) {}
    void SetUp() override
    {
        FsTest::SetUp();
        begin();
        dir = make_dir(root, "cache");
    }
    void TearDown() override
    {
        end();
        FsTest::TearDown();
    }
    void begin()
    {
        ASSERT_EQ(caches_open(fs, mounts, &caches), 0);
        ASSERT_EQ(caches_start(caches, note_removed, this), 0);
    }
    void end()
    {
        caches_stop(caches);
        dir.reset();
        caches_close(caches);
        caches = nullptr;
        caches_close(caches); // does nothing
    }
    static void note_removed(void *arg, uint64_t, uint64_t, const char *name)
    {
        auto *self = static_cast<CachesTest *>(arg);
        self->removed.push_back(name);
        self->at_removal(name);
    }
    int limit(ffs_inode *inode, uint64_t bytes, uid_t caller = 0)
    {
        std::string text = std::to_string(bytes);
        return caches_set(caches, inode, caller, text.data(), text.size(), 0);
    }
    uint64_t state(ffs_inode *inode, const std::string &key)
    {
        char text[200] = "";
        if (caches_state(caches, inode, text, sizeof(text) - 1) < 0)
            return UINT64_MAX;
        const char *at = strstr(text, (key + "=").c_str());
        return at ? strtoull(at + key.size() + 1, nullptr, 10) : UINT64_MAX;
    }
    Inode make_dir(ffs_inode *parent, const std::string &name)
    {
        Inode inode = mkdir(parent, name);
        caches_adopt(caches, parent, inode);
        return inode;
    }
    Inode make_file(ffs_inode *parent, const std::string &name)
    {
        Inode inode = create(parent, name);
        caches_adopt(caches, parent, inode);
        return inode;
    }
    ssize_t put(ffs_inode *inode, uint64_t offset, size_t len)
    {
        caches_charge charge;
        ssize_t n = caches_charge_begin(caches, inode, offset, len, &charge);
        if (n == 0) {
            n = write(inode, offset, pattern(ffs_ino(inode), len));
            caches_charge_end(caches, inode, &charge);
        }
        return n;
    }
    // A file of a size that was last used then; 0 or -errno.
    int fill(ffs_inode *parent, const std::string &name, uint64_t len, time_t used)
    {
        Inode inode = make_file(parent, name);
        EXPECT_EQ(caches_file_opened(inode), 0);
        ssize_t n = 0;
        for (uint64_t at = 0; at < len && n >= 0; at += MIB)
            n = put(inode, at, std::min(MIB, len - at));
        use(inode, used);
        caches_file_closed(inode);
        return n < 0 ? static_cast<int>(n) : 0;
    }
    void use(ffs_inode *inode, time_t when)
    {
        ffs_attr a = attr(inode);
        a.atime = a.mtime = {when, 0};
        ASSERT_EQ(ffs_setattr(inode, &a, FFS_SET_ATIME | FFS_SET_MTIME, &a), 0);
    }
    void own(ffs_inode *inode, uid_t uid, mode_t mode)
    {
        ffs_attr a = attr(inode);
        a.uid = uid;
        a.mode = (a.mode & S_IFMT) | mode;
        ASSERT_EQ(ffs_setattr(inode, &a, FFS_SET_UID | FFS_SET_MODE, &a), 0);
    }
    // The bytes of the files below the directory, as a walk of the test's own finds it. The thread
    // may remove files between their names and their lookup.
    uint64_t bytes_in(ffs_inode *parent)
    {
        uint64_t sum = 0;
        for (const std::string &name : names(parent)) {
            if (name == "." || name == "..")
                continue;
            Inode inode;
            int err = ffs_lookup(parent, name.c_str(), inode.out());
            if (err) {
                EXPECT_EQ(err, -ENOENT) << name;
                continue;
            }
            ffs_attr a = attr(inode);
            sum += S_ISDIR(a.mode) ? bytes_in(inode) : a.blocks * 512;
        }
        return sum;
    }
    bool exists(ffs_inode *parent, const std::string &name)
    {
        return lookup_error(parent, name) == 0;
    }

    struct caches *caches = nullptr;
    int mounts = -1; // a file with the form of /proc/self/mountinfo
    Inode dir;
    std::vector<std::string> removed; // by the thread; read when it rests
    std::function<void(const std::string &)> at_removal = [](const std::string &) {};
};

TEST_F(CachesTest, RemovesTheLeastRecentlyUsedFiles)
{
    for (int i = 0; i < 8; i++)
        ASSERT_EQ(fill(dir, "f" + std::to_string(i), MIB, 1000 + (i * 5) % 8), 0);
    ASSERT_EQ(limit(dir, 4 * MIB + 512 * 1024), 0);
    // 1,000 + 5 i mod 8: the order of use is 0 5 2 7 4 1 6 3.
    EXPECT_EQ(removed, (std::vector<std::string>{"f0", "f5", "f2", "f7"}));
    EXPECT_EQ(state(dir, "removed_files"), 4u);
    EXPECT_EQ(state(dir, "removed_bytes"), 4 * MIB);
    EXPECT_EQ(state(dir, "files"), 4u);
    EXPECT_EQ(state(dir, "bytes"), bytes_in(dir));
}

// The file is used after the walk has chosen it and before it is removed.
TEST_F(CachesTest, AFileThatIsUsedMeanwhileStays)
{
    for (int i = 0; i < 8; i++)
        ASSERT_EQ(fill(dir, "f" + std::to_string(i), MIB, 1000 + i), 0);
    at_removal = [this](const std::string &name) {
        if (name == "f0")
            use(lookup(dir, "f1"), 5000);
    };
    ASSERT_EQ(limit(dir, 4 * MIB + 512 * 1024), 0);
    EXPECT_TRUE(exists(dir, "f1"));
    EXPECT_EQ(removed.at(0), "f0");
    EXPECT_EQ(removed.at(1), "f2");
    EXPECT_LE(state(dir, "bytes"), 4 * MIB + 512 * 1024);
}

TEST_F(CachesTest, OnlyRootAndTheOwnerOfADirectorySetItsLimit)
{
    own(dir, 1000, 0777);
    EXPECT_EQ(limit(dir, MIB, 1001), -EPERM);
    EXPECT_EQ(limit(dir, MIB, 1000), 0);
    EXPECT_EQ(caches_clear(caches, dir, 1001), -EPERM);
    EXPECT_EQ(caches_clear(caches, dir, 1000), 0);
    EXPECT_EQ(limit(dir, MIB, 0), 0);
}

// Others own four directories; the owner of the cache may remove files from one of them.
TEST_F(CachesTest, OnlyFilesThatTheOwnerMayUnlinkAreRemoved)
{
    own(dir, 1000, 0777);
    Inode secret = make_dir(dir, "secret"), sticky = make_dir(dir, "sticky");
    Inode writable = make_dir(dir, "writable");
    for (ffs_inode *sub : std::initializer_list<ffs_inode *>{secret, sticky, writable}) {
        ASSERT_EQ(fill(sub, "theirs", MIB, 1000), 0);
        own(lookup(sub, "theirs"), 1001, 0666);
    }
    ASSERT_EQ(fill(sticky, "mine", MIB, 1000), 0);
    own(lookup(sticky, "mine"), 1000, 0600);
    own(secret, 1001, 0700);
    own(sticky, 1001, 01777);
    own(writable, 1001, 0777);
    Inode grouped = make_dir(dir, "grouped");
    ASSERT_EQ(fill(grouped, "theirs", MIB, 1000), 0);
    own(grouped, 1001, 0707); // the owner of the cache may be in the group
    ASSERT_EQ(limit(dir, 4096, 1000), 0);
    EXPECT_TRUE(exists(grouped, "theirs"));
    EXPECT_TRUE(exists(secret, "theirs"));
    EXPECT_TRUE(exists(sticky, "theirs"));
    EXPECT_FALSE(exists(sticky, "mine"));
    EXPECT_FALSE(exists(writable, "theirs"));
}

// What is mounted on a file or directory of the cache, below a mount whose name has a space.
TEST_F(CachesTest, FilesAndDirectoriesWithMountsOnThemStay)
{
    const char lines[] =
        "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "31 20 0:40 / /mnt/my\\040fs rw,relatime shared:7 - fuseblk.gpunvmefs /dev/loop0 rw\n"
        "32 20 0:40 /cache /srv/bind rw - fuse.gpunvmefs image rw\n"
        "40 31 8:1 /f /mnt/my\\040fs/cache/file rw - ext4 /dev/sda rw\n"
        "41 32 8:1 /d /srv/bind/sub rw - ext4 /dev/sda rw\n"
        "42 20 8:1 /d /srv/plain rw - ext4 /dev/sda rw\n"
        "43 31 8:1 /d /mnt/my\\040fs/cache/none rw - ext4 /dev/sda rw\n"
        "broken\n";
    end();
    mounts = memfd_create("mountinfo", MFD_CLOEXEC);
    ASSERT_EQ(::write(mounts, lines, sizeof(lines) - 1), static_cast<ssize_t>(sizeof(lines) - 1));
    begin();
    dir = lookup("cache");
    Inode sub = make_dir(dir, "sub");
    ASSERT_EQ(fill(dir, "file", MIB, 1000), 0);
    ASSERT_EQ(fill(dir, "plain", MIB, 1001), 0);
    ASSERT_EQ(fill(sub, "hidden", MIB, 1002), 0);
    ASSERT_EQ(limit(dir, 65536), 0);
    EXPECT_TRUE(exists(dir, "file"));
    EXPECT_TRUE(exists(sub, "hidden"));
    EXPECT_FALSE(exists(dir, "plain"));
    close(mounts);
    mounts = -1;
}

// The write is longer than the limit, or open files leave no place for it,
// whatever else is removed.
TEST_F(CachesTest, AWriteThatCannotFitRemovesNothing)
{
    ASSERT_EQ(limit(dir, 8 * MIB), 0);
    ASSERT_EQ(fill(dir, "open", 4 * MIB, 1000), 0);
    Inode held = lookup(dir, "open");
    ASSERT_EQ(caches_file_opened(held), 0);
    for (int i = 0; i < 3; i++)
        ASSERT_EQ(fill(dir, "f" + std::to_string(i), MIB, 1001 + i), 0);
    Inode big = make_file(dir, "big");
    caches_charge charge;
    for (uint64_t len : {12 * MIB, 5 * MIB})
        EXPECT_EQ(caches_charge_begin(caches, big, 0, len, &charge), -ENOSPC);
    EXPECT_EQ(state(dir, "removed_files"), 0u);
    ASSERT_EQ(caches_charge_begin(caches, big, 0, 3 * MIB, &charge), 0) << "leaves place for it";
    caches_charge_end(caches, big, &charge);
    EXPECT_GE(state(dir, "removed_files"), 2u);
    caches_file_closed(held);
}

TEST_F(CachesTest, LimitsAreReservedForOtherUsersAndForRoot)
{
    std::vector<Inode> dirs;
    auto next = [&](uid_t uid) {
        dirs.push_back(make_dir(root, "d" + std::to_string(dirs.size())));
        own(dirs.back(), uid, 0755);
        return limit(dirs.back(), 8 * MIB, uid);
    };
    int first = 0, others = 0;
    while (first < CACHES_MAX && next(1000) == 0)
        first++;
    EXPECT_EQ(first, (CACHES_MAX - CACHES_FOR_ROOT) / 2);
    for (uid_t uid = 2000; uid < 2500 && next(uid) == 0; uid++)
        others++;
    EXPECT_EQ(first + others, CACHES_MAX - CACHES_FOR_ROOT);
    for (int i = 0; i < CACHES_FOR_ROOT; i++)
        EXPECT_EQ(next(0), 0) << i;
}

// As many over-full caches of a user as are accepted, up to 60, each with an open file, and calls
// that wait for each of them.
TEST_F(CachesTest, OverfullCachesOfAUserDoNotDelayAnothersWrites)
{
    std::vector<Inode> full, held;
    for (int i = 0; i < 60; i++) {
        full.push_back(make_dir(root, "full" + std::to_string(i)));
        own(full.back(), 1000, 0755);
        ASSERT_EQ(fill(full.back(), "f", 8192, 1000), 0);
        held.push_back(lookup(full.back(), "f"));
        ASSERT_EQ(caches_file_opened(held.back()), 0);
        if (limit(full.back(), 4096, 1000) != 0)
            break;
    }
    own(dir, 1001, 0755);
    ASSERT_EQ(limit(dir, 4 * MIB, 1001), 0);
    std::atomic<bool> stop{false};
    std::vector<std::thread> setters;
    for (size_t t = 0; t < full.size(); t++) {
        setters.emplace_back([&, t] {
            for (; !stop; usleep(20000))
                limit(full[t], 4096, 1000);
        });
    }
    constexpr int kFiles = 40;
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kFiles; i++)
        EXPECT_EQ(fill(dir, "f" + std::to_string(i), MIB, 1000 + i), 0) << i;
    // The limit is half of the time that the loop would take if each file waited for the pause of
    // each cache.
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::milliseconds(100) * full.size() * kFiles / 2);
    stop = true;
    for (std::thread &s : setters)
        s.join();
    for (Inode &f : held)
        caches_file_closed(f);
}

// Of a user with many waiting calls only some occupy their threads.
TEST_F(CachesTest, FewWritersWaitForCachesWithNothingToRemove)
{
    ASSERT_EQ(fill(dir, "f", 3 * MIB, 1000), 0);
    Inode held = lookup(dir, "f");
    ASSERT_EQ(caches_file_opened(held), 0);
    ASSERT_EQ(limit(dir, 2 * MIB), 0);
    std::atomic<int> at_once{0};
    for (int n = 0; n < 10 && at_once < 8; n++) { // a busy machine may stop threads as well
        at_once = 0;
        in_threads(16, [&](int t) {
            Inode inode = make_file(dir, "w" + std::to_string(16 * n + t));
            auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < 10; i++)
                EXPECT_EQ(put(inode, 0, MIB), -ENOSPC);
            at_once += std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(800);
        });
    }
    EXPECT_GE(at_once, 8);
    caches_file_closed(held);
    EXPECT_EQ(fill(dir, "next", MIB, 2000), 0);
}

TEST_F(CachesTest, OpenFilesStayAndFurtherWritesFail)
{
    ASSERT_EQ(limit(dir, 4 * MIB + 65536), 0);
    std::vector<Inode> open;
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(fill(dir, "f" + std::to_string(i), MIB, 1000 + i), 0);
        open.push_back(lookup(dir, "f" + std::to_string(i)));
        ASSERT_EQ(caches_file_opened(open.back()), 0);
    }
    EXPECT_EQ(fill(dir, "big", 2 * MIB, 2000), -ENOSPC);
    EXPECT_LE(bytes_in(dir), 4 * MIB + 65536);
    for (int i = 0; i < 3; i++)
        EXPECT_TRUE(exists(dir, "f" + std::to_string(i)));
    caches_file_closed(open[0]);
    EXPECT_EQ(fill(dir, "next", 2 * MIB, 2001), 0);
    EXPECT_FALSE(exists(dir, "f0"));
    EXPECT_TRUE(exists(dir, "f1"));
    for (int i = 1; i < 3; i++)
        caches_file_closed(open[i]);
}

TEST_F(CachesTest, ARemovedFileCannotBeOpened)
{
    ASSERT_EQ(fill(dir, "old", 2 * MIB, 1000), 0);
    Inode old = lookup(dir, "old"); // as the kernel knows it still
    caches_adopt(caches, dir, old);
    ASSERT_EQ(limit(dir, MIB), 0);
    EXPECT_FALSE(exists(dir, "old"));
    EXPECT_EQ(caches_file_opened(old), -ESTALE);
    EXPECT_EQ(caches_link(caches, old, root, "again"), -ESTALE);
    EXPECT_EQ(attr(old).blocks, 0u); // its blocks do not wait for the kernel
}

TEST_F(CachesTest, AFileWithAnotherNameKeepsItsContents)
{
    ASSERT_EQ(fill(dir, "one", 2 * MIB, 1000), 0);
    Inode one = lookup(dir, "one");
    ASSERT_EQ(ffs_link(one, root, "two"), 0);
    std::string before = read_all(one);
    ASSERT_EQ(limit(dir, MIB), 0);
    EXPECT_FALSE(exists(dir, "one"));
    EXPECT_EQ(read_all(one), before);
    EXPECT_EQ(caches_file_opened(one), 0);
    caches_file_closed(one);
}

TEST_F(CachesTest, SubdirectoriesCountUnlessTheyHaveALimit)
{
    Inode sub = make_dir(dir, "sub"), own = make_dir(dir, "own");
    ASSERT_EQ(limit(own, 4 * MIB), 0);
    ASSERT_EQ(fill(sub, "a", 2 * MIB, 1000), 0);
    ASSERT_EQ(fill(own, "b", 2 * MIB, 999), 0);
    ASSERT_EQ(fill(dir, "c", 2 * MIB, 1001), 0);
    ASSERT_EQ(limit(dir, 3 * MIB), 0);
    EXPECT_FALSE(exists(sub, "a"));
    EXPECT_TRUE(exists(own, "b"));
    EXPECT_TRUE(exists(dir, "c"));
    EXPECT_EQ(state(dir, "bytes"), 2 * MIB);
    EXPECT_EQ(state(own, "bytes"), 2 * MIB);
    EXPECT_EQ(state(sub, "bytes"), UINT64_MAX);
}

TEST_F(CachesTest, TheLimitSurvivesTheMount)
{
    ASSERT_EQ(limit(dir, 4 * MIB), 0);
    ASSERT_EQ(fill(dir, "old", 3 * MIB, 1000), 0);
    end();
    remount();
    begin();
    dir = lookup("cache");
    caches_adopt(caches, root, dir);
    EXPECT_EQ(state(dir, "limit"), 4 * MIB);
    ASSERT_EQ(fill(dir, "new", 2 * MIB, 1001), 0);
    EXPECT_FALSE(exists(dir, "old"));
    EXPECT_LE(bytes_in(dir), 4 * MIB);
}

TEST_F(CachesTest, LimitsAreNumbersOfDirectories)
{
    for (const char *bad :
         {"", "0", "-1", "1k", " 1", "99999999999999999999999", "9223372036854775808"})
        EXPECT_EQ(caches_set(caches, dir, 0, bad, strlen(bad), 0), -EINVAL) << bad;
    Inode file = make_file(dir, "f");
    EXPECT_EQ(limit(file, MIB), -EINVAL);
    EXPECT_EQ(caches_clear(caches, dir, 0), -ENODATA);
    ASSERT_EQ(limit(dir, MIB), 0);
    ASSERT_EQ(caches_clear(caches, dir, 0), 0);
    EXPECT_EQ(state(dir, "limit"), UINT64_MAX);
    EXPECT_EQ(fill(dir, "g", 3 * MIB, 1), 0);
}

TEST_F(CachesTest, TooManyDirectoriesAreRefused)
{
    std::vector<Inode> dirs;
    for (int i = 0; i < CACHES_MAX; i++) {
        dirs.push_back(make_dir(root, "d" + std::to_string(i)));
        own(dirs.back(), 0, 0755);
        ASSERT_EQ(limit(dirs.back(), MIB), 0) << i;
    }
    own(dir, 0, 0755);
    EXPECT_EQ(limit(dir, MIB), -ENOSPC);
    EXPECT_EQ(ffs_getxattr(dir, CACHES_LIMIT_XATTR, nullptr, 0), -ENODATA);
    ASSERT_EQ(ffs_rmdir(root, "d7"), 0);
    caches_prune(caches);
    EXPECT_EQ(limit(dir, MIB), 0);
    dirs.clear();
}

TEST_F(CachesTest, FilesMovedOrLinkedInMakeRoomOrAreRefused)
{
    ASSERT_EQ(limit(dir, 4 * MIB), 0);
    ASSERT_EQ(fill(dir, "old", 3 * MIB, 1000), 0);
    ASSERT_EQ(fill(root, "out", 3 * MIB, 1001), 0);
    ASSERT_EQ(fill(root, "big", 5 * MIB, 1001), 0);
    struct caches_rename in = {root, "out", dir, "in", 0};
    ASSERT_EQ(caches_rename(caches, &in), 0);
    EXPECT_FALSE(exists(dir, "old"));
    struct caches_rename big = {root, "big", dir, "big", 0};
    EXPECT_EQ(caches_rename(caches, &big), -ENOSPC);
    EXPECT_TRUE(exists(root, "big"));
    Inode inode = lookup("big");
    EXPECT_EQ(caches_link(caches, inode, dir, "big"), -ENOSPC);
    EXPECT_LE(bytes_in(dir), 4 * MIB);
}

TEST_F(CachesTest, AnExchangeKeepsBothLimits)
{
    ASSERT_EQ(limit(dir, 4 * MIB), 0);
    ASSERT_EQ(fill(dir, "small", MIB, 1000), 0);
    ASSERT_EQ(fill(root, "fits", 2 * MIB, 1001), 0);
    ASSERT_EQ(fill(root, "big", 5 * MIB, 1001), 0);
    struct caches_rename out = {dir, "small", root, "big", RENAME_EXCHANGE};
    EXPECT_EQ(caches_rename(caches, &out), -ENOSPC);
    struct caches_rename in = {root, "big", dir, "small", RENAME_EXCHANGE};
    EXPECT_EQ(caches_rename(caches, &in), -ENOSPC);
    EXPECT_EQ(bytes_in(dir), MIB);
    struct caches_rename swap = {dir, "small", root, "fits", RENAME_EXCHANGE};
    for (int i = 0; i < 2; i++) // of inodes that nothing else holds
        ASSERT_EQ(caches_rename(caches, &swap), 0);
    Inode small = lookup(dir, "small"), fits = lookup("fits");
    ASSERT_EQ(caches_rename(caches, &swap), 0);
    EXPECT_EQ(bytes_in(dir), 2 * MIB);
    ASSERT_EQ(caches_file_opened(fits), 0);
    EXPECT_EQ(put(fits, 2 * MIB, 3 * MIB), -ENOSPC) << "it belongs to the cache now";
    caches_file_closed(fits);
    EXPECT_EQ(put(small, MIB, 4 * MIB), static_cast<ssize_t>(4 * MIB)) << "no longer";
}

TEST_F(CachesTest, OverwritingAFullCacheNeedsNoRoom)
{
    ASSERT_EQ(limit(dir, 4 * MIB), 0);
    Inode slab = make_file(dir, "slab");
    ASSERT_EQ(caches_file_opened(slab), 0);
    for (unsigned i = 0; i < 3; i++)
        ASSERT_EQ(put(slab, i * MIB, MIB), static_cast<ssize_t>(MIB));
    for (unsigned i = 0; i < 3; i++)
        EXPECT_EQ(put(slab, i * MIB, MIB), static_cast<ssize_t>(MIB));
    EXPECT_EQ(put(slab, 3 * MIB, MIB + 4096), -ENOSPC);
    caches_file_closed(slab);
}

TEST_F(CachesTest, AFullDiskStillMakesRoom)
{
    ASSERT_EQ(limit(dir, 1024 * MIB), 0);
    int i = 0;
    while (fill(dir, "f" + std::to_string(i), 4 * MIB, 1000 + i) == 0)
        i++;
    ASSERT_EQ(limit(dir, 8 * MIB), 0);
    EXPECT_LE(bytes_in(dir), 8 * MIB);
    EXPECT_EQ(fill(dir, "new", 4 * MIB, 5000), 0);
    EXPECT_TRUE(exists(dir, "new"));
}

// A crafted image: of the cache's three subdirectories one is the cache itself, and two are one.
TEST_F(CachesTest, ADirectoryIsWalkedOnceHoweverOftenItIsNamed)
{
    Inode once = make_dir(dir, "once"), twice = make_dir(dir, "twice"),
          self = make_dir(dir, "self");
    ASSERT_EQ(fill(once, "f", MIB, 1000), 0);
    uint64_t cache = ffs_ino(dir), first = ffs_ino(once);
    std::map<uint64_t, uint64_t> changes = {{ffs_ino(twice), first}, {ffs_ino(self), cache}};
    for (Inode *inode : {&once, &twice, &self})
        inode->reset();
    end();
    unmount();
    lay_geometry geo;
    ASSERT_EQ(image_geometry(device.bytes(), &geo), 0);
    for (uint8_t *block = device.bytes(); block < device.bytes() + device.size();
         block += LAY_BLOCK_SIZE) {
        auto *node = reinterpret_cast<lay_node *>(block);
        if (lay_get32(node->head.magic) != LAY_MAGIC_DIR || lay_get64(node->head.owner) != cache)
            continue;
        for (uint8_t *at = block + sizeof(node->head); at <= block + LAY_BLOCK_SIZE - 8; at++) {
            auto change = changes.find(lay_get64(*reinterpret_cast<le64 *>(at)));
            if (change != changes.end())
                *reinterpret_cast<le64 *>(at) = lay_put64(change->second);
        }
        image_seal_block(device.bytes(), &geo, block);
    }
    check_at_end = false;
    ASSERT_EQ(mount(), 0);
    begin();
    dir = lookup("cache");
    caches_adopt(caches, root, dir);
    Inode same = lookup(dir, "twice");
    ASSERT_EQ(ffs_ino(same), first);
    same = lookup(dir, "self");
    ASSERT_EQ(ffs_ino(same), cache);
    same.reset();
    ASSERT_EQ(limit(dir, 8 * MIB), 0);
    EXPECT_EQ(state(dir, "files"), 1u);
    EXPECT_EQ(state(dir, "bytes"), MIB);
}

// Against a model: open files stay, files go in the order of use, contents are whole, and after
// no operation do the files take more than the limit.
class CachesModel : public CachesTest
{
  protected:
    struct File {
        uint64_t len;
        time_t used;
        bool open;
        Inode inode;
    };

    void add(std::mt19937 &random)
    {
        std::string name = "m" + std::to_string(now), tmp = "t" + std::to_string(now);
        uint64_t len = (random() % 24 + 1) * 64 * 1024;
        ffs_inode *parent = random() % 2 ? dir : sub;
        int err = fill(parent, tmp, len, now);
        struct caches_rename publish = {parent, tmp.c_str(), dir, name.c_str(), 0};
        if (!err)
            err = caches_rename(caches, &publish);
        ASSERT_TRUE(!err || err == -ENOSPC) << err;
        // Where all other files are open, the thread may have removed the new one already.
        Inode inode;
        int found = err ? err : ffs_lookup(dir, name.c_str(), inode.out());
        if (err)
            EXPECT_EQ(ffs_unlink(parent, tmp.c_str()), 0);
        else if (found == 0)
            files[name] = {len, now, false, std::move(inode)};
        else
            ASSERT_EQ(found, -ENOENT);
        note_gone(found == -ENOENT ? now : 0);
    }
    // A removed file was used before all files that are left and not open, but for those that were
    // closed or used since the thread's last walk. last: when one that is not in the model was.
    void note_gone(time_t last)
    {
        for (auto it = files.begin(); it != files.end();) {
            bool gone = !exists(dir, it->first);
            EXPECT_FALSE(gone && it->second.open) << it->first;
            last = gone ? std::max(last, it->second.used) : last;
            it = gone ? files.erase(it) : std::next(it);
        }
        // One that was still there above may have gone before a later one did.
        for (auto it = files.begin(); it != files.end();) {
            bool older = !it->second.open && it->second.used <= last;
            bool gone = older && !exists(dir, it->first);
            out_of_order += older && !gone;
            it = gone ? files.erase(it) : std::next(it);
        }
    }
    File *any(std::mt19937 &random)
    {
        return files.empty()
                   ? nullptr
                   : &std::next(files.begin(), static_cast<long>(random() % files.size()))->second;
    }
    void step(std::mt19937 &random)
    {
        File *f = any(random);
        now++;
        switch (random() % 6) {
        case 0:
            if (f && !f->open && caches_file_opened(f->inode) == 0)
                f->open = true;
            break;
        case 1:
            if (f && f->open) {
                caches_file_closed(f->inode);
                f->open = false;
            }
            break;
        case 2:
            if (f)
                use(f->inode, f->used = now);
            break;
        default:
            add(random);
        }
        ASSERT_LE(bytes_in(dir), LIMIT);
    }
    void check_contents()
    {
        for (auto &[name, f] : files)
            EXPECT_TRUE(read_all(f.inode) == pattern_of(f)) << name;
    }
    std::string pattern_of(const File &f)
    {
        std::string all;
        for (uint64_t at = 0; at < f.len; at += MIB)
            all += pattern(ffs_ino(f.inode), std::min(MIB, f.len - at));
        return all;
    }

    static constexpr uint64_t LIMIT = 16 * MIB;
    std::map<std::string, File> files;
    unsigned out_of_order = 0;
    Inode sub;
    time_t now = 1000;
};

TEST_F(CachesModel, HoldsDuringRandomOperations)
{
    std::mt19937 random(20);
    sub = make_dir(dir, "sub");
    ASSERT_EQ(limit(dir, LIMIT), 0);
    for (int i = 0; i < 300 && !HasFatalFailure(); i++)
        step(random);
    caches_stop(caches);
    note_gone(0);
    check_contents();
    EXPECT_GT(removed.size(), 50u);
    EXPECT_LE(out_of_order, removed.size() / 10);
    for (auto &[name, f] : files) {
        if (f.open)
            caches_file_closed(f.inode);
    }
    files.clear();
    sub.reset();
}

TEST_F(CachesTest, ThreadsWriteWithinTheLimit)
{
    ASSERT_EQ(limit(dir, 12 * MIB), 0);
    std::atomic<int> refused{0};
    in_threads(4, [&](int t) {
        for (int i = 0; i < 20; i++) {
            int err = fill(dir, "w" + std::to_string(t) + "-" + std::to_string(i), MIB, 1000 + i);
            refused += err != 0;
        }
    });
    EXPECT_EQ(refused, 0);
    EXPECT_LE(bytes_in(dir), 12 * MIB);
}

} // namespace
