/* SPDX-License-Identifier: BSD-2-Clause */
// The end of leases: by close, kill, unmount and reset, on several kinds of
// drives.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/lease/lease_rig.h"
#include "tests/fusefs/daemon/puppet.h"

namespace
{

TEST_F(LeaseTest, AClosedFileEndsItsLeases)
{
    ASSERT_NO_FATAL_FAILURE(start());
    uint32_t most = info_of(fd_).lease_queues;
    int holder = open_on(mounted_->path("file"), O_RDONLY);
    Queues queues(holder, most);
    ASSERT_EQ(queues.reply().queues, most);
    ASSERT_TRUE(queues.map(fd_));
    close(holder);
    for (int i = 0; i < 2000 && Queues(fd_).error() != 0; i++)
        usleep(10000);
    EXPECT_EQ(Queues(fd_).error(), 0);
    EXPECT_EQ(queues.state(), GPUNVME_LEASE_REVOKED);
    EXPECT_EQ(queues.end(fd_), -ENOENT);
}

// The holder is killed with commands in flight.
TEST_F(LeaseTest, AKilledHolderLeavesNothingBehind)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=root,sim=latency:2000"));
    uint32_t most = info_of(fd_).lease_queues;
    int up[2];
    ASSERT_EQ(pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int error;
        int fd = open_on(mounted_->path("file"), O_RDONLY);
        Buffer buffer(fd, kFile);
        uint64_t iova = iova_of(fd, buffer, &error).iova;
        Queues queues(fd, most);
        Extents extents(fd);
        bool good = queues.map(fd) && extents.map(fd);
        if (write(up[1], &good, sizeof(good)) < 0)
            _exit(1);
        for (;;)
            reads(&queues, 0, extents, iova, 0, kFile);
    }
    bool good = false;
    ASSERT_EQ(read(up[0], &good, sizeof(good)), static_cast<ssize_t>(sizeof(good)));
    ASSERT_TRUE(good);
    usleep(20000);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    std::string got(kFile, '\0');
    posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    EXPECT_EQ(pread(fd_, &got[0], kFile, 0), static_cast<ssize_t>(kFile)) << "nobody waits";
    uint32_t granted = 0;
    for (int i = 0; i < 2000 && granted < most; i++) {
        Queues all(fd_, most);
        granted = all.error() ? 0 : all.reply().queues;
        if (!all.error()) {
            EXPECT_EQ(all.end(fd_), 0);
        }
        usleep(10000);
    }
    EXPECT_EQ(granted, most);
    close(up[0]);
    close(up[1]);
}

TEST_F(LeaseTest, TheEndOfTheMountRevokes)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Queues queues(fd_, 4);
    Extents extents(fd_);
    ASSERT_TRUE(queues.map(fd_) && extents.map(fd_));
    kill(mounted_->pid(), SIGTERM);
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
    EXPECT_EQ(queues.state(), GPUNVME_LEASE_REVOKED);
    EXPECT_EQ(extents.state(), GPUNVME_LEASE_REVOKED);
    close(fd_);
    fd_ = -1;
}

// An idle holder blocks no unmount, and sees the revocation afterwards.
TEST_F(LeaseTest, TheMountEndsWhileAHolderIsStopped)
{
    ASSERT_NO_FATAL_FAILURE(start());
    int up[2];
    ASSERT_EQ(pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open_on(mounted_->path("file"), O_RDONLY);
        Queues queues(fd, 4);
        Extents extents(fd);
        bool good = queues.map(fd) && extents.map(fd) && write(up[1], &good, sizeof(good)) > 0;
        raise(SIGSTOP);
        good = good && queues.state() == GPUNVME_LEASE_REVOKED &&
               extents.state() == GPUNVME_LEASE_REVOKED && queues.run(0, kRead, 0, 1, 0) == -ESTALE;
        _exit(good ? 0 : 1);
    }
    bool good = false;
    int status = -1;
    EXPECT_EQ(read(up[0], &good, sizeof(good)), static_cast<ssize_t>(sizeof(good)));
    EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    EXPECT_TRUE(WIFSTOPPED(status));
    close(fd_);
    fd_ = -1;
    kill(mounted_->pid(), SIGTERM);
    EXPECT_TRUE(mounted_->ended()) << mounted_->log();
    kill(pid, SIGCONT);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    close(up[0]);
    close(up[1]);
}

// After a kill of the daemon the mappings remain unrevoked, and commands do not
// complete.
TEST_F(LeaseTest, HoldersKeepTheirMemoryWhenTheDaemonIsKilled)
{
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_EQ(fsync(fd_), 0);
    Queues queues(fd_, 2);
    Extents extents(fd_);
    ASSERT_TRUE(queues.map(fd_) && extents.map(fd_));
    uint64_t lba = extents.lba(kPage, queues.reply().lba_size);
    kill(mounted_->pid(), SIGKILL);
    EXPECT_FALSE(mounted_->ended());
    EXPECT_EQ(queues.state(), GPUNVME_LEASE_VALID);
    EXPECT_EQ(extents.generation(), extents.reply().generation);
    EXPECT_EQ(extents.lba(kPage, queues.reply().lba_size), lba);
    nvme_sqe sqe = {};
    nvme_cqe cqe;
    for (uint32_t i = 0; i + 1 < queues.reply().depth; i++)
        nvme_ring_post(&queues.ring(1), &sqe);
    nvme_ring_doorbell(&queues.ring(1));
    EXPECT_FALSE(nvme_ring_poll(&queues.ring(1), &cqe));
    close(fd_);
    ASSERT_TRUE(mounted_->mount("executor=cpu,direct=root")) << mounted_->log();
    fd_ = open_on(mounted_->path("file"), O_RDWR);
    Queues again(fd_, 2);
    EXPECT_TRUE(again.map(fd_));
}

// A drive with injected faults (puppet.c).
class LeaseRecovery : public LeaseTest
{
  protected:
    void set_up() override
    {
        LeaseTest::set_up();
        mounted_->use_program(GPUNVME_PUPPET);
    }
    void TearDown() override
    {
        LeaseTest::TearDown();
        unsetenv("PUPPET_KEEP_DOORBELLS");
        if (control_ >= 0)
            close(control_);
    }
    void start_puppet()
    {
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        bool ok = mounted_->mount("executor=cpu,direct=root,deadline=2000", ends[1]);
        close(ends[1]);
        control_ = ends[0];
        ASSERT_TRUE(ok) << mounted_->log();
        fd_ = make("file", 1);
        ASSERT_EQ(fsync(fd_), 0);
    }
    // O_DIRECT: POSIX_FADV_DONTNEED need not drop a page.
    void read_drive()
    {
        alignas(kPage) char page[kPage];
        Fd direct = open_on(mounted_->path("file"), O_RDONLY | O_DIRECT);
        EXPECT_EQ(pread(direct, page, kPage, 0), static_cast<ssize_t>(kPage));
    }
    // The daemon's next read finds the controller failed and resets it.
    void reset()
    {
        tell_puppet(control_, "fault fatal 2 0 0 1 0 0");
        read_drive();
        EXPECT_EQ(stats_of(fd_).controller_resets, 1u);
    }

    int control_ = -1;
};

TEST_F(LeaseRecovery, AResetRevokesQueuesAndKeepsExtents)
{
    ASSERT_NO_FATAL_FAILURE(start_puppet());
    LeasedReader r(fd_);
    ASSERT_TRUE(r.mapped);
    EXPECT_EQ(r.queues.run(0, kRead, 0, 8, r.iova), 0);
    ASSERT_NO_FATAL_FAILURE(reset());
    EXPECT_EQ(r.queues.state(), GPUNVME_LEASE_REVOKED);
    EXPECT_EQ(r.extents.state(), GPUNVME_LEASE_VALID);
    nvme_ring_doorbell(&r.queues.ring(0)); // the holder has not seen the revocation
    EXPECT_EQ(r.queues.run(0, kRead, 0, 8, r.iova), -ESTALE);
    Queues fresh(fd_);
    ASSERT_EQ(fresh.error(), 0);
    ASSERT_TRUE(fresh.map(fd_));
    EXPECT_TRUE(reads(&fresh, 0, r.extents, r.iova, 0, kFile));
    EXPECT_EQ(memcmp(r.buffer.data(), content(kFile, 1).data(), kFile), 0);
    EXPECT_EQ(r.queues.end(fd_), 0);
    EXPECT_EQ(fresh.end(fd_), 0);
}

// Queues of a revoked lease that is not ended become free after the grace time.
TEST_F(LeaseRecovery, RevokedQueuesAreReusableAfterTheGraceTime)
{
    ASSERT_NO_FATAL_FAILURE(start_puppet());
    uint32_t most = info_of(fd_).lease_queues;
    Queues all(fd_, most);
    ASSERT_EQ(all.reply().queues, most);
    ASSERT_NO_FATAL_FAILURE(reset());
    for (int i = 0; i < 2000 && Queues(fd_).error() == -EBUSY; i++)
        usleep(10000);
    EXPECT_EQ(Queues(fd_).error(), 0);
    EXPECT_FALSE(all.map(fd_)) << "its queues are gone";
    EXPECT_EQ(all.end(fd_), 0);
}

// Resets during every phase of a lease: each lease ends without an error of the
// driver.
TEST_F(LeaseRecovery, LeasesAreMadeAndEndedWhileTheDriveIsReset)
{
    ASSERT_NO_FATAL_FAILURE(start_puppet());
    std::atomic<bool> stop{false};
    std::atomic<unsigned> good{0};
    Buffer buffer(fd_, kFile);
    int error;
    uint64_t iova = iova_of(fd_, buffer, &error).iova;
    std::vector<std::thread> holders;
    for (int i = 0; i < 3; i++) {
        holders.emplace_back([&] {
            while (!stop) {
                Queues q(fd_, 2);
                if (q.error())
                    continue;
                if (q.map(fd_) && q.run(q.reply().queues - 1, kRead, 0, 8, iova) == 0)
                    good++;
                EXPECT_EQ(q.end(fd_), 0);
            }
        });
    }
    for (int i = 0; i < 5; i++) {
        unsigned before = good;
        for (int wait = 0; wait < 2000 && good < before + 5; wait++)
            usleep(10000);
        EXPECT_GE(good, before + 5) << "after " << i << " resets";
        tell_puppet(control_, "fault fatal 2 0 0 1 0 0");
        read_drive();
    }
    stop = true;
    for (std::thread &t : holders)
        t.join();
    EXPECT_GE(stats_of(fd_).controller_resets, 1u);
    Queues all(fd_, GPUNVME_LEASE_MAX);
    EXPECT_EQ(all.reply().queues, info_of(fd_).lease_queues) << "none is lost";
}

// As on a PCI drive, whose doorbells are not shared.
TEST_F(LeaseRecovery, TheDaemonForwardsProxiedDoorbells)
{
    setenv("PUPPET_KEEP_DOORBELLS", "1", 1);
    ASSERT_NO_FATAL_FAILURE(start_puppet());
    int error;
    Buffer buffer(fd_, kFile);
    uint64_t iova = iova_of(fd_, buffer, &error).iova;
    Queues queues(fd_, 4), bad(fd_);
    Extents extents(fd_);
    ASSERT_TRUE(queues.map(fd_) && bad.map(fd_) && extents.map(fd_));
    EXPECT_NE(queues.doorbells().find("gpunvme-doorbells"), std::string::npos)
        << queues.doorbells();
    __atomic_store_n(bad.ring(0).sq_doorbell, UINT32_MAX, __ATOMIC_RELEASE);
    __atomic_store_n(bad.ring(0).cq_doorbell, 64u, __ATOMIC_RELEASE);
    for (size_t i = 0; i < 4; i++)
        ASSERT_TRUE(reads(&queues, i, extents, iova, i * kFile / 4, (i + 1) * kFile / 4));
    EXPECT_EQ(memcmp(buffer.data(), content(kFile, 1).data(), kFile), 0);
    EXPECT_EQ(bad.end(fd_), 0);
    ASSERT_NO_FATAL_FAILURE(reset());
    EXPECT_EQ(queues.state(), GPUNVME_LEASE_REVOKED);
    Queues fresh(fd_, 2);
    ASSERT_TRUE(fresh.map(fd_));
    EXPECT_TRUE(reads(&fresh, 1, extents, iova, 0, kFile));
    EXPECT_EQ(queues.end(fd_), 0);
    EXPECT_EQ(fresh.end(fd_), 0);
}

// A vfio-user drive, whose doorbells are a file.
class LeaseServed : public LeaseTest
{
  protected:
    void set_up() override
    {
        char name[] = "/dev/shm/gpunvme-lease-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        dir_ = name;
        std::string image = dir_ + "/image", socket = dir_ + "/socket", out;
        std::ofstream(image).close();
        std::filesystem::resize_file(image, 64u << 20);
        serve(image, socket);
        setenv("GPUNVME_TEST_DEVICE", ("vfio-user:" + socket).c_str(), 1);
        mounted_ = std::make_unique<Mounted>(64u << 20);
    }
    void serve(const std::string &image, const std::string &socket)
    {
        int out[2];
        char byte;
        ASSERT_EQ(pipe(out), 0);
        server_ = fork();
        if (server_ == 0) {
            dup2(out[1], STDOUT_FILENO);
            execl(GPUNVME_SIM, GPUNVME_SIM, "-i", image.c_str(), socket.c_str(), nullptr);
            _exit(127);
        }
        close(out[1]);
        ASSERT_EQ(read(out[0], &byte, 1), 1) << "it does not listen";
        close(out[0]);
    }
    void TearDown() override
    {
        LeaseTest::TearDown();
        unsetenv("GPUNVME_TEST_DEVICE");
        if (server_ > 0) {
            kill(server_, SIGTERM);
            waitpid(server_, nullptr, 0);
        }
        if (!dir_.empty())
            std::filesystem::remove_all(dir_);
    }

    std::string dir_;
    pid_t server_ = -1;
};

TEST_F(LeaseServed, LeasedQueuesReadAFileIntoABuffer)
{
    ASSERT_NO_FATAL_FAILURE(start());
    LeasedReader r(fd_, 2);
    ASSERT_TRUE(r.mapped);
    EXPECT_NE(r.queues.doorbells().find("sim-doorbells"), std::string::npos)
        << r.queues.doorbells();
    r.expect_file(2);
    r.expect_end(fd_);
}

} // namespace
