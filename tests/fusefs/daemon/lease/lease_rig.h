/* SPDX-License-Identifier: BSD-2-Clause */
// A mount with a file of known content, and helpers for readers with leases.
#ifndef TESTS_DAEMON_LEASE_RIG_H
#define TESTS_DAEMON_LEASE_RIG_H

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/e2e/content.h"
#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"
#include "tests/fusefs/daemon/lease/lease_client.h"

constexpr size_t kFile = 1u << 20;
constexpr uint32_t kPage = 4096;
constexpr uint8_t kRead = 2;

inline std::string content(size_t len, unsigned seed)
{
    std::string s(len, '\0');
    content_fill(seed, 0, reinterpret_cast<uint8_t *>(s.data()), len);
    return s;
}

class LeaseTest : public MountedTest
{
  protected:
    void set_up() override { mounted_ = std::make_unique<Mounted>(64u << 20); }
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
};

// Page after page of the file through the leased queue, into the buffer.
inline ::testing::AssertionResult reads(Queues *q, size_t queue, const Extents &e, uint64_t iova,
                                        size_t from, size_t to)
{
    uint32_t size = q->reply().lba_size;

    for (size_t at = from; at < to; at += kPage) {
        int status = q->run(queue, kRead, e.lba(at, size), kPage / size, iova + at);
        if (status)
            return ::testing::AssertionFailure() << "status " << status << " at " << at;
    }
    return ::testing::AssertionSuccess();
}

// LeasedReader leases queues and a file, and has a buffer to read the file into.
struct LeasedReader {
    explicit LeasedReader(int fd, uint32_t n_queues = 1)
        : buffer(fd, kFile), iova(iova_of(fd, buffer, &error).iova), queues(fd, n_queues),
          extents(fd), mapped(queues.map(fd) && extents.map(fd))
    {
    }
    // Reads the file in parts, each by another queue.
    void expect_file(size_t parts = 1)
    {
        for (size_t i = 0; i < parts; i++)
            ASSERT_TRUE(
                reads(&queues, i, extents, iova, i * kFile / parts, (i + 1) * kFile / parts));
        EXPECT_EQ(memcmp(buffer.data(), content(kFile, 1).data(), kFile), 0);
    }
    void expect_end(int fd) const
    {
        EXPECT_EQ(queues.end(fd), 0);
        EXPECT_EQ(extents.end(fd), 0);
    }

    int error = 0;
    Buffer buffer;
    uint64_t iova;
    Queues queues;
    Extents extents;
    bool mapped;
};

#endif
