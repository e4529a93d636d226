/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the search for LABEL= and UUID=, which reads devices in a process of
// its own, in a sandbox.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

extern "C" {
#include "blockdev/bdev.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/device_tag.h"
#include "layout/layout.h"
#include "support/confine.h"
int __wrap_ffs_read_label(struct bd_dev *dev, struct lay_label *label);
int __wrap_ffs_ours(struct bd_dev *dev, bool reclaim, struct reason *why);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);
int __real_poll(struct pollfd *fds, nfds_t n, int ms);
}

namespace
{

constexpr uint64_t kBytes = 12345 * 4096; // a size that no device of this machine has
pid_t caller;                             // the process that calls tag_find()
enum { ANSWER, DIE, HANG, SLOW } behaviour;

// What the process has reached and the caller's wait, which both know.
struct Progress {
    unsigned devices; // whose label is being read
    unsigned waits;   // that have ended without an event
};
Progress *progress;

void await(const unsigned &value, unsigned least)
{
    while (__atomic_load_n(&value, __ATOMIC_ACQUIRE) < least)
        usleep(1000);
}

class DeviceTag : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        folder_ = ::testing::TempDir() + "device-tag-XXXXXX";
        ASSERT_NE(mkdtemp(folder_.data()), nullptr);
        image_ = folder_ + "/image";
        std::ofstream(image_).close();
        ASSERT_EQ(truncate(image_.c_str(), kBytes), 0);
        setenv(TAG_IMAGES_ENV, ("/nowhere:" + folder_).c_str(), 1);
        caller = getpid();
        behaviour = ANSWER;
        progress = static_cast<Progress *>(mmap(nullptr, sizeof(*progress), PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(progress, MAP_FAILED);
    }
    void TearDown() override
    {
        munmap(progress, sizeof(*progress));
        unlink((image_ + "2").c_str());
        unlink(image_.c_str());
        rmdir(folder_.c_str());
    }
    int find(const std::string &tag)
    {
        char *device = nullptr;
        int err = tag_find(tag.c_str(), &device, &why_);
        found_ = device ? device : "";
        free(device);
        return err;
    }
    std::string folder_, image_, found_;
    reason why_ = {};
};

// The label that the process finds lists its abilities.
std::string abilities()
{
    std::string text = getpid() == caller ? "caller" : "child";
    if (open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES)
        text += " files";
    if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || errno != EPERM)
        text += " sockets";
    if (kill(caller, 0) == 0)
        text += " signals";
    return text;
}

TEST_F(DeviceTag, IsFoundByAProcessWithoutRights)
{
    if (CONFINE_SANITIZED || !GPUNVME_SECCOMP)
        GTEST_SKIP() << "a sanitizer, or a build without libseccomp, permits more";
    EXPECT_EQ(find("LABEL=child"), 0) << why_.text;
    EXPECT_EQ(found_, image_);
    EXPECT_EQ(find("LABEL=child files"), -ENODEV);
    EXPECT_EQ(found_, "");
    EXPECT_NE(std::string(why_.text).find("name the device itself"), std::string::npos)
        << why_.text;
}

TEST_F(DeviceTag, IsNotFoundByAProcessThatDies)
{
    behaviour = DIE;
    EXPECT_EQ(find("LABEL=child"), -EIO);
    EXPECT_NE(std::string(why_.text).find("ended early"), std::string::npos) << why_.text;
}

TEST_F(DeviceTag, IsNotAwaitedForeverFromADeviceThatDoesNotAnswer)
{
    behaviour = HANG;
    EXPECT_EQ(find("LABEL=child"), -ETIMEDOUT);
    EXPECT_EQ(std::string(why_.text),
              image_ + " has not answered for 60 s, name the device itself");
    int left = 0; // the process, until it has been killed and waited for
    for (int ms = 0; ms < 30000 && (left = waitpid(-1, nullptr, WNOHANG)) == 0; ms++)
        usleep(1000);
    EXPECT_NE(left, 0) << "the process has ended";
}

TEST_F(DeviceTag, IsAwaitedAsLongAsDevicesAnswer)
{
    std::ofstream(image_ + "2").close();
    ASSERT_EQ(truncate((image_ + "2").c_str(), kBytes), 0);
    behaviour = SLOW;
    EXPECT_EQ(find("UUID=00000000-0000-0000-0000-000000000000"), -EEXIST) << why_.text;
    EXPECT_EQ(progress->waits, 1u);
}

TEST_F(DeviceTag, IsRefusedIfItIsNone)
{
    EXPECT_EQ(find("UUID=child"), -EINVAL);
    EXPECT_NE(std::string(why_.text).find("no UUID"), std::string::npos) << why_.text;
}

} // namespace

int __wrap_ffs_read_label(struct bd_dev *dev, struct lay_label *label)
{
    if (dev->info.bytes != kBytes)
        return -EINVAL;
    unsigned device = __atomic_add_fetch(&progress->devices, 1, __ATOMIC_RELEASE);
    if (behaviour == DIE)
        _exit(1);
    if (behaviour == HANG)
        pause();
    if (behaviour == SLOW && device == 1)
        await(progress->waits, 1);
    memset(label, 0, sizeof(*label));
    snprintf(label->label, sizeof(label->label), "%s", abilities().c_str());
    return 0;
}

int __wrap_ffs_ours(struct bd_dev *, bool, struct reason *)
{
    return 0;
}

// The clock of the caller's waits. If the device does not answer, a wait ends
// when the process has reached it. The wait for a slow device ends when the
// process has begun the next one.
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
    if (behaviour == HANG) {
        await(progress->devices, 1);
        return 0;
    }
    if (behaviour != SLOW || progress->waits == 1)
        return __real_poll(fds, n, ms);
    __atomic_add_fetch(&progress->waits, 1, __ATOMIC_RELEASE);
    await(progress->devices, 2);
    return 0;
}
