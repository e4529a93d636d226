/* SPDX-License-Identifier: BSD-2-Clause */
// The end of a mount: the mount that is unmounted, and the data that the drive has then.
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/e2e/mounted.h"
#include "tests/spawn.h"

namespace
{

constexpr uint64_t kImage = 64u << 20;

class UnmountTest : public MountingTest
{
  protected:
    void TearDown() override
    {
        if (m.pid() > 0) {
            EXPECT_TRUE(m.unmount()) << m.log();
        }
    }
    std::string output;
    Mounted m{kImage};
};

dev_t device_of(const std::string &path)
{
    struct stat st = {};
    return stat(path.c_str(), &st) == 0 ? st.st_dev : 0;
}

// A line of /proc/mounts.
struct Line {
    std::string source, type;
};

Line line_of(const std::string &mountpoint)
{
    FILE *table = setmntent("/proc/self/mounts", "re");
    Line line;

    for (struct mntent *m; table && (m = getmntent(table));) {
        if (mountpoint == m->mnt_dir)
            line = {m->mnt_fsname, m->mnt_type};
    }
    if (table)
        endmntent(table);
    return line;
}

// The directory above a mountpoint, renamed, with a symbolic link to another mount in its place.
class SwappedParent
{
  public:
    explicit SwappedParent(const std::string &mountpoint)
        : parent_(mountpoint.substr(0, mountpoint.rfind('/'))), moved_(parent_ + ".moved"),
          other_(parent_ + ".other")
    {
        other_mount_ = other_ + mountpoint.substr(mountpoint.rfind('/'));
        EXPECT_EQ(mkdir(other_.c_str(), 0700), 0);
        EXPECT_EQ(mkdir(other_mount_.c_str(), 0700), 0);
        EXPECT_EQ(mount("other", other_mount_.c_str(), "tmpfs", 0, nullptr), 0);
        EXPECT_EQ(rename(parent_.c_str(), moved_.c_str()), 0);
        EXPECT_EQ(symlink(other_.c_str(), parent_.c_str()), 0);
    }
    ~SwappedParent()
    {
        umount2(other_mount_.c_str(), MNT_DETACH);
        rmdir(other_mount_.c_str());
        rmdir(other_.c_str());
        unlink(parent_.c_str());
        EXPECT_EQ(rename(moved_.c_str(), parent_.c_str()), 0);
    }
    bool other_is_mounted() const { return device_of(other_mount_) != device_of(other_); }

  private:
    std::string parent_, moved_, other_, other_mount_;
};

// With a drive whose commands take long, and no commits in the background.
constexpr char kSlow[] = "commit=3600,sim=latency:5000";
constexpr int kFiles = 200;

void make_files(const Mounted &m)
{
    for (int i = 0; i < kFiles; i++)
        std::ofstream(m.path(std::to_string(i))) << "content of " << i;
}

int whole_files(const Mounted &m)
{
    int whole = 0;
    for (int i = 0; i < kFiles; i++) {
        std::ifstream in(m.path(std::to_string(i)));
        std::string text(std::istreambuf_iterator<char>(in), {});
        whole += text == "content of " + std::to_string(i);
    }
    return whole;
}

bool copy(const std::string &from, const std::string &to)
{
    return run_program({"/bin/cp", "--sparse=always", from, to}, nullptr) == 0;
}

// A mount of type fuse, as users have it: the kernel does not wait for its daemon.
TEST_F(UnmountTest, TheHelperWaitsForTheDaemon)
{
    ASSERT_TRUE(m.mount(std::string("noblkdev,") + kSlow)) << m.log();
    make_files(m);
    EXPECT_EQ(run_program({GPUNVME_UMOUNT, m.mountpoint()}, &output), 0) << output;
    EXPECT_EQ(output, "");
    ASSERT_TRUE(copy(m.image(), m.image() + ".copy"));
    EXPECT_TRUE(m.ended()) << m.log();
    ASSERT_EQ(rename((m.image() + ".copy").c_str(), m.image().c_str()), 0);
    EXPECT_EQ(m.fsck(nullptr), 0);
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(whole_files(m), kFiles);
}

// A stopped daemon holds its lock for longer than any other holder is waited for.
TEST_F(UnmountTest, ToolsWaitForADaemonThatStillWrites)
{
    ASSERT_TRUE(m.mount("noblkdev,commit=3600")) << m.log();
    make_files(m);
    ASSERT_EQ(kill(m.pid(), SIGSTOP), 0);
    ASSERT_EQ(umount(m.mountpoint().c_str()), 0);
    std::thread later([&] {
        sleep(7);
        kill(m.pid(), SIGCONT);
    });
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-p", m.image()}, &output), 0) << output;
    EXPECT_NE(output.find("waiting for the last writes"), std::string::npos) << output;
    later.join();
    EXPECT_TRUE(m.ended()) << m.log();
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(whole_files(m), kFiles);
}

TEST_F(UnmountTest, ToolsDoNotWaitForAMountByAnotherName)
{
    const std::string name = m.image() + ".link";
    ASSERT_TRUE(m.mount()) << m.log();
    ASSERT_EQ(link(m.image().c_str(), name.c_str()), 0);
    EXPECT_EQ(run_program({GPUNVME_FSCK, "-p", name}, &output), 8);
    EXPECT_EQ(output.find("waiting"), std::string::npos) << output;
    unlink(name.c_str());
}

bool catches(pid_t pid, int number)
{
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");

    for (std::string line; std::getline(status, line);) {
        if (line.compare(0, 7, "SigCgt:") == 0)
            return std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1;
    }
    return false;
}

// The command passes the signal on to its daemon, which waits for the lock.
TEST_F(UnmountTest, ACommandThatIsInterruptedLeavesNoMount)
{
    int image = open(m.image().c_str(), O_RDONLY | O_CLOEXEC), how = 0, rounds = 1000;
    ASSERT_EQ(flock(image, LOCK_EX), 0);
    pid_t pid = spawn_program({GPUNVME_DAEMON, m.image(), m.mountpoint()}, -1, STDERR_FILENO,
                              STDERR_FILENO);
    ASSERT_GT(pid, 0);
    while (!catches(pid, SIGTERM) && --rounds > 0)
        usleep(10000);
    EXPECT_EQ(kill(pid, SIGTERM), 0);
    close(image);
    ASSERT_EQ(waitpid(pid, &how, 0), pid);
    EXPECT_TRUE(WIFEXITED(how)) << "ended by signal " << WTERMSIG(how);
    rounds = 6000;
    while (device_of(m.mountpoint()) != device_of(m.mountpoint() + "/..") && --rounds > 0)
        usleep(10000);
    EXPECT_GT(rounds, 0) << "still mounted";
    EXPECT_EQ(m.fsck(nullptr), 0);
}

// Mounts a file system that never answers. The connection is that of this process.
bool mount_hanging(const std::string &source, const std::string &type, const std::string &point)
{
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    std::string options = "fd=" + std::to_string(fd) + ",rootmode=40000,user_id=0,group_id=0";

    return fd >= 0 && mkdir(point.c_str(), 0755) == 0 &&
           mount(source.c_str(), point.c_str(), type.c_str(), 0, options.c_str()) == 0;
}

TEST_F(UnmountTest, ToolsDoNotTouchTheImagesOfOtherMounts)
{
    const std::string dead = m.image() + ".dead", other = m.image() + ".other";
    int fd = open(m.image().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(flock(fd, LOCK_EX), 0);
    pid_t child = fork();
    if (child == 0) { // whose mounts no other process sees
        if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
            !mount_hanging("dead", "fuse.dead", dead) ||
            !mount_hanging(dead + "/image", "fuse.gpunvmefs", other))
            _exit(99);
        _exit(run_program({GPUNVME_FSCK, "-n", m.image()}));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 8) << "the image is locked, which ends a wait of seconds";
    close(fd);
    rmdir(dead.c_str());
    rmdir(other.c_str());
}

TEST_F(UnmountTest, TheHelperReportsABusyMountAndUnmountsThatOfADeadDaemon)
{
    ASSERT_TRUE(m.mount("noblkdev")) << m.log();
    int fd = open(m.path("f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(run_program({GPUNVME_UMOUNT, m.mountpoint()}, &output), 32);
    EXPECT_NE(output.find("busy"), std::string::npos) << output;
    close(fd);
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    m.ended();
    EXPECT_EQ(run_program({GPUNVME_UMOUNT, m.mountpoint()}, &output), 0) << output;
    EXPECT_EQ(device_of(m.mountpoint()), device_of(m.mountpoint() + "/.."));
}

TEST_F(UnmountTest, TheHelperUnmountsOtherFileSystems)
{
    ASSERT_EQ(mount("other", m.mountpoint().c_str(), "tmpfs", 0, nullptr), 0);
    EXPECT_EQ(run_program({GPUNVME_UMOUNT, m.mountpoint(), "-n", "-t", "tmpfs"}, &output), 0)
        << output;
    EXPECT_EQ(device_of(m.mountpoint()), device_of(m.mountpoint() + "/.."));
}

class BlockMountTest : public UnmountTest
{
  protected:
    void set_up() override
    {
        ASSERT_TRUE(m.mount(kSlow)) << m.log();
        if (m.log().find("not fuseblk") != std::string::npos)
            GTEST_SKIP() << m.log();
    }
    // After the end of the mount: the files that a copy of the image has.
    int files_of(const std::string &image)
    {
        EXPECT_TRUE(copy(image, m.image()));
        unlink(image.c_str());
        EXPECT_EQ(m.fsck(nullptr), 0);
        EXPECT_TRUE(m.mount()) << m.log();
        int files = whole_files(m);
        EXPECT_TRUE(m.unmount()) << m.log();
        return files;
    }
};

TEST_F(BlockMountTest, IsTheDefaultAndShowsItsImage)
{
    EXPECT_EQ(line_of(m.mountpoint()).type, "fuseblk.gpunvmefs");
    EXPECT_EQ(line_of(m.mountpoint()).source, m.image());
    EXPECT_TRUE(m.unmount()) << m.log();
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_EQ(line_of(m.mountpoint()).type, "fuseblk.gpunvmefs");
    EXPECT_TRUE(m.unmount()) << m.log();
    ASSERT_TRUE(m.mount("noblkdev")) << m.log();
    EXPECT_EQ(line_of(m.mountpoint()).type, "fuse.gpunvmefs");
}

TEST_F(BlockMountTest, AnImageIsCompleteAndFreeWhenUmountReturns)
{
    make_files(m);
    ASSERT_EQ(umount(m.mountpoint().c_str()), 0);
    {
        Fd fd = open(m.image().c_str(), O_RDWR | O_CLOEXEC);
        EXPECT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0) << strerror(errno);
    }
    ASSERT_TRUE(copy(m.image(), m.image() + ".copy"));
    EXPECT_TRUE(m.ended()) << m.log();
    EXPECT_EQ(files_of(m.image() + ".copy"), kFiles);
}

TEST_F(BlockMountTest, ASignalEndsADaemonWhoseUnmountWaitsForIt)
{
    make_files(m);
    ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
    EXPECT_TRUE(m.ended()) << m.log();
    ASSERT_TRUE(copy(m.image(), m.image() + ".copy"));
    EXPECT_EQ(files_of(m.image() + ".copy"), kFiles);
}

// The page's device in sysfs, which has a backing file as long as it is attached.
TEST_F(BlockMountTest, AKilledDaemonLeavesNoLoopDevice)
{
    std::string backing = "/sys/dev/block/" + std::to_string(major(device_of(m.mountpoint()))) +
                          ":" + std::to_string(minor(device_of(m.mountpoint()))) +
                          "/loop/backing_file";
    EXPECT_EQ(access(backing.c_str(), F_OK), 0);
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    m.ended();
    EXPECT_EQ(umount(m.mountpoint().c_str()), 0);
    EXPECT_NE(access(backing.c_str(), F_OK), 0);
}

TEST_F(UnmountTest, ASignalUnmountsNoOtherMount)
{
    ASSERT_TRUE(m.mount()) << m.log();
    {
        SwappedParent swapped(m.mountpoint());
        ASSERT_TRUE(swapped.other_is_mounted());
        ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
        EXPECT_TRUE(m.ended());
        EXPECT_TRUE(swapped.other_is_mounted());
    }
    EXPECT_EQ(device_of(m.mountpoint()), device_of(m.mountpoint() + "/.."));
    EXPECT_EQ(m.fsck(nullptr), 0);
}

TEST_F(UnmountTest, ASignalUnmountsNothingThatIsMountedAbove)
{
    ASSERT_TRUE(m.mount()) << m.log();
    ASSERT_EQ(mount("above", m.mountpoint().c_str(), "tmpfs", 0, nullptr), 0);
    dev_t above = device_of(m.mountpoint());
    ASSERT_EQ(kill(m.pid(), SIGTERM), 0);
    EXPECT_TRUE(m.ended());
    EXPECT_EQ(device_of(m.mountpoint()), above);
    EXPECT_EQ(umount(m.mountpoint().c_str()), 0);
    umount2(m.mountpoint().c_str(), MNT_DETACH);
    EXPECT_EQ(m.fsck(nullptr), 0);
}

} // namespace
