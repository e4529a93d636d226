/* SPDX-License-Identifier: BSD-2-Clause */
// The ordinary path and the GPU path agree at every moment.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"

namespace
{

constexpr size_t kFile = 3u << 20;

class CoherenceTest : public MountedTest, public ::testing::WithParamInterface<const char *>
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount(GetParam()));
        fd_ = open_on(mounted_->path("file"), O_RDWR | O_CREAT);
        model_.resize(kFile);
        content_fill(42, 0, reinterpret_cast<uint8_t *>(model_.data()), kFile);
        ASSERT_EQ(pwrite(fd_, model_.data(), kFile, 0), static_cast<ssize_t>(kFile));
        buffer_ = std::make_unique<Buffer>(fd_, kFile + 8192);
        ASSERT_EQ(buffer_->error(), 0);
    }
    void let_go() override { buffer_.reset(); }
    size_t draw(size_t below) { return random_() % below; }

    std::unique_ptr<Buffer> buffer_;
    std::string model_;
    std::mt19937 random_{42};
};

TEST_P(CoherenceTest, GpuReadOfAnyRangeEqualsPread)
{
    std::string expected(kFile, 0);
    for (int i = 0; i < 200; i++) {
        size_t offset = draw(kFile + 5000), at = draw(8192);
        size_t len = i % 4 ? draw(20000) : draw(kFile);
        ssize_t n = pread(fd_, &expected[0], len, static_cast<off_t>(offset));
        ASSERT_EQ(buffer_->read(fd_, offset, at, len), n) << offset << " " << len;
        ASSERT_EQ(memcmp(buffer_->data() + at, expected.data(), static_cast<size_t>(n)), 0)
            << offset << " " << len << " to " << at;
    }
}

TEST_P(CoherenceTest, GpuWriteOfAnyRangeIsSeenByReadAndMapping)
{
    char *map = static_cast<char *>(mmap(nullptr, kFile, PROT_READ, MAP_SHARED, fd_, 0));
    ASSERT_NE(map, MAP_FAILED);
    std::string got(kFile, 0);
    for (int i = 0; i < 60; i++) {
        size_t offset = draw(kFile), at = draw(8192);
        size_t len = std::min(i % 4 ? draw(20000) : draw(kFile), kFile - offset);
        for (size_t k = 0; k < len; k++)
            model_[offset + k] = static_cast<char>(buffer_->data()[at + k] = random_() & 0xff);
        ASSERT_EQ(buffer_->write(fd_, offset, at, len), static_cast<ssize_t>(len));
        ASSERT_EQ(memcmp(map, model_.data(), kFile), 0) << offset << " " << len;
        ASSERT_EQ(pread(fd_, &got[0], kFile, 0), static_cast<ssize_t>(kFile));
        ASSERT_TRUE(got == model_) << offset << " " << len;
    }
    munmap(map, kFile);
}

TEST_P(CoherenceTest, GpuReadSeesEveryCompletedWrite)
{
    std::string data(9000, 0);
    for (int i = 0; i < 100; i++) {
        size_t offset = draw(kFile - data.size());
        memset(&data[0], i, data.size());
        ASSERT_EQ(pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset)), 9000);
        ASSERT_EQ(buffer_->read(fd_, offset, 0, data.size()), 9000);
        ASSERT_EQ(memcmp(buffer_->data(), data.data(), data.size()), 0);
    }
}

// READs go through the descriptor that was mapped and another one. At the end
// only the mapping has the file open for writing.
TEST_P(CoherenceTest, GpuReadSeesStoresThroughAMapping)
{
    char *map = static_cast<char *>(mmap(nullptr, kFile, PROT_WRITE, MAP_SHARED, fd_, 0));
    ASSERT_NE(map, MAP_FAILED);
    Fd reader = open_on(mounted_->path("file"), O_RDONLY);
    for (int i = 0; i < 60; i++) {
        size_t offset = draw(kFile - 9000);
        memset(map + offset, i, 9000);
        ASSERT_EQ(buffer_->read(i % 2 ? fd_ : int{reader}, offset, 0, 9000), 9000);
        ASSERT_EQ(memcmp(buffer_->data(), map + offset, 9000), 0) << i;
        if (i == 40) {
            close(fd_);
            fd_ = dup(reader);
        }
    }
    munmap(map, kFile);
}

TEST_P(CoherenceTest, ListsAndExtentsSeeStoresThroughAMapping)
{
    ASSERT_EQ(ftruncate(fd_, 2 * kFile), 0);
    char *map = static_cast<char *>(mmap(nullptr, 2 * kFile, PROT_WRITE, MAP_SHARED, fd_, 0));
    ASSERT_NE(map, MAP_FAILED);
    Buffer list(fd_, 4096, GPUNVME_REGISTER_LIST);
    memset(map + 5000, 'l', 20000);
    list.pieces()[0] = {};
    list.pieces()[0].file_offset = 5000;
    list.pieces()[0].len = 20000;
    gpunvme_ioc_readv v = buffer_->batch(list, 1);
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_READV, &v), 0);
    EXPECT_EQ(memcmp(buffer_->data(), map + 5000, 20000), 0);
    memset(map + kFile, 'x', 4096);
    auto x = abi_struct<gpunvme_ioc_extents>();
    x.file_offset = kFile;
    x.max = 4;
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_EXTENTS, &x), 0);
    ASSERT_GE(x.count, 1u);
    EXPECT_EQ(x.extents[0].file_offset, kFile);
    munmap(map, 2 * kFile);
}

TEST_P(CoherenceTest, GrowingGpuWriteMovesTheEndForAllReaders)
{
    struct stat st;
    int appender = open_on(mounted_->path("file"), O_WRONLY | O_APPEND);
    memset(buffer_->data(), 'g', 10000);
    ASSERT_EQ(buffer_->write(fd_, kFile, 0, 10000), 10000);
    ASSERT_EQ(write(appender, "tail", 4), 4) << "without a stat(2) after what the GPU wrote";
    close(appender);
    ASSERT_EQ(fstat(fd_, &st), 0);
    EXPECT_EQ(st.st_size, static_cast<off_t>(kFile + 10004));
    EXPECT_EQ(lseek(fd_, 0, SEEK_END), static_cast<off_t>(kFile + 10004));
    std::string got(10004, 0);
    ASSERT_EQ(pread(fd_, &got[0], 10004, kFile), 10004);
    EXPECT_TRUE(got == std::string(10000, 'g') + "tail");
}

TEST_P(CoherenceTest, GpuWriteChangesTheModificationTime)
{
    struct stat before, after;
    timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    ASSERT_EQ(futimens(fd_, old), 0);
    ASSERT_EQ(fstat(fd_, &before), 0);
    ASSERT_EQ(buffer_->write(fd_, 0, 0, 4096), 4096);
    ASSERT_EQ(fstat(fd_, &after), 0);
    EXPECT_EQ(before.st_mtime, 1000000000);
    EXPECT_GT(after.st_mtime, before.st_mtime);
}

TEST_P(CoherenceTest, UnwrittenAndHolesReadAsZerosAndTakeGpuWrites)
{
    Fd fd = open_on(mounted_->path("sparse"), O_RDWR | O_CREAT);
    ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
    ASSERT_EQ(fallocate(fd, 0, 256 << 10, 256 << 10), 0);
    memset(buffer_->data(), 0xff, 1 << 20);
    ASSERT_EQ(buffer_->read(fd, 0, 0, 1 << 20), 1 << 20);
    EXPECT_TRUE(std::string(reinterpret_cast<char *>(buffer_->data()), 1 << 20) ==
                std::string(1 << 20, 0));
    memset(buffer_->data(), 'w', 8192);
    ASSERT_EQ(buffer_->write(fd, (256 << 10) + 4096, 0, 8192), 8192);
    std::string got(16384, 1);
    ASSERT_EQ(pread(fd, &got[0], 16384, 256 << 10), 16384);
    EXPECT_TRUE(got == std::string(4096, 0) + std::string(8192, 'w') + std::string(4096, 0));
}

// Buffered readers, a GPU writer and a truncating thread: every thread ends,
// and a reader sees a block of one generation or zeros, never a mixture.
TEST_P(CoherenceTest, ConcurrentReadersWritersAndTruncationEnd)
{
    std::atomic<bool> stop{false};
    std::atomic<int> bad{0};
    std::vector<std::thread> threads;
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    ASSERT_EQ(ftruncate(fd_, kFile), 0);
    for (int r = 0; r < 2; r++) {
        threads.emplace_back([&] {
            char block[4096];
            while (!stop)
                if (pread(fd_, block, sizeof(block), 4096 * 5) > 0 && block[0] != block[4095])
                    bad++;
        });
    }
    threads.emplace_back([&] {
        while (!stop)
            if (ftruncate(fd_, 4096 * 5) != 0 || ftruncate(fd_, kFile) != 0)
                bad++;
    });
    for (int i = 0; i < 50; i++) {
        memset(buffer_->data(), i, kFile);
        EXPECT_EQ(buffer_->write(fd_, 0, 0, 64 << 10), 64 << 10);
        EXPECT_GE(buffer_->read(fd_, 0, 0, kFile), 4096 * 5);
    }
    stop = true;
    for (std::thread &t : threads)
        t.join();
    EXPECT_EQ(bad, 0);
}

TEST_P(CoherenceTest, UnlinkedFileIsReadToItsEnd)
{
    ASSERT_EQ(unlink(mounted_->path("file").c_str()), 0);
    ASSERT_EQ(buffer_->read(fd_, 0, 0, kFile), static_cast<ssize_t>(kFile));
    EXPECT_EQ(memcmp(buffer_->data(), model_.data(), kFile), 0);
}

// Blocks that a GPU read uses are not reused, though the file has been
// truncated.
TEST_P(CoherenceTest, TruncationDuringAGpuReadExposesNoOtherFile)
{
    for (char &c : model_)
        c = static_cast<char>(c & 0x0f); // never 'S'
    ASSERT_EQ(pwrite(fd_, model_.data(), kFile, 0), static_cast<ssize_t>(kFile));
    std::atomic<bool> stop{false};
    std::thread churn([&] {
        std::string secret(1 << 20, 'S');
        for (int i = 0; !stop; i++) {
            if (ftruncate(fd_, 0) != 0)
                perror("ftruncate");
            int other = open_on(mounted_->path("other"), O_RDWR | O_CREAT | O_TRUNC);
            if (pwrite(other, secret.data(), secret.size(), 0) < 0)
                perror("pwrite");
            close(other);
            if (pwrite(fd_, model_.data(), kFile, 0) < 0)
                perror("pwrite");
        }
    });
    for (int i = 0; i < 40; i++) {
        memset(buffer_->data(), 0, kFile);
        ssize_t n = buffer_->read(fd_, 0, 0, kFile);
        ASSERT_GE(n, 0);
        EXPECT_EQ(memchr(buffer_->data(), 'S', static_cast<size_t>(n)), nullptr);
    }
    stop = true;
    churn.join();
}

INSTANTIATE_TEST_SUITE_P(Executors, CoherenceTest,
                         ::testing::Values("executor=cpu", "executor=cpu,sim=lba:4096", "gpu=off"),
                         [](const auto &info) {
                             std::string name = info.param;
                             for (char &c : name)
                                 c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
                             return name;
                         });

} // namespace
