/* SPDX-License-Identifier: BSD-2-Clause */
// The direct path on a mount without a GPU: the same queue code, run by the thread that calls. Over
// a drive that fails when it is told to.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "tests/client/lib/image_bit.h"
#include "tests/client/lib/mount_rig.h"

namespace
{

using namespace mount_rig;

constexpr uint64_t kData = kPage; // a page of the file that is no hole: to read it takes a command

class DirectBase : public MountRig
{
  protected:
    // What *bytes said, or the call itself.
    int64_t read(struct leased_file *f, size_t at, size_t n, uint64_t offset)
    {
        int64_t bytes = -1;
        int err = direct_read_async(f, memory_ + at, n, offset, nullptr, &bytes);
        return err ? err : bytes;
    }
    int64_t read_until_it_fails()
    {
        return until_it_fails([this] {
            int64_t n = read(f_, 0, kPage, kData);
            return n == static_cast<int64_t>(kPage) ? 0 : n;
        });
    }
    uint64_t regions()
    {
        struct gpunvme_ioc_stats stats = {};
        EXPECT_EQ(gpunvme_stats(connection_fd(g_), &stats), 0) << gpunvme_error();
        return stats.dma_regions;
    }
};

class Direct : public DirectBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override { start(GetParam(), GPUNVME_PUPPET); }
    const std::vector<size_t> most_ = {kFile,     3 * kPage, 3 * kPage, 100000,    3 * kPage,
                                       3 * kPage, 100000,    3 * kPage, 3 * kPage, 100000};
};

TEST_P(Direct, ReadsAnythingAnywhereAndTouchesNothingElse)
{
    expect_reads(300, most_,
                 [this](size_t at, size_t n, uint64_t offset) { return read(f_, at, n, offset); });
}

TEST_P(Direct, EndsWhereTheFileDoes)
{
    EXPECT_EQ(leased_file_size(f_), kFile);
    EXPECT_EQ(read(f_, 0, kRoom, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_EQ(read(f_, 0, 5000, kFile - 10), 10);
    EXPECT_EQ(read(f_, 0, 5000, kFile), 0);
    EXPECT_EQ(read(f_, 0, 5000, kFile + kPage), 0);
    EXPECT_EQ(read(f_, 0, 0, 10), 0);
}

TEST_P(Direct, AHostThatWaitsReadsTheSame)
{
    expect_reads(100, most_, [this](size_t at, size_t n, uint64_t offset) {
        return direct_read_wait(f_, memory_ + at, n, offset);
    });
    EXPECT_EQ(direct_read_wait(f_, memory_ + kRoom - 10, 11, 0), -EFAULT);
    EXPECT_EQ(direct_read_wait(f_, memory_, 10, UINT64_MAX), -EINVAL);
}

TEST_P(Direct, IsCountedInTheProcessAndByTheMount)
{
    struct gpunvme_calls was, is;
    struct gpunvme_ioc_stats before, now;
    constexpr unsigned kDirect = GPUNVME_CALLS_DIRECT - 1;

    gpunvme_calls(&was, sizeof(was));
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &before), 0);
    ASSERT_EQ(direct_read_wait(f_, memory_, 2 * kPage, kData), 2 * kPage);
    ASSERT_EQ(read(f_, 0, kPage, kData), kPage);
    gpunvme_calls(&is, sizeof(is));
    ASSERT_EQ(gpunvme_stats(connection_fd(g_), &now), 0);
    EXPECT_EQ(is.by[0][kDirect].bytes - was.by[0][kDirect].bytes, 2u * kPage);
    EXPECT_EQ(is.enqueued - was.enqueued, 1u);
    EXPECT_EQ(is.enqueued_bytes - was.enqueued_bytes, kPage);
    EXPECT_EQ(now.calls.by[0][kDirect].bytes - before.calls.by[0][kDirect].bytes, 2u * kPage);
    EXPECT_EQ(now.calls.enqueued_bytes - before.calls.enqueued_bytes, kPage);
    EXPECT_GE(now.leased_commands - before.leased_commands, 2u) << "of any kind of doorbell";
}

// A descriptor of the file of this name that is mapped here; -1: there is none.
int mapped(const std::string &name)
{
    std::ifstream maps("/proc/self/maps");

    for (std::string line; std::getline(maps, line);) {
        if (line.find(name) != std::string::npos)
            return open(("/proc/self/map_files/" + line.substr(0, line.find(' '))).c_str(),
                        O_RDWR | O_CLOEXEC);
    }
    return -1;
}

TEST_P(Direct, AMountCannotShrinkItsCounters)
{
    ASSERT_EQ(read(f_, 0, kPage, kData), kPage);
    Fd fd = mapped("gpunvme-calls");
    ASSERT_GE(fd, 0) << strerror(errno);
    EXPECT_EQ(ftruncate(fd, 0), -1);
    EXPECT_EQ(errno, EPERM);
}

TEST_P(Direct, MemoryThatIsStagedIsNotMappedForTheDrive)
{
    const std::string options = GetParam().options;
    bool staged = options.find("executor=cpu_staged") != std::string::npos;
    uint32_t tier = !staged && has_peer_memory() ? 2 : 1;
    struct gpunvme_ioc_info info;
    struct gpunvme_buffer *later;
    int64_t bytes;

    ASSERT_EQ(gpunvme_info(connection_fd(g_), &info), 0);
    EXPECT_EQ(info.tier, options.find("doorbells=cpu") == std::string::npos ? tier : 0u);
    EXPECT_EQ(std::string(info.tier_note).find("staged") != std::string::npos, staged);
    uint64_t before = regions();
    ASSERT_EQ(buffer_alloc(g_, 5 * kPage, &later), 0);
    EXPECT_EQ(regions(), before + !staged);
    auto *addr = static_cast<char *>(buffer_addr(later));
    ASSERT_EQ(direct_read_async(f_, addr, 5 * kPage, kData, nullptr, &bytes), 0);
    EXPECT_EQ(bytes, static_cast<int64_t>(5 * kPage));
    EXPECT_EQ(memcmp(addr, &file_[kData], 5 * kPage), 0);
    EXPECT_EQ(regions(), before + !staged);
    EXPECT_EQ(buffer_unregister(later), 0);
    EXPECT_EQ(regions(), before);
}

TEST_P(Direct, ManyThreadsShareFewQueues)
{
    in_threads(8, [this](size_t t) {
        std::mt19937 rng(static_cast<unsigned>(t));
        const size_t mine = t << 20;
        for (int i = 0; i < 200; i++) {
            uint64_t offset = rng() % (kFile - 50000);
            size_t n = 1 + rng() % 50000;
            if (read(f_, mine, n, offset) != static_cast<int64_t>(n) || !holds(mine, n, offset))
                return std::to_string(n) + " at " + std::to_string(offset);
        }
        return std::string();
    });
}

// Queues held elsewhere come free in no order: a reader waits for one as long as for a command,
// and where the processors are busy with other things the default is too short.
INSTANTIATE_TEST_SUITE_P(
    Mounts, Direct,
    ::testing::Values(
        Way{"defaults", "executor=cpu,direct=root,deadline=60000", 0, 0},
        Way{"staged", "executor=cpu_staged,direct=root,deadline=60000", 0, 0},
        Way{"least_mdts", "executor=cpu,direct=root,deadline=60000,sim=mdts:8192", 0, 0},
        Way{"staged_least_mdts", "executor=cpu_staged,direct=root,deadline=60000,sim=mdts:8192", 0,
            0},
        Way{"staged_few", "executor=cpu_staged,direct=root,deadline=60000", 2, 4},
        Way{"two_queues_of_four", "executor=cpu,direct=root,deadline=60000", 2, 4},
        Way{"proxied_doorbells", "executor=cpu,direct=root,deadline=60000,doorbells=cpu", 1, 2},
        Way{"staged_proxied_doorbells",
            "executor=cpu_staged,direct=root,deadline=60000,doorbells=cpu", 1, 2}),
    [](const auto &info) { return info.param.name; });

class DirectOne : public DirectBase
{
  protected:
    void SetUp() override
    {
        start({"", "executor=cpu,direct=root,deadline=2000", 3, 16}, GPUNVME_PUPPET);
    }
};

// Over memory that the drive reaches, and staged.
class DirectFails : public DirectBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override { start(GetParam(), GPUNVME_PUPPET); }
};

INSTANTIATE_TEST_SUITE_P(
    Mounts, DirectFails,
    ::testing::Values(Way{"Reached", "executor=cpu,direct=root,deadline=2000", 2, 16},
                      Way{"Tier1", "executor=cpu_staged,direct=root,deadline=2000", 2, 16}),
    [](const auto &info) { return info.param.name; });

TEST_F(DirectOne, SeesTheFileAsItWasUntilRefreshed)
{
    const std::string more(10000, 'm');
    EXPECT_EQ(leased_file_refresh(f_), 0);
    ASSERT_EQ(pwrite(fd_, more.data(), more.size(), kFile), static_cast<ssize_t>(more.size()));
    EXPECT_EQ(leased_file_size(f_), kFile);
    EXPECT_EQ(read(f_, 0, 5000, kFile), 0);
    EXPECT_EQ(leased_file_refresh(f_), 1) << gpunvme_error();
    EXPECT_EQ(leased_file_refresh(f_), 0);
    EXPECT_EQ(leased_file_size(f_), kFile + more.size());
    EXPECT_EQ(read(f_, 0, 20000, kFile), static_cast<int64_t>(more.size()));
    EXPECT_EQ(memcmp(memory_, more.data(), more.size()), 0);
}

TEST_F(DirectOne, BlocksThatTheFileLostKeepWhatTheyHeld)
{
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    Fd other = open(mount_->path("other").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    std::string filler(kFile, 'x');
    for (off_t at = 0; write(other, filler.data(), filler.size()) > 0 && at < 10; at++)
        ;
    fsync(other);
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_EQ(leased_file_refresh(f_), 1);
    EXPECT_EQ(leased_file_size(f_), 0u);
    EXPECT_EQ(read(f_, 0, kFile, 0), 0);
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
    ASSERT_EQ(buffer_alloc(g_, 2 * kPage, &later), 0);
    char *addr = static_cast<char *>(buffer_addr(later));
    EXPECT_EQ(direct_read_async(f_, addr, 2 * kPage, 0, nullptr, &bytes), 0) << gpunvme_error();
    EXPECT_EQ(bytes, static_cast<int64_t>(2 * kPage));
    EXPECT_EQ(memcmp(addr, file_.data(), 2 * kPage), 0);
    EXPECT_EQ(direct_read_async(f_, addr, 2 * kPage + 1, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(direct_read_async(f_, own.data(), kPage, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(buffer_unregister(later), 0);
    EXPECT_EQ(direct_read_async(f_, addr, kPage, 0, nullptr, &bytes), -EFAULT);
    EXPECT_EQ(read(f_, 0, kPage, 0), static_cast<int64_t>(kPage));
}

TEST_F(DirectOne, RefusesWhatIsNoFileToRead)
{
    struct leased_file *f;
    int write_only = open(mount_->path("file").c_str(), O_WRONLY | O_CLOEXEC);
    int foreign = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int directory = open(mount_->mountpoint().c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(leased_file_open(d_, write_only, true, &f), -EBADF);
    EXPECT_EQ(leased_file_open(d_, foreign, true, &f), -ENOTTY);
    EXPECT_EQ(leased_file_open(d_, directory, true, &f), -EISDIR);
    EXPECT_EQ(leased_file_open(d_, -1, true, &f), -EBADF);
    for (int fd : {write_only, foreign, directory})
        close(fd);
    struct gpunvme_direct *d;
    struct direct_options o = {GPUNVME_LEASE_MAX + 1, 0, 0};
    EXPECT_EQ(direct_open(g_, &o, &d), -EINVAL);
}

TEST_F(DirectOne, RefusesAFileOfAnotherMount)
{
    Mounted other(128u << 20);
    ASSERT_TRUE(other.mount("executor=cpu")) << other.log();
    int fd = open(other.path("file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    ASSERT_EQ(ftruncate(fd, kPage), 0);
    struct gpunvme_piece piece = {0, 0, kPage, 0};
    struct leased_file *f;
    EXPECT_EQ(transfer_read(buffer_, fd, 0, 0, kPage, nullptr), -ENOTTY);
    EXPECT_EQ(transfer_write(buffer_, fd, 0, 0, kPage, nullptr), -ENOTTY);
    EXPECT_EQ(readv_buffer(buffer_, fd, &piece, 1, nullptr), -ENOTTY);
    EXPECT_EQ(leased_file_open(d_, fd, true, &f), -ENOTTY);
    close(fd);
    EXPECT_TRUE(other.unmount()) << other.log();
}

// Whether the descriptor that is one too many is the library's own, or comes over the socket.
TEST_F(DirectOne, WithTooFewDescriptorsSaysSo)
{
    struct direct_options o = {1, 8, 0};
    struct rlimit usual, few;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    few = usual;
    int opened = 0, lowest_free = dup(fd_);
    close(lowest_free);
    for (int more = 0; more < 32 && opened < 2; more++) {
        struct gpunvme_direct *d = nullptr;
        struct leased_file *f = nullptr;
        few.rlim_cur = static_cast<rlim_t>(lowest_free + more);
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        int err_of_file = leased_file_open(d_, fd_, true, &f);
        int err_of_queues = err_of_file ? err_of_file : direct_open(g_, &o, &d);
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
        opened = (err_of_file == 0) + (err_of_queues == 0);
        EXPECT_TRUE(!err_of_file || err_of_file == -EMFILE) << more << ": " << err_of_file;
        EXPECT_TRUE(!err_of_queues || err_of_queues == -EMFILE) << more << ": " << err_of_queues;
        direct_close(d);
        leased_file_close(f);
    }
    EXPECT_EQ(opened, 2) << "a few are enough";
}

TEST_P(DirectFails, AnErrorOfTheDriveIsThatOfTheRead)
{
    ASSERT_NO_FATAL_FAILURE(fault("status", kRead, 1, 0x281)); // unrecovered read error
    EXPECT_EQ(read(f_, 0, kPage, kData), -EIO);
    EXPECT_EQ(read(f_, 0, kPage, kData), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, kData));
}

TEST_P(DirectFails, ALostCommandCostsAQueueAndNewOnesCanBeHad)
{
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 2));
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(read(f_, 0, kPage, kData), -ETIMEDOUT) << i;
    EXPECT_EQ(read(f_, 0, kPage, kData), -ETIMEDOUT) << "both are lost";
    ASSERT_EQ(direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

// The drive may still carry it out. Other memory of small buffers is used again.
TEST_P(DirectFails, MemoryOfALostCommandIsNotHandedOutAgain)
{
    struct gpunvme_buffer *a, *b;

    ASSERT_EQ(buffer_alloc_host(g_, kPage, &b), 0) << gpunvme_error();
    ASSERT_EQ(buffer_alloc_host(g_, kPage, &a), 0) << gpunvme_error();
    void *at = buffer_addr(a);
    EXPECT_EQ(buffer_unregister(a), 0);
    ASSERT_EQ(buffer_alloc_host(g_, kPage, &a), 0) << gpunvme_error();
    EXPECT_EQ(buffer_addr(a), at);
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1));
    EXPECT_EQ(read(f_, 0, kPage, kData), -ETIMEDOUT);
    EXPECT_EQ(buffer_unregister(a), 0);
    ASSERT_EQ(buffer_alloc_host(g_, kPage, &a), 0) << gpunvme_error();
    EXPECT_NE(buffer_addr(a), at);
    EXPECT_NE(buffer_addr(a), buffer_addr(b));
    EXPECT_EQ(buffer_unregister(a), 0);
    EXPECT_EQ(buffer_unregister(b), 0);
}

// A page has its own bytes or keeps its old ones: nothing of the bytes that staging held before.
TEST_P(DirectFails, ADeadlineInTheMiddleOfALongReadEndsIt)
{
    ASSERT_EQ(read(f_, 0, kWhole, kFile - kWhole), static_cast<int64_t>(kWhole)) << "fills staging";
    poison();
    ASSERT_NO_FATAL_FAILURE(fault("lose", kRead, 1, 0, 1));
    EXPECT_EQ(read(f_, 0, kWhole, 0), -ETIMEDOUT);
    for (size_t i = 0; i < kWhole; i += kPage) {
        bool untouched =
            std::all_of(memory_ + i, memory_ + i + kPage, [](char c) { return c == kGuard; });
        EXPECT_TRUE(untouched || holds(i, kPage, i)) << "page " << i / kPage;
    }
    EXPECT_EQ(read(f_, 0, kWhole, 0), static_cast<int64_t>(kWhole)) << "by another queue";
    EXPECT_TRUE(holds(0, kWhole, 0));
}

TEST_P(DirectFails, AResetEndsTheLeasesAndTheyAreRenewed)
{
    ASSERT_NO_FATAL_FAILURE(fault("fatal", kAny, 1));
    expect_gone(read_until_it_fails());
    write_another_file(); // the daemon finds out, and resets
    expect_gone(read_until_it_fails());
    ASSERT_EQ(direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST_P(DirectFails, TheEndOfTheMountEndsTheLeases)
{
    end_the_mount();
    struct gpunvme_piece piece = {0, 0, kPage, 7};
    expect_gone(read_until_it_fails());
    EXPECT_LT(direct_renew(d_), 0);
    EXPECT_EQ(read(f_, 0, kPage, 0), -ESTALE);
    EXPECT_EQ(direct_readv_async(f_, memory_, &piece, 1, nullptr), -ESTALE);
    EXPECT_EQ(piece.result, 7);
    expect_ended();
}

TEST_P(DirectFails, ADaemonThatWasKilledCostsDeadlinesOnly)
{
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    for (size_t t = 0; t < 4; t++) {
        readers.emplace_back([&, t] {
            while (!stop)
                read(f_, t * (kRoom / 4), 3 * kPage, kData);
        });
    }
    usleep(50000);
    kill(mount_->pid(), SIGKILL);
    int64_t n = read_until_it_fails();
    stop = true;
    for (std::thread &t : readers)
        t.join();
    EXPECT_EQ(n, -ETIMEDOUT);
    EXPECT_LT(direct_renew(d_), 0);
    EXPECT_STRNE(gpunvme_error(), "no error");
    EXPECT_EQ(read(f_, 0, kPage, kData), -ESTALE);
    EXPECT_LE(leased_file_refresh(f_), 0);
    struct gpunvme_direct *other;
    EXPECT_LT(direct_open(g_, nullptr, &other), 0);
    close(fd_);
    fd_ = -1;
    connection_close(g_);
    g_ = nullptr;
    d_ = nullptr;
    EXPECT_FALSE(mount_->unmount());
}

TEST_F(DirectOne, SeveralHandlesAreIndependent)
{
    struct direct_options o = {2, 8, 0};
    struct gpunvme_direct *second;
    struct leased_file *of_second;
    ASSERT_EQ(direct_open(g_, &o, &second), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(second, fd_, true, &of_second), 0) << gpunvme_error();
    EXPECT_EQ(read(of_second, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    ASSERT_EQ(direct_renew(d_), 0) << gpunvme_error();
    EXPECT_EQ(read(of_second, 0, kPage, kData), static_cast<int64_t>(kPage));
    direct_close(d_); // and its file
    EXPECT_EQ(read(of_second, kPage, kPage, kData), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(kPage, kPage, kData));
    d_ = second;
    f_ = of_second;
}

// Only the range being read must stay: everything else of the handle changes meanwhile.
TEST_F(DirectOne, FilesAndBuffersComeAndGoWhileOthersRead)
{
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0}, read_wrong{0};
    std::thread buffers([&] {
        while (!stop) {
            struct gpunvme_buffer *b;
            int64_t bytes;
            if (buffer_alloc(g_, 2 * kPage, &b)) {
                failed++;
                continue;
            }
            void *to = buffer_addr(b);
            failed += direct_read_async(f_, to, kPage, kData, nullptr, &bytes) || bytes != kPage ||
                      memcmp(to, &file_[kData], kPage) != 0;
            buffer_unregister(b);
        }
    });
    std::thread files([&] {
        while (!stop) {
            struct leased_file *f;
            if (leased_file_open(d_, fd_, true, &f)) {
                failed++;
                continue;
            }
            failed += read(f, kRoom - kPage, kPage, kData) != kPage;
            leased_file_close(f);
        }
    });
    for (int i = 0; i < 300; i++)
        read_wrong += read(f_, 0, 5 * kPage, kData) != 5 * kPage || !holds(0, 5 * kPage, kData);
    stop = true;
    buffers.join();
    files.join();
    EXPECT_EQ(read_wrong, 0);
    EXPECT_EQ(failed, 0) << gpunvme_error();
}

// All queues of the mount; those of a killed process come back soon.
int lease_all(struct connection *g, struct gpunvme_direct **out)
{
    struct direct_options all = {GPUNVME_LEASE_MAX, 4, 0};
    auto end = std::chrono::steady_clock::now() + kLong;
    int err;
    while ((err = direct_open(g, &all, out)) && std::chrono::steady_clock::now() < end)
        usleep(10000);
    return err;
}

// Reads until it is killed, and says when it begins.
[[noreturn]] void read_forever(const std::string &mountpoint, int fd, int ready)
{
    struct connection *g;
    struct gpunvme_buffer *b;
    struct gpunvme_direct *d;
    struct leased_file *f;
    int64_t bytes = 0;
    if (connection_open(mountpoint.c_str(), &g) || buffer_alloc(g, kFile, &b) || lease_all(g, &d) ||
        leased_file_open(d, fd, true, &f) || write(ready, "r", 1) != 1)
        _exit(1);
    while (bytes >= 0)
        direct_read_async(f, buffer_addr(b), kFile, 0, nullptr, &bytes);
    _exit(2);
}

TEST_P(DirectFails, AKilledReaderLeavesItsQueues)
{
    direct_close(d_);
    d_ = nullptr;
    uint64_t before = regions();
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
    for (int i = 0; i < 1000 && regions() != before; i++)
        usleep(10000);
    EXPECT_EQ(regions(), before) << "buffers, staging and rings of the killed";
    ASSERT_EQ(lease_all(g_, &d_), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(d_, fd_, true, &f_), 0) << gpunvme_error();
    EXPECT_EQ(read(f_, 0, kFile, 0), static_cast<int64_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
}

class DirectRight : public DirectBase
{
  protected:
    void SetUp() override { start("executor=cpu"); }
};

TEST_F(DirectRight, IsGrantedByTheMount)
{
    EXPECT_EQ(direct_open(g_, nullptr, &d_), -EPERM);
    EXPECT_NE(std::string(gpunvme_error()).find("direct="), std::string::npos) << gpunvme_error();
}

// --- Checksums of data, over a drive and an image that go wrong ----------------------------------

constexpr uint64_t kBad = 5 * kPage; // a block of the file that is no hole

class DirectCsum : public DirectBase, public ::testing::WithParamInterface<Way>
{
  protected:
    void SetUp() override
    {
        format_ = {"-O", "data_csum"};
        start(GetParam(), GPUNVME_PUPPET);
    }
    int64_t read(size_t at, size_t n, uint64_t offset)
    {
        return DirectBase::read(f_, at, n, offset);
    }
    int64_t read_piece(size_t at, size_t n, uint64_t offset)
    {
        struct gpunvme_piece p = {offset, at, static_cast<uint32_t>(n), -1};
        int err = direct_readv_async(f_, memory_, &p, 1, nullptr);
        return err ? err : p.result;
    }
    int64_t read_waiting(size_t at, size_t n, uint64_t offset)
    {
        return direct_read_wait(f_, memory_ + at, n, offset);
    }
    // By every call.
    void expect_result(size_t n, uint64_t offset, int64_t result)
    {
        using Call = int64_t (DirectCsum::*)(size_t, size_t, uint64_t);
        for (Call call : {&DirectCsum::read, &DirectCsum::read_piece, &DirectCsum::read_waiting}) {
            poison();
            EXPECT_EQ((this->*call)(0, n, offset), result) << n << " at " << offset;
            EXPECT_TRUE(result < 0 || holds(0, static_cast<size_t>(result), offset));
        }
    }
    void flip(uint64_t offset) { flip_in_image(mount_->image(), fd_, offset); }
    void write_file(uint64_t offset, size_t n, char c)
    {
        std::fill_n(file_.begin() + static_cast<ptrdiff_t>(offset), n, c);
        ASSERT_EQ(pwrite(fd_, &file_[offset], n, static_cast<off_t>(offset)),
                  static_cast<ssize_t>(n));
    }
};

TEST_P(DirectCsum, ReadsAnythingAnywhereAndTouchesNothingElse)
{
    const std::vector<size_t> most = {kFile, 3 * kPage, 100, 100000, 3 * kPage};
    expect_reads(60, most,
                 [this](size_t at, size_t n, uint64_t offset) { return read(at, n, offset); });
    expect_reads(60, most, [this](size_t at, size_t n, uint64_t offset) {
        return read_piece(at, n, offset);
    });
}

TEST_P(DirectCsum, ABlockThatIsWrongInTheImageIsAnErrorThatNamesIt)
{
    uint64_t bad;
    EXPECT_EQ(direct_bad_block(f_, &bad), 0);
    flip(kBad + 99);
    for (size_t n : {size_t{10}, kPage, 3 * kPage})
        expect_result(n, kBad, -EIO);
    expect_result(10, kBad + 4000, -EIO);
    expect_result(kPage + 1, kBad - kPage, -EIO);
    expect_result(kPage, kBad - kPage, kPage);
    expect_result(kPage, kBad + kPage, kPage);
    EXPECT_EQ(read_waiting(0, 10, kBad), -EIO);
    std::string block = "block " + std::to_string(kBad / kPage) + " of the file";
    EXPECT_NE(std::string(gpunvme_error()).find(block), std::string::npos) << gpunvme_error();
    EXPECT_EQ(direct_bad_block(f_, &bad), 1);
    EXPECT_EQ(bad, kBad);
    EXPECT_EQ(direct_bad_block(f_, &bad), 0);
    flip(kBad + 99);
    expect_result(3 * kPage, kBad, 3 * kPage);
}

TEST_P(DirectCsum, ACommandThatBringsAWrongBitIsSentAgain)
{
    for (size_t n : {size_t{10}, kPage, 3 * kPage}) {
        fault("corrupt", kRead, 1);
        EXPECT_EQ(read(0, n, kBad), static_cast<int64_t>(n));
        EXPECT_TRUE(holds(0, n, kBad));
        fault("corrupt", kRead, 1);
        EXPECT_EQ(read_piece(0, n, kBad), static_cast<int64_t>(n));
        EXPECT_TRUE(holds(0, n, kBad));
    }
}

TEST_P(DirectCsum, WhatIsOverwrittenIsReadAndComparedAgainAfterARefresh)
{
    EXPECT_EQ(leased_file_refresh(f_), 0);
    write_file(kBad, kPage, 'n');
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    write_file(kBad + 100, 50, 'p'); // a part of a block
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    EXPECT_EQ(leased_file_refresh(f_), 1) << "the lease has lost a checksum";
    expect_result(3 * kPage, kBad - kPage, 3 * kPage);
    flip(kBad + 7);
    expect_result(kPage, kBad, -EIO);
    flip(kBad + 7);
    EXPECT_EQ(leased_file_refresh(f_), 0);
}

TEST_P(DirectCsum, ZerosInPlaceTakeTheChecksumAwayToo)
{
    ASSERT_EQ(fallocate(fd_, FALLOC_FL_ZERO_RANGE, kBad + 100, 3 * kPage), 0);
    std::fill_n(file_.begin() + kBad + 100, 3 * kPage, 0);
    int64_t got = read(0, kPage, kBad);
    EXPECT_EQ(got, static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, kBad));
    write_file(kBad + kPage, 2 * kPage, 'z'); // unwritten now, in the place that the lease knows
    EXPECT_EQ(read(0, 3 * kPage, kBad), static_cast<int64_t>(3 * kPage));
    EXPECT_EQ(leased_file_refresh(f_), 1);
    expect_result(4 * kPage, kBad, 4 * kPage);
}

// Blocks that the file has lost stay as they were, and so do their checksums.
TEST_P(DirectCsum, ATruncatedFileIsReadAsItWas)
{
    ASSERT_EQ(ftruncate(fd_, kBad + 10), 0);
    EXPECT_EQ(read(0, kPage, kBad + kPage), static_cast<int64_t>(kPage));
    EXPECT_TRUE(holds(0, kPage, kBad + kPage));
    EXPECT_EQ(read(0, 10, kBad), 10);
    EXPECT_EQ(leased_file_refresh(f_), 1);
    EXPECT_EQ(read(0, kPage, kBad), 10);
    EXPECT_TRUE(holds(0, 10, kBad));
}

// Each block is the old one or the new one, or of both: no read fails.
TEST_P(DirectCsum, AConcurrentWriterCausesNoErrors)
{
    std::atomic<bool> done{false};
    std::thread writer([this, &done] {
        std::vector<char> block(2 * kPage);
        for (int i = 0; i < 150; i++) {
            memset(block.data(), 'a' + i % 26, block.size());
            EXPECT_EQ(pwrite(fd_, block.data(), block.size(), kBad + i % 5 * kPage),
                      static_cast<ssize_t>(block.size()));
        }
        done = true;
    });
    for (int i = 0; !done; i++) {
        if (i % 8 == 0) {
            EXPECT_GE(leased_file_refresh(f_), 0) << gpunvme_error();
        }
        EXPECT_EQ(read(0, 8 * kPage, kBad), static_cast<int64_t>(8 * kPage)) << gpunvme_error();
        EXPECT_EQ(read_piece(0, 1000, kBad + 500), 1000) << gpunvme_error();
    }
    writer.join();
}

const Way kWays[] = {
    {"defaults", "executor=cpu,direct=root,deadline=60000", 0, 0},
    {"staged", "executor=cpu_staged,direct=root,deadline=60000", 2, 4},
    {"blocks_of_4_KiB", "executor=cpu,direct=root,deadline=60000,sim=lba:4096", 1, 4}};

INSTANTIATE_TEST_SUITE_P(Ways, DirectCsum, ::testing::ValuesIn(kWays),
                         [](const auto &info) { return info.param.name; });

class Unverified : public DirectCsum
{
    void SetUp() override
    {
        flags_ = GPUNVME_UNVERIFIED;
        DirectCsum::SetUp();
    }
};

TEST_P(Unverified, ReadsReturnTheDataOfTheDrive)
{
    expect_result(3 * kPage, kBad, 3 * kPage);
    flip(kBad);
    EXPECT_EQ(read(0, kPage, kBad), static_cast<int64_t>(kPage));
    EXPECT_FALSE(holds(0, kPage, kBad));
}

INSTANTIATE_TEST_SUITE_P(Ways, Unverified, ::testing::Values(kWays[0]),
                         [](const auto &info) { return info.param.name; });

} // namespace
