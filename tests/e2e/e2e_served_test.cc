/* SPDX-License-Identifier: BSD-2-Clause */
// A vfio-user drive: the file system and the drive share only the protocol and
// memory, and each process may be killed alone.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "layout/format.h"
#include "tests/e2e/content.h"
#include "tests/e2e/served_rig.h"

namespace
{

constexpr double kSlack = 20;                      // a busy machine, a sanitizer
constexpr int kSuiteSeconds = 3 * kProgramSeconds; // a suite mounts dozens of times

// ManyBuffers is left out: this server keeps more regions than the case fills.
TEST_F(Served, ThePartsOfTheSuiteRunOnIt)
{
    setenv("GPUNVME_TEST_SMALL", "1", 1);
    for (const char *suite : {GPUNVME_E2E_TEST, GPUNVME_BUFFER_TEST, GPUNVME_POSIX_TEST}) {
        std::string output;
        EXPECT_EQ(run_program({suite, "--gtest_filter=-*ManyBuffers*"}, &output, kSuiteSeconds), 0)
            << output;
        EXPECT_EQ(output.find("SKIPPED"), std::string::npos) << output;
    }
    unsetenv("GPUNVME_TEST_SMALL");
}

TEST_F(Served, MemoryThatEndsWithinAPageIsReachedByTheDrive)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    int fd = write_content(m.path("file"), 1);
    connection *g;
    gpunvme_buffer *buffer;
    gpunvme_result result = {};
    ASSERT_EQ(connection_open(m.path("").c_str(), &g), 0) << gpunvme_error();
    ASSERT_EQ(buffer_alloc(g, kFile - 1000, &buffer), 0) << gpunvme_error();
    EXPECT_EQ(transfer_read(buffer, fd, 0, 0, kFile - 1000, &result),
              static_cast<ssize_t>(kFile - 1000));
    EXPECT_EQ(result.path, static_cast<uint32_t>(GPUNVME_PATH_GPU)) << result.why;
    EXPECT_EQ(result.staged, 0u);
    connection_close(g);
    close(fd);
    EXPECT_TRUE(m.unmount()) << m.log();
}

// A read, an ioctl and an fsync are in flight when the server is killed.
TEST_F(Served, AKilledServerEndsAllOperationsAndTheNextOneHasTheSyncedData)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu,deadline=1000,commit=3600")) << m.log();
    int synced = write_content(m.path("synced"), 1);
    ASSERT_EQ(fsync(synced), 0);
    int lost = write_content(m.path("lost"), 2);
    connection *g;
    gpunvme_buffer *buffer;
    ASSERT_EQ(connection_open(m.path("").c_str(), &g), 0) << gpunvme_error();
    ASSERT_EQ(buffer_alloc(g, kFile, &buffer), 0) << gpunvme_error();
    ssize_t last = 0;
    /*
     * The read in flight may end short, since the bytes it moved are valid: the
     * next one fails.
     */
    std::thread reader([&] {
        while (last >= 0)
            last = transfer_read(buffer, synced, 0, 0, kFile, nullptr);
    });
    usleep(100000);
    server_->stop(SIGKILL);
    server_.reset();
    auto start = std::chrono::steady_clock::now();
    EXPECT_LT(fsync(lost), 0) << "not durable";
    EXPECT_EQ(errno, EIO);
    reader.join();
    EXPECT_EQ(last, -EIO);
    gpunvme_ioc_info info;
    EXPECT_EQ(gpunvme_info(connection_fd(g), &info), 0) << gpunvme_error();
    EXPECT_NE(std::string(info.tier_note).find("has failed"), std::string::npos) << info.tier_note;
    posix_fadvise(synced, 0, 0, POSIX_FADV_DONTNEED);
    char byte;
    EXPECT_LT(pread(synced, &byte, 1, kFile - 1), 0);
    EXPECT_EQ(errno, EIO);
    connection_close(g);
    close(synced);
    close(lost);
    EXPECT_EQ(umount(m.mountpoint().c_str()), 0) << strerror(errno);
    EXPECT_FALSE(m.ended()) << "what was written is not all on the drive";
    EXPECT_EQ(m.status(), 2) << m.log();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 3 + kSlack) << "twice the deadline and a second";

    serve();
    std::string output;
    EXPECT_EQ(m.fsck(&output), 0) << output;
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    EXPECT_TRUE(has_content(m.path("synced"), 1));
    EXPECT_TRUE(m.unmount()) << m.log();
}

// Clears every second block of the log's second place. Returns the place in blocks, FIRST+COUNT.
std::string lose_log(const std::string &image)
{
    std::fstream file(image, std::ios::in | std::ios::out | std::ios::binary);
    lay_label label{};
    const std::string zeros(LAY_BLOCK_SIZE, '\0');
    file.read(reinterpret_cast<char *>(&label), sizeof(label));
    uint64_t first = lay_get64(label.logs[1]), blocks = lay_get64(label.log_blocks);
    EXPECT_NE(first, 0u);
    for (uint64_t i = 0; i < blocks; i += 2) {
        file.seekp(static_cast<std::streamoff>((first + i) * LAY_BLOCK_SIZE));
        file.write(zeros.data(), LAY_BLOCK_SIZE);
    }
    EXPECT_TRUE(file.good());
    return std::to_string(first) + "+" + std::to_string(blocks);
}

// One place of the log is written again from the other one, a second for each block.
TEST_F(Served, ASignalEndsTheRewriteOfALostLog)
{
    constexpr unsigned kFiles = 60;
    Mounted m(kImage, {"-O", "meta_copies"});
    ASSERT_TRUE(m.mount("executor=cpu,nommp,commit=3600")) << m.log();
    for (unsigned i = 0; i < kFiles; i++) {
        Fd fd = open(m.path(std::to_string(i)).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
        ASSERT_EQ(fsync(fd), 0);
    }
    kill(m.pid(), SIGKILL);
    EXPECT_FALSE(m.ended());
    server_->stop(SIGTERM);
    serve({"--fault", "late,op=write,ms=1000,lba=" + lose_log(image_)});
    auto mounted = std::async(std::launch::async, [&] { return m.mount("executor=cpu,nommp"); });
    for (unsigned i = 0; i < 60000 && m.log().find(" from its other place") == std::string::npos;
         i++)
        usleep(1000);
    kill(m.pid(), SIGTERM);
    EXPECT_FALSE(mounted.get());
    EXPECT_EQ(m.status(), 32) << m.log();
    EXPECT_NE(m.log().find("Terminated during the mount, nothing is lost"), std::string::npos)
        << m.log();
    serve();
    ASSERT_TRUE(m.mount("executor=cpu,nommp")) << m.log();
    EXPECT_NE(m.log().find(" from its other place"), m.log().rfind(" from its other place"))
        << "the first mount has completed it";
    for (unsigned i = 0; i < kFiles; i++)
        EXPECT_EQ(access(m.path(std::to_string(i)).c_str(), F_OK), 0) << i;
    expect_good_end(&m);
}

} // namespace
