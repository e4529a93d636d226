// Leases over a mount: who gets them, what they reach, and how they end.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/daemon/client.h"
#include "tests/daemon/lease_client.h"
#include "tests/daemon/tokens.h"
#include "tests/e2e/mounted.h"

namespace
{

constexpr size_t kFile = 1u << 20;
constexpr uint32_t kPage = 4096;
constexpr uint8_t kRead = 2;

std::string content(size_t len, unsigned seed)
{
    std::string s(len, '\0');
    for (size_t i = 0; i < len; i++)
        s[i] = static_cast<char>(i * 31 + i / kPage * 7 + seed);
    return s;
}

class LeaseTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (!why_no_mount().empty())
            GTEST_SKIP() << why_no_mount();
        mounted_ = std::make_unique<Mounted>(64u << 20);
    }
    void TearDown() override
    {
        if (!mounted_)
            return;
        if (fd_ >= 0)
            close(fd_);
        if (mounted_->pid() > 0) {
            EXPECT_TRUE(mounted_->unmount()) << mounted_->log();
        }
        std::string output;
        EXPECT_EQ(mounted_->fsck(&output), 0) << output;
    }
    // A mount with a file of known content, open.
    void start(const std::string &options = "executor=cpu,direct=root")
    {
        ASSERT_TRUE(mounted_->mount(options)) << mounted_->log();
        fd_ = make("file", 1);
    }
    int make(const std::string &name, unsigned seed, size_t len = kFile)
    {
        int fd = open_on(mounted_->path(name), O_RDWR | O_CREAT);
        std::string data = content(len, seed);
        if (write(fd, data.data(), len) != static_cast<ssize_t>(len))
            perror("write");
        return fd;
    }

    std::unique_ptr<Mounted> mounted_;
    int fd_ = -1;
};

// Page after page of the file through the leased queue, into the buffer.
::testing::AssertionResult reads(Queues *q, size_t queue, const Extents &e, uint64_t iova,
                                 size_t from, size_t to)
{
    uint32_t size = q->told().lba_size;
    for (size_t at = from; at < to; at += kPage) {
        int status = q->run(queue, kRead, e.lba(at, size), kPage / size, iova + at);
        if (status)
            return ::testing::AssertionFailure() << "status " << status << " at " << at;
    }
    return ::testing::AssertionSuccess();
}

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
    EXPECT_EQ(queues.told().queues, 4u);
    EXPECT_EQ(queues.told().depth, 64u);
    EXPECT_EQ(queues.told().nsid, 1u);
    ASSERT_TRUE(queues.map(fd_));
    Extents extents(fd_);
    ASSERT_EQ(extents.error(), 0);
    EXPECT_EQ(extents.told().size, kFile);
    ASSERT_TRUE(extents.map(fd_));
    EXPECT_EQ(extents.state(), GPUNVME_LEASE_VALID);
    EXPECT_EQ(extents.generation(), extents.told().generation);
    for (size_t i = 0; i < 4; i++)
        ASSERT_TRUE(reads(&queues, i, extents, iova.iova, i * kFile / 4, (i + 1) * kFile / 4));
    EXPECT_EQ(memcmp(buffer.data(), content(kFile, 1).data(), kFile), 0);
    EXPECT_EQ(queues.end(fd_), 0);
    EXPECT_EQ(extents.end(fd_), 0);
}

TEST_F(LeaseTest, NobodyLeasesWithoutTheOption)
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

} // namespace
