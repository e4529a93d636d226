/* SPDX-License-Identifier: BSD-2-Clause */
// What the kernel keeps with writeback_cache is neither lost nor changed without a message: errors
// that come late, times, the end of the daemon; and mounts without the option.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/fuse/writeback_rig.h"
#include "tests/fusefs/daemon/lease/lease_client.h"

namespace
{

constexpr size_t kOneWrite = 512u << 10; // at most one WRITE request of the kernel

bool same_time(const timespec &a, const timespec &b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// --- Errors that come late -----------------------------------------------------------------------

TEST_F(WritebackTest, AFullFileSystemIsReportedAtFsync)
{
    int fd = make("big");
    std::string data(1 << 20, 'b');
    int err = 0;
    for (int i = 0; i < 80 && !err; i++) {
        if (write(fd, data.data(), data.size()) < 0 || (i % 8 == 7 && fsync(fd) != 0))
            err = errno;
    }
    EXPECT_EQ(err, ENOSPC);
    close(fd);
    EXPECT_EQ(unlink(mounted_->path("big").c_str()), 0);
    fd = make("small");
    EXPECT_EQ(write(fd, "fits", 4), 4);
    EXPECT_EQ(fsync(fd), 0);
    close(fd);
}

// The kernel takes a short reply to its own write for a complete one.
TEST_F(WritebackTest, NoFsyncedDataIsMissing)
{
    int fill = make("fill");
    std::string data(64 << 10, 'x');
    while (write(fill, data.data(), data.size()) > 0 && fsync(fill) == 0)
        ;
    struct stat full = stat_of("fill");
    ASSERT_EQ(ftruncate(fill, full.st_size - (256 << 10)), 0);
    ASSERT_EQ(fsync(fill), 0);
    int fd = make("file");
    std::string big(kOneWrite, 'y');
    ASSERT_EQ(pwrite(fd, big.data(), big.size(), 0), static_cast<ssize_t>(big.size()));
    EXPECT_EQ(fsync(fd), -1) << "there is room for half of it";
    EXPECT_EQ(errno, ENOSPC);
    close(fd);
    close(fill);
    ASSERT_EQ(unlink(mounted_->path("fill").c_str()), 0);
}

TEST_F(WritebackTest, CloseReturnsTheError)
{
    int fill = make("fill");
    std::string data(1 << 20, 'x');
    while (write(fill, data.data(), data.size()) > 0 && fsync(fill) == 0)
        ;
    int fd = make("file");
    ASSERT_EQ(pwrite(fd, data.data(), data.size(), 0), 1 << 20);
    EXPECT_EQ(close(fd), -1);
    EXPECT_EQ(errno, ENOSPC);
    close(fill);
    ASSERT_EQ(unlink(mounted_->path("fill").c_str()), 0);
}

// --- Times ---------------------------------------------------------------------------------------

TEST_F(WritebackTest, TimesAreThoseOfTheWritesAlsoInALaterMount)
{
    std::vector<struct stat> before;
    timespec old[2] = {{1000000000, 0}, {1000000001, 5}};
    for (int i = 0; i < 40; i++) {
        std::string name = "file" + std::to_string(i);
        int fd = make(name);
        ASSERT_EQ(write(fd, name.data(), name.size()), static_cast<ssize_t>(name.size()));
        if (i % 4 == 1) {
            ASSERT_EQ(fsync(fd), 0);
        }
        if (i % 4 == 2) {
            ASSERT_EQ(futimens(fd, old), 0);
        }
        if (i % 8 == 2) {
            ASSERT_EQ(write(fd, "!", 1), 1);
        }
        close(fd);
        before.push_back(stat_of(name));
        EXPECT_TRUE(i % 8 != 6 || same_time(before.back().st_mtim, old[1]));
    }
    remount();
    for (int i = 0; i < 40; i++) {
        struct stat st = stat_of("file" + std::to_string(i));
        EXPECT_TRUE(same_time(st.st_mtim, before[i].st_mtim)) << i;
        EXPECT_TRUE(same_time(st.st_ctim, before[i].st_ctim)) << i;
        EXPECT_EQ(st.st_size, before[i].st_size);
    }
}

class SlowWritebackTest : public WritebackTest
{
    const char *options() const override { return "gpu=off,sim=latency:20000,writeback_cache"; }
};

// The kernel sends the times while the data is still on its way.
TEST_F(SlowWritebackTest, DataThatArrivesLateDoesNotChangeTheTimes)
{
    int fd = make("file");
    std::string data(100000, 't');
    ASSERT_EQ(write(fd, data.data(), data.size()), 100000);
    usleep(20000);
    ASSERT_EQ(syncfs(fd), 0);
    close(fd);
    struct stat before = stat_of("file");
    remount();
    struct stat after = stat_of("file");
    EXPECT_TRUE(same_time(before.st_mtim, after.st_mtim));
    EXPECT_TRUE(same_time(before.st_ctim, after.st_ctim));
}

// --- The end of the daemon -----------------------------------------------------------------------

TEST_F(WritebackTest, AKilledDaemonLosesNoMoreThanACrash)
{
    int synced = make("synced"), dirty = make("dirty", O_WRONLY), closed = make("closed");
    std::string data(200000, 's');
    ASSERT_EQ(write(synced, data.data(), data.size()), 200000);
    ASSERT_EQ(write(closed, data.data(), data.size()), 200000);
    ASSERT_EQ(fsync(synced), 0);
    close(closed);
    ASSERT_EQ(write(dirty, data.data(), data.size()), 200000);
    ASSERT_EQ(pwrite(synced, "lost", 4, 0), 4);
    kill(mounted_->pid(), SIGKILL);
    EXPECT_FALSE(mounted_->ended());
    EXPECT_NE(fsync(dirty), 0);
    close(dirty);
    close(synced);
    let_go();
    umount2(mounted_->mountpoint().c_str(), MNT_DETACH);
    ASSERT_TRUE(mounted_->mount(options())) << mounted_->log();
    Fd fd = make("synced");
    std::string got(200001, 0);
    EXPECT_EQ(pread(fd, &got[0], got.size(), 0), 200000);
    EXPECT_TRUE(got.substr(4, 199996) == data.substr(4));
}

TEST_F(WritebackTest, ADaemonThatEndsWritesTheDataOfTheKernel)
{
    int fd = make("file", O_WRONLY);
    std::string data(300000, 'e');
    ASSERT_EQ(write(fd, data.data(), data.size()), 300000);
    kill(mounted_->pid(), SIGTERM);
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
    close(fd);
    let_go();
    ASSERT_TRUE(mounted_->mount(options())) << mounted_->log();
    EXPECT_EQ(stat_of("file").st_size, 300000);
}

// --- Without the option --------------------------------------------------------------------------

class PlainTest : public WritebackTest
{
    const char *options() const override { return "executor=cpu,direct=all"; }
};

TEST_F(PlainTest, IsOffByDefault)
{
    EXPECT_EQ(info_of(root_).writeback_cache, 0u);
    Fd fd = make("file");
    ASSERT_EQ(write(fd, "content", 7), 7);
    EXPECT_EQ(buffer_->write(fd, 0, 0, 4096), 4096);
    EXPECT_EQ(Extents(fd).error(), 0);
    int flags = FS_APPEND_FL;
    EXPECT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
    flags = 0;
    EXPECT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
}

// Pages that were changed through a mapping take the same way.
TEST_F(PlainTest, AMappingThatFindsNoRoomIsReported)
{
    int fill = make("fill");
    std::string data(64 << 10, 'x');
    ssize_t n;
    while ((n = write(fill, data.data(), data.size())) > 0)
        ;
    ASSERT_EQ(ftruncate(fill, stat_of("fill").st_size - (256 << 10)), 0);
    ASSERT_EQ(fsync(fill), 0);
    int fd = make("file");
    ASSERT_EQ(ftruncate(fd, kOneWrite), 0);
    void *map = mmap(nullptr, kOneWrite, PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(map, MAP_FAILED);
    memset(map, 'm', kOneWrite);
    EXPECT_EQ(msync(map, kOneWrite, MS_SYNC), -1) << "there is room for half of it";
    EXPECT_EQ(errno, ENOSPC);
    munmap(map, kOneWrite);
    close(fd);
    close(fill);
    ASSERT_EQ(unlink(mounted_->path("fill").c_str()), 0);
}

} // namespace
