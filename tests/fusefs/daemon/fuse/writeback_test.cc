/* SPDX-License-Identifier: BSD-2-Clause */
// A mount with writeback_cache: reads past the kernel see every completed write(2), and writes past
// it are refused.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/fusefs/daemon/fuse/writeback_rig.h"
#include "tests/fusefs/daemon/lease/lease_client.h"

namespace
{

TEST_F(WritebackTest, InfoReportsIt)
{
    EXPECT_EQ(info_of(root_).writeback_cache, 1u);
}

TEST_F(WritebackTest, WritesStayInTheKernelForAWhile)
{
    Fd fd = make("file");
    std::string data(4096, 'k');
    uint64_t before = stats_of(fd).fuse_requests;
    for (int i = 0; i < 200; i++)
        ASSERT_EQ(write(fd, data.data(), data.size()), 4096);
    EXPECT_LT(stats_of(fd).fuse_requests - before, 100u) << "one request for each write(2)";
}

TEST_F(WritebackTest, GpuReadSeesEveryCompletedWriteOfAModel)
{
    int writer = make("file"), reader = open_on(mounted_->path("file"), O_RDONLY);
    std::mt19937 random(7);
    std::string model;
    for (int i = 0; i < 300; i++) {
        size_t at = random() % (kFile / 2), len = 1 + random() % (i % 10 ? 5000 : 100000);
        std::string data(len, static_cast<char>('a' + i % 26));
        switch (i % 12) {
        case 3:
            model.resize(random() % (kFile / 2));
            ASSERT_EQ(ftruncate(writer, static_cast<off_t>(model.size())), 0);
            break;
        case 7:
            ASSERT_EQ(fallocate(writer, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(at), static_cast<off_t>(len)),
                      0);
            if (at < model.size())
                model.replace(at, std::min(len, model.size() - at),
                              std::string(std::min(len, model.size() - at), '\0'));
            break;
        default:
            ASSERT_EQ(pwrite(writer, data.data(), len, static_cast<off_t>(at)),
                      static_cast<ssize_t>(len));
            model.resize(std::max(model.size(), at + len));
            model.replace(at, len, data);
        }
        ASSERT_TRUE(gpu_read(i % 2 ? writer : reader) == model) << i;
        ASSERT_EQ(static_cast<size_t>(stat_of("file").st_size), model.size());
    }
    close(writer);
    close(reader);
    remount();
    Fd fd = make("file");
    std::string got(model.size() + 1, 0);
    EXPECT_EQ(pread(fd, &got[0], got.size(), 0), static_cast<ssize_t>(model.size()));
    got.resize(model.size());
    EXPECT_TRUE(got == model);
}

TEST_F(WritebackTest, GpuReadBeforeDirtyDataSeesTheNewEnd)
{
    Fd fd = make("file");
    ASSERT_EQ(pwrite(fd, "end", 3, 1 << 20), 3);
    memset(buffer_->data(), 'x', 4096);
    ASSERT_EQ(buffer_->read(fd, 4096, 0, 4096), 4096);
    EXPECT_EQ(buffer_->data()[0], 0);
    ASSERT_EQ(pwrite(fd, "start", 5, 4096), 5);
    ASSERT_EQ(buffer_->read(fd, 4096, 0, 4096), 4096);
    EXPECT_EQ(memcmp(buffer_->data(), "start", 6), 0);
}

TEST_F(WritebackTest, GpuReadSeesAppendsOfAWriterThatCannotRead)
{
    Fd writer = make("file", O_WRONLY | O_APPEND);
    Fd reader = open_on(mounted_->path("file"), O_RDONLY);
    std::string model;
    for (int i = 0; i < 50; i++) {
        std::string line = "line " + std::to_string(i) + "\n";
        ASSERT_EQ(write(writer, line.data(), line.size()), static_cast<ssize_t>(line.size()));
        model += line;
        ASSERT_TRUE(gpu_read(reader) == model) << i;
    }
}

TEST_F(WritebackTest, AWriterThatCannotReadChangesAPartOfAPage)
{
    int fd = make("file");
    std::string data(10000, 'o');
    ASSERT_EQ(write(fd, data.data(), data.size()), 10000);
    close(fd);
    remount();
    fd = open_on(mounted_->path("file"), O_WRONLY);
    ASSERT_EQ(pwrite(fd, "new", 3, 5000), 3);
    close(fd);
    data.replace(5000, 3, "new");
    fd = open_on(mounted_->path("file"), O_RDONLY);
    std::string got(10000, 0);
    EXPECT_EQ(pread(fd, &got[0], 10000, 0), 10000);
    EXPECT_TRUE(got == data);
    close(fd);
}

TEST_F(WritebackTest, GpuReadSeesStoresThroughAMapping)
{
    int fd = make("file");
    ASSERT_EQ(ftruncate(fd, 3 * 4096), 0);
    char *map = static_cast<char *>(mmap(nullptr, 3 * 4096, PROT_WRITE, MAP_SHARED, fd, 0));
    ASSERT_NE(map, MAP_FAILED);
    for (int i = 0; i < 20; i++) {
        memset(map + 4000, 'a' + i, 200);
        ASSERT_EQ(gpu_read(fd).substr(4000, 200), std::string(200, static_cast<char>('a' + i)));
    }
    close(fd);
    memset(map + 8192, 'z', 10); // the mapping keeps the file open
    fd = open_on(mounted_->path("file"), O_RDONLY);
    EXPECT_EQ(gpu_read(fd).substr(8192, 10), std::string(10, 'z'));
    munmap(map, 3 * 4096);
    close(fd);
}

TEST_F(WritebackTest, ListsOfReadsAndExtentsSeeDirtyData)
{
    Fd fd = make("file");
    Buffer list(root_, 4096, GPUNVME_REGISTER_LIST);
    std::string data(20000, 'l');
    ASSERT_EQ(write(fd, data.data(), data.size()), 20000);
    list.pieces()[0] = {};
    list.pieces()[0].file_offset = 100;
    list.pieces()[0].len = 19000;
    gpunvme_ioc_readv v = buffer_->batch(list, 1);
    ASSERT_EQ(issue(fd, GPUNVME_IOC_READV, &v), 0);
    EXPECT_EQ(v.bytes, 19000u);
    EXPECT_EQ(memcmp(buffer_->data(), data.data(), 19000), 0);
    Fd other = make("other");
    ASSERT_EQ(pwrite(other, data.data(), 4096, 1 << 20), 4096);
    auto extents = abi_struct<gpunvme_ioc_extents>();
    extents.max = 4;
    ASSERT_EQ(issue(other, GPUNVME_IOC_EXTENTS, &extents), 0);
    EXPECT_EQ(extents.count, 1u);
    EXPECT_EQ(extents.extents[0].file_offset, 1u << 20);
}

TEST_F(WritebackTest, BlocksAreCountedWhileTheFileIsOpen)
{
    Fd fd = make("file");
    std::string data(100000, 'b');
    struct stat st;
    ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
    for (off_t at : {0, 200000}) {
        ASSERT_EQ(fstat(fd, &st), 0);
        blkcnt_t before = st.st_blocks;
        ASSERT_EQ(pwrite(fd, data.data(), data.size(), at), 100000);
        ASSERT_EQ(fsync(fd), 0);
        ASSERT_EQ(fstat(fd, &st), 0);
        EXPECT_GE(st.st_blocks, before + 100000 / 512);
        EXPECT_EQ(st.st_size, 1 << 20);
    }
}

TEST_F(WritebackTest, SeekFindsDataThatOnlyTheKernelHas)
{
    Fd fd = make("file");
    ASSERT_EQ(pwrite(fd, "data", 4, 1 << 20), 4);
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), 1 << 20);
    EXPECT_EQ(lseek(fd, 0, SEEK_HOLE), 0);
    ASSERT_EQ(pwrite(fd, "data", 4, 0), 4);
    EXPECT_EQ(lseek(fd, 0, SEEK_DATA), 0);
    EXPECT_EQ(lseek(fd, 1 << 20, SEEK_HOLE), (1 << 20) + 4);
}

TEST_F(WritebackTest, DirectReadsAndWritesAreCoherentWithCachedOnes)
{
    Fd fd = make("file"), direct = open_on(mounted_->path("file"), O_RDWR | O_DIRECT);
    void *page = nullptr;
    ASSERT_EQ(posix_memalign(&page, 4096, 4096), 0);
    std::string data(12288, 'c'), got(12288, 0);
    for (int i = 0; i < 20; i++) {
        data.assign(12288, static_cast<char>('a' + i));
        ASSERT_EQ(pwrite(fd, data.data(), data.size(), 0), 12288);
        ASSERT_EQ(pread(direct, page, 4096, 4096), 4096);
        EXPECT_EQ(memcmp(page, data.data(), 4096), 0);
        memset(page, 'A' + i, 4096);
        ASSERT_EQ(pwrite(direct, page, 4096, 4096), 4096);
        data.replace(4096, 4096, std::string(4096, static_cast<char>('A' + i)));
        ASSERT_EQ(pread(fd, &got[0], 12288, 0), 12288);
        ASSERT_TRUE(got == data) << i;
        ASSERT_TRUE(gpu_read(fd) == data) << i;
    }
    free(page);
    close(direct);
}

TEST_F(WritebackTest, CopyFileRangeCopiesWhatWasWritten)
{
    Fd from = make("from"), to = make("to");
    std::string data(100000, 'f');
    ASSERT_EQ(write(from, data.data(), data.size()), 100000);
    ASSERT_EQ(write(to, "old", 3), 3);
    off_t in = 0, out = 2;
    ASSERT_EQ(copy_file_range(from, &in, to, &out, 100000, 0), 100000);
    EXPECT_TRUE(gpu_read(to) == "ol" + data);
    EXPECT_EQ(stat_of("to").st_size, 100002);
    close(to);
}

TEST_F(WritebackTest, WrittenBytesCountForTheProcessThatOpenedTheFile)
{
    Fd fd = make("file");
    ASSERT_EQ(write(fd, "content", 7), 7);
    ASSERT_EQ(fsync(fd), 0);
    auto told = std::make_unique<gpunvme_ioc_open_files>(abi_struct<gpunvme_ioc_open_files>());
    ASSERT_EQ(issue(root_, GPUNVME_IOC_OPEN_FILES, told.get()), 0);
    ASSERT_EQ(told->count, 1u);
    EXPECT_EQ(told->files[0].kernel_written_bytes, 7u);
    EXPECT_EQ(told->files[0].pid, static_cast<uint32_t>(getpid()));
}

// --- Writes past the kernel ----------------------------------------------------------------------

TEST_F(WritebackTest, AWriteByTheGpuIsRefusedAndLoggedOnce)
{
    Fd fd = make("file");
    ASSERT_EQ(write(fd, "content", 7), 7);
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(buffer_->write(fd, 0, 0, 4096), -EOPNOTSUPP);
    EXPECT_EQ(gpu_read(fd), "content");
    const char *line = "mounted with writeback_cache; mount without";
    size_t at = mounted_->log().find(line);
    ASSERT_NE(at, std::string::npos) << mounted_->log();
    EXPECT_EQ(mounted_->log().find(line, at + 1), std::string::npos);
}

TEST_F(WritebackTest, AWriteByTheLibraryGoesThroughTheKernel)
{
    struct connection *g;
    struct gpunvme_buffer *b;
    gpunvme_result result;
    ASSERT_EQ(connection_open(mounted_->mountpoint().c_str(), &g), 0) << gpunvme_error();
    ASSERT_EQ(buffer_alloc(g, 1 << 20, &b), 0) << gpunvme_error();
    int fd = make("file");
    char *data = static_cast<char *>(buffer_addr(b));
    memset(data, 'w', 1 << 20);
    ASSERT_EQ(transfer_write(b, fd, 0, 100, 1000000, &result), 1000000) << gpunvme_error();
    EXPECT_EQ(result.path, static_cast<uint32_t>(GPUNVME_PATH_BOUNCE));
    EXPECT_NE(strstr(result.why, "mounted with writeback_cache; mount without"), nullptr);
    EXPECT_EQ(stat_of("file").st_size, 1000100);
    ASSERT_EQ(pwrite(fd, "end", 3, 1000100), 3);
    memset(data, 0, 1 << 20);
    ASSERT_EQ(transfer_read(b, fd, 0, 0, 1 << 20, nullptr), 1000103) << gpunvme_error();
    EXPECT_EQ(std::string(data, 1000103),
              std::string(100, '\0') + std::string(1000000, 'w') + "end");
    gpunvme_options options = {};
    options.path = GPUNVME_PATH_GPU;
    ASSERT_EQ(bounce_set_options(g, &options), 0);
    EXPECT_EQ(transfer_write(b, fd, 0, 0, 4096, nullptr), -EREMOTEIO);
    EXPECT_NE(strstr(gpunvme_error(), "mounted with writeback_cache; mount without"), nullptr)
        << gpunvme_error();
    close(fd);
    buffer_unregister(b);
    connection_close(g);
}

TEST_F(WritebackTest, AWriterRevokesTheLeasesOfAFile)
{
    int fd = make("file");
    ASSERT_EQ(write(fd, "content", 7), 7);
    int second = open_on(mounted_->path("file"), O_WRONLY);
    Fd reader = open_on(mounted_->path("file"), O_RDONLY);
    EXPECT_EQ(Extents(reader).error(), -ETXTBSY);
    close(fd);
    EXPECT_EQ(Extents(reader).error(), -ETXTBSY) << "of another writer";
    close(second);
    Extents lease(reader);
    ASSERT_EQ(lease.error(), 0);
    EXPECT_EQ(lease.reply().size, 7u) << "the last close has written it";
    fd = make("other");
    close(fd);
    Fd other_fd = open_on(mounted_->path("other"), O_RDONLY);
    Extents other(other_fd);
    ASSERT_EQ(other.error(), 0);
    ASSERT_TRUE(other.map(other_fd));
    for (int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_CREAT, O_WRONLY | O_TRUNC}) {
        Extents held(reader);
        ASSERT_EQ(held.error(), 0);
        ASSERT_TRUE(held.map(reader));
        close(open_on(mounted_->path("file"), O_RDONLY));
        EXPECT_EQ(held.state(), GPUNVME_LEASE_VALID) << "a reader changes nothing";
        fd = open_on(mounted_->path("file"), flags);
        EXPECT_EQ(held.state(), GPUNVME_LEASE_REVOKED) << flags;
        EXPECT_EQ(Extents(reader).error(), -ETXTBSY);
        EXPECT_EQ(held.end(reader), 0);
        EXPECT_EQ(write(fd, "C", 1), 1);
        close(fd);
    }
    EXPECT_EQ(other.state(), GPUNVME_LEASE_VALID);
    EXPECT_EQ(stat_of("file").st_size, 1);
    EXPECT_EQ(lease.end(reader), 0);
}

// A lease that is made while a writer opens the file is refused or revoked.
TEST_F(WritebackTest, NoLeaseOutlivesAnOpenForWriting)
{
    close(make("file"));
    Fd reader = open_on(mounted_->path("file"), O_RDONLY);
    std::atomic<bool> stop{false};
    std::atomic<unsigned> made{0};
    std::thread leases([&] {
        while (!stop) {
            Extents lease(reader);
            made += lease.error() == 0;
            if (!lease.error())
                lease.end(reader);
        }
    });
    // On a busy machine the other thread may run late.
    for (int i = 0; i < 200 || (made == 0 && i < 20000); i++) {
        Extents lease(reader);
        Fd fd = open_on(mounted_->path("file"), O_WRONLY);
        bool valid =
            lease.error() == 0 && lease.map(reader) && lease.state() == GPUNVME_LEASE_VALID;
        EXPECT_FALSE(valid);
        if (!lease.error())
            lease.end(reader);
    }
    stop = true;
    leases.join();
    EXPECT_GT(made, 0u);
}

TEST_F(WritebackTest, FlagsThatForbidWritesExcludeDirtyPages)
{
    int fd = make("file");
    int flags = FS_APPEND_FL;
    EXPECT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), -1);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ASSERT_EQ(write(fd, "content", 7), 7);
    flags = FS_IMMUTABLE_FL;
    EXPECT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), -1);
    EXPECT_EQ(errno, ETXTBSY);
    close(fd);
    fd = open_on(mounted_->path("file"), O_RDONLY);
    ASSERT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
    EXPECT_EQ(gpu_read(fd), "content");
    EXPECT_EQ(open(mounted_->path("file").c_str(), O_WRONLY), -1);
    EXPECT_EQ(errno, EPERM);
    flags = 0;
    ASSERT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
    close(fd);
}

// Such a file comes from another mount of the file system.
TEST_F(WritebackTest, AnAppendOnlyFileIsNotOpenedForWriting)
{
    let_go();
    ASSERT_TRUE(mounted_->unmount());
    ASSERT_TRUE(mounted_->mount());
    int fd = make("file"), flags = FS_APPEND_FL;
    ASSERT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
    close(fd);
    remount();
    EXPECT_EQ(open(mounted_->path("file").c_str(), O_WRONLY | O_APPEND), -1);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(open(mounted_->path("file").c_str(), O_WRONLY), -1);
    EXPECT_EQ(errno, EPERM);
    fd = open_on(mounted_->path("file"), O_RDONLY);
    flags = 0;
    ASSERT_EQ(ioctl(fd, FS_IOC_SETFLAGS, &flags), 0);
    close(fd);
}

// --- Errors that come late, times, the end of the daemon; mounts without the option --------------

constexpr size_t kOneWrite = 512u << 10; // at most one WRITE request of the kernel

bool same_time(const timespec &a, const timespec &b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// --- Errors that come late -----------------------------------------------------------------------

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
