// The direct path on a mount without a GPU: the same queue code, run by the thread that calls. Over
// a drive that fails when it is told to.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/gpunvme.h"
#include "tests/e2e/mounted.h"

namespace
{

constexpr size_t kPage = 4096, kFile = (4u << 20) + 1234, kRoom = 8u << 20;
constexpr int kRead = 2, kAny = -1;
constexpr auto kLong = std::chrono::seconds(60); // a bound, not an expectation

struct Way {
    const char *name;
    const char *options;
    uint32_t queues, depth;
};

class DirectBase : public ::testing::Test
{
  protected:
    void start(const std::string &options, uint32_t queues, uint32_t depth)
    {
        mount_ = std::make_unique<Mounted>(128u << 20);
        mount_->use_program(GPUNVME_PUPPET);
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        control_ = ends[0];
        ASSERT_TRUE(mount_->mount(options, ends[1])) << mount_->log();
        close(ends[1]);
        ASSERT_EQ(gpunvme_connect(mount_->mountpoint().c_str(), &g_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_alloc(g_, kRoom, &buffer_), 0) << gpunvme_error();
        memory_ = static_cast<char *>(gpunvme_buffer_addr(buffer_));
        make_file();
        struct gpunvme_direct_options o = {queues, depth};
        ASSERT_EQ(gpunvme_direct_open(g_, &o, &d_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(d_, fd_, &f_), 0) << gpunvme_error();
    }

    void TearDown() override
    {
        gpunvme_direct_close(d_);
        gpunvme_disconnect(g_);
        if (fd_ >= 0)
            close(fd_);
        if (mount_ && mount_->pid() > 0) {
            EXPECT_TRUE(mount_->unmount()) << mount_->log();
        }
        if (control_ >= 0)
            close(control_);
    }

    // Pieces of all lengths, written out of order, with holes and unwritten blocks between them.
    void make_file()
    {
        fd_ = open(mount_->path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd_, 0);
        std::mt19937 rng(5);
        ASSERT_EQ(ftruncate(fd_, kFile), 0);
        for (int i = 0; i < 400; i++) {
            size_t at = rng() % kFile, len = std::min<size_t>(kFile - at, 1 + rng() % 20000);
            for (size_t j = 0; j < len; j++)
                file_[at + j] = static_cast<char>(rng());
            ASSERT_EQ(pwrite(fd_, &file_[at], len, static_cast<off_t>(at)),
                      static_cast<ssize_t>(len));
        }
        for (int i = 0; i < 30; i++) {
            size_t at = rng() % (kFile / kPage) * kPage;
            fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                      3 * kPage);
            fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), kPage);
            std::fill_n(&file_[at], std::min(kFile - at, 3 * kPage), 0);
        }
        ASSERT_EQ(fsync(fd_), 0);
        while (std::count(&file_[data_], &file_[data_ + kPage], 0) > 100)
            data_ += kPage;
    }

    // What *bytes said, or the call itself.
    int64_t read(struct gpunvme_file *f, size_t at, size_t n, uint64_t offset)
    {
        int64_t bytes = -1;
        int err = gpunvme_read_async(f, memory_ + at, n, offset, nullptr, &bytes);
        return err ? err : bytes;
    }

    ::testing::AssertionResult holds(size_t at, size_t n, uint64_t offset)
    {
        if (memcmp(memory_ + at, &file_[offset], n) == 0)
            return ::testing::AssertionSuccess();
        size_t i = 0;
        while (memory_[at + i] == file_[offset + i])
            i++;
        return ::testing::AssertionFailure()
               << "byte " << i << " of " << n << " at " << offset << ", read to " << at;
    }

    void tell(const std::string &command)
    {
        char answer[16] = "";
        std::string line = command + "\n";
        ASSERT_EQ(send(control_, line.data(), line.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(line.size()));
        ASSERT_GT(recv(control_, answer, sizeof(answer) - 1, 0), 0);
        ASSERT_STREQ(answer, "ok\n") << command;
    }
    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0)
    {
        tell("fault " + kind + " " + std::to_string(opcode) + " 0 0 " + std::to_string(times) +
             " " + std::to_string(status) + " 0");
    }

    std::unique_ptr<Mounted> mount_;
    struct gpunvme *g_ = nullptr;
    struct gpunvme_buffer *buffer_ = nullptr;
    struct gpunvme_direct *d_ = nullptr;
    struct gpunvme_file *f_ = nullptr;
    char *memory_ = nullptr;
    int fd_ = -1, control_ = -1;
    size_t data_ = 0; // a page of the file that is no hole: to read it takes a command
    std::vector<char> file_ = std::vector<char>(kFile);
};

class Direct : public DirectBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override
    {
        std::string why = why_no_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        start(GetParam().options, GetParam().queues, GetParam().depth);
    }
};

TEST_P(Direct, ReadsAnythingAnywhereAndTouchesNothingElse)
{
    std::mt19937 rng(6);
    for (int i = 0; i < 300; i++) {
        size_t most = i % 10 == 0 ? kFile : i % 3 ? 3 * kPage : 100000;
        uint64_t offset = rng() % kFile;
        size_t n = rng() % most, at = kPage + rng() % (kRoom - most - 2 * kPage);
        if (i % 4 == 0) {
            offset -= offset % kPage;
            at -= at % kPage;
        }
        size_t want = std::min<size_t>(n, kFile - offset);
        memset(memory_ + at - 64, 0x5a, 64);
        memset(memory_ + at + want, 0x5a, 64);
        std::vector<char> around(64, 0x5a);
        ASSERT_EQ(read(f_, at, n, offset), static_cast<int64_t>(want)) << n << " at " << offset;
        ASSERT_TRUE(holds(at, want, offset));
        ASSERT_EQ(memcmp(memory_ + at + want, around.data(), 64), 0) << n << " at " << offset;
        ASSERT_EQ(memcmp(memory_ + at - 64, around.data(), 64), 0) << n << " at " << offset;
    }
}

TEST_P(Direct, EndsWhereTheFileDoes)
{
    EXPECT_EQ(gpunvme_file_size(f_), kFile);
    EXPECT_EQ(read(f_, 0, kRoom, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_EQ(read(f_, 0, 5000, kFile - 10), 10);
    EXPECT_EQ(read(f_, 0, 5000, kFile), 0);
    EXPECT_EQ(read(f_, 0, 5000, kFile + kPage), 0);
    EXPECT_EQ(read(f_, 0, 0, 10), 0);
}

TEST_P(Direct, AHostThatWaitsReadsTheSame)
{
    std::mt19937 rng(8);
    for (int i = 0; i < 100; i++) {
        size_t most = i % 10 == 0 ? kFile : 3 * kPage, n = rng() % most;
        uint64_t offset = rng() % (kFile + kPage);
        size_t want = offset < kFile ? std::min<size_t>(n, kFile - offset) : 0;
        size_t at = rng() % (kRoom - most);
        ASSERT_EQ(gpunvme_file_read(f_, memory_ + at, n, offset), static_cast<ssize_t>(want))
            << n << " at " << offset;
        ASSERT_TRUE(holds(at, want, offset));
    }
    EXPECT_EQ(gpunvme_file_read(f_, memory_ + kRoom - 10, 11, 0), -EFAULT);
    EXPECT_EQ(gpunvme_file_read(f_, memory_, 10, UINT64_MAX), -EINVAL);
}

TEST_P(Direct, ManyThreadsShareFewQueues)
{
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(8);
    for (size_t t = 0; t < wrong.size(); t++) {
        threads.emplace_back([&, t] {
            std::mt19937 rng(static_cast<unsigned>(t));
            const size_t mine = t * (kRoom / 8);
            for (int i = 0; i < 200; i++) {
                uint64_t offset = rng() % (kFile - 50000);
                size_t n = 1 + rng() % 50000;
                if (read(f_, mine, n, offset) != static_cast<int64_t>(n) || !holds(mine, n, offset))
                    wrong[t] = std::to_string(n) + " at " + std::to_string(offset);
            }
        });
    }
    for (std::thread &t : threads)
        t.join();
    for (const std::string &w : wrong)
        EXPECT_EQ(w, "");
}

INSTANTIATE_TEST_SUITE_P(
    Mounts, Direct,
    ::testing::Values(Way{"defaults", "executor=cpu,direct=root", 0, 0},
                      Way{"two_queues_of_four", "executor=cpu,direct=root", 2, 4},
                      Way{"shadow_doorbells", "executor=cpu,direct=root,doorbells=cpu", 1, 2}),
    [](const auto &info) { return info.param.name; });

class DirectOne : public DirectBase
{
  protected:
    void SetUp() override
    {
        std::string why = why_no_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        start("executor=cpu,direct=root,deadline=1000", 3, 16);
    }
    // The first result that is not a full read; 0 when the time is up.
    int64_t read_until_it_fails()
    {
        auto end = std::chrono::steady_clock::now() + kLong;
        while (std::chrono::steady_clock::now() < end) {
            int64_t n = read(f_, 0, kPage, data_);
            if (n != static_cast<int64_t>(kPage))
                return n;
        }
        return 0;
    }
};

TEST_F(DirectOne, SeesTheFileAsItWasUntilRefreshed)
{
    const std::string more(10000, 'm');
    EXPECT_EQ(gpunvme_file_refresh(f_), 0);
    ASSERT_EQ(pwrite(fd_, more.data(), more.size(), kFile), static_cast<ssize_t>(more.size()));
    EXPECT_EQ(gpunvme_file_size(f_), kFile);
    EXPECT_EQ(read(f_, 0, 5000, kFile), 0);
    EXPECT_EQ(gpunvme_file_refresh(f_), 1) << gpunvme_error();
    EXPECT_EQ(gpunvme_file_refresh(f_), 0);
    EXPECT_EQ(gpunvme_file_size(f_), kFile + more.size());
    EXPECT_EQ(read(f_, 0, 20000, kFile), static_cast<int64_t>(more.size()));
    EXPECT_EQ(memcmp(memory_, more.data(), more.size()), 0);
}

TEST_F(DirectOne, BlocksThatTheFileLostKeepWhatTheyHeld)
{
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    int other = open(mount_->path("other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    std::string filler(kFile, 'x');
    for (off_t at = 0; write(other, filler.data(), filler.size()) > 0 && at < 10; at++)
        ;
    fsync(other);
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_EQ(gpunvme_file_refresh(f_), 1);
    EXPECT_EQ(gpunvme_file_size(f_), 0u);
    EXPECT_EQ(read(f_, 0, kFile, 0), 0);
    close(other);
}

TEST_F(DirectOne, TheDescriptorMayBeClosed)
{
    close(fd_);
    fd_ = -1;
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST_F(DirectOne, BuffersComeAndGo)
{
    struct gpunvme_buffer *later;
    std::vector<char> own(kPage);
    int64_t bytes;
    ASSERT_EQ(gpunvme_alloc(g_, 3 * kPage, &later), 0);
    char *addr = static_cast<char *>(gpunvme_buffer_addr(later));
    EXPECT_EQ(gpunvme_read_async(f_, addr, 3 * kPage, 0, nullptr, &bytes), 0) << gpunvme_error();
    EXPECT_EQ(bytes, static_cast<int64_t>(3 * kPage));
    EXPECT_EQ(memcmp(addr, file_.data(), 3 * kPage), 0);
    EXPECT_EQ(gpunvme_read_async(f_, addr, 3 * kPage + 1, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(gpunvme_read_async(f_, own.data(), kPage, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(gpunvme_unregister(later), 0);
    EXPECT_EQ(gpunvme_read_async(f_, addr, kPage, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(read(f_, 0, kPage, 0), static_cast<int64_t>(kPage));
}

TEST_F(DirectOne, RefusesWhatIsNoFileToRead)
{
    struct gpunvme_file *f;
    int write_only = open(mount_->path("file").c_str(), O_WRONLY | O_CLOEXEC);
    int foreign = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int directory = open(mount_->mountpoint().c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(gpunvme_file_open(d_, write_only, &f), -EBADF);
    EXPECT_EQ(gpunvme_file_open(d_, foreign, &f), -ENOTTY);
    EXPECT_EQ(gpunvme_file_open(d_, directory, &f), -EISDIR);
    EXPECT_EQ(gpunvme_file_open(d_, -1, &f), -EBADF);
    for (int fd : {write_only, foreign, directory})
        close(fd);
    struct gpunvme_direct *d;
    struct gpunvme_direct_options o = {GPUNVME_LEASE_MAX + 1, 0};
    EXPECT_EQ(gpunvme_direct_open(g_, &o, &d), -EINVAL);
}

TEST_F(DirectOne, AnErrorOfTheDriveIsTheReads)
{
    ASSERT_NO_FATAL_FAILURE(fault("status", kRead, 1, 0x281)); // unrecovered read error
    EXPECT_EQ(read(f_, 0, kPage, data_), -EIO);
    EXPECT_EQ(read(f_, 0, kPage, data_), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, data_));
}

TEST_F(DirectOne, ALostCommandCostsAQueueAndNewOnesCanBeHad)
{
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 3));
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(read(f_, 0, kPage, data_), -ETIMEDOUT) << i;
    EXPECT_EQ(read(f_, 0, kPage, data_), -ETIMEDOUT) << "all three are lost";
    ASSERT_EQ(gpunvme_direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST_F(DirectOne, AResetEndsTheLeasesAndTheyAreRenewed)
{
    ASSERT_NO_FATAL_FAILURE(fault("fatal", kAny, 1));
    int64_t n = read_until_it_fails();
    EXPECT_TRUE(n == -ETIMEDOUT || n == -ESTALE) << n;
    int other = open(mount_->path("other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_EQ(write(other, "x", 1), 1); // the daemon finds out, and resets
    EXPECT_EQ(fsync(other), 0);
    close(other);
    n = read_until_it_fails();
    EXPECT_TRUE(n == -ETIMEDOUT || n == -ESTALE) << n;
    ASSERT_EQ(gpunvme_direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST_F(DirectOne, TheMountsEndIsTheLeases)
{
    close(fd_);
    fd_ = -1;
    kill(mount_->pid(), SIGTERM);
    int64_t n = read_until_it_fails();
    EXPECT_TRUE(n == -ETIMEDOUT || n == -ESTALE) << n;
    EXPECT_LT(gpunvme_direct_renew(d_), 0);
    EXPECT_EQ(read(f_, 0, kPage, 0), -ESTALE);
    gpunvme_disconnect(g_); // the handle with it
    g_ = nullptr;
    d_ = nullptr;
    EXPECT_TRUE(mount_->ended()) << mount_->log();
}

TEST_F(DirectOne, ADaemonThatWasKilledCostsDeadlinesOnly)
{
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    for (size_t t = 0; t < 4; t++) {
        readers.emplace_back([&, t] {
            while (!stop)
                read(f_, t * (kRoom / 4), 3 * kPage, data_);
        });
    }
    usleep(50000);
    kill(mount_->pid(), SIGKILL);
    int64_t n = read_until_it_fails();
    stop = true;
    for (std::thread &t : readers)
        t.join();
    EXPECT_EQ(n, -ETIMEDOUT);
    EXPECT_LT(gpunvme_direct_renew(d_), 0);
    EXPECT_STRNE(gpunvme_error(), "no error");
    EXPECT_EQ(read(f_, 0, kPage, data_), -ESTALE);
    EXPECT_LE(gpunvme_file_refresh(f_), 0);
    struct gpunvme_direct *other;
    EXPECT_LT(gpunvme_direct_open(g_, nullptr, &other), 0);
    close(fd_);
    fd_ = -1;
    gpunvme_disconnect(g_);
    g_ = nullptr;
    d_ = nullptr;
    EXPECT_FALSE(mount_->unmount());
}

TEST_F(DirectOne, SeveralHandlesAreIndependent)
{
    struct gpunvme_direct_options o = {2, 8};
    struct gpunvme_direct *second;
    struct gpunvme_file *of_second;
    ASSERT_EQ(gpunvme_direct_open(g_, &o, &second), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_file_open(second, fd_, &of_second), 0) << gpunvme_error();
    EXPECT_EQ(read(of_second, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    ASSERT_EQ(gpunvme_direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(of_second, 0, kPage, data_), static_cast<int64_t>(kPage));
    gpunvme_direct_close(d_); // and its file
    EXPECT_EQ(read(of_second, kPage, kPage, data_), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(kPage, kPage, data_));
    d_ = second;
    f_ = of_second;
}

// Only what is being read must stay: all else of the handle changes meanwhile.
TEST_F(DirectOne, FilesAndBuffersComeAndGoWhileOthersRead)
{
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0}, read_wrong{0};
    std::thread buffers([&] {
        while (!stop) {
            struct gpunvme_buffer *b;
            int64_t bytes;
            if (gpunvme_alloc(g_, 2 * kPage, &b)) {
                failed++;
                continue;
            }
            void *to = gpunvme_buffer_addr(b);
            failed += gpunvme_read_async(f_, to, kPage, data_, nullptr, &bytes) || bytes != kPage ||
                      memcmp(to, &file_[data_], kPage) != 0;
            gpunvme_unregister(b);
        }
    });
    std::thread files([&] {
        while (!stop) {
            struct gpunvme_file *f;
            if (gpunvme_file_open(d_, fd_, &f)) {
                failed++;
                continue;
            }
            failed += read(f, kRoom - kPage, kPage, data_) != kPage;
            gpunvme_file_close(f);
        }
    });
    for (int i = 0; i < 300; i++)
        read_wrong += read(f_, 0, 5 * kPage, data_) != 5 * kPage || !holds(0, 5 * kPage, data_);
    stop = true;
    buffers.join();
    files.join();
    EXPECT_EQ(read_wrong, 0);
    EXPECT_EQ(failed, 0) << gpunvme_error();
}

// All queues that there are; those of somebody who was killed come back soon.
int lease_all(struct gpunvme *g, struct gpunvme_direct **out)
{
    struct gpunvme_direct_options all = {GPUNVME_LEASE_MAX, 4};
    auto end = std::chrono::steady_clock::now() + kLong;
    int err;
    while ((err = gpunvme_direct_open(g, &all, out)) && std::chrono::steady_clock::now() < end)
        usleep(10000);
    return err;
}

// Reads until it is killed, and says when it begins.
[[noreturn]] void read_forever(const std::string &mountpoint, int fd, int ready)
{
    struct gpunvme *g;
    struct gpunvme_buffer *b;
    struct gpunvme_direct *d;
    struct gpunvme_file *f;
    int64_t bytes = 0;
    if (gpunvme_connect(mountpoint.c_str(), &g) || gpunvme_alloc(g, kFile, &b) ||
        lease_all(g, &d) || gpunvme_file_open(d, fd, &f) || write(ready, "r", 1) != 1)
        _exit(1);
    while (bytes >= 0)
        gpunvme_read_async(f, gpunvme_buffer_addr(b), kFile, 0, nullptr, &bytes);
    _exit(2);
}

TEST_F(DirectOne, AKilledReaderLeavesItsQueues)
{
    gpunvme_direct_close(d_);
    d_ = nullptr;
    for (int i = 0; i < 3; i++) {
        int ready[2], status;
        char byte;
        ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
            read_forever(mount_->mountpoint(), fd_, ready[1]);
        close(ready[1]);
        EXPECT_EQ(::read(ready[0], &byte, 1), 1);
        close(ready[0]);
        usleep(20000);
        kill(child, SIGKILL);
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status)) << status;
    }
    ASSERT_EQ(lease_all(g_, &d_), 0) << gpunvme_error();
    ASSERT_EQ(gpunvme_file_open(d_, fd_, &f_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST(DirectRight, IsTheMountsToGive)
{
    std::string why = why_no_mount();
    if (!why.empty())
        GTEST_SKIP() << why;
    Mounted m(64u << 20);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    struct gpunvme *g;
    struct gpunvme_direct *d;
    ASSERT_EQ(gpunvme_connect(m.mountpoint().c_str(), &g), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_direct_open(g, nullptr, &d), -EPERM);
    EXPECT_NE(std::string(gpunvme_error()).find("direct="), std::string::npos) << gpunvme_error();
    gpunvme_disconnect(g);
    EXPECT_TRUE(m.unmount()) << m.log();
}

} // namespace
