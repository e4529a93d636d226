/* SPDX-License-Identifier: BSD-2-Clause */
// A drive that loses commands, hangs, is reset or removed: results and time
// bounds for users (gpunvmefs(8), RECOVERY).
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"
#include "tests/fusefs/daemon/puppet.h"
#include "tests/rounds.h"

namespace
{

constexpr size_t kFile = 8u << 20, kPage = 4096;
constexpr int kDeadlineMs = 1000;
constexpr const char *kOptions = "executor=cpu,queues=2,deadline=1000,commit=3600";
constexpr int kRead = 2, kWrite = 1, kFlush = 0, kAny = -1;

// The bound of gpunvmefs(8) for CAP.TO of 1 s, plus a margin for a busy
// machine.
constexpr double kSlack = 20;
constexpr double kGone = 2 * kDeadlineMs / 1000.0 + 1 + kSlack;

class Stopwatch
{
  public:
    double seconds() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Recovery : public MountingTest
{
  protected:
    void set_up() override
    {
        mounted_ = std::make_unique<Mounted>(64u << 20);
        mounted_->use_program(GPUNVME_PUPPET);
        content_.resize(kFile);
        content_fill(31, 0, reinterpret_cast<uint8_t *>(content_.data()), kFile);
        ASSERT_TRUE(mount());
        int fd = open_on(path("file"), O_RDWR | O_CREAT);
        ASSERT_EQ(write(fd, content_.data(), kFile), static_cast<ssize_t>(kFile));
        ASSERT_EQ(fsync(fd), 0);
        close(fd);
        ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
        close(control_);
    }
    void TearDown() override
    {
        unsetenv("PUPPET_NO_RESET");
        unsetenv("PUPPET_NO_ABORT");
        if (control_ >= 0)
            close(control_);
    }
    bool mount(const char *options = kOptions)
    {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
            return false;
        bool ok = mounted_->mount(options, ends[1]);
        close(ends[1]);
        control_ = ends[0];
        EXPECT_TRUE(ok) << mounted_->log();
        return ok;
    }
    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0,
               unsigned skip = 0)
    {
        ASSERT_NO_FATAL_FAILURE(tell_fault(control_, kind, opcode, skip, times, status));
    }
    std::string path(const std::string &name) const { return mounted_->path(name); }
    // From the drive, not from the page cache.
    ::testing::AssertionResult file_is_content(int fd) const
    {
        std::vector<char> got(kFile);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        ssize_t n = pread(fd, got.data(), kFile, 0);
        if (n != static_cast<ssize_t>(kFile))
            return ::testing::AssertionFailure() << "pread: " << n << ", " << strerror(errno);
        if (memcmp(got.data(), content_.data(), kFile) != 0)
            return ::testing::AssertionFailure() << "other bytes";
        return ::testing::AssertionSuccess();
    }
    ::testing::AssertionResult image_is_good()
    {
        std::string output;
        if (mounted_->fsck(&output) != 0)
            return ::testing::AssertionFailure() << output;
        if (!mount())
            return ::testing::AssertionFailure() << mounted_->log();
        int fd = open_on(path("file"), O_RDONLY);
        auto result = file_is_content(fd);
        close(fd);
        if (!mounted_->unmount())
            return ::testing::AssertionFailure() << mounted_->log();
        return result;
    }
    // Checks the end of the mount after a permanent failure of the drive.
    void expect_given_up(int fd, const Buffer &buffer);

    std::unique_ptr<Mounted> mounted_;
    std::string content_;
    int control_ = -1;
};

struct Passing {
    const char *name;
    const char *kind; // of the fault
    int opcode;
    bool no_abort; // of the drive
    unsigned resets;
};

class PassingFault : public Recovery, public ::testing::WithParamInterface<Passing>
{
  protected:
    void set_up() override
    {
        if (GetParam().no_abort)
            setenv("PUPPET_NO_ABORT", "1", 1);
        Recovery::set_up();
    }
};

// Every request is answered without an error, and synced data is on the drive.
TEST_P(PassingFault, IsInvisibleToCallers)
{
    ASSERT_TRUE(mount());
    int fd = open_on(path("file"), O_RDONLY);
    Buffer buffer(fd, kFile);
    ASSERT_EQ(buffer.error(), 0);
    fault(GetParam().kind, GetParam().opcode, 1);
    Stopwatch watch;
    std::thread reader([&] { EXPECT_TRUE(file_is_content(fd)); });
    std::thread writer([&] {
        Fd out = open_on(path("other"), O_RDWR | O_CREAT);
        EXPECT_EQ(write(out, content_.data(), 1u << 20), 1 << 20) << strerror(errno);
        EXPECT_EQ(fsync(out), 0) << strerror(errno);
    });
    std::thread gpu_writer([&] {
        Fd out = open_on(path("gpu"), O_RDWR | O_CREAT);
        Buffer source(out, kFile);
        memcpy(source.data(), content_.data(), kFile);
        EXPECT_EQ(source.write(out, 0, 0, kFile), static_cast<ssize_t>(kFile));
        EXPECT_EQ(fsync(out), 0) << strerror(errno);
        EXPECT_TRUE(file_is_content(out));
    });
    EXPECT_EQ(buffer.read(fd, 0, 0, kFile), static_cast<ssize_t>(kFile));
    EXPECT_EQ(memcmp(buffer.data(), content_.data(), kFile), 0);
    reader.join();
    writer.join();
    gpu_writer.join();
    EXPECT_LT(watch.seconds(), 10 * kDeadlineMs / 1000.0 + kSlack);
    EXPECT_GE(stats_of(fd).controller_resets, GetParam().resets);
    close(fd);
    EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
    EXPECT_TRUE(image_is_good());
}

INSTANTIATE_TEST_SUITE_P(Faults, PassingFault,
                         ::testing::Values(Passing{"read_lost", "lose", kRead, false, 0},
                                           Passing{"read_lost_for_good", "lose", kRead, true, 0},
                                           Passing{"write_lost", "lose", kWrite, false, 0},
                                           Passing{"flush_lost", "lose", kFlush, false, 0},
                                           Passing{"flush_lost_for_good", "lose", kFlush, true, 0},
                                           Passing{"hang", "hang", kAny, false, 1},
                                           Passing{"fatal", "fatal", kAny, false, 1}),
                         [](const auto &info) { return info.param.name; });

void Recovery::expect_given_up(int fd, const Buffer &buffer)
{
    char byte = 0;
    Stopwatch watch;
    EXPECT_LT(pread(fd, &byte, 1, kFile - 1), 0) << "not in the page cache";
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(pread(fd, &byte, 1, 0), 1) << "in the page cache";
    EXPECT_EQ(byte, content_[0]);
    EXPECT_EQ(buffer.read(fd, 0, 0, 4096), -EIO);
    int out = open(path("new").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_TRUE(out < 0 && (errno == EROFS || errno == EIO)) << out << " " << strerror(errno);
    EXPECT_LT(watch.seconds(), kGone) << "nothing waits for a drive that was given up";
}

struct Final {
    const char *name;
    std::vector<std::string> commands;
    bool no_reset;
    double seconds; // until it is given up
};

class FinalFault : public Recovery, public ::testing::WithParamInterface<Final>
{
  protected:
    void set_up() override
    {
        Recovery::set_up();
        if (GetParam().no_reset)
            setenv("PUPPET_NO_RESET", "1", 1);
    }
};

// Reads and writes of buffers are in flight at the fault.
TEST_P(FinalFault, EndsAllOperationsInTimeAndTheNextMountWorks)
{
    ASSERT_TRUE(mount());
    int fd = open_on(path("file"), O_RDONLY), out = open_on(path("out"), O_RDWR | O_CREAT);
    char byte;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    ASSERT_EQ(pread(fd, &byte, 1, 0), 1);
    /*
     * In the page cache and locked: the kernel may drop pages unused for
     * seconds. By the system call, since sanitizers make mlock(3) do nothing.
     */
    void *cached = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(cached, MAP_FAILED);
    ASSERT_EQ(syscall(SYS_mlock, cached, kPage), 0) << strerror(errno);
    Buffer buffer(fd, kFile);
    ASSERT_EQ(buffer.error(), 0);
    ASSERT_EQ(write(out, "lost?", 5), 5);
    std::atomic<bool> give_up{false};
    std::thread reader([&] {
        while (!give_up && buffer.read(fd, 0, 0, kFile) == static_cast<ssize_t>(kFile))
            ;
    });
    std::thread writer([&] {
        Fd target = open_on(path("target"), O_RDWR | O_CREAT);
        Buffer source(target, kFile);
        while (!give_up && source.write(target, 0, 0, kFile) == static_cast<ssize_t>(kFile))
            ;
    });
    usleep(100000);
    Stopwatch watch;
    for (const std::string &command : GetParam().commands)
        tell_puppet(control_, command);
    EXPECT_LT(fsync(out), 0) << "not durable";
    EXPECT_EQ(errno, EIO);
    give_up = true; /* the read in flight has not ended yet */
    reader.join();
    writer.join();
    EXPECT_LT(watch.seconds(), GetParam().seconds);
    EXPECT_LT(fsync(out), 0) << "still not durable";
    expect_given_up(fd, buffer);
    munmap(cached, kPage);
    close(out);
    close(fd);
    watch = Stopwatch();
    EXPECT_EQ(umount(mounted_->mountpoint().c_str()), 0) << strerror(errno);
    EXPECT_FALSE(mounted_->ended()) << "what was written is not all on the drive";
    EXPECT_EQ(mounted_->status(), 2) << mounted_->log();
    EXPECT_LT(watch.seconds(), kGone);
    close(control_);
    control_ = -1;
    unsetenv("PUPPET_NO_RESET");
    EXPECT_TRUE(image_is_good());
}

INSTANTIATE_TEST_SUITE_P(Faults, FinalFault,
                         ::testing::Values(Final{"removed", {"remove"}, false, kGone},
                                           Final{"hangs_again_and_again",
                                                 {"fault hang -1 0 0 0 0 0"},
                                                 false,
                                                 4 * (2 * kDeadlineMs / 1000.0 + 1) + kSlack},
                                           Final{"never_ready_again",
                                                 {"stick", "fault hang -1 0 0 1 0 0"},
                                                 true,
                                                 2 * kGone}),
                         [](const auto &info) { return info.param.name; });

// After a failed FLUSH every fsync fails, also later ones, whatever the drive
// stored.
TEST_F(Recovery, AFailedFlushIsReportedByEveryFsync)
{
    ASSERT_TRUE(mount());
    int fd = open_on(path("out"), O_RDWR | O_CREAT);
    ASSERT_EQ(write(fd, "data", 4), 4);
    fault("status", kFlush, 1, 0x4006); // internal error, do not retry
    EXPECT_LT(fsync(fd), 0);
    EXPECT_EQ(errno, EIO);
    EXPECT_LT(fsync(fd), 0) << "the next flush would say nothing of what the first has lost";
    close(fd);
    EXPECT_FALSE(mounted_->unmount());
    EXPECT_TRUE(image_is_good());
}

// More callers than the mount has threads wait for a flush. The mount still
// answers other requests.
TEST_F(Recovery, ASlowFlushDelaysOnlyItsCallers)
{
    constexpr unsigned kCallers = 150;
    ASSERT_TRUE(mount("executor=cpu,queues=2,deadline=5000,commit=3600"));
    int other = open_on(path("file"), O_RDONLY);
    std::atomic<unsigned> failed{0}, ended{0};
    std::vector<int> files;
    for (unsigned i = 0; i < kCallers; i++) {
        files.push_back(open_on(path("out" + std::to_string(i)), O_RDWR | O_CREAT));
        ASSERT_EQ(write(files[i], "data", 4), 4);
    }
    uint64_t begin = stats_of(other).fuse_requests, answers = 0, requests = 0;
    fault("lose", kFlush, 1); // sent again after the deadline
    std::vector<std::thread> callers;
    for (int fd : files)
        callers.emplace_back([&, fd] {
            failed += fsync(fd) != 0;
            ended++;
        });
    while (requests < kCallers && ended == 0) {
        usleep(1000);
        requests = stats_of(other).fuse_requests - begin - ++answers;
    }
    EXPECT_EQ(ended, 0u) << requests << " requests reached the daemon before";
    for (std::thread &caller : callers)
        caller.join();
    EXPECT_EQ(failed, 0u);
    for (int fd : files)
        close(fd);
    close(other);
    EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
    EXPECT_TRUE(image_is_good());
}

// Data synced by an fsync that returned 0 is on the drive, whatever else is
// lost.
TEST_F(Recovery, FsyncedDataSurvivesAPowerCutAfterLostFlushes)
{
    for (int seed = 1; seed <= test_rounds(4, 20); seed++) {
        ASSERT_TRUE(mount());
        std::string name = path("synced-" + std::to_string(seed));
        fault(seed % 2 ? "lose" : "hang", kFlush, 1, 0, seed / 3);
        int fd = open_on(name, O_RDWR | O_CREAT);
        ASSERT_EQ(write(fd, content_.data(), 200000), 200000);
        EXPECT_EQ(fsync(fd), 0) << strerror(errno);
        tell_puppet(control_, "power_cut " + std::to_string(seed));
        kill(mounted_->pid(), SIGKILL);
        close(fd);
        mounted_->ended();
        close(control_);
        ASSERT_TRUE(mount());
        std::ifstream in(path("synced-" + std::to_string(seed)));
        std::string got(std::istreambuf_iterator<char>(in), {});
        EXPECT_TRUE(got == content_.substr(0, 200000)) << "seed " << seed;
        in.close();
        ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
        close(control_);
    }
    control_ = -1;
    EXPECT_TRUE(image_is_good());
}

// Hot unplug with open files, one of them changed through a mapping only.
TEST_F(Recovery, TheDriveIsReleasedWhenTheSystemRequestsIt)
{
    ASSERT_TRUE(mount());
    int fd = open_on(path("mapped"), O_RDWR | O_CREAT);
    ASSERT_EQ(ftruncate(fd, 4096), 0);
    void *at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(at, MAP_FAILED);
    memcpy(at, "by hand", 7);
    Stopwatch watch;
    tell_puppet(control_, "ask_back");
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
    EXPECT_LT(watch.seconds(), 10 + kGone);
    EXPECT_NE(mounted_->log().find("requests the drive"), std::string::npos);
    EXPECT_LT(ftruncate(fd, 0), 0) << "the file is cut off";
    munmap(at, 4096);
    close(fd);
    close(control_);
    ASSERT_TRUE(mount());
    std::ifstream in(path("mapped"));
    std::string got(std::istreambuf_iterator<char>(in), {});
    EXPECT_EQ(got.substr(0, 7), "by hand");
    in.close();
    EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
}

// A request to a failed drive does not block other requests.
TEST_F(Recovery, ADriveThatHangsBlocksOnlyThoseWhoNeedIt)
{
    ASSERT_TRUE(mount());
    int fd = open_on(path("file"), O_RDONLY);
    fault("lose", kRead, 1);
    std::thread reader([&] { EXPECT_TRUE(file_is_content(fd)); });
    usleep(kDeadlineMs * 200);
    struct stat st;
    Stopwatch watch;
    EXPECT_EQ(stat(path("none").c_str(), &st), -1);
    EXPECT_EQ(errno, ENOENT);
    EXPECT_EQ(stats_of(fd).buffers, 0u);
    EXPECT_LT(watch.seconds(), kSlack);
    reader.join();
    close(fd);
    EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
}

} // namespace
