/* SPDX-License-Identifier: BSD-2-Clause */
// OPEN_FILES and QUEUES: counts by file, by process and by queue, and the rights to see them.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/fusefs/daemon/lease/lease_rig.h"

namespace
{

using ActivityTest = LeaseTest;

// All that the caller is told, of the youngest first.
std::vector<gpunvme_open_file> files_of(int fd)
{
    auto told = std::make_unique<gpunvme_ioc_open_files>(abi_struct<gpunvme_ioc_open_files>());
    std::vector<gpunvme_open_file> all;

    do {
        EXPECT_EQ(issue(fd, GPUNVME_IOC_OPEN_FILES, told.get()), 0);
        all.insert(all.end(), told->files, told->files + told->count);
    } while (told->below != 0 && !::testing::Test::HasFailure());
    return all;
}

std::vector<gpunvme_queue> queues_of(int fd)
{
    auto told = std::make_unique<gpunvme_ioc_queues>(abi_struct<gpunvme_ioc_queues>());

    EXPECT_EQ(issue(fd, GPUNVME_IOC_QUEUES, told.get()), 0);
    return {told->queues, told->queues + told->count};
}

uint64_t commands_of(int fd)
{
    uint64_t sum = 0;

    for (const gpunvme_queue &q : queues_of(fd))
        sum += q.commands;
    return sum;
}

TEST_F(ActivityTest, EachPathOfAnOpenFileIsCounted)
{
    ASSERT_NO_FATAL_FAILURE(start());
    struct stat st;
    ASSERT_EQ(fstat(fd_, &st), 0);
    ASSERT_EQ(fsync(fd_), 0);
    Buffer buffer(fd_, kFile), list(fd_, 4096, GPUNVME_REGISTER_LIST);
    uint64_t commands = commands_of(fd_);
    ASSERT_EQ(buffer.read(fd_, 0, 0, kFile), static_cast<ssize_t>(kFile));
    ASSERT_EQ(buffer.write(fd_, 0, 0, 8192), 8192);
    ASSERT_EQ(buffer.write(fd_, 100, 0, 8), 8) << "less than a block: through host memory";
    list.pieces()[0] = {0, 0, 4096, 0};
    list.pieces()[1] = {8192, 4096, 4096, 0};
    gpunvme_ioc_readv v = buffer.batch(list, 2);
    ASSERT_EQ(issue(fd_, GPUNVME_IOC_READV, &v), 0);
    auto files = files_of(fd_);
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].ino, st.st_ino);
    EXPECT_EQ(files[0].uid, geteuid());
    EXPECT_EQ(files[0].pid, static_cast<uint32_t>(getpid()));
    EXPECT_EQ(files[0].closed, 0u);
    EXPECT_EQ(files[0].gpu_read_bytes, kFile + 8192);
    EXPECT_EQ(files[0].gpu_written_bytes, 8192u);
    EXPECT_EQ(files[0].bounce_written_bytes, 8u);
    EXPECT_EQ(files[0].bounce_read_bytes, 0u);
    EXPECT_EQ(files[0].kernel_written_bytes, kFile);
    EXPECT_GT(commands_of(fd_), commands);
}

TEST_F(ActivityTest, ReadsByTheKernelAreCountedAtTheirFile)
{
    ASSERT_NO_FATAL_FAILURE(start());
    std::string page(kPage, '\0');
    Fd direct = open_on(mounted_->path("file"), O_RDONLY | O_DIRECT);
    void *memory = nullptr;
    ASSERT_EQ(posix_memalign(&memory, kPage, kPage), 0);
    ASSERT_EQ(pread(direct, memory, kPage, 0), static_cast<ssize_t>(kPage));
    free(memory);
    auto files = files_of(fd_);
    ASSERT_EQ(files.size(), 2u);
    EXPECT_GT(files[0].id, files[1].id) << "the youngest first";
    EXPECT_EQ(files[0].kernel_read_bytes, kPage);
    EXPECT_EQ(files[1].kernel_read_bytes, 0u);
}

// close() does not wait for RELEASE.
TEST_F(ActivityTest, ClosedFilesAreReportedForAWhile)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Buffer buffer(fd_, kPage);
    int other = open_on(mounted_->path("file"), O_RDONLY);
    ASSERT_EQ(buffer.read(other, 0, 0, kPage), static_cast<ssize_t>(kPage));
    close(other);
    size_t closed = 0;
    for (int i = 0; i < 2000 && !closed; i++) {
        usleep(i ? 10000 : 0);
        auto files = files_of(fd_);
        closed = static_cast<size_t>(std::count_if(
            files.begin(), files.end(), [](const gpunvme_open_file &f) { return f.closed == 1; }));
        EXPECT_EQ(files.size(), 2u);
    }
    EXPECT_EQ(closed, 1u);
}

TEST_F(ActivityTest, ManyOpenFilesAreReportedInSeveralReplies)
{
    ASSERT_NO_FATAL_FAILURE(start());
    const size_t n = 2 * GPUNVME_OPEN_FILES_MAX;
    Buffer buffer(fd_, kPage);
    std::vector<int> fds;
    std::set<uint64_t> ids;
    for (size_t i = 0; i < n; i++) {
        fds.push_back(open_on(mounted_->path("file"), O_RDONLY));
        ASSERT_EQ(buffer.read(fds.back(), 0, 0, kPage), static_cast<ssize_t>(kPage));
    }
    for (const gpunvme_open_file &f : files_of(fd_))
        EXPECT_TRUE(ids.insert(f.id).second) << "told twice";
    EXPECT_EQ(ids.size(), n + 1);
    for (int fd : fds)
        close(fd);
}

TEST_F(ActivityTest, AUserSeesOnlyItsOwnFiles)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to become another user";
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=root,allow_other"));
    Fd lent = open_on(mounted_->path("file"), O_RDONLY);
    Queues queues(lent, 1);
    ASSERT_EQ(queues.error(), 0);
    Fd own = open_on(mounted_->path("file"), O_RDONLY);
    ASSERT_EQ(seteuid(1234), 0);
    size_t before = files_of(own).size();
    Buffer buffer(own, kPage);
    ssize_t n = buffer.read(own, 0, 0, kPage);
    auto files = files_of(own);
    auto leased = queues_of(own).back();
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(before, 0u);
    EXPECT_EQ(n, static_cast<ssize_t>(kPage));
    ASSERT_EQ(files.size(), 1u);
    EXPECT_EQ(files[0].uid, 1234u);
    EXPECT_EQ(leased.use, GPUNVME_QUEUE_LEASED);
    EXPECT_EQ(leased.pid, 0u);
    EXPECT_EQ(files_of(fd_).size(), 2u);
    EXPECT_EQ(queues_of(fd_).back().pid, static_cast<uint32_t>(getpid()));
}

// As the drive has seen them: the holder tells nothing.
TEST_F(ActivityTest, CommandsOnLeasedQueuesAreCounted)
{
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_EQ(fsync(fd_), 0);
    Buffer buffer(fd_, kFile);
    int error = 0;
    uint64_t iova = iova_of(fd_, buffer, &error).iova;
    ASSERT_EQ(error, 0);
    for (int turn = 1; turn <= 2; turn++) {
        Fd lent = open_on(mounted_->path("file"), O_RDONLY);
        Queues queues(lent, 2, 8);
        Extents extents(fd_);
        ASSERT_TRUE(queues.map(lent) && extents.map(fd_));
        ASSERT_TRUE(reads(&queues, 1, extents, iova, 0, 40 * kPage)) << "rings wrap";
        auto all = queues_of(fd_);
        EXPECT_EQ(all[all.size() - 2].commands + all.back().commands, 40u);
        EXPECT_EQ(stats_of(fd_).leased_commands, turn * 40u);
        ASSERT_EQ(queues.end(lent), 0);
        EXPECT_EQ(stats_of(fd_).leased_commands, turn * 40u) << "also of leases that have ended";
    }
}

TEST_F(ActivityTest, ReservedFieldsMustBeZero)
{
    ASSERT_NO_FATAL_FAILURE(start());
    auto told = std::make_unique<gpunvme_ioc_open_files>(abi_struct<gpunvme_ioc_open_files>());
    told->reserved = 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_OPEN_FILES, told.get()), -EINVAL);
    auto queues = std::make_unique<gpunvme_ioc_queues>(abi_struct<gpunvme_ioc_queues>());
    queues->reserved = 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_QUEUES, queues.get()), -EINVAL);
}

// --- Counters that programs share ----------------------------------------------------------------

// A program that counts: a description, and its counters.
class Program
{
  public:
    explicit Program(const std::string &path) : fd_(open_on(path, O_RDONLY | O_DIRECTORY))
    {
        memory_ = shared_memory(sizeof(gpunvme_calls));
        at_ = static_cast<gpunvme_calls *>(
            mmap(nullptr, sizeof(gpunvme_calls), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
    }
    ~Program()
    {
        munmap(at_, sizeof(gpunvme_calls));
        close(memory_);
        if (fd_ >= 0)
            close(fd_);
    }
    int share() const
    {
        auto arg = abi_struct<gpunvme_ioc_share_calls>();

        arg.token = token_of(fd_, memory_);
        return issue(fd_, GPUNVME_IOC_SHARE_CALLS, &arg);
    }
    void count(uint64_t bytes)
    {
        gpunvme_calls_of *direct = &at_->by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1];

        direct->bytes += bytes;
        direct->latency.buckets[3]++;
        at_->pipeline_written_bytes += 1;
    }
    int memory() const { return memory_; }
    void end()
    {
        close(fd_);
        fd_ = -1;
    }

  private:
    int fd_, memory_;
    gpunvme_calls *at_;
};

uint64_t direct_bytes(int fd)
{
    return stats_of(fd).calls.by[GPUNVME_OP_READ][GPUNVME_CALLS_DIRECT - 1].bytes;
}

std::vector<gpunvme_open_file> programs_of(int fd)
{
    auto found = files_of(fd);

    found.erase(std::remove_if(found.begin(), found.end(), [](auto &f) { return !f.shared_calls; }),
                found.end());
    return found;
}

// close(2) does not wait for RELEASE.
bool await_closed(int fd)
{
    for (int i = 0; i < 2000; i++) {
        auto found = programs_of(fd);
        if (found.size() == 1 && found[0].closed)
            return true;
        usleep(10000);
    }
    return false;
}

using SharedCallsTest = LeaseTest;

TEST_F(SharedCallsTest, AreReportedWhileAProgramRunsAndAfterItsEnd)
{
    ASSERT_NO_FATAL_FAILURE(start());
    {
        Program silent(mounted_->path("")), one(mounted_->path("")), two(mounted_->path(""));
        ASSERT_EQ(silent.share() | one.share() | two.share(), 0);
        EXPECT_TRUE(programs_of(fd_).empty()) << "they have not counted";
        one.count(1000);
        one.count(1000);
        two.count(30);
        EXPECT_EQ(direct_bytes(fd_), 2030u);
        auto found = programs_of(fd_);
        ASSERT_EQ(found.size(), 2u);
        EXPECT_EQ(found[0].gpu_read_bytes, 30u) << "the youngest first";
        EXPECT_EQ(found[1].gpu_read_bytes, 2000u);
        EXPECT_EQ(found[1].bounce_written_bytes, 2u);
        EXPECT_EQ(found[1].calls, 2u);
        EXPECT_EQ(found[1].pid, static_cast<uint32_t>(getpid()));
        EXPECT_EQ(stats_of(fd_).calls.pipeline_written_bytes, 3u);
    }
    EXPECT_EQ(direct_bytes(fd_), 2030u);
}

TEST_F(SharedCallsTest, DoNotChangeWhenAProgramTruncatesThem)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Program p(mounted_->path(""));
    ASSERT_EQ(p.share(), 0);
    p.count(5000);
    EXPECT_EQ(direct_bytes(fd_), 5000u);
    ASSERT_EQ(ftruncate(p.memory(), 10), 0);
    EXPECT_EQ(direct_bytes(fd_), 5000u);
    p.end();
    EXPECT_TRUE(await_closed(fd_));
    EXPECT_EQ(direct_bytes(fd_), 5000u);
}

TEST_F(SharedCallsTest, AreSharedOnceByADescription)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Program p(mounted_->path(""));
    auto wrong = abi_struct<gpunvme_ioc_share_calls>();
    wrong.token = 1;
    EXPECT_EQ(issue(fd_, GPUNVME_IOC_SHARE_CALLS, &wrong), -ENOENT);
    ASSERT_EQ(p.share(), 0);
    EXPECT_EQ(p.share(), -EALREADY);
    p.count(1);
    EXPECT_EQ(direct_bytes(fd_), 1u);
}

TEST_F(SharedCallsTest, OfOtherUsersAreOnlyInTheSum)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to become another user";
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu,direct=root,allow_other"));
    Program p(mounted_->path(""));
    ASSERT_EQ(p.share(), 0);
    p.count(7);
    ASSERT_EQ(seteuid(1234), 0);
    uint64_t sum = direct_bytes(fd_);
    size_t seen = programs_of(fd_).size();
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(sum, 7u);
    EXPECT_EQ(seen, 0u);
}

} // namespace
