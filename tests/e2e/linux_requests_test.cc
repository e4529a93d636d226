/* SPDX-License-Identifier: BSD-2-Clause */
// What the kernel asks of the daemon: how often, and on which mounts.
#include <linux/capability.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/xattr.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/e2e/posix.h"
#include "tests/fusefs/daemon/client.h"

namespace
{

constexpr unsigned kUser = 65534;

class Requests : public Posix
{
  protected:
    // The kernel closes a file some time after close(2), so one remains open: only its ioctl
    // counts.
    uint64_t requests()
    {
        if (root_ < 0)
            root_ = open(dir_.c_str(), O_RDONLY);
        return stats_of(root_).fuse_requests;
    }
    void TearDown() override
    {
        if (root_ >= 0)
            close(root_);
        Posix::TearDown();
    }

  private:
    int root_ = -1;
};

TEST_F(Requests, ASmallWriteIsOneRequest)
{
    Fd fd = open(p("f").c_str(), O_RDWR | O_CREAT, 0644);
    ASSERT_GE(fd, 0);
    uint64_t nothing = requests();
    nothing = requests() - nothing;
    uint64_t before = requests();
    for (int i = 0; i < 100; i++)
        ASSERT_EQ(pwrite(fd, "x", 1, i), 1);
    uint64_t writes = requests() - before - nothing;
    EXPECT_GE(writes, 100u);
    EXPECT_LE(writes, 102u) << "one question for security.capability";
}

TEST_F(Requests, TheTargetOfALinkIsAskedForOnce)
{
    char target[8];

    ASSERT_EQ(symlink("target", p("link").c_str()), 0);
    ASSERT_EQ(readlink(p("link").c_str(), target, sizeof(target)), 6);
    uint64_t before = requests();
    for (int i = 0; i < 100; i++)
        ASSERT_EQ(readlink(p("link").c_str(), target, sizeof(target)), 6);
    EXPECT_LT(requests() - before, 50u);
}

// Voluntary context switches of the daemon's threads of this name.
uint64_t switches_of(pid_t pid, const std::string &thread)
{
    uint64_t all = 0;

    for (const auto &task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        std::ifstream status(task.path() / "status");
        std::string line;
        bool named = false;
        while (std::getline(status, line)) {
            if (line.rfind("Name:", 0) == 0)
                named = line == "Name:\t" + thread;
            else if (named && line.rfind("voluntary_ctxt_switches:", 0) == 0)
                all += std::stoull(line.substr(line.find(':') + 1));
        }
    }
    return all;
}

TEST_F(Requests, ASmallReadWakesNoThreadOfTheDrive)
{
    constexpr int kReads = 500;
    const std::string data(1 << 20, 'x');
    Fd fd = open(p("f").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0644);
    void *page = aligned_alloc(4096, data.size());
    ASSERT_TRUE(page);
    memcpy(page, data.data(), data.size());
    ASSERT_EQ(write(fd, page, data.size()), static_cast<ssize_t>(data.size()));
    auto begin = std::chrono::steady_clock::now();
    uint64_t before = switches_of(mounted_->pid(), "sim");
    for (int i = 0; i < kReads; i++)
        ASSERT_EQ(pread(fd, page, 4096, i % 256 * 4096), 4096);
    uint64_t switches = switches_of(mounted_->pid(), "sim") - before;
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    // An idle thread looks around once a millisecond or more rarely.
    EXPECT_LT(switches, kReads / 2 + static_cast<uint64_t>(took.count()));
    free(page);
}

TEST_F(Requests, MoreCallersThanThreadsAreServed)
{
    // More callers at a time than threads wait for requests, and than there are threads.
    constexpr int kCallers = 80;
    std::vector<pid_t> callers;

    for (int i = 0; i < kCallers; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open(p("f" + std::to_string(i)).c_str(), O_RDWR | O_CREAT, 0644);
            bool ok = fd >= 0;
            for (int n = 0; n < 20 && ok; n++)
                ok = pwrite(fd, "text", 4, 4 * n) == 4 && fsync(fd) == 0;
            _exit(ok ? 0 : 1);
        }
        callers.push_back(pid);
    }
    for (pid_t pid : callers) {
        int status = -1;
        EXPECT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_EQ(status, 0);
    }
}

// With HANDLE_KILLPRIV_V2 the file system clears the bits, and the kernel must not use old ones.
class SetId : public MountedTest
{
  protected:
    void set_up() override
    {
        if (geteuid() != 0)
            GTEST_SKIP() << "needs root, to give files set-id bits and to become another user";
        ASSERT_NO_FATAL_FAILURE(mount("suid"));
        ASSERT_EQ(chmod((mounted_->mountpoint() + "/..").c_str(), 0755), 0);
        ASSERT_EQ(chmod(mounted_->mountpoint().c_str(), 0755), 0);
    }
    std::string p(const std::string &name) const { return mounted_->path(name); }
    void make(const std::string &name)
    {
        std::ifstream from("/usr/bin/id", std::ios::binary);
        std::ofstream(p(name), std::ios::binary) << from.rdbuf();
        ASSERT_EQ(chmod(p(name).c_str(), 06777), 0);
        ASSERT_EQ(bits(name), 06000u);
    }
    unsigned bits(const std::string &name)
    {
        struct stat st = {};
        EXPECT_EQ(stat(p(name).c_str(), &st), 0);
        return st.st_mode & 06000u;
    }
};

int append(const std::string &path)
{
    int fd = open(path.c_str(), O_WRONLY | O_APPEND);

    return write(fd, "x", 1) == 1 && close(fd) == 0 ? 0 : -1;
}

// The user that a program says it runs as; -1: it does not run.
int says(const std::string &program)
{
    std::string who;
    int status = run_program({program, "-u"}, &who);

    return status == 0 ? atoi(who.c_str()) : -1;
}

TEST_F(SetId, AWrittenProgramRunsAsItsCaller)
{
    make("id");
    EXPECT_EQ(as_user(kUser,
                      [&] {
                          errno = ENOEXEC;
                          return says(p("id")) == 0 ? 0 : -1;
                      }),
              0)
        << "the bit has an effect on this mount";
    EXPECT_EQ(as_user(kUser,
                      [&] {
                          if (append(p("id")) != 0)
                              return -1;
                          errno = ENOEXEC;
                          return says(p("id")) == static_cast<int>(kUser) ? 0 : -1;
                      }),
              0);
}

TEST_F(SetId, TruncationsClearTheBits)
{
    make("opened");
    EXPECT_EQ(as_user(kUser, [&] { return close(open(p("opened").c_str(), O_WRONLY | O_TRUNC)); }),
              0);
    EXPECT_EQ(bits("opened"), 0u);
    make("truncated");
    EXPECT_EQ(as_user(kUser, [&] { return truncate(p("truncated").c_str(), 10); }), 0);
    EXPECT_EQ(bits("truncated"), 0u);
    make("allocated");
    EXPECT_EQ(as_user(kUser,
                      [&] {
                          int fd = open(p("allocated").c_str(), O_WRONLY);
                          return fallocate(fd, 0, 0, 1 << 20) || close(fd);
                      }),
              0);
    EXPECT_EQ(bits("allocated"), 0u);
}

// O_TRUNC, a truncation, a write, an allocation and a copy.
int change_all_ways(const std::string &path)
{
    int fd = open(path.c_str(), O_RDWR | O_TRUNC);
    loff_t from = 0, to = 1 << 20;
    bool ok = ftruncate(fd, 10) == 0 && write(fd, "text", 4) == 4 &&
              fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 1 << 20) == 0 &&
              copy_file_range(fd, &from, fd, &to, 4096, 0) == 4096;

    return close(fd) == 0 && ok ? 0 : -1;
}

// Linux asks for CAP_FSETID.
TEST_F(SetId, ChangesByRootKeepTheBits)
{
    make("f");
    EXPECT_EQ(change_all_ways(p("f")), 0);
    EXPECT_EQ(bits("f"), 06000u);
}

TEST_F(SetId, ACopyIntoAnotherUsersFileClearsTheBits)
{
    make("f");
    EXPECT_EQ(as_user(kUser,
                      [&] {
                          int fd = open(p("f").c_str(), O_RDWR);
                          loff_t from = 0, to = 1 << 20;
                          return copy_file_range(fd, &from, fd, &to, 4096, 0) == 4096 ? 0 : -1;
                      }),
              0);
    EXPECT_EQ(bits("f"), 0u);
}

// As Linux does since 6.2 (generic/683 to 685 of xfstests).
TEST_F(SetId, SetGroupIdWithoutExecutionEndsWithChangesOfOutsiders)
{
    for (int mode : {FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<int>(FALLOC_FL_ZERO_RANGE)}) {
        make("f");
        ASSERT_EQ(chmod(p("f").c_str(), 06666), 0);
        auto allocate = [&] {
            int fd = open(p("f").c_str(), O_WRONLY);
            return fallocate(fd, mode, 0, 1 << 20) != 0 ? -1 : close(fd);
        };
        EXPECT_EQ(as_user(kUser, allocate), 0);
        EXPECT_EQ(bits("f"), 0u) << mode;
    }
    make("member");
    ASSERT_EQ(chown(p("member").c_str(), 0, kUser), 0);
    ASSERT_EQ(chmod(p("member").c_str(), 06666), 0);
    EXPECT_EQ(as_user(kUser, [&] { return append(p("member")); }), 0);
    EXPECT_EQ(bits("member"), 02000u);
}

TEST_F(SetId, CapabilitiesEndWithAWrite)
{
    struct vfs_cap_data cap = {VFS_CAP_REVISION_2, {{1, 0}, {0, 0}}};
    Fd fd = open(p("f").c_str(), O_RDWR | O_CREAT, 0755);

    // The kernel has found the file to be without a capability, and remembers that.
    ASSERT_EQ(pwrite(fd, "x", 1, 0), 1);
    ASSERT_EQ(pwrite(fd, "x", 1, 0), 1);
    ASSERT_EQ(fsetxattr(fd, "security.capability", &cap, XATTR_CAPS_SZ_2, 0), 0);
    ASSERT_EQ(pwrite(fd, "x", 1, 0), 1);
    EXPECT_REFUSED(fgetxattr(fd, "security.capability", nullptr, 0), ENODATA);
}

class SyncOfBlockMount : public MountingTest
{
  protected:
    void set_up() override
    {
        m_ = std::make_unique<Mounted>(64u << 20);
        if (!m_->mount("commit=3600,blkdev"))
            GTEST_SKIP() << m_->log();
    }
    // Makes a file, syncs, and kills the daemon: is the file there afterwards?
    bool survives(const std::function<int(int)> &sync_it)
    {
        int fd = open(m_->path("f").c_str(), O_RDWR | O_CREAT, 0644);
        EXPECT_EQ(write(fd, "text", 4), 4);
        uint64_t before = stats_of(fd).fuse_requests;
        EXPECT_EQ(sync_it(fd), 0);
        asked_ = stats_of(fd).fuse_requests - before;
        kill(m_->pid(), SIGKILL);
        m_->ended();
        close(fd);
        umount2(m_->mountpoint().c_str(), MNT_DETACH);
        EXPECT_TRUE(m_->mount("ro")) << m_->log();
        struct stat st = {};
        bool there = stat(m_->path("f").c_str(), &st) == 0 && st.st_size == 4;
        EXPECT_TRUE(m_->unmount());
        return there;
    }
    std::unique_ptr<Mounted> m_;
    uint64_t asked_ = 0; // requests during the sync
};

TEST_F(SyncOfBlockMount, ReachesTheDrive)
{
    bool there = survives([](int fd) { return syncfs(fd); });

    // One request is that for the counter.
    if (!there && asked_ <= 1)
        GTEST_SKIP() << "this kernel does not send SYNCFS (Linux 6.18 does)";
    EXPECT_TRUE(there);
}

} // namespace
