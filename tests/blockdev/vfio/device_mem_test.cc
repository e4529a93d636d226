/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests which handles of device memory are accepted, and when the kernel
 * releases them.
 */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "blockdev/vfio/device_mem.h"
#include "blockdev/vfio/vfio_internal.h"

namespace
{

/* --- Handles --------------------------------------------------------------------------------- */

TEST(DeviceMem, AcceptsOnlyNvidiasExporter)
{
    EXPECT_TRUE(device_mem_exporter_stays("pos:\t0\nsize:\t65536\nexp_name:\tnvidia\n"));
    EXPECT_TRUE(device_mem_exporter_stays("size:\t65536\nexp_name:\tnv_dmabuf\n"));
    EXPECT_FALSE(device_mem_exporter_stays("exp_name:\tnvidia-drm\n"));
    EXPECT_FALSE(device_mem_exporter_stays("exp_name:\tamdgpu\nname:\tnvidia\n"));
    EXPECT_FALSE(device_mem_exporter_stays("exp_name:\n"));
    EXPECT_FALSE(device_mem_exporter_stays(""));
}

TEST(DeviceMem, RefusesOtherKindsOfFiles)
{
    int fd = memfd_create("no device", MFD_CLOEXEC);
    struct nvme_mem mem = {};
    struct device_mem *m = nullptr;
    struct reason said = {};

    ASSERT_EQ(ftruncate(fd, 4096), 0);
    mem.len = 4096;
    mem.fd = fd;
    EXPECT_FALSE(device_mem_is_handle(fd));
    EXPECT_FALSE(device_mem_is_handle(-1));
    EXPECT_FALSE(device_mem_is_gone(fd));
    EXPECT_FALSE(device_mem_is_gone(-1));
    EXPECT_EQ(device_mem_map(&mem, 1000, &m, &said), -EFAULT);
    EXPECT_STREQ(said.text, "no dma-buf of the memory was exported");
    close(fd);
}

class Bar : public ::testing::Test
{
  protected:
    Bar() : root(testing::TempDir() + "/device-mem-" + std::to_string(getpid()))
    {
        std::filesystem::create_directories(root + device);
    }

    ~Bar() override { std::filesystem::remove_all(root); }

    void write(const char *name, const char *text) { std::ofstream(root + device + name) << text; }

    int open(const char *bdf) { return device_mem_open_bar(root.c_str(), bdf, &why); }

    const std::string device = "/sys/bus/pci/devices/0000:00:12.0/";
    std::string root;
    struct reason why = {};
};

TEST_F(Bar, IsOpenedOnlyOfIvshmem)
{
    write("vendor", "0x1af4\n");
    write("device", "0x1110\n");
    write("resource2", "memory");
    int fd = open("00:12.0");
    ASSERT_GE(fd, 0) << why.text;
    close(fd);
    write("vendor", "0x10de\n");
    EXPECT_EQ(open("00:12.0"), -ENODEV);
    EXPECT_STREQ(why.text, "no ivshmem device of QEMU is at 0000:00:12.0");
    EXPECT_EQ(open("00:13.0"), -ENODEV);
    EXPECT_EQ(open("../12"), -EINVAL);
    EXPECT_STREQ(why.text, "../12 is no PCI address");
}

/* --- The end of a process -------------------------------------------------------------------- */

/*
 * A killed process had two files open or mapped. The tests observe the order in
 * which the kernel releases them.
 */
class Release : public ::testing::Test
{
  protected:
    void SetUp() override
    {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "ThreadSanitizer takes a clone that shares memory for a fork";
#endif
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* so that a guard becomes its child */
        folder = testing::TempDir() + "/release-" + std::to_string(getpid());
        std::filesystem::create_directories(folder);
        for (const char *name : {"memory", "drive"})
            std::filesystem::resize_file((std::ofstream(folder + "/" + name), folder + "/" + name),
                                         4096);
        events = inotify_init1(IN_CLOEXEC);
        ASSERT_GE(inotify_add_watch(events, folder.c_str(), IN_CLOSE), 0);
    }

    void TearDown() override
    {
        prctl(PR_SET_CHILD_SUBREAPER, 0);
        if (events >= 0)
            close(events);
        std::filesystem::remove_all(folder);
    }

    int open_at(const char *name, int number) const
    {
        int fd = open((folder + "/" + name).c_str(), O_RDWR | O_CLOEXEC);
        int moved = fcntl(fd, F_DUPFD_CLOEXEC, number);

        close(fd);
        return moved;
    }

    /*
     * Maps a file at this address and closes it; the mapping is then its only
     * reference.
     */
    void map_at(const char *name, void *place) const
    {
        int fd = open_at(name, 0);

        if (mmap(place, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            _exit(1);
        close(fd);
    }

    std::vector<std::string> released(size_t n) const
    {
        std::vector<std::string> names;
        alignas(inotify_event) char buffer[4096];

        while (names.size() < n) {
            ssize_t got = read(events, buffer, sizeof(buffer));
            if (got <= 0)
                break;
            for (ssize_t at = 0; at < got;) {
                auto *event = reinterpret_cast<const inotify_event *>(buffer + at);
                names.emplace_back(event->name);
                at += (ssize_t)(sizeof(*event) + event->len);
            }
        }
        return names;
    }

    static void reap_all()
    {
        while (waitpid(-1, nullptr, __WALL) > 0)
            ;
    }

    int events = -1;
    std::string folder;
};

TEST_F(Release, ALowerDescriptorIsReleasedAfterAHigherOne)
{
    pid_t pid = fork();

    if (pid == 0) {
        if (open_at("memory", 50) != 50 || open_at("drive", 60) != 60)
            _exit(1);
        raise(SIGKILL);
    }
    reap_all();
    EXPECT_EQ(released(2), (std::vector<std::string>{"drive", "memory"}));
}

/*
 * The drive's file is mapped below the memory. Without the guard's munmap() the
 * kernel would release the memory first.
 */
TEST_F(Release, GuardedMemoryIsReleasedAfterTheDoorbells)
{
    pid_t pid = fork();

    if (pid == 0) {
        static vfio_guard g;
        auto *pages = (char *)mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        map_at("drive", pages);
        map_at("memory", pages + 4096);
        g.doorbells = pages;
        g.doorbells_len = 4096;
        if (vfio_guard_start(&g))
            _exit(1);
        raise(SIGKILL);
    }
    reap_all();
    EXPECT_EQ(released(2), (std::vector<std::string>{"drive", "memory"}));
}

} // namespace
