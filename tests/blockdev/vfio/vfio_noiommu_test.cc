/* SPDX-License-Identifier: BSD-2-Clause */
/* Drives without an IOMMU: refusals, the memory they get, and its addresses. */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <linux/memfd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme_internal.h"
#include "blockdev/vfio/vfio_internal.h"
#include "tests/blockdev/nvme/nvme_fake.h"
#include "tests/blockdev/pci/pci_tree.h"

namespace
{

const char *const SWITCH = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
const std::string POOL = "sys/kernel/mm/hugepages/hugepages-2048kB/";

/* --- Where memory lies ----------------------------------------------------------------------- */

const uint64_t PRESENT = 1ull << 63, SWAPPED = 1ull << 62, SOFT_DIRTY = 1ull << 55;

TEST(PhysicalAddress, IsThatOfContiguousPages)
{
    std::vector<uint64_t> entries = {PRESENT | 0x1200, PRESENT | SOFT_DIRTY | 0x1201,
                                     PRESENT | 0x1202};
    uint64_t address = 0;

    EXPECT_EQ(vfio_physical_address(entries.data(), entries.size(), &address), 0);
    EXPECT_EQ(address, 0x1200000u);
    entries[0] = PRESENT | ((1ull << 55) - 1);
    EXPECT_EQ(vfio_physical_address(entries.data(), 1, &address), 0);
    EXPECT_EQ(address, ((1ull << 55) - 1) << 12);
}

TEST(PhysicalAddress, IsRefusedForScatteredAbsentOrHiddenPages)
{
    uint64_t address = 7;
    auto locate = [&](std::vector<uint64_t> entries) {
        return vfio_physical_address(entries.data(), entries.size(), &address);
    };

    EXPECT_EQ(locate({PRESENT | 5, PRESENT | 7}), -EFAULT);
    EXPECT_EQ(locate({PRESENT | 5, PRESENT | 4}), -EFAULT);
    EXPECT_EQ(locate({PRESENT | 5, 6}), -EFAULT);
    EXPECT_EQ(locate({SWAPPED | 5}), -EFAULT);
    EXPECT_EQ(locate({PRESENT, PRESENT}), -EPERM);
    EXPECT_EQ(address, 7u);
}

TEST(PhysicalMap, RefusesOrdinaryMemory)
{
    int fd = memfd_create("ordinary", MFD_CLOEXEC);
    nvme_mem mem = {};
    uint64_t iova = 0;

    ASSERT_EQ(ftruncate(fd, 4096), 0);
    mem.addr = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    mem.len = 4096;
    mem.fd = fd;
    EXPECT_EQ(vfio_noiommu_map(&mem, &iova), -EFAULT) << "the kernel may move it";
    mem.fd = -1;
    EXPECT_EQ(vfio_noiommu_map(&mem, &iova), -EFAULT);
    munmap(mem.addr, 4096);
    close(fd);
}

/* --- The guard of memory --------------------------------------------------------------------- */

class Guard : public ::testing::Test
{
  protected:
    void SetUp() override
    {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "ThreadSanitizer takes a clone that shares memory for a fork";
#endif
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* whose child a guard becomes */
        ASSERT_EQ(pipe2(said, O_CLOEXEC), 0);
    }

    void TearDown() override
    {
        for (int fd : said)
            if (fd >= 0)
                close(fd);
        prctl(PR_SET_CHILD_SUBREAPER, 0);
    }

    /* A process with memory and a guard for it, which waits to be killed. */
    pid_t process()
    {
        struct vfio_guard g = {};
        pid_t pid = fork();

        if (pid)
            return pid;
        int fd = memfd_create("guarded", MFD_CLOEXEC);
        if (ftruncate(fd, 4096) ||
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ||
            vfio_guard_start(&g))
            _exit(1);
        if (write(said[1], &g.pid, sizeof(g.pid)) != sizeof(g.pid))
            _exit(1);
        for (;;)
            pause();
    }

    static std::string file(pid_t pid, const char *name)
    {
        std::ifstream in("/proc/" + std::to_string(pid) + "/" + name);

        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }

    static size_t descriptors(pid_t pid)
    {
        std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd");

        return (size_t)std::distance(begin(folder), end(folder));
    }

    static bool soon(const std::function<bool()> &is)
    {
        for (int i = 0; i < 2000; i++, usleep(10000))
            if (is())
                return true;
        return false;
    }

    int said[2] = {-1, -1};
};

TEST_F(Guard, KeepsMemoryAndNothingElseUntilItsProcessHasEnded)
{
    pid_t owner = process(), guard = 0;
    int status;

    ASSERT_EQ(read(said[0], &guard, sizeof(guard)), (ssize_t)sizeof(guard));
    EXPECT_TRUE(soon([&] { return descriptors(guard) == 2; }))
        << "its process's, and the event that ends it";
    EXPECT_TRUE(soon([&] { return file(guard, "comm") == "vfio-guard\n"; }));
    EXPECT_NE(file(guard, "status").find("\nSeccomp:\t2\n"), std::string::npos)
        << "its stack is in memory that a confined process can change";
    kill(guard, SIGSTOP);
    EXPECT_TRUE(soon([&] { return file(guard, "stat").find(") T ") != std::string::npos; }));
    kill(owner, SIGKILL);
    ASSERT_EQ(waitpid(owner, &status, 0), owner);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_NE(file(guard, "maps").find("memfd:guarded"), std::string::npos);
    kill(guard, SIGCONT);
    EXPECT_TRUE(soon([&] { return waitpid(guard, &status, WNOHANG | __WALL) == guard; }));
    EXPECT_TRUE(WIFEXITED(status));
}

TEST_F(Guard, OutlivesTheSignalsThatEndItsProcess)
{
    pid_t owner = process(), guard = 0;
    int status;

    ASSERT_EQ(read(said[0], &guard, sizeof(guard)), (ssize_t)sizeof(guard));
    for (int signal : {SIGTERM, SIGINT, SIGHUP})
        kill(guard, signal);
    usleep(20000);
    EXPECT_EQ(waitpid(guard, &status, WNOHANG | __WALL), -1) << "it is its process's child";
    EXPECT_EQ(kill(guard, 0), 0);
    EXPECT_TRUE(soon([&] { return file(guard, "stat").find(") S ") != std::string::npos; }))
        << "it sleeps";
    kill(owner, SIGKILL);
    waitpid(owner, &status, 0);
    EXPECT_TRUE(soon([&] { return waitpid(guard, &status, WNOHANG | __WALL) == guard; }));
}

TEST_F(Guard, EndsOnRequest)
{
    struct vfio_guard g = {};
    int status;

    ASSERT_EQ(vfio_guard_start(&g), 0);
    EXPECT_GT(g.pid, 0);
    vfio_guard_end(&g);
    EXPECT_EQ(g.pid, 0);
    EXPECT_EQ(waitpid(-1, &status, WNOHANG | __WALL), -1) << "no child is left";
    vfio_guard_end(&g);
}

/* --- Opening --------------------------------------------------------------------------------- */

class NoiommuOpen : public ::testing::Test
{
  protected:
    /* All that the machine shows of such a drive, and of memory for it; dev is empty. */
    void SetUp() override
    {
        tree.pci(BDF);
        tree.group(BDF, 3);
        tree.text("sys/kernel/iommu_groups/3/name", "vfio-noiommu\n");
        tree.driver(BDF, "vfio-pci");
        tree.text(SWITCH, "Y\n");
        pool(8, 0);
    }

    void pool(unsigned free, unsigned promised) const
    {
        tree.text(POOL + "free_hugepages", std::to_string(free) + "\n");
        tree.text(POOL + "resv_hugepages", std::to_string(promised) + "\n");
    }

    void refused(int rc, const char *sentence, bool noiommu = true)
    {
        bd_open_opts opts = {};

        opts.noiommu = noiommu;
        why.text[0] = 0;
        EXPECT_EQ(vfio_open_at(tree.root(), BDF, &opts, &t, &why), rc);
        EXPECT_NE(strstr(why.text, sentence), nullptr) << why.text;
    }

    PciTree tree;
    struct nvme_transport *t = nullptr;
    struct reason why = {};
};

TEST_F(NoiommuOpen, RequiresTheOption)
{
    refused(-ENOTSUP, "no IOMMU guards it", false);
}

TEST_F(NoiommuOpen, RefusesADriveBehindAnIommu)
{
    tree.text("sys/kernel/iommu_groups/3/name", "\n");
    refused(-EINVAL, "an IOMMU guards it (group 3): leave noiommu out");
}

TEST_F(NoiommuOpen, RequiresTheKernelsSetting)
{
    tree.text(SWITCH, "N\n");
    refused(-ENOTSUP, "echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode, then "
                      "gpunvme bind 0000:c1:00.0");
    tree.remove(SWITCH);
    refused(-ENOTSUP, "this kernel has no noiommu mode");
}

TEST_F(NoiommuOpen, RequiresVfioAsTheDriver)
{
    tree.driver(BDF, "nvme");
    refused(-EBUSY, "nvme drives it: hand it over with gpunvme bind 0000:c1:00.0");
    tree.remove("sys/bus/pci/drivers/vfio-pci");
    refused(-ENOTSUP, "VFIO is not loaded: run modprobe vfio-pci");
    tree.pci(BDF, "0x030000");
    refused(-ENODEV, "not an NVMe controller");
}

TEST_F(NoiommuOpen, RequiresLargePages)
{
    pool(0, 0);
    refused(-ENOMEM, "too few large pages of 2 MiB are free");
    pool(10, 3);
    refused(-ENOMEM, "too few large pages of 2 MiB are free");
    tree.remove(POOL);
    refused(-ENOTSUP, "this kernel has no large pages of 2 MiB");
}

TEST_F(NoiommuOpen, NamesTheNodeThatIsMissing)
{
    refused(-ENOTSUP, "/dev/vfio/vfio is missing");
    tree.text("dev/vfio/vfio", "");
    refused(-ENOTSUP, "speaks no VFIO");
    tree.remove(PciTree::device(BDF) + "/iommu_group");
    refused(-ENOTSUP, "VFIO has no group for it");
}

/* --- A controller with physical addresses ---------------------------------------------------- */

class Physical : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (free_pages() < 8)
            GTEST_SKIP() << "needs 8 free large pages of 2 MiB";
        fake.t.physical = true;
        fake.id_ctrl[77] = 0; /* MDTS: no limit */
        fake.cap = 1023 | 1ull << 16 | 1ull << 37;
        opts.admin_timeout_ms = opts.io_timeout_ms = 50;
        before = free_pages();
        ASSERT_EQ(nvme_ctrlr_open(&fake.t, &opts, &c), 0);
    }

    void TearDown() override
    {
        if (c)
            nvme_ctrlr_close(c);
    }

    static long free_pages()
    {
        std::ifstream file("/" + POOL + "free_hugepages");
        long n = 0;

        file >> n;
        return n;
    }

    Fake fake;
    nvme_opts opts{};
    nvme_ctrlr *c = nullptr;
    long before = 0;
};

TEST_F(Physical, CommandsCarryAMegabyte)
{
    EXPECT_EQ(nvme_ctrlr_info(c)->max_transfer, 1u << 20);
}

TEST_F(Physical, MemoryIsOneLargePageAndNoMore)
{
    struct nvme_dma small, large, more;

    ASSERT_EQ(nvme_dma_alloc(c, 5000, &small), 0);
    EXPECT_EQ(small.len, 8192u);
    ASSERT_EQ(nvme_dma_alloc(c, NVME_LARGE_PAGE, &large), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.addr) % NVME_LARGE_PAGE, 0u);
    EXPECT_EQ(free_pages(), before - 3) << "these two, and the admin queue's";
    EXPECT_EQ(nvme_dma_alloc(c, NVME_LARGE_PAGE + 1, &more), -E2BIG);
    nvme_dma_free(c, &small);
    nvme_dma_free(c, &large);
    EXPECT_EQ(free_pages(), before - 1);
}

TEST_F(Physical, MemoryOfTheDriverCanBeMapped)
{
    struct nvme_dma dma;
    struct nvme_mem mem = {};
    uint64_t whole = 0, second = 0;

    ASSERT_EQ(nvme_dma_alloc(c, NVME_LARGE_PAGE, &dma), 0);
    mem.addr = dma.addr;
    mem.len = dma.len;
    mem.fd = dma.fd;
    ASSERT_EQ(vfio_noiommu_map(&mem, &whole), geteuid() == 0 ? 0 : -EPERM);
    EXPECT_EQ(whole % NVME_LARGE_PAGE, 0u);
    mem.addr = static_cast<char *>(dma.addr) + 4096;
    mem.fd_offset = 4096;
    EXPECT_EQ(vfio_noiommu_map(&mem, &second), -EFAULT) << "it ends in the next large page";
    mem.len = 4096;
    ASSERT_EQ(vfio_noiommu_map(&mem, &second), geteuid() == 0 ? 0 : -EPERM);
    EXPECT_EQ(second, whole ? whole + 4096 : 0);
    nvme_dma_free(c, &dma);
}

TEST_F(Physical, ABlockDeviceSplitsItsTransfers)
{
    std::vector<char> out(3 << 20), in(3 << 20);
    bd_dev *dev;

    for (size_t i = 0; i < out.size(); i++)
        out[i] = static_cast<char>(i * 7 / 4096 + i);
    ASSERT_EQ(bd_nvme_open(c, 1, 1, 128, &dev), 0);
    EXPECT_EQ(bd_write(dev, 8192, out.data(), out.size(), 0), 0);
    EXPECT_EQ(bd_read(dev, 8192, in.data(), in.size()), 0);
    EXPECT_EQ(in, out);
    void *region = bd_dma_alloc(dev, 1 << 20);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(bd_read(dev, 8192, region, 1 << 20), 0);
    EXPECT_EQ(memcmp(region, out.data(), 1 << 20), 0);
    bd_dma_free(dev, region, 1 << 20);
    bd_close(dev);
    EXPECT_EQ(fake.mistakes, 0u);
    EXPECT_EQ(free_pages(), before - 1);
}

TEST_F(Physical, RunningOutOfLargePagesIsAnError)
{
    std::vector<nvme_dma> taken;
    struct nvme_dma dma;
    int rc;

    while ((rc = nvme_dma_alloc(c, 4096, &dma)) == 0)
        taken.push_back(dma);
    EXPECT_EQ(rc, -ENOMEM);
    for (auto &each : taken)
        nvme_dma_free(c, &each);
    EXPECT_EQ(free_pages(), before - 1);
}

TEST_F(Physical, MemoryIsKeptFromAControllerThatDoesNotStop)
{
    struct nvme_dma dma;

    ASSERT_EQ(nvme_dma_alloc(c, 4096, &dma), 0);
    fake.never_disabled = true;
    EXPECT_NE(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
    ASSERT_FALSE(nvme_ctrlr_settled(c));
    nvme_dma_free(c, &dma);
    EXPECT_EQ(free_pages(), before - 2) << "the admin queue's, and this one";
    munmap(dma.addr, NVME_LARGE_PAGE);
    close(dma.fd);
}

TEST_F(Physical, AControllerThatVanishesDoesNotCountAsStopped)
{
    fake.gone = true;
    nvme_ctrlr_close(c);
    c = nullptr;
    EXPECT_EQ(free_pages(), before - 1) << "the admin queue's, until the process ends";
}

TEST_F(Physical, MemoryIsKeptIfOpenOrCloseCannotStopIt)
{
    nvme_ctrlr *second = nullptr;

    fake.never_disabled = true;
    nvme_ctrlr_close(c);
    c = nullptr;
    EXPECT_EQ(free_pages(), before - 1);
    fake.never_disabled = false;
    fake.csts = 0;
    fake.lose_opcode = NVME_ADMIN_IDENTIFY;
    fake.on_enable = [this] { fake.never_disabled = true; };
    EXPECT_NE(nvme_ctrlr_open(&fake.t, &opts, &second), 0);
    EXPECT_EQ(free_pages(), before - 2);
}

} // namespace
