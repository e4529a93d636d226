/* SPDX-License-Identifier: BSD-2-Clause */
// Lifetime of buffers and transfers: they end with their owner, and not before
// the drive's commands.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"

namespace
{

constexpr size_t kFile = 32u << 20;

// A drive of 16 MiB/s: a read of the file takes two seconds. The queue is
// short, so that a cancelled read ends soon.
constexpr const char *kSlow = "executor=cpu,sim=bandwidth:16:mdts:131072,queues=1,depth=4";

// A batch longer than any bound of Mounted.
constexpr uint64_t kPieces = 20000, kPiece = 131072;

// Its list.
void fill_in(const Buffer &list)
{
    for (uint64_t i = 0; i < kPieces; i++)
        list.pieces()[i] = {i * 4096 % (kFile - kPiece), 0, kPiece, 77};
}

class LifetimeTest : public MountedTest
{
  protected:
    void set_up() override
    {
        ASSERT_NO_FATAL_FAILURE(mount("executor=cpu", 96u << 20));
        int fd = open_on(mounted_->path("file"), O_RDWR | O_CREAT);
        std::string data(kFile, 'x');
        ASSERT_EQ(write(fd, data.data(), kFile), static_cast<ssize_t>(kFile));
        close(fd);
        ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
        ASSERT_TRUE(mounted_->mount(kSlow)) << mounted_->log();
        fd_ = open_on(mounted_->path("file"), O_RDONLY);
    }
    bool buffers_become(uint64_t count) const
    {
        for (int i = 0; i < 3000 && stats_of(fd_).buffers != count; i++)
            usleep(10000);
        return stats_of(fd_).buffers == count;
    }
    // A process with two buffers that reads such a batch.
    pid_t batching_process() const
    {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open_on(mounted_->path("file"), O_RDONLY);
            Buffer buffer(fd, kFile),
                list(fd, kPieces * sizeof(gpunvme_piece), GPUNVME_REGISTER_LIST);
            fill_in(list);
            gpunvme_ioc_readv v = buffer.batch(list, kPieces);
            _exit(issue(fd, GPUNVME_IOC_READV, &v) == 0 ? 0 : 1);
        }
        return pid;
    }

    // Reads the file, for a minute at most, until a read does not return all of it.
    ssize_t read_until_end(Buffer &buffer) const
    {
        ssize_t n = kFile;
        for (int i = 0; i < 30 && n == static_cast<ssize_t>(kFile); i++)
            n = buffer.read(fd_, 0, 0, kFile);
        return n;
    }
    // Starts a process that reads the file into memory of a GPU so many times, or until a read
    // fails.
    pid_t reading_process(uint8_t gpu, int times = INT_MAX) const
    {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open_on(mounted_->path("file"), O_RDONLY);
            Buffer buffer(fd, kFile, 0, gpu);
            while (times > 0 && buffer.read(fd, 0, 0, kFile) == static_cast<ssize_t>(kFile))
                times--;
            _exit(times > 0);
        }
        return pid;
    }
    uint64_t read_by_second_gpu() const
    {
        auto gpus = abi_struct<gpunvme_ioc_gpus>();
        EXPECT_EQ(issue(fd_, GPUNVME_IOC_GPUS, &gpus), 0);
        return gpus.gpus[1].read_bytes;
    }
};

TEST_F(LifetimeTest, BuffersEndWithTheOpenFileDescription)
{
    int owner = open_on(mounted_->path("file"), O_RDONLY);
    int copy = dup(owner);
    Buffer buffer(owner, 8192), second(owner, 8192);
    EXPECT_EQ(stats_of(fd_).buffers, 2u);
    close(owner);
    EXPECT_EQ(buffer.read(fd_, 0, 0, 4096), 4096) << "a copy of the descriptor is still open";
    close(copy);
    EXPECT_TRUE(buffers_become(0));
    EXPECT_EQ(buffer.read(fd_, 0, 0, 4096), -ENOENT);
}

TEST_F(LifetimeTest, BuffersDoNotRunOutOfDescriptors)
{
    rlimit usual, low;
    close(fd_);
    ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    low = usual;
    low.rlim_cur = 64;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    EXPECT_TRUE(mounted_->mount("executor=cpu")) << mounted_->log();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    fd_ = open_on(mounted_->path("file"), O_RDONLY);
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (int i = 0; i < 100; i++) {
        buffers.push_back(std::make_unique<Buffer>(fd_, 4096));
        ASSERT_EQ(buffers.back()->error(), 0) << i;
    }
}

TEST_F(LifetimeTest, KilledClientLeavesNoBuffer)
{
    pid_t pid = reading_process(0);
    ASSERT_TRUE(buffers_become(1));
    usleep(200000);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it was killed in the middle of the read";
    EXPECT_TRUE(buffers_become(0));
}

void ignore(int)
{
}

// Signals a thread, which calls for longer than a moment, until `done`, and joins it. The signal
// repeats, since the first may precede the call.
void interrupt_until(const std::atomic<bool> &done, std::thread *thread)
{
    struct sigaction action = {};
    action.sa_handler = ignore;
    EXPECT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    usleep(300000);
    for (int i = 0; i < 3000 && !done; i++) {
        pthread_kill(thread->native_handle(), SIGUSR1);
        usleep(10000);
    }
    thread->join();
}

TEST_F(LifetimeTest, KilledClientsOfOneGpuFailNoTransferOfAnother)
{
    constexpr int kKills = 5;
    const std::string content(kFile, 'x');

    close(fd_);
    ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
    ASSERT_TRUE(mounted_->mount("executor=cpu,gpus=0:1")) << mounted_->log();
    fd_ = open_on(mounted_->path("file"), O_RDONLY);
    Buffer buffer(fd_, kFile);
    auto read_all = [&] {
        gpunvme_ioc_rw rw;
        memset(buffer.data(), 0, kFile);
        ASSERT_EQ(buffer.read(fd_, 0, 0, kFile, &rw), static_cast<ssize_t>(kFile));
        ASSERT_EQ(rw.path, GPUNVME_PATH_GPU);
        ASSERT_EQ(memcmp(buffer.data(), content.data(), kFile), 0);
    };
    for (int i = 0; i < kKills; i++) {
        uint64_t before = read_by_second_gpu();
        pid_t pid = reading_process(1);
        while (read_by_second_gpu() == before && waitpid(pid, nullptr, WNOHANG) == 0)
            ASSERT_NO_FATAL_FAILURE(read_all());
        EXPECT_GT(read_by_second_gpu(), before);
        ASSERT_EQ(kill(pid, SIGKILL), 0);
        ASSERT_NO_FATAL_FAILURE(read_all());
        ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    }
    ASSERT_NO_FATAL_FAILURE(read_all());
    EXPECT_TRUE(buffers_become(1));
}

TEST_F(LifetimeTest, SignalEndsAReadShort)
{
    Buffer buffer(fd_, kFile);
    std::atomic<bool> done{false};
    ssize_t n = 0;
    std::thread reader([&] {
        n = read_until_end(buffer);
        done = true;
    });
    interrupt_until(done, &reader);
    EXPECT_TRUE(n == -EINTR || (n > 0 && n < static_cast<ssize_t>(kFile))) << n;
    if (n > 0) {
        EXPECT_EQ(buffer.data()[n - 1], 'x');
    }
}

TEST_F(LifetimeTest, SignalEndsABatch)
{
    Buffer buffer(fd_, kFile), list(fd_, kPieces * sizeof(gpunvme_piece), GPUNVME_REGISTER_LIST);
    fill_in(list);
    std::atomic<bool> done{false};
    gpunvme_ioc_readv v = buffer.batch(list, kPieces);
    int err = 0;
    std::thread reader([&] {
        err = issue(fd_, GPUNVME_IOC_READV, &v);
        done = true;
    });
    interrupt_until(done, &reader);
    EXPECT_EQ(err, -EINTR);
    for (uint64_t i = 0; i < kPieces; i++)
        ASSERT_TRUE(list.pieces()[i].result == kPiece || list.pieces()[i].result == -ECANCELED)
            << i;
    EXPECT_EQ(list.pieces()[kPieces - 1].result, -ECANCELED);
    EXPECT_EQ(v.bytes % kPiece, 0u);
}

// The end of the mount joins the session threads, of which one runs the batch.
TEST_F(LifetimeTest, SignalToTheDaemonEndsTransfersBatchesAndTheMount)
{
    const pid_t pids[] = {reading_process(0), batching_process()};
    ASSERT_TRUE(buffers_become(3));
    usleep(300000);
    int status = 0;
    for (pid_t pid : pids)
        EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0) << "it is still running";
    close(fd_);
    fd_ = -1;
    ASSERT_EQ(kill(mounted_->pid(), SIGTERM), 0);
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
    for (pid_t pid : pids) {
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status)) << status;
        EXPECT_EQ(WEXITSTATUS(status), 1) << "it ended with an error";
    }
}

// The long read occupies the executor's only queue; the short ones wait.
TEST_F(LifetimeTest, OrdinaryOperationsGoOnWhileShortReadsWait)
{
    pid_t pid = reading_process(0, 1);
    ASSERT_TRUE(buffers_become(1));
    Buffer buffer(fd_, 32 * 4096);
    std::vector<std::thread> readers;
    for (uint64_t i = 0; i < 32; i++)
        readers.emplace_back(
            [&, i] { EXPECT_EQ(buffer.read(fd_, 4096 * i, 4096 * i, 4096), 4096); });
    usleep(200000);
    EXPECT_EQ(mkdir(mounted_->path("d").c_str(), 0755), 0);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0) << "the read is still running";
    for (std::thread &t : readers)
        t.join();
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
}

} // namespace
