/* SPDX-License-Identifier: BSD-2-Clause */
// A mount with writeback_cache: reads past the kernel see every completed write(2), and writes past
// it are refused.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

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
    for (int i = 0; i < 200; i++) {
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

} // namespace
