/* SPDX-License-Identifier: BSD-2-Clause */
/* Plain files as block devices. */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "blockdev/bd_kernel.h"
#include "blockdev/bdev.h"

static unsigned lock_is_had; /* times still that it is found so */

extern "C" int __real_flock(int fd, int operation);
extern "C" int __wrap_flock(int fd, int operation)
{
    if (!lock_is_had)
        return __real_flock(fd, operation);
    lock_is_had--;
    errno = EWOULDBLOCK;
    return -1;
}

static unsigned syncs;

extern "C" int __real_fdatasync(int fd);
extern "C" int __wrap_fdatasync(int fd)
{
    syncs++;
    return __real_fdatasync(fd);
}

namespace
{

constexpr size_t SIZE = 1 << 20;

class File : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        path = ::testing::TempDir() + "blockdev-file-XXXXXX";
        int fd = mkstemp(path.data());
        ASSERT_GE(fd, 0);
        ASSERT_EQ(ftruncate(fd, SIZE), 0);
        close(fd);
    }

    void TearDown() override
    {
        if (dev)
            bd_close(dev);
        unlink(path.c_str());
    }

    std::vector<char> pattern(size_t len, char seed = 1)
    {
        std::vector<char> v(len);
        for (size_t i = 0; i < len; i++)
            v[i] = (char)(seed + i * 7 + i / 509);
        return v;
    }

    std::string path;
    bd_dev *dev = nullptr, *other = nullptr;
};

TEST_F(File, IsDescribed)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    EXPECT_EQ(dev->info.bytes, SIZE);
    EXPECT_EQ(dev->info.lba_size, 512u);
    EXPECT_TRUE(dev->info.volatile_cache);
    EXPECT_FALSE(dev->info.read_only);
    EXPECT_EQ(std::string(dev->info.name), path.substr(0, 63));
}

TEST_F(File, BytesBeyondTheLastWholeLbaDoNotCount)
{
    ASSERT_EQ(truncate(path.c_str(), SIZE + 4095), 0);
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 4096, &dev), 0);
    EXPECT_EQ(dev->info.bytes, SIZE);
    EXPECT_EQ(dev->info.lba_size, 4096u);
}

TEST_F(File, RefreshOnlyIncreasesTheCapacity)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 4096, &dev), 0);
    ASSERT_EQ(truncate(path.c_str(), 2 * SIZE + 100), 0);
    char buf[4096];
    EXPECT_EQ(bd_read(dev, SIZE, buf, 4096), -EINVAL);
    ASSERT_EQ(bd_refresh(dev), 0);
    EXPECT_EQ(bd_bytes(dev), 2 * SIZE);
    EXPECT_EQ(bd_read(dev, SIZE, buf, 4096), 0);
    ASSERT_EQ(truncate(path.c_str(), SIZE), 0);
    ASSERT_EQ(bd_refresh(dev), 0);
    EXPECT_EQ(bd_bytes(dev), 2 * SIZE);
}

TEST_F(File, EmptyFileHasNoBytes)
{
    ASSERT_EQ(truncate(path.c_str(), 0), 0);
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    char buf[512];
    EXPECT_EQ(dev->info.bytes, 0u);
    EXPECT_EQ(bd_read(dev, 0, buf, 512), -EINVAL);
}

TEST_F(File, ReadsBackWrittenData)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto data = pattern(65536);
    std::vector<char> back(65536);
    ASSERT_EQ(bd_write(dev, 4096, data.data(), data.size(), BD_FUA), 0);
    ASSERT_EQ(bd_flush(dev), 0);
    ASSERT_EQ(bd_read(dev, 4096, back.data(), back.size()), 0);
    EXPECT_EQ(back, data);
}

TEST_F(File, AWriteIsDurableIfRequested)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto data = pattern(4096);
    unsigned before = syncs;
    ASSERT_EQ(bd_write(dev, 0, data.data(), data.size(), 0), 0);
    EXPECT_EQ(syncs, before);
    ASSERT_EQ(bd_write(dev, 0, data.data(), data.size(), BD_FUA), 0);
    EXPECT_EQ(syncs, before + 1);
}

TEST_F(File, RunsSeveralTransfersAtOnce)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto data = pattern(8192);
    bd_io ios[2]{};
    for (int i = 0; i < 2; i++) {
        ios[i].op = BD_WRITE;
        ios[i].offset = i * 65536;
        ios[i].len = 4096;
        ios[i].buf = &data[i * 4096];
    }
    ASSERT_EQ(bd_submit(dev, ios, 2), 0);
    std::vector<char> back(4096);
    ASSERT_EQ(bd_read(dev, 65536, back.data(), 4096), 0);
    EXPECT_EQ(memcmp(back.data(), &data[4096], 4096), 0);
}

TEST_F(File, WriteZeroesChangesOnlyItsRange)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto data = pattern(65536);
    std::vector<char> back(65536);
    ASSERT_EQ(bd_write(dev, 0, data.data(), data.size(), 0), 0);
    ASSERT_EQ(bd_write_zeroes(dev, 512, 16384), 0);
    ASSERT_EQ(bd_read(dev, 0, back.data(), back.size()), 0);
    memset(&data[512], 0, 16384);
    EXPECT_EQ(back, data);
}

TEST_F(File, DiscardKeepsTheSizeAndTheNeighbours)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto data = pattern(4096);
    std::vector<char> back(4096);
    struct stat st;
    ASSERT_EQ(bd_write(dev, SIZE - 4096, data.data(), 4096, 0), 0);
    ASSERT_EQ(bd_discard(dev, 0, SIZE - 4096), 0);
    ASSERT_EQ(bd_read(dev, SIZE - 4096, back.data(), 4096), 0);
    EXPECT_EQ(back, data);
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_size, (off_t)SIZE);
}

TEST_F(File, EmptyTransfersSucceed)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    EXPECT_EQ(bd_read(dev, 0, nullptr, 0), 0);
    EXPECT_EQ(bd_write_zeroes(dev, SIZE, 0), 0);
    EXPECT_EQ(bd_discard(dev, 0, 0), 0);
}

TEST_F(File, AFileTruncatedWhileOpenIsAnIoError)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    ASSERT_EQ(truncate(path.c_str(), 5000), 0);
    std::vector<char> back(8192);
    EXPECT_EQ(bd_read(dev, 0, back.data(), back.size()), -EIO);
}

TEST_F(File, ReadOnlyRefusesWrites)
{
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_READ_ONLY, 0, &dev), 0);
    auto data = pattern(512);
    EXPECT_EQ(bd_write(dev, 0, data.data(), 512, 0), -EROFS);
    EXPECT_EQ(bd_read(dev, 0, data.data(), 512), 0);
    EXPECT_EQ(bd_flush(dev), 0);
}

TEST_F(File, ExclusiveExcludesWritersAndEachOther)
{
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
    EXPECT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE | BD_OPEN_READ_ONLY, 0, &other), -EBUSY);
    EXPECT_EQ(bd_file_open(path.c_str(), 0, 0, &other), -EBUSY);
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_READ_ONLY, 0, &other), 0) << "only looks";
    bd_close(other);
}

TEST_F(File, WriterKeepsExclusiveOut)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
}

TEST_F(File, CloseReleasesTheLock)
{
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    bd_close(dev);
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
}

// A process that was killed and waited for can still have it for milliseconds.
TEST_F(File, TheLockOfAnEndingProcessIsWaitedFor)
{
    lock_is_had = 10;
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(lock_is_had, 0u);
}

TEST_F(File, OnlyAnExclusiveOpenHasALock)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    EXPECT_EQ(dev->info.lock, 0u);
    EXPECT_FALSE(dev->info.shared);
    bd_close(dev);
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_NE(dev->info.lock, 0u);
}

/* A folder of sysfs as the kernel makes it, with a file of this transport. */
class Sysfs : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        top = ::testing::TempDir() + "blockdev-sysfs-XXXXXX";
        ASSERT_NE(mkdtemp(top.data()), nullptr);
    }
    void TearDown() override { std::filesystem::remove_all(top); }
    void put(const std::string &folder, const std::string &transport)
    {
        std::filesystem::create_directories(top + folder);
        std::ofstream(top + folder + "/transport") << transport << "\n";
    }

    std::string top;
};

TEST_F(Sysfs, ADriveOnPcieIsOnNoFabric)
{
    put("/nvme0n1/device", "pcie");
    std::filesystem::create_directories(top + "/nvme0n1/nvme0n1p1");
    EXPECT_FALSE(bd_on_fabric((top + "/nvme0n1").c_str()));
    EXPECT_FALSE(bd_on_fabric((top + "/nvme0n1/nvme0n1p1").c_str()));
    EXPECT_FALSE(bd_on_fabric((top + "/none").c_str()));
}

TEST_F(Sysfs, ANamespaceAndItsPartitionsAreOnAFabric)
{
    put("/nvme1n1/device", "tcp");
    std::filesystem::create_directories(top + "/nvme1n1/nvme1n1p1");
    EXPECT_TRUE(bd_on_fabric((top + "/nvme1n1").c_str()));
    EXPECT_TRUE(bd_on_fabric((top + "/nvme1n1/nvme1n1p1").c_str()));
}

TEST_F(Sysfs, OneControllerOfASubsystemSuffices)
{
    put("/nvme2n1/device/nvme2", "pcie");
    EXPECT_FALSE(bd_on_fabric((top + "/nvme2n1").c_str()));
    put("/nvme2n1/device/nvme3", "rdma");
    EXPECT_TRUE(bd_on_fabric((top + "/nvme2n1").c_str()));
}

TEST_F(File, OtherTypesOfFilesAreRefused)
{
    std::string fifo = path + ".fifo";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_EQ(bd_file_open(fifo.c_str(), BD_OPEN_READ_ONLY, 0, &other), -ENOTBLK);
    unlink(fifo.c_str());
    EXPECT_EQ(bd_file_open("/", 0, 0, &other), -ENOTBLK);
    EXPECT_EQ(bd_file_open("/", BD_OPEN_READ_ONLY, 0, &other), -ENOTBLK);
    EXPECT_EQ(bd_file_open("/dev/null", 0, 0, &other), -ENOTBLK);
    EXPECT_EQ(bd_file_open((path + ".none").c_str(), 0, 0, &other), -ENOENT);
}

TEST_F(File, UnsupportedLbaSizesAreRefused)
{
    for (uint32_t size : {1, 256, 1024, 8192})
        EXPECT_EQ(bd_file_open(path.c_str(), 0, size, &other), -EINVAL) << size;
}

TEST_F(File, DmaMemoryIsPageAlignedAndZeroed)
{
    ASSERT_EQ(bd_file_open(path.c_str(), 0, 0, &dev), 0);
    auto *mem = static_cast<char *>(bd_dma_alloc(dev, 5000));
    ASSERT_NE(mem, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(mem) % 4096, 0u);
    EXPECT_EQ(mem[4999], 0);
    EXPECT_EQ(bd_write(dev, 0, mem, 4608, 0), 0);
    bd_dma_free(dev, mem, 5000);
    EXPECT_EQ(bd_dma_alloc(dev, 0), nullptr);
    bd_dma_free(dev, nullptr, 0);
}

/* The kernel's own block device: a loop device over the file, where the machine lets us. */
class Loop : public File
{
  protected:
    void SetUp() override
    {
        File::SetUp();
        int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
        int index = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
        if (control >= 0)
            close(control);
        if (index < 0)
            GTEST_SKIP() << "no loop device: " << strerror(errno);
        loop = "/dev/loop" + std::to_string(index);
        fd = open(loop.c_str(), O_RDWR | O_CLOEXEC);
        int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
        attached = fd >= 0 && ioctl(fd, LOOP_SET_FD, file) == 0;
        close(file);
        if (!attached)
            GTEST_SKIP() << loop << ": " << strerror(errno);
        /* udev looks into new devices under a shared lock: let it finish. */
        flock(fd, LOCK_EX);
        flock(fd, LOCK_UN);
    }

    void TearDown() override
    {
        if (dev)
            bd_close(dev);
        dev = nullptr;
        if (attached)
            ioctl(fd, LOOP_CLR_FD);
        if (fd >= 0)
            close(fd);
        File::TearDown();
    }

    std::string loop;
    int fd = -1;
    bool attached = false;
};

TEST_F(Loop, KernelBlockDeviceReadsBackZeroesAndDiscards)
{
    ASSERT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(dev->info.bytes, SIZE);
    EXPECT_EQ(dev->info.lba_size, 512u);
    auto data = pattern(65536);
    std::vector<char> back(65536);
    ASSERT_EQ(bd_write(dev, 0, data.data(), data.size(), BD_FUA), 0);
    ASSERT_EQ(bd_write_zeroes(dev, 4096, 8192), 0);
    ASSERT_EQ(bd_discard(dev, SIZE / 2, SIZE / 2), 0);
    ASSERT_EQ(bd_read(dev, 0, back.data(), back.size()), 0);
    memset(&data[4096], 0, 8192);
    EXPECT_EQ(back, data);
}

// The file behind it has one writer, by whichever name.
TEST_F(Loop, ExcludesTheFileBehindIt)
{
    ASSERT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
    bd_close(dev);
    ASSERT_EQ(bd_file_open(path.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
    bd_close(dev);
    ASSERT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
}

// Another file has taken the name since.
TEST_F(Loop, LocksNoFileThatOnlyHasTheName)
{
    std::string aside = path + "-aside";
    ASSERT_EQ(rename(path.c_str(), aside.c_str()), 0);
    int fresh = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fresh, 0);
    ASSERT_EQ(flock(fresh, LOCK_EX), 0);
    EXPECT_EQ(bd_file_open(aside.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
    close(fresh);
    EXPECT_EQ(rename(aside.c_str(), path.c_str()), 0);
}

// The file behind a device may be on a file system that does not answer.
TEST_F(Loop, OfAnotherFileIsNotAsked)
{
    pid_t child = fork();
    if (child == 0) { // whose mounts no other process sees
        std::string options = "fd=" + std::to_string(open("/dev/fuse", O_RDWR | O_CLOEXEC)) +
                              ",rootmode=40000,user_id=0,group_id=0";
        alarm(60);
        if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("dead", ::testing::TempDir().c_str(), "fuse.dead", 0, options.c_str()) != 0)
            _exit(99);
        _exit(bd_loop_in_use("/proc/version"));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (status == 99 << 8)
        GTEST_SKIP() << "no mount of FUSE in a namespace of its own";
    EXPECT_EQ(status, 0);
}

TEST_F(Loop, ExclusiveExcludesTheSecondOpener)
{
    ASSERT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), 0);
    EXPECT_EQ(bd_file_open(loop.c_str(), BD_OPEN_EXCLUSIVE, 0, &other), -EBUSY);
}

} // namespace
