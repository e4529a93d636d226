/* SPDX-License-Identifier: BSD-2-Clause */
// Start, refusal to start, and end of the daemon.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gpunvme/gpunvme.h"
#include "layout/layout.h"
#include "tests/e2e/mounted.h"
#include "tests/fusefs/daemon/client.h"

namespace
{

constexpr uint64_t kImage = 64u << 20;

std::string content(const std::string &path)
{
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

class MountTest : public MountingTest
{
  protected:
    // Runs the daemon in the background.
    static int start(const std::vector<std::string> &args, std::string *output)
    {
        std::vector<std::string> argv = {GPUNVME_DAEMON};
        argv.insert(argv.end(), args.begin(), args.end());
        return run_program(argv, output);
    }
    static bool fsck_is_clean(Mounted &m)
    {
        std::string output;
        int status = m.fsck(&output);
        return status == 0 || (fprintf(stderr, "fsck: %d\n%s\n", status, output.c_str()), false);
    }
    void TearDown() override
    {
        if (m.pid() > 0) {
            EXPECT_TRUE(m.unmount()) << m.log();
        }
    }

    std::string output;
    Mounted m{kImage};
};

struct Refusal {
    const char *name, *args; // IMAGE and MOUNT are replaced
    int status;
    const char *said;
};

class RefusalTest : public MountTest, public ::testing::WithParamInterface<Refusal>
{
};

std::string fill_in(std::string arg, const Mounted &m)
{
    for (auto [word, value] :
         {std::pair<std::string, std::string>{"IMAGE", m.image()}, {"MOUNT", m.mountpoint()}}) {
        size_t at = arg.find(word);
        if (at != std::string::npos)
            arg.replace(at, word.size(), value);
    }
    return arg;
}

TEST_P(RefusalTest, SaysOneLineAndMountsNothing)
{
    std::vector<std::string> args;
    std::istringstream words(GetParam().args);
    for (std::string arg; words >> arg;)
        args.push_back(fill_in(arg, m));
    EXPECT_EQ(start(args, &output), GetParam().status) << output;
    EXPECT_NE(output.find(GetParam().said), std::string::npos) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
    EXPECT_EQ(output.find("gpunvmefs: "), 0u) << output;
    struct stat above, here;
    ASSERT_EQ(stat((m.mountpoint() + "/..").c_str(), &above), 0);
    ASSERT_EQ(stat(m.mountpoint().c_str(), &here), 0);
    EXPECT_EQ(above.st_dev, here.st_dev);
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, RefusalTest,
    ::testing::Values(
        Refusal{"no_operands", "", 1, "DEVICE MOUNTPOINT"},
        Refusal{"no_mountpoint", "IMAGE", 1, "DEVICE MOUNTPOINT"},
        Refusal{"one_page_a_command", "IMAGE MOUNT -o sim=mdts:4096", 1, "mdts: must"},
        Refusal{"operand_too_many", "IMAGE MOUNT x", 1, "x: one operand too many"},
        Refusal{"unknown_option", "IMAGE MOUNT -o bogus", 1, "bogus"},
        Refusal{"bad_number", "IMAGE MOUNT -o queues=many", 1, "queues=many"},
        Refusal{"negative", "IMAGE MOUNT -o deadline=-1", 1, "deadline=-1"},
        Refusal{"out_of_range", "IMAGE MOUNT -o depth=1", 1, "depth=1"},
        Refusal{"bad_lba", "IMAGE MOUNT -o sim=lba:513", 1, "512 or 4096"},
        Refusal{"bad_word", "IMAGE MOUNT -o gpu=maybe", 1, "gpu=maybe"},
        Refusal{"contradiction", "IMAGE MOUNT -o gpu=require,executor=cpu", 1, "contradict"},
        Refusal{"remount", "IMAGE MOUNT -o remount,ro", 32, "not remounted"},
        Refusal{"blkdev_with_auto_unmount", "IMAGE MOUNT -o blkdev,auto_unmount", 32,
                "blkdev: auto_unmount: "},
        Refusal{"vfio_no_address", "vfio:nvme0 MOUNT", 1, "no PCI address"},
        Refusal{"vfio_absent", "vfio:ffff:ff:1f.7 MOUNT", 32, "vfio:ffff:ff:1f.7: "},
        Refusal{"address_alone", "0000:c1:00.0 MOUNT", 1, "write vfio:0000:c1:00.0"},
        Refusal{"two_namespaces", "vfio:c1:00.0/1 MOUNT -o nsid=2", 1, "names another namespace"},
        Refusal{"no_such_namespace", "IMAGE MOUNT -o nsid=2", 32, "namespace 2: "},
        Refusal{"bad_namespace", "IMAGE MOUNT -o nsid=0", 1, "nsid=0"},
        Refusal{"iommu_of_an_image", "IMAGE MOUNT -o noiommu", 1, "for vfio: devices"},
        Refusal{"bad_doorbells", "IMAGE MOUNT -o doorbells=gpu", 1, "doorbells=gpu"},
        Refusal{"bad_p2p", "IMAGE MOUNT -o p2p=on", 1, "p2p=on"},
        Refusal{"p2p_of_the_cpu", "IMAGE MOUNT -o executor=cpu,p2p=require", 32,
                "p2p=require: buffers of the CPU executor are in host memory"},
        Refusal{"p2p_out_of_reach", "IMAGE MOUNT -o executor=cpu_staged,p2p=require", 32,
                "p2p=require: the controller cannot reach GPU memory"},
        Refusal{"p2p_without_an_executor", "IMAGE MOUNT -o gpu=off,p2p=require", 1,
                "contradict each other"},
        Refusal{"gpus_without_a_path", "IMAGE MOUNT -o gpu=off,gpus=0", 1, "contradict each other"},
        Refusal{"gpus_empty", "IMAGE MOUNT -o gpus=", 1, "gpus=: expected all, or"},
        Refusal{"gpus_end", "IMAGE MOUNT -o gpus=0:", 1, "gpus=0:: expected all, or"},
        Refusal{"gpus_word", "IMAGE MOUNT -o gpus=first", 1, "expected all, or"},
        Refusal{"gpus_all_and_one", "IMAGE MOUNT -o gpus=0:all", 1, "expected all, or"},
        Refusal{"gpus_ordinal", "IMAGE MOUNT -o gpus=256", 1, "expected all, or"},
        Refusal{"gpus_wraps", "IMAGE MOUNT -o gpus=18446744073709551616", 1, "expected all, or"},
        Refusal{"gpus_too_many",
                "IMAGE MOUNT -o "
                "gpus=0:1:2:3:4:5:6:7:8:9:10:11:12:13:14:15:16:17:18:19:20:21:22:23:24:25:26:27:28:"
                "29:30:31:32",
                1, "at most 32 GPUs"},
        Refusal{"gpus_of_the_cpu",
                "IMAGE MOUNT -o executor=cpu,gpus=GPU-0e2d2a34-8ac2-4c3a-8f0c-4c4f4d0c3a11", 1,
                "name its GPUs by numbers"},
        Refusal{"gone", "IMAGE MOUNT -o cuda_device=1", 1, "cuda_device=1: this option"},
        Refusal{"memory_for_an_image", "IMAGE MOUNT -o executor=cpu,cpu_memory=c1:00.0", 1,
                "cpu_memory: for vfio: devices"},
        Refusal{"reservation_of_an_image", "IMAGE MOUNT -o reservation=require", 32,
                "namespace 1: the controller has no reservations"},
        Refusal{"vfio_user_nothing", "vfio-user: MOUNT", 1, "give vfio-user:SOCKET"},
        Refusal{"vfio_user_absent", "vfio-user:IMAGE.none MOUNT", 32, "No such file"},
        Refusal{"vfio_user_no_socket", "vfio-user:IMAGE MOUNT", 32, "not a socket"},
        Refusal{"unknown_key", "IMAGE MOUNT -o sim=lbas:512", 1, "sim: lbas: no such"},
        Refusal{"controller_of_no_image", "vfio:ffff:ff:1f.7 MOUNT -o sim=threads:2", 1,
                "for image files only"},
        Refusal{"no_image", "IMAGE.none MOUNT", 32, "No such file"},
        Refusal{"directory_as_image", "MOUNT MOUNT", 32, "neither an image file"},
        Refusal{"character_device", "/dev/null MOUNT", 32, "neither an image file"},
        Refusal{"no_such_mountpoint", "IMAGE MOUNT/none", 32, "No such file"},
        Refusal{"file_as_mountpoint", "IMAGE IMAGE", 32, "Not a directory"}),
    [](const auto &info) { return info.param.name; });

TEST_F(MountTest, HelpAndVersionGoToStandardOutput)
{
    EXPECT_EQ(start({"-h"}, &output), 0);
    EXPECT_NE(output.find("usage: gpunvmefs DEVICE MOUNTPOINT"), std::string::npos);
    EXPECT_EQ(start({"-V"}, &output), 0);
    EXPECT_NE(output.find("gpunvmefs "), std::string::npos);
}

struct BadImage {
    const char *name;
    void (*spoil)(int fd);
    const char *said;
};

class BadImageTest : public MountTest, public ::testing::WithParamInterface<BadImage>
{
};

TEST_P(BadImageTest, IsRefusedInOneLine)
{
    int fd = open_on(m.image(), O_RDWR);
    GetParam().spoil(fd);
    close(fd);
    EXPECT_EQ(start({m.image(), m.mountpoint()}, &output), 32) << output;
    EXPECT_NE(output.find(GetParam().said), std::string::npos) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
}

void must(bool ok)
{
    if (!ok)
        abort();
}

INSTANTIATE_TEST_SUITE_P(
    Images, BadImageTest,
    ::testing::Values(
        BadImage{"empty", [](int fd) { must(ftruncate(fd, 0) == 0); }, "empty"},
        BadImage{"tiny", [](int fd) { must(ftruncate(fd, 8192) == 0); }, "too small"},
        BadImage{"truncated", [](int fd) { must(ftruncate(fd, 32 << 20) == 0); },
                 "the device ends at 33554432 of the file system's 67108864 bytes"},
        BadImage{"zeroed",
                 [](int fd) { must(ftruncate(fd, 0) == 0 && ftruncate(fd, kImage) == 0); }, ""}),
    [](const auto &info) { return info.param.name; });

TEST_F(MountTest, ADamagedRootIsAFailedMount)
{
    int fd = open_on(m.image(), O_RDWR);
    lay_inode_block b;
    off_t at = 0;
    do {
        ASSERT_EQ(pread(fd, &b, sizeof(b), at), static_cast<ssize_t>(sizeof(b)));
        at += sizeof(b);
    } while (lay_get32(b.head.magic) != LAY_MAGIC_INODES || lay_get64(b.head.owner) != 0);
    b.reserved[0] ^= 3;
    ASSERT_EQ(pwrite(fd, &b, sizeof(b), at - sizeof(b)), static_cast<ssize_t>(sizeof(b)));
    close(fd);
    EXPECT_EQ(start({m.image(), m.mountpoint()}, &output), 32) << output;
    EXPECT_NE(output.find("inode 0: checksum; run fsck.gpunvme"), std::string::npos) << output;
}

// Without descriptor 2 the image was opened as it, and messages were written to its first block.
TEST_F(MountTest, StartsWithoutStandardFiles)
{
    // libc gives up the buffer of a stream that it cannot flush, which is no leak.
    const std::string script =
        "export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0; exec \"$@\" <&- >&- 2>&-";
    std::vector<std::string> argv = {"/bin/sh",      "-c",      script,        "sh",
                                     GPUNVME_DAEMON, m.image(), m.mountpoint()};
    ASSERT_EQ(run_program(argv), 0);
    EXPECT_EQ(run_program(argv), 32) << "mounted already";
    std::ofstream(m.mountpoint() + "/file") << "text";
    EXPECT_EQ(content(m.mountpoint() + "/file"), "text");
    EXPECT_EQ(umount(m.mountpoint().c_str()), 0);
    EXPECT_TRUE(fsck_is_clean(m));
}

TEST_F(MountTest, GpuRequiredIsAnErrorWithoutOne)
{
    int status = start({m.image(), m.mountpoint(), "-o", "gpu=require"}, &output);
    if (status == 0) {
        umount(m.mountpoint().c_str());
        GTEST_SKIP() << "this machine has a CUDA device";
    }
    EXPECT_EQ(status, 32);
    EXPECT_NE(output.find("gpu=require"), std::string::npos) << output;
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
}

TEST_F(MountTest, SecondDaemonOnTheImageIsRefused)
{
    ASSERT_TRUE(m.mount()) << m.log();
    std::string output, other = m.mountpoint() + "2";
    ASSERT_EQ(mkdir(other.c_str(), 0755), 0);
    bool at_once = false; // a busy machine may take longer for a start
    for (int i = 0; i < 5 && !at_once; i++) {
        auto begin = std::chrono::steady_clock::now();
        EXPECT_EQ(start({m.image(), other}, &output), 32);
        at_once = std::chrono::steady_clock::now() - begin < std::chrono::seconds(4);
    }
    EXPECT_TRUE(at_once) << "a mount that is there is not waited for";
    EXPECT_NE(output.find("in use"), std::string::npos) << output;
    rmdir(other.c_str());
}

TEST_F(MountTest, BusyMountpointIsRefused)
{
    Mounted second(kImage);
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(start({second.image(), m.mountpoint()}, &output), 32);
    EXPECT_NE(output.find("busy"), std::string::npos) << output;
}

TEST_F(MountTest, BackgroundReturnsWhenTheMountIsServed)
{
    ASSERT_EQ(start({m.image(), m.mountpoint()}, &output), 0) << output;
    EXPECT_EQ(output, "");
    EXPECT_GE(access((m.mountpoint() + "/.").c_str(), R_OK), 0);
    struct stat above, here;
    ASSERT_EQ(stat((m.mountpoint() + "/..").c_str(), &above), 0);
    ASSERT_EQ(stat(m.mountpoint().c_str(), &here), 0);
    EXPECT_NE(above.st_dev, here.st_dev);
    ASSERT_TRUE(m.let_go());
    for (int i = 0; i < 6000 && m.fsck(nullptr) != 0; i++) // the daemon holds the image to its end
        usleep(10000);
    EXPECT_TRUE(fsck_is_clean(m));
}

TEST_F(MountTest, SignalUnmountsAndKeepsEverything)
{
    for (int sig : {SIGTERM, SIGINT, SIGHUP}) {
        ASSERT_TRUE(m.mount()) << m.log();
        std::ofstream(m.path("a")) << "kept";
        ASSERT_EQ(kill(m.pid(), sig), 0);
        EXPECT_TRUE(m.ended()) << m.log();
        EXPECT_TRUE(fsck_is_clean(m));
        ASSERT_TRUE(m.mount()) << m.log();
        EXPECT_EQ(content(m.path("a")), "kept");
        EXPECT_TRUE(m.unmount()) << m.log();
    }
}

TEST_F(MountTest, SignalWithOpenFilesKeepsWhatAMappingWrote)
{
    ASSERT_TRUE(m.mount()) << m.log();
    int fd = open_on(m.path("a"), O_RDWR | O_CREAT);
    ASSERT_EQ(ftruncate(fd, 8192), 0);
    char *at = static_cast<char *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ASSERT_NE(at, MAP_FAILED);
    memcpy(at + 5000, "mapped", 6);
    ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
    EXPECT_TRUE(m.ended()) << m.log();
    munmap(at, 8192);
    close(fd);
    EXPECT_TRUE(fsck_is_clean(m));
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(content(m.path("a")).substr(5000, 6), "mapped");
}

// Session threads that read a request at the moment of umount(2) get
// ECONNABORTED. libfuse would print to stderr in a thread under cancellation,
// which can block the daemon's end.
TEST_F(MountTest, EndsWhenThreadsFindTheConnectionAborted)
{
    m.use_program(GPUNVME_PUPPET);
    setenv("PUPPET_ABORTED", "1", 1);
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_TRUE(m.mount("gpu=off", input)) << m.log();
    unsetenv("PUPPET_ABORTED");
    close(input);
    std::ofstream(m.path("file")) << "kept";
    EXPECT_TRUE(m.unmount()) << m.log();
    EXPECT_EQ(m.log().find("fuse: "), std::string::npos) << m.log();
    EXPECT_TRUE(fsck_is_clean(m));
}

TEST_F(MountTest, KilledDaemonIsReplacedByTheNext)
{
    ASSERT_TRUE(m.mount()) << m.log();
    Fd fd = open_on(m.path("a"), O_RDWR | O_CREAT);
    ASSERT_EQ(write(fd, "kept", 4), 4);
    ASSERT_EQ(fsync(fd), 0);
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    EXPECT_FALSE(m.ended());
    EXPECT_LT(access(m.path("a").c_str(), F_OK), 0);
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(content(m.path("a")), "kept");
    EXPECT_TRUE(m.unmount()) << m.log();
    EXPECT_TRUE(fsck_is_clean(m));
}

TEST_F(MountTest, ABackgroundMountThatReplaysTheJournalPrintsNothing)
{
    ASSERT_TRUE(m.mount()) << m.log();
    ASSERT_EQ(mkdir(m.path("d").c_str(), 0755), 0);
    int root = open_on(m.mountpoint(), O_RDONLY);
    ASSERT_EQ(fsync(root), 0);
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    EXPECT_FALSE(m.ended());
    close(root);
    umount2(m.mountpoint().c_str(), MNT_DETACH); // unless the process that mounts has done it
    ASSERT_EQ(start({m.image(), m.mountpoint()}, &output), 0) << output;
    EXPECT_EQ(output, "");
    EXPECT_EQ(access(m.path("d").c_str(), F_OK), 0);
    ASSERT_TRUE(m.let_go());
}

// The kernel has the attributes of the root then, and answers statx(2) from them.
TEST_F(MountTest, MountAfterAKillWorksAtOnceEvenIfTheRootWasListed)
{
    ASSERT_TRUE(m.mount()) << m.log();
    struct stat st;
    ASSERT_EQ(stat(m.mountpoint().c_str(), &st), 0);
    DIR *root = opendir(m.mountpoint().c_str());
    ASSERT_NE(root, nullptr);
    while (readdir(root)) {
    }
    closedir(root);
    ASSERT_EQ(stat(m.mountpoint().c_str(), &st), 0);
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    EXPECT_FALSE(m.ended());
    ASSERT_TRUE(m.mount()) << m.log();
}

TEST_F(MountTest, ADaemonOfRootGainsNoPrivileges)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "fusermount3 needs its privilege";
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_NE(content("/proc/" + std::to_string(m.pid()) + "/status").find("NoNewPrivs:\t1"),
              std::string::npos);
}

// What lay behind the new end is gone; the next write would make it read as zeros.
TEST_F(MountTest, AnImageTruncatedUnderTheMountIsAnError)
{
    ASSERT_TRUE(m.mount()) << m.log();
    std::string data(8u << 20, 'd');
    int fd = open(m.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(write(fd, data.data(), data.size()), static_cast<ssize_t>(data.size()));
    ASSERT_EQ(fsync(fd), 0);
    ASSERT_EQ(truncate(m.image().c_str(), 4 << 20), 0);
    EXPECT_FALSE(write(fd, "x", 1) == 1 && fsync(fd) == 0);
    EXPECT_EQ(fsync(fd), -1);
    close(fd);
    EXPECT_FALSE(m.unmount());
    EXPECT_EQ(m.status(), 2);
    EXPECT_NE(m.log().find("truncated while in use"), std::string::npos) << m.log();
    EXPECT_NE(m.fsck(&output), 0) << output;
}

// A daemon that blocks a signal reads it later.
bool blocks(pid_t pid, int signal)
{
    std::string status = content("/proc/" + std::to_string(pid) + "/status");
    size_t at = status.find("\nSigBlk:");

    return at != std::string::npos &&
           std::stoull(status.substr(at + 8), nullptr, 16) >> (signal - 1) & 1;
}

// A drive of one second per command: the mount takes many.
TEST_F(MountTest, ASignalEndsAMountThatTakesLong)
{
    std::thread mounting([&] { EXPECT_FALSE(m.mount("sim=latency:1000000")); });
    pid_t daemon = -1;
    for (int i = 0; i < 3000 && (daemon = m.pid()) <= 0; i++)
        usleep(10000);
    for (int i = 0; i < 3000 && daemon > 0 && !blocks(daemon, SIGTERM); i++)
        usleep(10000);
    usleep(1500000); // some commands have ended, others have not
    if (daemon > 0)
        kill(daemon, SIGTERM);
    mounting.join();
    EXPECT_GT(daemon, 0);
    EXPECT_NE(m.log().find("during the mount"), std::string::npos) << m.log();
    ASSERT_TRUE(m.mount()) << m.log();
}

TEST_F(MountTest, ReadOnlyMountRefusesChanges)
{
    ASSERT_TRUE(m.mount("ro")) << m.log();
    EXPECT_EQ(open(m.path("a").c_str(), O_RDWR | O_CREAT, 0644), -1);
    EXPECT_EQ(errno, EROFS);
}

TEST_F(MountTest, ShutdownIoctlEndsAllOperations)
{
    ASSERT_TRUE(m.mount()) << m.log();
    std::ofstream(m.path("a")) << "kept";
    int root = open_on(m.mountpoint(), O_RDONLY | O_DIRECTORY);
    uint32_t flags = 0;
    ASSERT_EQ(issue(root, 0x8004587dul, &flags), 0);
    EXPECT_EQ(open(m.path("b").c_str(), O_RDWR | O_CREAT, 0644), -1);
    EXPECT_EQ(errno, EIO);
    close(root);
    m.unmount();
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(content(m.path("a")), "kept");
    EXPECT_TRUE(m.unmount()) << m.log();
    EXPECT_TRUE(fsck_is_clean(m));
}

// glibc in 32-bit programs refuses an entry whose position has more than 31
// bits (EOVERFLOW). dir_cookies_test has listings that change meanwhile.
TEST_F(MountTest, AThirtyTwoBitProgramSeesAllNames)
{
#ifndef GPUNVME_READDIR32
    GTEST_SKIP() << "the compiler makes no programs for i386";
#else
    constexpr size_t kNames = 3000;
    if (run_program({GPUNVME_READDIR32, "/"}, &output) < 0 || output.empty())
        GTEST_SKIP() << "this kernel runs no programs for i386";
    for (bool dir32 : {true, false}) {
        ASSERT_TRUE(m.mount(dir32 ? "dir32" : "")) << m.log();
        std::string dir = m.path("dir");
        mkdir(dir.c_str(), 0755);
        for (size_t i = 0; i < kNames && dir32; i++)
            close(open((dir + "/" + std::to_string(i)).c_str(), O_WRONLY | O_CREAT, 0644));
        EXPECT_EQ(run_program({GPUNVME_READDIR32, dir}, &output), dir32 ? 0 : EOVERFLOW);
        if (dir32) {
            EXPECT_EQ(output, std::to_string(kNames + 2) + "\n");
        }
        EXPECT_TRUE(m.unmount()) << m.log();
    }
#endif
}

// 2 MiB, aligned to 2 MiB in the file and on the device.
TEST_F(MountTest, GpuBoundDirectoryGivesItsFilesAlignedExtents)
{
    ASSERT_TRUE(m.mount()) << m.log();
    std::string dir = m.path("bound"), file = dir + "/file", name = "user.gpunvme.gpu_bound";
    ASSERT_EQ(mkdir(dir.c_str(), 0755), 0);
    ASSERT_EQ(setxattr(dir.c_str(), name.c_str(), "1", 1, 0), 0) << strerror(errno);
    std::ofstream(m.path("before")) << "takes the first free blocks";
    std::ofstream(file) << std::string(3u << 20, 'x');
    char value = 0;
    EXPECT_EQ(getxattr(file.c_str(), name.c_str(), &value, 1), 1);
    EXPECT_EQ(value, '1');
    EXPECT_EQ(setxattr(m.path("before").c_str(), name.c_str(), "1", 1, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    int fd = open(file.c_str(), O_RDONLY);
    gpunvme_extent extents[4];
    ssize_t n = gpunvme_extents(fd, 0, extents, 4);
    close(fd);
    ASSERT_GE(n, 1) << gpunvme_error();
    for (ssize_t i = 0; i < n; i++)
        EXPECT_EQ((extents[i].device | extents[i].file_offset | extents[i].len) % (2u << 20), 0u);
    ASSERT_TRUE(m.unmount());
    EXPECT_TRUE(fsck_is_clean(m));
}

} // namespace
