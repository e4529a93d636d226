/* SPDX-License-Identifier: BSD-2-Clause */
// Tests ranges of a device's memory. A file stands in for the memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

extern "C" {
#include "client/lib/bar_range.h"
}

namespace
{

constexpr size_t kPage = 4096, kSize = 8 * kPage;

class BarRange : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        int fd = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        ASSERT_GE(fd, 0);
        ASSERT_EQ(ftruncate(fd, kSize), 0);
        close(fd);
    }
    void TearDown() override { unlink(path_.c_str()); }
    bar_range take(size_t len)
    {
        bar_range r = {};
        EXPECT_EQ(bar_range_alloc(path_.c_str(), len, &r), 0);
        return r;
    }
    int refused(size_t len)
    {
        bar_range r = {};
        return bar_range_alloc(path_.c_str(), len, &r);
    }
    static void unmap(const bar_range &r, size_t len)
    {
        munmap(r.addr, len);
        close(r.fd);
    }

    std::string path_ = testing::TempDir() + "/bar-range-" + std::to_string(getpid());
};

TEST_F(BarRange, RangesAreWholePagesApart)
{
    bar_range a = take(1), b = take(kPage + 1), c = take(5 * kPage);

    EXPECT_EQ(a.offset, 0u);
    EXPECT_EQ(b.offset, kPage);
    EXPECT_EQ(c.offset, 3 * kPage);
    static_cast<char *>(b.addr)[kPage] = 'b';
    char got = 0;
    EXPECT_EQ(pread(a.fd, &got, 1, 2 * kPage), 1);
    EXPECT_EQ(got, 'b');
    EXPECT_EQ(refused(1), -ENOMEM);
    unmap(b, kPage + 1);
    EXPECT_EQ(refused(2 * kPage + 1), -ENOMEM);
    bar_range d = take(2 * kPage);
    EXPECT_EQ(d.offset, kPage);
    unmap(a, 1);
    unmap(c, 5 * kPage);
    unmap(d, 2 * kPage);
}

TEST_F(BarRange, LongerOnesThanTheMemoryAreRefused)
{
    EXPECT_EQ(refused(kSize + 1), -ENOMEM);
    EXPECT_EQ(refused(SIZE_MAX), -ENOMEM);
    unlink(path_.c_str());
    EXPECT_EQ(refused(1), -ENOENT);
}

TEST_F(BarRange, AnotherHolderKeepsARange)
{
    bar_range a = take(kSize);
    int held = fcntl(a.fd, F_DUPFD_CLOEXEC, 0);
    pid_t pid = fork();

    if (pid == 0)
        _exit(refused(1) == -ENOMEM ? 0 : 1);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "another process gets none of it";
    unmap(a, kSize);
    EXPECT_EQ(refused(1), -ENOMEM) << "a duplicate is open";
    void *mapped = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, held, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    close(held);
    EXPECT_EQ(refused(1), -ENOMEM) << "a mapping is left";
    munmap(mapped, kPage);
    unmap(take(kSize), kSize);
}

TEST(BarRangeSet, TheEnvironmentNamesTheDevice)
{
    bar_range r;

    unsetenv("GPUNVME_CPU_MEMORY");
    EXPECT_FALSE(bar_range_is_set());
    setenv("GPUNVME_CPU_MEMORY", "", 1);
    EXPECT_FALSE(bar_range_is_set());
    setenv("GPUNVME_CPU_MEMORY", "0000:ff:1f.7", 1);
    EXPECT_TRUE(bar_range_is_set());
    EXPECT_EQ(bar_range_alloc_set(1, &r), -ENOENT);
    unsetenv("GPUNVME_CPU_MEMORY");
}

} // namespace
