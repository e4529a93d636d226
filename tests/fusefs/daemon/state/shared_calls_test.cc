/* SPDX-License-Identifier: BSD-2-Clause */
// SHARE_CALLS: counters of programs in STATS and OPEN_FILES, whatever the programs do to them.
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/lease/lease_rig.h"

namespace
{

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
    auto told = std::make_unique<gpunvme_ioc_open_files>(abi_struct<gpunvme_ioc_open_files>());
    std::vector<gpunvme_open_file> found;

    EXPECT_EQ(issue(fd, GPUNVME_IOC_OPEN_FILES, told.get()), 0);
    for (uint32_t i = 0; i < told->count; i++) {
        if (told->files[i].shared_calls)
            found.push_back(told->files[i]);
    }
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
