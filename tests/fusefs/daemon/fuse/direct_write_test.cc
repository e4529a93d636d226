/* SPDX-License-Identifier: BSD-2-Clause */
// Asynchronous O_DIRECT writes (io_submit, io_uring) and buffered readers of the same
// file: a completed write is visible at once on both paths.
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"
#include "tests/rounds.h"

namespace
{

class UringWriter
{
  public:
    UringWriter(const std::string &path, size_t part, unsigned parts)
        : fd_(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC)), part_(part), parts_(parts),
          data_(static_cast<char *>(mmap(nullptr, part * parts, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
    {
        error_ = fd_ < 0 ? errno : -io_uring_queue_init(parts, &ring_, 0);
    }
    ~UringWriter()
    {
        if (!error_)
            io_uring_queue_exit(&ring_);
        munmap(data_, part_ * parts_);
        close(fd_);
    }
    UringWriter(const UringWriter &) = delete;
    UringWriter &operator=(const UringWriter &) = delete;

    // ENOSYS or EPERM: not on this machine.
    int error() const { return error_; }
    // Fills the file and waits for the completions; 0 or an errno.
    int write_all(char fill)
    {
        memset(data_, fill, part_ * parts_);
        for (unsigned i = 0; i < parts_; i++) {
            io_uring_sqe *sqe = io_uring_get_sqe(&ring_);
            if (!sqe)
                return EBUSY;
            io_uring_prep_write(sqe, fd_, data_ + i * part_, static_cast<unsigned>(part_),
                                i * part_);
        }
        int n = io_uring_submit(&ring_);
        return n == static_cast<int>(parts_) ? collect() : EIO;
    }

  private:
    int collect()
    {
        __kernel_timespec bound = {30, 0};
        int err = 0;
        for (unsigned i = 0; i < parts_; i++) {
            io_uring_cqe *cqe;
            if (io_uring_wait_cqe_timeout(&ring_, &cqe, &bound) != 0)
                return ETIMEDOUT;
            if (cqe->res != static_cast<int>(part_))
                err = cqe->res < 0 ? -cqe->res : EIO;
            io_uring_cqe_seen(&ring_, cqe);
        }
        return err;
    }

    int fd_, error_ = 0;
    size_t part_;
    unsigned parts_;
    char *data_;
    io_uring ring_ = {};
};

constexpr size_t kBlock = 4096;
constexpr size_t kPart = 64u << 10; // of one write
constexpr size_t kFile = 2u << 20;
constexpr unsigned kParts = kFile / kPart;

// An AIO context with one write per part of the file in flight.
class AsyncWriter
{
  public:
    explicit AsyncWriter(const std::string &path)
        : fd_(open_on(path, O_RDWR | O_DIRECT)),
          data_(static_cast<char *>(
              mmap(nullptr, kFile, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
    {
        if (syscall(SYS_io_setup, kParts, &context_) != 0)
            error_ = errno;
    }
    ~AsyncWriter()
    {
        syscall(SYS_io_destroy, context_);
        munmap(data_, kFile);
        close(fd_);
    }
    // Writes the whole file with bytes of value `fill` and waits for the
    // completions; 0 or an errno.
    int write_all(char fill)
    {
        iocb requests[kParts] = {};
        iocb *list[kParts];
        memset(data_, fill, kFile);
        for (unsigned i = 0; i < kParts; i++) {
            requests[i].aio_lio_opcode = IOCB_CMD_PWRITE;
            requests[i].aio_fildes = static_cast<uint32_t>(fd_);
            requests[i].aio_buf = reinterpret_cast<uintptr_t>(data_ + i * kPart);
            requests[i].aio_nbytes = kPart;
            requests[i].aio_offset = static_cast<int64_t>(i * kPart);
            list[i] = &requests[i];
        }
        if (syscall(SYS_io_submit, context_, kParts, list) != static_cast<long>(kParts))
            return errno;
        return collect();
    }
    int error() const { return error_; }

  private:
    int collect()
    {
        io_event events[kParts];
        timespec bound = {30, 0};
        long n = syscall(SYS_io_getevents, context_, kParts, kParts, events, &bound);
        if (n != static_cast<long>(kParts))
            return ETIMEDOUT;
        for (const io_event &e : events) {
            if (e.res != static_cast<int64_t>(kPart))
                return EIO;
        }
        return 0;
    }

    int fd_, error_ = 0;
    char *data_;
    aio_context_t context_ = 0;
};

class DirectWriteTest : public MountedTest, public ::testing::WithParamInterface<const char *>
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount(GetParam()));
        fd_ = open_on(mounted_->path("file"), O_RDWR | O_CREAT);
        ASSERT_EQ(ftruncate(fd_, kFile), 0);
        ASSERT_EQ(fallocate(fd_, 0, 0, kFile), 0);
        buffer_ = std::make_unique<Buffer>(fd_, kFile);
        ASSERT_EQ(buffer_->error(), 0);
        writer_ = std::make_unique<AsyncWriter>(mounted_->path("file"));
        ASSERT_EQ(writer_->error(), 0);
        ASSERT_EQ(writer_->write_all(0), 0);
    }
    void let_go() override
    {
        stop_ = true;
        for (std::thread &t : readers_)
            t.join();
        writer_.reset();
        buffer_.reset();
    }
    // Reads the file through the page cache until the end of the test.
    void read_buffered(int fd)
    {
        std::vector<char> data(kFile);
        while (!stop_) {
            if (pread(fd, data.data(), kFile, 0) != static_cast<ssize_t>(kFile))
                errors_++;
        }
    }
    // The first byte of the file that is not `fill` on the ordinary path, or
    // -1.
    ssize_t differs(char fill) const
    {
        std::vector<char> data(kFile);
        if (pread(fd_, data.data(), kFile, 0) != static_cast<ssize_t>(kFile))
            return 0;
        for (size_t i = 0; i < kFile; i++) {
            if (data[i] != fill)
                return static_cast<ssize_t>(i);
        }
        return -1;
    }

    std::unique_ptr<AsyncWriter> writer_;
    std::unique_ptr<Buffer> buffer_;
    std::vector<std::thread> readers_;
    std::atomic<bool> stop_{false};
    std::atomic<int> errors_{0};
};

TEST_P(DirectWriteTest, CompletedWritesAreSeenThroughMappings)
{
    const char *map = static_cast<char *>(mmap(nullptr, kFile, PROT_READ, MAP_SHARED, fd_, 0));
    ASSERT_NE(map, MAP_FAILED);
    for (int i = 1; i < 60; i++) {
        ASSERT_EQ(writer_->write_all(static_cast<char>(i)), 0);
        for (size_t at = 0; at < kFile; at += kBlock)
            ASSERT_EQ(map[at], i) << "byte " << at;
    }
    munmap(const_cast<char *>(map), kFile);
}

// io_uring writes every other round, if the kernel has it.
TEST_P(DirectWriteTest, CompletedWritesAreSeenOnBothPaths)
{
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(test_rounds(4, 120));
    UringWriter ring(mounted_->path("file"), kPart, kParts);
    const bool has_ring = ring.error() == 0;
    ASSERT_TRUE(has_ring || ring.error() == ENOSYS || ring.error() == EPERM) << ring.error();
    for (int i = 0; i < 2; i++)
        readers_.emplace_back([this] { read_buffered(fd_); });
    for (int i = 1; std::chrono::steady_clock::now() < until; i++) {
        const char fill = static_cast<char>(i % 127);
        ASSERT_EQ(i % 2 && has_ring ? ring.write_all(fill) : writer_->write_all(fill), 0) << i;
        ASSERT_EQ(differs(fill), -1) << "round " << i;
        ASSERT_EQ(buffer_->read(fd_, 0, 0, kFile), static_cast<ssize_t>(kFile));
        for (size_t at = 0; at < kFile; at += kBlock)
            ASSERT_EQ(buffer_->data()[at], static_cast<unsigned char>(fill)) << "byte " << at;
    }
    EXPECT_EQ(errors_, 0);
}

// Many processes at once: writes of all of them, readers, and GPU writes that
// invalidate as well.
TEST_P(DirectWriteTest, ManyWritersAndReadersEnd)
{
    std::vector<std::thread> writers;
    for (int i = 0; i < 3; i++)
        readers_.emplace_back([this] { read_buffered(fd_); });
    for (int w = 0; w < 4; w++) {
        writers.emplace_back([this, w] {
            AsyncWriter writer(mounted_->path("file"));
            for (int i = 0; i < 25 && !writer.error(); i++)
                errors_ += writer.write_all(static_cast<char>(w)) != 0;
            errors_ += writer.error() != 0;
        });
    }
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(buffer_->write(fd_, 0, 0, kFile), static_cast<ssize_t>(kFile));
    for (std::thread &t : writers)
        t.join();
    stop_ = true;
    EXPECT_EQ(errors_, 0);
    ASSERT_EQ(writer_->write_all('e'), 0);
    EXPECT_EQ(differs('e'), -1);
}

// The attributes change with the data: stat(2) is answered from the kernel's
// cache.
TEST_P(DirectWriteTest, CompletedWritesChangeTheModificationTime)
{
    const timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    struct stat st;
    for (int i = 1; i < 4; i++) {
        ASSERT_EQ(futimens(fd_, old), 0);
        ASSERT_EQ(fstat(fd_, &st), 0);
        ASSERT_EQ(st.st_mtime, 1000000000);
        ASSERT_EQ(writer_->write_all(static_cast<char>(i)), 0);
        ASSERT_EQ(fstat(fd_, &st), 0);
        EXPECT_GT(st.st_mtime, 1000000000) << "round " << i;
    }
}

// Writes wait for page locks of reads that are no longer served.
TEST_P(DirectWriteTest, SignalEndsTheDaemonDuringWritesAndReads)
{
    for (int i = 0; i < 2; i++) {
        readers_.emplace_back([this] {
            std::vector<char> data(kFile);
            while (pread(fd_, data.data(), kFile, 0) == static_cast<ssize_t>(kFile)) {
            }
        });
        readers_.emplace_back([this] {
            AsyncWriter writer(mounted_->path("file"));
            while (!writer.error() && writer.write_all('s') == 0) {
            }
        });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ASSERT_EQ(kill(mounted_->pid(), SIGTERM), 0);
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
}

INSTANTIATE_TEST_SUITE_P(Executors, DirectWriteTest, ::testing::Values("executor=cpu", "gpu=off"),
                         [](const auto &info) {
                             return std::string(info.param) == "gpu=off" ? "off" : "cpu";
                         });

} // namespace
