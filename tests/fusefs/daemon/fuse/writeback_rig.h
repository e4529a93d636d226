/* SPDX-License-Identifier: BSD-2-Clause */
// A mount with writeback_cache, and a buffer into which an executor reads.
#ifndef TESTS_FUSEFS_DAEMON_FUSE_WRITEBACK_RIG_H
#define TESTS_FUSEFS_DAEMON_FUSE_WRITEBACK_RIG_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"

constexpr size_t kFile = 2u << 20;
constexpr uint64_t kImage = 64u << 20;
constexpr const char *kOptions = "executor=cpu,direct=all,writeback_cache";

class WritebackTest : public MountedTest
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount(options(), kImage));
        root_ = open_on(mounted_->mountpoint(), O_RDONLY);
        buffer_ = std::make_unique<Buffer>(root_, kFile);
        ASSERT_EQ(buffer_->error(), 0);
    }
    virtual const char *options() const { return kOptions; }
    void let_go() override
    {
        buffer_.reset();
        if (root_ >= 0)
            close(root_);
        root_ = -1;
    }
    void end()
    {
        let_go();
        expect_good_end(mounted_.get());
    }
    void remount()
    {
        let_go();
        ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
        ASSERT_TRUE(mounted_->mount(options())) << mounted_->log();
    }
    int make(const std::string &name, int flags = O_RDWR) const
    {
        return open_on(mounted_->path(name), flags | O_CREAT);
    }
    // What the drive has, as a GPU read of the whole file returns it.
    std::string gpu_read(int fd)
    {
        ssize_t n = buffer_->read(fd, 0, 0, kFile);
        EXPECT_GE(n, 0);
        return std::string(reinterpret_cast<char *>(buffer_->data()),
                           static_cast<size_t>(n < 0 ? 0 : n));
    }
    struct stat stat_of(const std::string &name) const
    {
        struct stat st = {};
        EXPECT_EQ(stat(mounted_->path(name).c_str(), &st), 0);
        return st;
    }

    std::unique_ptr<Buffer> buffer_;
    int root_ = -1;
};

#endif
