/* SPDX-License-Identifier: BSD-2-Clause */
// A vfio-user drive: the file system and the drive share only the protocol and
// memory, and each process may be killed alone.
#include <fcntl.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

// mkfs writes the file by the file driver, and the served drive by the NVMe
// driver.
TEST_F(Served, MkfsWritesTheSameBytesByEachDriver)
{
    const std::string uuid = "11111111-2222-3333-4444-555555555555", file = dir_ + "/file";
    std::vector<std::string> make = {GPUNVME_MKFS, "-qf", "-U", uuid, "-E", "hash_seed=" + uuid};
    std::string output;
    serve({"--lba=512"}); // the LBA size of a file
    setenv("SOURCE_DATE_EPOCH", "1", 1);
    std::ofstream(file).close();
    std::filesystem::resize_file(file, kImage);
    for (const std::string &device : {file, device_}) {
        make.push_back(device);
        EXPECT_EQ(run_program(make, &output), 0) << output;
        make.pop_back();
    }
    unsetenv("SOURCE_DATE_EPOCH");
    EXPECT_EQ(server_->stop(SIGTERM), 0) << "mistakes of the driver";
    server_.reset();
    EXPECT_EQ(run_program({"/usr/bin/cmp", file, image_}, &output), 0) << output;
}

TEST_F(Served, TheServerReadsWhatTheMountWrote)
{
    {
        Mounted m(kImage);
        ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
        close(write_content(m.path("file"), 1));
        EXPECT_TRUE(m.unmount()) << m.log();
    }
    EXPECT_EQ(server_->stop(SIGTERM), 0);
    server_.reset();
    unsetenv("GPUNVME_TEST_DEVICE");
    std::string output;
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-n", image_}, &output), 0) << output;
}

TEST_F(Served, AWriteProtectedNamespaceIsMountedReadOnly)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    close(write_content(m.path("file"), 1));
    ASSERT_TRUE(m.unmount()) << m.log();
    serve({"--read-only"});
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    EXPECT_NE(m.log().find("write-protected, mounting read-only"), std::string::npos) << m.log();
    struct statvfs st;
    ASSERT_EQ(statvfs(m.mountpoint().c_str(), &st), 0);
    EXPECT_TRUE(st.f_flag & ST_RDONLY);
    EXPECT_LT(open(m.path("file").c_str(), O_RDWR | O_CLOEXEC), 0);
    EXPECT_EQ(errno, EROFS);
    EXPECT_TRUE(has_content(m.path("file"), 1));
    EXPECT_TRUE(m.unmount()) << m.log();
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

// A pause of the server longer than the deadline: its registers do not answer, and it is not gone.
TEST_F(Served, AServerThatIsStoppedAndContinuedOnlyCostsTime)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu,deadline=500")) << m.log();
    int fd = write_content(m.path("file"), 1);
    ASSERT_EQ(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    server_->pause();
    std::thread waker([&] {
        std::this_thread::sleep_for(std::chrono::seconds(4));
        server_->go_on();
    });
    EXPECT_TRUE(has_content(m.path("file"), 1));
    waker.join();
    close(fd);
    close(write_content(m.path("after"), 2));
    EXPECT_TRUE(has_content(m.path("after"), 2));
    EXPECT_TRUE(m.unmount()) << m.log();
}

TEST_F(Served, AKilledDaemonLeavesADriveThatCanBeMountedAtOnce)
{
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    int fd = write_content(m.path("synced"), 1);
    ASSERT_EQ(fsync(fd), 0);
    kill(m.pid(), SIGKILL);
    EXPECT_FALSE(m.ended());
    close(fd);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    EXPECT_TRUE(has_content(m.path("synced"), 1));
    EXPECT_TRUE(m.unmount()) << m.log();
}

TEST_F(Served, MkfsNamesTheDriveAndRefusesWhatItHolds)
{
    std::string output, swap(10, '\0');
    EXPECT_EQ(mkfs({"-n"}, &output), 0) << output;
    for (const char *line :
         {"Model: ", "Serial: ", "Namespace: 1\n", "Drive size: 402653184 bytes (402.65 MB)\n"})
        EXPECT_NE(output.find(line), std::string::npos) << output;

    server_->stop(SIGTERM);
    {
        std::fstream image(image_, std::ios::in | std::ios::out | std::ios::binary);
        image.seekp(1024);
        image.write("\x01\0\0\0\x64\0\0\0", 8);
        image.seekp(4096 - 10);
        image.write("SWAPSPACE2", 10);
    }
    serve();
    EXPECT_EQ(mkfs({"-q"}, &output), 1);
    EXPECT_EQ(output,
              "mkfs.gpunvme: " + device_ + ": holds a signature of swap, -f overwrites it\n");
    EXPECT_EQ(mkfs({"-q", "-f"}, &output), 0) << output;
    EXPECT_EQ(mkfs({"-q"}, &output), 1) << "our own";
    std::ifstream in(image_, std::ios::binary);
    in.seekg(4096 - 10);
    in.read(&swap[0], 10);
    EXPECT_NE(swap, "SWAPSPACE2") << "wiped on the drive";
}

TEST_F(Served, ToolsReportErrorsInOneLine)
{
    std::string output;
    EXPECT_EQ(mkfs({"-N", "7"}, &output), 1);
    EXPECT_NE(output.find(": cannot open: namespace 7: "), std::string::npos) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-n", device_}, &output), 8);
    EXPECT_NE(output.find("holds no gpunvmefs file system"), std::string::npos) << output;
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    for (const char *tool : {GPUNVME_MKFS, GPUNVME_FSCK}) {
        EXPECT_NE(run_program({tool, "-n", device_}, &output), 0) << tool << ": the drive is ours";
        EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    }
    EXPECT_TRUE(m.unmount()) << m.log();
    server_->stop(SIGTERM);
    server_.reset();
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-n", device_}, &output), 8);
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
}

// Requests of the mount that the kernel waits for.
unsigned requests_waiting(const std::string &control, const std::string &path)
{
    struct stat st;
    unsigned n = 0;
    EXPECT_EQ(stat(path.c_str(), &st), 0);
    std::ifstream in(control + "/" + std::to_string(major(st.st_dev) << 20 | minor(st.st_dev)) +
                     "/waiting");
    EXPECT_TRUE(in >> n);
    return n;
}

// Mounts the file system of FUSE connections at control, and returns when so many requests wait.
void await_requests(const std::string &control, const std::string &path, unsigned n)
{
    mkdir(control.c_str(), 0755);
    ASSERT_EQ(mount("fusectl", control.c_str(), "fusectl", 0, nullptr), 0) << strerror(errno);
    unsigned polls = 0; // in a row that found them
    for (unsigned i = 0; i < 30000 && polls < 200; i++) {
        polls = requests_waiting(control, path) < n ? 0 : polls + 1;
        usleep(1000);
    }
    EXPECT_EQ(polls, 200u);
    umount(control.c_str());
}

// Reads a page past the page cache, as this user.
ssize_t read_as(uid_t uid, int fd, off_t offset)
{
    alignas(4096) char page[4096];
    setfsuid(uid); // of this thread only
    return pread(fd, page, sizeof(page), offset);
}

// Returns the first block of 4096 bytes in the image that has the contents of the file's first one.
uint64_t block_of(const std::string &image, const std::string &file)
{
    char wanted[4096], block[4096];
    std::ifstream(file, std::ios::binary).read(wanted, sizeof(wanted));
    std::ifstream in(image, std::ios::binary);
    for (uint64_t i = 0; in.read(block, sizeof(block)); i++)
        if (memcmp(block, wanted, sizeof(block)) == 0)
            return i;
    ADD_FAILURE() << file << " is not in the image";
    return 0;
}

// Opens a file of a megabyte without data for reads that bypass the page cache.
int open_hole(const Mounted &m)
{
    int made = open(m.path("hole").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);

    EXPECT_EQ(ftruncate(made, 1 << 20), 0);
    close(made);
    return open(m.path("hole").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
}

// The drive answers no read of one file; its readers are more than there are session threads.
TEST_F(Served, ManyBlockedRequestsOfAUserDoNotStopAnother)
{
    constexpr unsigned kBlocked = 200;
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    close(write_content(m.path("data"), 1));
    close(open_hole(m));
    std::string lba = std::to_string(block_of(image_, m.path("data")));
    ASSERT_TRUE(m.unmount()) << m.log();
    serve({"--fault", "late,op=read,ms=3600000,lba=" + lba});
    ASSERT_TRUE(m.mount("executor=cpu,noatime,deadline=3600000")) << m.log();
    int hole = open_hole(m);
    int data = open(m.path("data").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    ASSERT_EQ(read_as(0, hole, 0), 4096);

    std::vector<std::thread> blocked;
    for (unsigned i = 0; i < kBlocked; i++)
        blocked.emplace_back([=] { EXPECT_LT(read_as(1000, data, 0), 0); });
    await_requests(dir_ + "/control", m.mountpoint(), kBlocked);
    auto other = std::async(std::launch::async, [=] { return read_as(1001, hole, 4096); });
    EXPECT_EQ(other.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    server_->stop(SIGKILL); // which ends the reads
    for (auto &t : blocked)
        t.join();
    other.wait();
    close(data);
    close(hole);
    umount2(m.mountpoint().c_str(), MNT_DETACH);
    m.ended();
    server_.reset();
}

// The server answers nothing, so that it maps no memory for further session threads.
TEST_F(Served, ASilentServerDoesNotStopRequestsThatNeedNoDrive)
{
    constexpr unsigned kBlocked = 30;
    Mounted m(kImage);
    ASSERT_TRUE(m.mount("executor=cpu,noatime,deadline=60000")) << m.log();
    close(write_content(m.path("data"), 1));
    int hole = open_hole(m);
    int data = open(m.path("data").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    ASSERT_EQ(read_as(0, hole, 0), 4096);
    ASSERT_EQ(fsync(data), 0);

    server_->pause();
    std::vector<std::thread> blocked;
    for (unsigned i = 0; i < kBlocked; i++)
        blocked.emplace_back([=] { EXPECT_EQ(read_as(1000, data, 4096 * i), 4096); });
    await_requests(dir_ + "/control", m.mountpoint(), kBlocked);
    for (unsigned i = 0; i < kBlocked; i++) {
        auto other = std::async(std::launch::async, [=] { return read_as(1001, hole, 4096); });
        EXPECT_EQ(other.wait_for(std::chrono::seconds(10)), std::future_status::ready) << i;
        if (HasFailure())
            server_->go_on();
    }
    server_->go_on();
    for (auto &t : blocked)
        t.join();
    close(data);
    close(hole);
    EXPECT_TRUE(m.unmount()) << m.log();
}

// The drive ends no flush any more. A user waits for more of them than session threads may.
TEST_F(Served, ManyFlushesOfAUserDoNotStopItsReads)
{
    constexpr unsigned kFlushes = 100;
    Mounted m(kImage);
    server_.reset();
    serve({"--fault", "late,op=flush,ms=3600000,skip=200"});
    ASSERT_TRUE(m.mount("executor=cpu,noatime,nommp,deadline=3600000")) << m.log();
    int hole = open_hole(m);
    std::vector<int> files; // the kernel sends one FSYNC for a file at a time
    for (unsigned i = 0; i < kFlushes; i++)
        files.push_back(
            open(m.path(std::to_string(i)).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
    for (unsigned i = 0; i < 100; i++)
        ASSERT_EQ(fsync(files[0]), 0);
    ASSERT_EQ(read_as(0, hole, 0), 4096);

    std::vector<std::thread> blocked;
    for (int fd : files)
        blocked.emplace_back([fd] {
            setfsuid(1000); // of this thread only
            while (fsync(fd) == 0)
                ;
        });
    await_requests(dir_ + "/control", m.mountpoint(), kFlushes);
    auto other = std::async(std::launch::async, [=] { return read_as(1000, hole, 4096); });
    EXPECT_EQ(other.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    server_->stop(SIGKILL); // which ends the flushes
    for (auto &t : blocked)
        t.join();
    other.wait();
    for (int fd : files)
        close(fd);
    close(hole);
    umount2(m.mountpoint().c_str(), MNT_DETACH);
    m.ended();
    server_.reset();
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
