/* SPDX-License-Identifier: BSD-2-Clause */
// A mount for tests of POSIX and Linux semantics through system calls.
#ifndef TESTS_E2E_POSIX_H
#define TESTS_E2E_POSIX_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "tests/e2e/mounted.h"

// Expects that a system call fails with this error.
#define EXPECT_REFUSED(call, error) EXPECT_EQ((call) < 0 ? errno : 0, error)

inline const char *const kTypes[] = {"file", "dir",    "full", "link",
                                     "fifo", "socket", "null", "block"};

// One mount for all tests of this file; each has a directory of its own.
class Posix : public MountingTest
{
  protected:
    static void SetUpTestSuite()
    {
        if (!why_no_mount().empty())
            return;
        mounted_ = std::make_unique<Mounted>(256u << 20);
        ASSERT_TRUE(mounted_->mount()) << mounted_->log();
        // Other users must reach it.
        ASSERT_EQ(chmod((mounted_->mountpoint() + "/..").c_str(), 0755), 0);
    }
    static void TearDownTestSuite()
    {
        if (mounted_)
            expect_good_end(mounted_.get());
        mounted_.reset();
    }
    void set_up() override
    {
        umask(0);
        const auto *info = ::testing::UnitTest::GetInstance()->current_test_info();
        std::string name = info->name();
        for (char &c : name)
            c = c == '/' ? '-' : c;
        dir_ = mounted_->path(name);
        ASSERT_EQ(mkdir(dir_.c_str(), 0777), 0);
    }
    std::string p(const std::string &name) const { return dir_ + "/" + name; }
    int make(const std::string &name, const std::string &data = "", int mode = 0644) const
    {
        int fd = open(p(name).c_str(), O_RDWR | O_CREAT | O_EXCL, mode);
        ssize_t written = fd < 0 ? 0 : write(fd, data.data(), data.size());
        EXPECT_EQ(written, fd < 0 ? 0 : static_cast<ssize_t>(data.size()));
        return fd;
    }
    void touch(const std::string &name, const std::string &data = "", int mode = 0644) const
    {
        int fd = make(name, data, mode);
        EXPECT_GE(fd, 0) << name << strerror(errno);
        close(fd);
    }
    struct stat st(const std::string &name = "") const
    {
        struct stat s = {};
        EXPECT_EQ(lstat(p(name).c_str(), &s), 0) << name << strerror(errno);
        return s;
    }
    void make_one(const std::string &type, const std::string &name) const
    {
        std::string path = p(name);
        if (type == "file")
            touch(name, "content");
        else if (type == "dir" || type == "full")
            ASSERT_EQ(mkdir(path.c_str(), 0755), 0);
        else if (type == "fifo")
            ASSERT_EQ(mknod(path.c_str(), S_IFIFO | 0644, 0), 0);
        else if (type == "socket")
            ASSERT_EQ(mknod(path.c_str(), S_IFSOCK | 0644, 0), 0);
        else if (type == "null")
            ASSERT_EQ(mknod(path.c_str(), S_IFCHR | 0644, makedev(1, 3)), 0);
        else if (type == "block")
            ASSERT_EQ(mknod(path.c_str(), S_IFBLK | 0644, makedev(300, 70000)), 0);
        else // symbolic links
            ASSERT_EQ(symlink(type == "link" ? "file" : type.c_str(), path.c_str()), 0);
        if (type == "full")
            touch(name + "/child");
    }
    // One of each, under the name of its type, and links that lead nowhere.
    void make_each_type() const
    {
        for (const char *type : kTypes)
            make_one(type, type);
        make_one("loop", "loop");
        make_one("nowhere", "dangling");
    }
    std::string dir_;
    static inline std::unique_ptr<Mounted> mounted_;
};

// Runs in a child as another user; returns its errno.
inline int as_user(uid_t uid, const std::function<int()> &call)
{
    pid_t pid = fork();

    if (pid == 0)
        _exit(setgid(uid) || setuid(uid) ? 255 : (call() < 0 ? errno : 0));
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline bool later(const timespec &a, const timespec &b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

#endif
