/* SPDX-License-Identifier: BSD-2-Clause */
// Leases over a mount: authorization and reach.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include <atomic>
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <signal.h>
#include <sys/socket.h>
#include <thread>

#include "tests/fusefs/daemon/lease/lease_rig.h"
#include "tests/fusefs/daemon/puppet.h"
#include "tests/fusefs/daemon/tokens.h"
#include "tests/sim/server.h"

namespace
{

TEST_F(LeaseTest, LeasedQueuesReadAFileIntoABuffer)
{
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(info_of(fd_).direct, 1u);
    EXPECT_GE(info_of(fd_).lease_queues, 32u);
    int error;
    Buffer buffer(fd_, kFile);
    gpunvme_ioc_buffer_iova iova = iova_of(fd_, buffer, &error);
    ASSERT_EQ(error, 0);
    EXPECT_EQ(iova.pages, kFile / kPage);
    EXPECT_EQ(iova.head, 0u);
    Queues queues(fd_, 4);
    ASSERT_EQ(queues.error(), 0);
    EXPECT_EQ(queues.reply().queues, 4u);
    EXPECT_EQ(queues.reply().depth, 64u);
    EXPECT_EQ(queues.reply().nsid, 1u);
    ASSERT_TRUE(queues.map(fd_));
    Extents extents(fd_);
    ASSERT_EQ(extents.error(), 0);
    EXPECT_EQ(extents.reply().size, kFile);
    ASSERT_TRUE(extents.map(fd_));
    EXPECT_EQ(extents.state(), GPUNVME_LEASE_VALID);
    EXPECT_EQ(extents.generation(), extents.reply().generation);
    for (size_t i = 0; i < 4; i++)
        ASSERT_TRUE(reads(&queues, i, extents, iova.iova, i * kFile / 4, (i + 1) * kFile / 4));
    EXPECT_EQ(memcmp(buffer.data(), content(kFile, 1).data(), kFile), 0);
    EXPECT_EQ(queues.end(fd_), 0);
    EXPECT_EQ(extents.end(fd_), 0);
}

// Leases leave queues for the executors of GPUs that had no buffer before.
TEST_F(LeaseTest, BuffersOfAllGpusAreReadByLeasedQueues)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,gpus=0:1,direct=root"));
    Queues queues(fd_, GPUNVME_LEASE_MAX);
    Extents extents(fd_);
    ASSERT_TRUE(queues.map(fd_) && extents.map(fd_));
    Buffer buffers[] = {Buffer(fd_, kFile), Buffer(fd_, kFile, 0, 1)};
    auto gpus = abi_struct<gpunvme_ioc_gpus>();
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_GPUS, &gpus), 0);
    ASSERT_EQ(gpus.count, 2u);
    EXPECT_EQ(gpus.gpus[1].state, GPUNVME_GPU_OPEN);
    EXPECT_EQ(gpus.gpus[1].queues, gpus.gpus[0].queues);
    for (size_t i = 0; i < 2; i++) {
        int error;
        uint64_t iova = iova_of(fd_, buffers[i], &error).iova;
        ASSERT_EQ(error, 0);
        ASSERT_TRUE(reads(&queues, i, extents, iova, 0, kFile));
        EXPECT_EQ(memcmp(buffers[i].data(), content(kFile, 1).data(), kFile), 0);
        EXPECT_EQ(buffers[i].read(fd_, 0, 0, kFile), (ssize_t)kFile);
    }
    EXPECT_EQ(queues.end(fd_), 0);
    EXPECT_EQ(extents.end(fd_), 0);
}

TEST_F(LeaseTest, NoUserLeasesWithoutTheOption)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu"));
    int error;
    Buffer buffer(fd_, kPage);
    EXPECT_EQ(info_of(fd_).direct, 0u);
    EXPECT_EQ(info_of(fd_).lease_queues, 0u);
    EXPECT_EQ(Queues(fd_).error(), -EPERM);
    EXPECT_EQ(Extents(fd_).error(), -EPERM);
    iova_of(fd_, buffer, &error);
    EXPECT_EQ(error, -EPERM);
}

// The result for a process of another user with these supplementary groups.
int as_user(gid_t gid, const std::vector<gid_t> &groups, const std::string &path)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (setgroups(groups.size(), groups.data()) != 0 || setgid(gid) != 0 || setuid(65534) != 0)
            _exit(99);
        Queues queues(fd);
        Extents extents(fd);
        bool same = queues.error() == extents.error() &&
                    info_of(fd).direct == (queues.error() == 0 ? 1u : 0u);
        _exit(!same ? 98 : queues.error() == 0 ? 100 : -queues.error());
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kLeased = 100;
constexpr gid_t kGroup = 4242;

TEST_F(LeaseTest, RootIsTheOnlyOneWithDirectRoot)
{
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(Queues(fd_).error(), 0);
    EXPECT_EQ(as_user(0, {0, kGroup}, mounted_->path("file")), EPERM);
}

TEST_F(LeaseTest, MembersOfTheGroupLeaseWithIt)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=4242"));
    EXPECT_EQ(Queues(fd_).error(), 0) << "root";
    EXPECT_EQ(as_user(kGroup, {}, mounted_->path("file")), kLeased);
    EXPECT_EQ(as_user(65534, {1, 2, kGroup, 7}, mounted_->path("file")), kLeased);
    EXPECT_EQ(as_user(65534, {1, 2, 7}, mounted_->path("file")), EPERM);
    EXPECT_EQ(as_user(65534, {}, mounted_->path("file")), EPERM);
}

TEST_F(LeaseTest, EveryUserLeasesWithDirectAll)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=all"));
    EXPECT_EQ(as_user(65534, {}, mounted_->path("file")), kLeased);
}

TEST_F(LeaseTest, AMissingGroupIsRefusedWithAMessage)
{
    EXPECT_FALSE(mounted_->mount("direct=no-such-group"));
    EXPECT_NE(mounted_->log().find("direct=no-such-group: no such group"), std::string::npos)
        << mounted_->log();
}

TEST_F(LeaseTest, InvalidNumbersAndFlagsAreRefused)
{
    ASSERT_NO_FATAL_FAILURE(start());
    EXPECT_EQ(Queues(fd_, 0).error(), -EINVAL);
    EXPECT_EQ(Queues(fd_, GPUNVME_LEASE_MAX + 1).error(), -EINVAL);
    EXPECT_EQ(Queues(fd_, 1, 1).error(), -EINVAL);
    auto queues = abi_struct<gpunvme_ioc_queue_lease>();
    queues.queues = 1;
    queues.flags = 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_QUEUE_LEASE, &queues), -EINVAL);
    queues.flags = 0;
    queues.reserved = 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_QUEUE_LEASE, &queues), -EINVAL);
    auto extents = abi_struct<gpunvme_ioc_extent_lease>();
    for (uint32_t flags : {3u, 4u}) {
        extents.flags = flags;
        EXPECT_EQ(issue(fd_, GPUNVME_IOC_EXTENT_LEASE, &extents), -EINVAL);
    }
    for (uint32_t flags : {GPUNVME_LEASE_SUMS, GPUNVME_LEASE_UNVERIFIED}) {
        extents.flags = flags;
        EXPECT_EQ(issue(fd_, GPUNVME_IOC_EXTENT_LEASE, &extents), 0);
        EXPECT_EQ(extents.flags, 0u) << "there are no checksums";
    }
    Queues deep(fd_, 1, 1u << 20);
    EXPECT_EQ(deep.error(), 0);
    EXPECT_EQ(deep.reply().depth, 4096u) << "as the drive allows";
}

TEST_F(LeaseTest, ExtentsNeedAReadableFile)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Fd dir = open_on(mounted_->mountpoint(), O_RDONLY | O_DIRECTORY);
    Fd writer = open_on(mounted_->path("file"), O_WRONLY);
    EXPECT_EQ(Extents(dir).error(), -EISDIR);
    EXPECT_EQ(Queues(dir).error(), 0) << "queues are of the mount";
    EXPECT_EQ(Extents(writer).error(), -EBADF);
}

TEST_F(LeaseTest, QueuesAreLimited)
{
    ASSERT_NO_FATAL_FAILURE(start());
    uint32_t most = info_of(fd_).lease_queues;
    Queues first(fd_, most - 3);
    ASSERT_EQ(first.error(), 0);
    Queues rest(fd_, 10);
    ASSERT_EQ(rest.error(), 0);
    EXPECT_EQ(rest.reply().queues, 3u) << "as many as there are";
    EXPECT_EQ(Queues(fd_).error(), -EBUSY);
    EXPECT_EQ(rest.end(fd_), 0);
    Queues again(fd_, 3);
    EXPECT_EQ(again.error(), 0);
    EXPECT_EQ(again.reply().queues, 3u);
    std::string got(kFile, '\0');
    EXPECT_EQ(pread(fd_, &got[0], kFile, 0), static_cast<ssize_t>(kFile)) << "the mount goes on";
}

TEST_F(LeaseTest, QueuesOfTheBouncePathAreNotCountedAsFree)
{
    ASSERT_NO_FATAL_FAILURE(start());
    uint32_t most = info_of(fd_).lease_queues;
    Buffer bounced(fd_, kFile, GPUNVME_REGISTER_BOUNCE);
    ASSERT_EQ(bounced.error(), 0);
    Queues all(fd_, most);
    ASSERT_EQ(all.error(), 0);
    EXPECT_EQ(all.reply().queues, most);
}

TEST_F(LeaseTest, OnlyTheHolderEndsALeaseAndOnlyOnce)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=all"));
    Queues queues(fd_);
    auto end = abi_struct<gpunvme_ioc_lease_end>();
    end.id = queues.reply().id;
    end.key = queues.reply().key + 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_LEASE_END, &end), -EACCES);
    end.key--;
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(mounted_->path("file").c_str(), O_RDONLY);
        _exit(setuid(65534) == 0 ? -issue(fd, GPUNVME_IOC_LEASE_END, &end) : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), EACCES);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_LEASE_END, &end), 0);
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_LEASE_END, &end), -ENOENT);
    end.id = 0;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_LEASE_END, &end), -ENOENT);
}

// True when the request is answered, on a new connection.
bool has_reply(int fd, const gpunvme_request &question)
{
    gpunvme_reply reply;
    int s = connect_mount(fd);
    std::vector<int> fds = request(s, question, &reply);
    for (int got : fds)
        close(got);
    close(s);
    return !fds.empty();
}

TEST_F(LeaseTest, PartsAreGivenOnlyToTheHolder)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Queues queues(fd_, 2);
    Extents extents(fd_);
    uint64_t id = queues.reply().id, key = queues.reply().key;
    EXPECT_TRUE(has_reply(fd_, {GPUNVME_ASK_QUEUE, id, key, 1}));
    EXPECT_TRUE(has_reply(fd_, {GPUNVME_ASK_PAGE, id, key, 0}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_QUEUE, id, key + 1, 1}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_QUEUE, id + 1, key, 1}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_QUEUE, id, key, 2}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_QUEUE, id, key, UINT64_MAX}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_PAGE, id, key, 1}));
    EXPECT_FALSE(has_reply(fd_, {99, id, key, 0}));
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_QUEUE, extents.reply().id, extents.reply().key, 0}));
    EXPECT_EQ(queues.end(fd_), 0);
    EXPECT_FALSE(has_reply(fd_, {GPUNVME_ASK_PAGE, id, key, 0}));
}

// The daemon maps the page, too: a writable or shrinkable page could deceive
// holders or raise SIGBUS.
TEST_F(LeaseTest, HoldersCannotDamageSharedMemory)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Queues queues(fd_);
    gpunvme_reply reply;
    int s = connect_mount(fd_);
    uint64_t id = queues.reply().id, key = queues.reply().key;
    std::vector<int> page = request(s, {GPUNVME_ASK_PAGE, id, key, 0}, &reply);
    ASSERT_EQ(page.size(), 1u);
    EXPECT_EQ(mmap(nullptr, reply.len, PROT_WRITE, MAP_SHARED, page[0], 0), MAP_FAILED);
    std::string link = "/proc/self/fd/" + std::to_string(page[0]);
    int again = open(link.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(mmap(nullptr, reply.len, PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    EXPECT_LT(pwrite(again, &reply, 8, 0), 0);
    EXPECT_NE(ftruncate(again, 0), 0);
    std::vector<int> queue = request(s, {GPUNVME_ASK_QUEUE, id, key, 0}, &reply);
    ASSERT_EQ(queue.size(), 2u);
    EXPECT_NE(ftruncate(queue[0], 0), 0);
    EXPECT_NE(ftruncate(queue[1], 0), 0);
    for (int fd : {page[0], again, queue[0], queue[1], s})
        close(fd);
}

// A GPU of the holder reaches no doorbells that the executor does not reach.
TEST_F(LeaseTest, AtTier0TheDaemonRingsTheDoorbells)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=root,doorbells=cpu"));
    LeasedReader r(fd_, 2);
    ASSERT_EQ(info_of(fd_).tier, 0u);
    ASSERT_TRUE(r.mapped);
    EXPECT_NE(r.queues.doorbells().find("gpunvme-doorbells"), std::string::npos)
        << r.queues.doorbells();
    r.expect_file(2);
    r.expect_end(fd_);
}

// The files with rings that the holder of a lease can map.
std::vector<int> rings_of(int fd, const Queues &lease)
{
    std::vector<int> rings;
    Fd s = connect_mount(fd);

    for (uint64_t i = 0; i < lease.reply().queues; i++) {
        gpunvme_reply reply;
        std::vector<int> fds =
            request(s, {GPUNVME_ASK_QUEUE, lease.reply().id, lease.reply().key, i}, &reply);
        EXPECT_EQ(fds.size(), 2u);
        if (!fds.empty())
            rings.push_back(fds[0]);
        for (size_t k = 1; k < fds.size(); k++)
            close(fds[k]);
    }
    return rings;
}

std::string read_whole(int fd)
{
    std::string bytes(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return bytes;
}

// Whatever a holder leaves in its memory, orderly or by a close, the next one cannot map it.
TEST_F(LeaseTest, AHolderSeesNoDataOfAnEarlierHolder)
{
    ASSERT_NO_FATAL_FAILURE(start());
    for (int i = 0; i < 4; i++) {
        Fd holder = open_on(mounted_->path("file"), O_RDONLY);
        Queues queues(holder, 3);
        ASSERT_EQ(queues.error(), 0);
        std::vector<int> rings = rings_of(holder, queues);
        ASSERT_EQ(rings.size(), 3u);
        for (int file : rings)
            EXPECT_EQ(read_whole(file).find('s'), std::string::npos) << i;
        for (int file : rings) {
            std::string secret(read_whole(file).size(), 's');
            EXPECT_EQ(pwrite(file, secret.data(), secret.size(), 0),
                      static_cast<ssize_t>(secret.size()));
            close(file);
        }
        if (i % 2) {
            EXPECT_EQ(queues.end(holder), 0);
        }
    }
}

TEST_F(LeaseTest, HolesAndUnwrittenBlocksAreZeros)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Fd fd = open_on(mounted_->path("holes"), O_RDWR | O_CREAT);
    std::string data(kPage, 'x');
    ASSERT_EQ(pwrite(fd, data.data(), kPage, 3 * kPage), static_cast<ssize_t>(kPage));
    ASSERT_EQ(fallocate(fd, 0, 4 * kPage, kPage), 0);
    ASSERT_EQ(ftruncate(fd, 8 * kPage + 100), 0);
    Extents extents(fd);
    ASSERT_EQ(extents.error(), 0);
    EXPECT_EQ(extents.reply().size, 8u * kPage + 100);
    EXPECT_EQ(extents.reply().count, 3u) << "a hole, a block, and what follows it joined";
    ASSERT_TRUE(extents.map(fd));
    EXPECT_EQ(extents.lba(0, 512), UINT64_MAX);
    EXPECT_EQ(extents.lba(2 * kPage, 512), UINT64_MAX);
    EXPECT_NE(extents.lba(3 * kPage, 512), UINT64_MAX);
    EXPECT_EQ(extents.lba(4 * kPage, 512), UINT64_MAX);
    EXPECT_EQ(extents.lba(8 * kPage, 512), UINT64_MAX);
    ASSERT_EQ(ftruncate(fd, 0), 0);
    Extents empty(fd);
    EXPECT_EQ(empty.error(), 0);
    EXPECT_EQ(empty.reply().count, 0u);
    EXPECT_EQ(empty.reply().size, 0u);
}

TEST_F(LeaseTest, GenerationFollowsExtentsAndSize)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Extents one(fd_), two(fd_);
    ASSERT_TRUE(one.map(fd_) && two.map(fd_));
    uint64_t before = one.generation();
    EXPECT_EQ(before, one.reply().generation);
    std::string data(kPage, 'x');
    ASSERT_EQ(pwrite(fd_, data.data(), kPage, 0), static_cast<ssize_t>(kPage));
    struct timespec times[2] = {};
    ASSERT_EQ(futimens(fd_, times), 0);
    EXPECT_EQ(one.generation(), before) << "written in place, touched";
    ASSERT_EQ(pwrite(fd_, data.data(), 100, kFile), 100);
    EXPECT_NE(one.generation(), before) << "longer";
    EXPECT_NE(two.generation(), before);
    before = one.generation();
    ASSERT_EQ(ftruncate(fd_, kFile + 50), 0);
    EXPECT_NE(one.generation(), before) << "shorter, of the same blocks";
    before = one.generation();
    ASSERT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage), 0);
    EXPECT_NE(one.generation(), before) << "a hole";
    before = one.generation();
    EXPECT_EQ(two.end(fd_), 0);
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    EXPECT_NE(one.generation(), before);
    Extents fresh(fd_);
    ASSERT_TRUE(fresh.map(fd_));
    EXPECT_EQ(fresh.generation(), fresh.reply().generation);
}

// The file is deleted and the space is needed, but blocks of other files cannot
// be read.
TEST_F(LeaseTest, PinnedBlocksAreNotReused)
{
    ASSERT_NO_FATAL_FAILURE(start());
    LeasedReader r(fd_);
    ASSERT_TRUE(r.mapped);
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    ASSERT_EQ(fsync(fd_), 0);
    Fd other = open_on(mounted_->path("other"), O_RDWR | O_CREAT);
    std::string block(kFile, '!');
    while (write(other, block.data(), kFile) > 0)
        ;
    EXPECT_EQ(errno, ENOSPC);
    r.expect_file();
    r.expect_end(fd_);
    EXPECT_EQ(write(other, block.data(), kFile / 2), static_cast<ssize_t>(kFile / 2))
        << "the blocks are free now: " << strerror(errno);
}

TEST_F(LeaseTest, AnUnregisteredBufferIsOutOfReach)
{
    ASSERT_NO_FATAL_FAILURE(start());
    int error;
    Buffer buffer(fd_, kFile);
    uint64_t iova = iova_of(fd_, buffer, &error).iova;
    Queues queues(fd_);
    ASSERT_TRUE(queues.map(fd_));
    EXPECT_EQ(queues.run(0, kRead, 0, 8, iova), 0);
    ASSERT_EQ(buffer.unregister(fd_), 0);
    memset(buffer.data(), 'u', kFile);
    EXPECT_GT(queues.run(0, kRead, 0, 8, iova), 0);
    EXPECT_EQ(buffer.data()[0], 'u');
    iova_of(fd_, buffer, &error);
    EXPECT_EQ(error, -ENOENT);
}

TEST_F(LeaseTest, QueuesAreLeasedWithoutAnExecutorToo)
{
    ASSERT_NO_FATAL_FAILURE(start("gpu=off,direct=root"));
    int error;
    Buffer buffer(fd_, kPage);
    Queues queues(fd_, 40);
    EXPECT_EQ(queues.error(), 0);
    EXPECT_EQ(queues.reply().queues, 40u);
    iova_of(fd_, buffer, &error);
    EXPECT_EQ(error, -ENOTSUP);
}

// --- The end of leases: by close, kill, unmount and reset, on several kinds of drives ------------

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
        server_ = std::make_unique<Server>(std::vector<std::string>{"--size=64M"});
        setenv("GPUNVME_TEST_DEVICE", ("vfio-user:" + server_->path).c_str(), 1);
        mounted_ = std::make_unique<Mounted>(64u << 20);
    }
    void TearDown() override
    {
        LeaseTest::TearDown();
        unsetenv("GPUNVME_TEST_DEVICE");
    }

    std::unique_ptr<Server> server_;
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
