/* SPDX-License-Identifier: BSD-2-Clause */
// Tests that a caller that resets a drive, or reads its registers, does not wait when the kernel
// waits for the drive. Answers of the kernel may be longer than the buffer, or become longer
// between two calls.
#include <gtest/gtest.h>
#include <nvme/types.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio/vfio_internal.h"

namespace
{

constexpr uint64_t kConfig = 1u << 20; // where it begins in the device's file; BAR0: at 0

// What the kernel does not return from, as long as it is closed.
struct Gate {
    std::atomic<bool> closed{false};
    std::atomic<unsigned> waiting{0};

    void pass()
    {
        waiting++;
        while (closed)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        waiting--;
    }
};

Gate config_gate, reset_gate;
std::atomic<unsigned> register_reads{0};

constexpr int kFile = -77; // no descriptor: the calls for it are the test's
constexpr uint32_t kFixed = sizeof(vfio_iommu_type1_info);

// What the kernel puts into argsz in one call after the other; negative: its error.
std::vector<int64_t> says;
std::vector<uint32_t> asked;

int kernel(void *arg)
{
    auto *argsz = static_cast<uint32_t *>(arg);
    int64_t said = says.at(asked.size());

    asked.push_back(*argsz);
    if (said < 0) {
        errno = static_cast<int>(-said);
        return -1;
    }
    memset(argsz + 1, 0xff, *argsz - sizeof(*argsz)); // as much as was asked for
    *argsz = static_cast<uint32_t>(said);
    return 0;
}

} // namespace

extern "C" {
// NOLINTBEGIN: the linker's names (--wrap)
ssize_t __real_pread64(int fd, void *buf, size_t len, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t offset)
{
    if (offset >= static_cast<off_t>(kConfig))
        config_gate.pass();
    else
        register_reads++;
    return __real_pread64(fd, buf, len, offset);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (fd == kFile)
        return kernel(arg);
    if (request != VFIO_DEVICE_RESET || fcntl(fd, F_GET_SEALS) < 0)
        return __real_ioctl(fd, request, arg);
    reset_gate.pass();
    return 0;
}
// NOLINTEND
}

namespace
{

// A memfd that stands for the device.
class VfioReset : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        fds_ = open_fds();
        v_.device = memfd_create("device", MFD_CLOEXEC);
        ASSERT_EQ(ftruncate(v_.device, 2 * kConfig), 0);
        ASSERT_EQ(pwrite(v_.device, &kCap, sizeof(kCap), NVME_REG_CAP), ssize_t{sizeof(kCap)});
        v_.config.offset = kConfig;
        v_.can_reset = true;
        pthread_rwlock_init(&v_.access, nullptr);
        v_.t.doorbells_len = 4096;
        doorbells_ = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, v_.device, 4096);
        ASSERT_NE(doorbells_, MAP_FAILED);
        v_.t.doorbells = static_cast<volatile uint32_t *>(doorbells_);
    }
    void TearDown() override
    {
        config_gate.closed = reset_gate.closed = false;
        munmap(doorbells_, 4096);
        close(v_.device);
        while (open_fds() != fds_) // the abandoned thread has ended
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        pthread_rwlock_destroy(&v_.access);
    }
    static long open_fds()
    {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                             std::filesystem::directory_iterator());
    }
    static void wait_for(const Gate &gate)
    {
        while (!gate.waiting)
            std::this_thread::yield();
    }

    static constexpr uint64_t kCap = 0x2000000300ff;
    long fds_ = 0;
    void *doorbells_ = nullptr;
    vfio v_ = {};
};

TEST_F(VfioReset, RestoresBusMastering)
{
    uint16_t command = 0;
    ASSERT_EQ(vfio_pci_reset(&v_), 0);
    ASSERT_EQ(pread(v_.device, &command, sizeof(command), kConfig + 4), ssize_t{sizeof(command)});
    EXPECT_EQ(command & 6, 6) << "memory, master";
    EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CAP, 8), kCap);
}

TEST_F(VfioReset, IsAbandonedWhileConfigSpaceWaitsForAnotherReset)
{
    config_gate.closed = true;
    EXPECT_EQ(vfio_pci_reset(&v_), -EIO);
    wait_for(config_gate); // a thread without a waiter
    unsigned reads = register_reads;
    EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CAP, 8), UINT64_MAX);
    vfio_write(&v_.t, NVME_REG_CC, 1, 4);
    v_.t.doorbells[0] = 7;
    EXPECT_EQ(vfio_pci_reset(&v_), -EIO);
    EXPECT_EQ(register_reads, reads) << "nobody asks a device that is gone";
    uint32_t doorbell = 1;
    ASSERT_EQ(pread(v_.device, &doorbell, sizeof(doorbell), 4096), ssize_t{sizeof(doorbell)});
    EXPECT_EQ(doorbell, 0u) << "its doorbells are not stored to";
}

TEST_F(VfioReset, IsAbandonedWhenTheKernelDoesNotReturn)
{
    reset_gate.closed = true;
    EXPECT_EQ(vfio_pci_reset(&v_), -EIO);
    wait_for(reset_gate);
    EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CSTS, 4), UINT32_MAX);
}

TEST_F(VfioReset, RegisterAccessesDoNotWaitForIt)
{
    int rc = 1;
    reset_gate.closed = true;
    std::thread resetter([&] { rc = vfio_pci_reset(&v_); });
    wait_for(reset_gate);
    unsigned reads = register_reads;
    EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CSTS, 4), UINT32_MAX);
    vfio_write(&v_.t, NVME_REG_CC, 1, 4);
    EXPECT_EQ(register_reads, reads);
    reset_gate.closed = false;
    resetter.join();
    if (rc == 0) { // else this thread has slept through the reset's time
        EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CAP, 8), kCap);
        EXPECT_EQ(vfio_read(&v_.t, NVME_REG_CC, 4), 0u) << "a write that was lost";
    }
}

int wait_at_the_gate(const vfio *v)
{
    reset_gate.pass();
    return v->config.offset == kConfig ? -ENXIO : 0;
}

TEST_F(VfioReset, ABoundedCallReturnsItsResultOrTimesOut)
{
    EXPECT_EQ(vfio_bounded(&v_, 30000, wait_at_the_gate), -ENXIO);
    reset_gate.closed = true;
    EXPECT_EQ(vfio_bounded(&v_, 20, wait_at_the_gate), -ETIMEDOUT);
    reset_gate.closed = false;
    vfio none = {};
    none.device = -1;
    EXPECT_EQ(vfio_bounded(&none, 20, wait_at_the_gate), -EBADF);
}

TEST(VfioFunction, OfAnotherFileIsNotReset)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    ASSERT_GE(fd, 0);
    EXPECT_EQ(vfio_reset_function(fd), -EIO);
    close(fd);
}

int query(const std::vector<int64_t> &kernel_says)
{
    std::vector<uint64_t> answer(VFIO_ANSWER / sizeof(uint64_t));

    says = kernel_says;
    asked.clear();
    return vfio_query(kFile, VFIO_IOMMU_GET_INFO, kFixed, answer.data());
}

TEST(VfioQuery, CallsOnceForAReplyWithoutCapabilities)
{
    EXPECT_EQ(query({kFixed}), 0);
    EXPECT_EQ(asked, std::vector<uint32_t>({kFixed}));
    EXPECT_EQ(query({kFixed - 8}), 0) << "an old kernel, whose struct is shorter";
    EXPECT_EQ(asked.size(), 1u);
}

TEST(VfioQuery, CallsAgainWithRoomForTheWholeReply)
{
    EXPECT_EQ(query({200, 200}), 0);
    EXPECT_EQ(asked, std::vector<uint32_t>({kFixed, 200}));
    EXPECT_EQ(query({VFIO_ANSWER, VFIO_ANSWER}), 0);
}

TEST(VfioQuery, RefusesAReplyThatDoesNotFit)
{
    EXPECT_EQ(query({VFIO_ANSWER + 1}), -E2BIG);
    EXPECT_EQ(query({UINT32_MAX}), -E2BIG);
    EXPECT_EQ(query({200, 208}), -E2BIG) << "it has grown";
    EXPECT_EQ(query({200, VFIO_ANSWER + 8}), -E2BIG);
}

TEST(VfioQuery, ReturnsTheErrorOfEachCall)
{
    EXPECT_EQ(query({-ENODEV}), -ENODEV);
    EXPECT_EQ(query({200, -EFAULT}), -EFAULT);
}

} // namespace
