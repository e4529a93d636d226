/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of the driver and of callers in few regions: arenas, files that share one, the limit. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockdev/device.h"
#include "blockdev/nvme/nvme_iova.h"
#include "tests/blockdev/nvme/nvme_fake_test.h"

namespace
{

thread_local bool out_of_memory; /* calloc() fails */

} // namespace

extern "C" void *__real_calloc(size_t n, size_t size);
extern "C" void *__wrap_calloc(size_t n, size_t size)
{
    return out_of_memory ? nullptr : __real_calloc(n, size);
}

namespace
{

class Dma : public FakeTest
{
  protected:
    void open() { ASSERT_EQ(FakeTest::open(), 0); }

    void TearDown() override
    {
        FakeTest::TearDown();
        for (int fd : fds)
            ::close(fd);
    }

    /* Maps regions of a page each until one is refused, and returns why. */
    int map_all()
    {
        nvme_mem mem = part(-1, 0, 4096);
        int rc;
        while ((rc = nvme_map(c, &mem, NVME_MAP_BUFFER, &iova)) == 0)
            iovas.push_back(iova);
        return rc;
    }

    void unmap_all()
    {
        for (uint64_t each : iovas)
            EXPECT_EQ(nvme_unmap(c, each), 0);
        iovas.clear();
    }

    int file(off_t len)
    {
        int fd = memfd_create("buffer", MFD_CLOEXEC);
        EXPECT_EQ(ftruncate(fd, len), 0);
        fds.push_back(fd);
        return fd;
    }

    static nvme_mem part(int fd, uint64_t offset, size_t len)
    {
        nvme_mem mem{};
        mem.addr = reinterpret_cast<void *>(0x10000);
        mem.len = len;
        mem.fd = fd;
        mem.fd_offset = offset;
        return mem;
    }

    unsigned regions()
    {
        nvme_dma_budget r;
        nvme_dma_regions(c, &r);
        EXPECT_EQ(r.used, fake.maps.size());
        EXPECT_EQ(r.limit, fake.t.max_regions);
        return r.used;
    }

    std::vector<int> fds;
    std::vector<uint64_t> iovas;
    uint64_t iova = 0;
};

TEST_F(Dma, ManyAllocationsTakeFewRegions)
{
    std::vector<nvme_dma> all(1000);

    open();
    for (auto &dma : all) {
        ASSERT_EQ(nvme_dma_alloc(c, 80 << 10, &dma), 0);
        EXPECT_EQ(fake.at(dma.iova), dma.addr);
        memset(dma.addr, 0xa5, dma.len);
    }
    EXPECT_LE(regions(), 16u);
    for (auto &dma : all) {
        EXPECT_EQ(static_cast<uint8_t *>(dma.addr)[0], 0xa5);
        EXPECT_EQ(static_cast<uint8_t *>(dma.addr)[dma.len - 1], 0xa5);
        nvme_dma_free(c, &dma);
    }
    EXPECT_EQ(regions(), 1u) << "that of the admin queue";
}

// The first byte that is not this one; the length if all are.
size_t first_other(const nvme_dma &dma, uint8_t byte)
{
    const auto *bytes = static_cast<const uint8_t *>(dma.addr);
    if (bytes[0] == byte && memcmp(bytes, bytes + 1, dma.len - 1) == 0)
        return dma.len;
    return static_cast<size_t>(
        std::find_if(bytes, bytes + dma.len, [=](uint8_t b) { return b != byte; }) - bytes);
}

uint8_t mark_of(const nvme_dma &dma)
{
    return static_cast<uint8_t>(dma.iova >> 12 | 1);
}

TEST_F(Dma, AllocatedMemoryIsZeroAndUnshared)
{
    std::vector<nvme_dma> live;
    std::mt19937 rng(7);

    open();
    for (unsigned round = 0; round < 2000; round++) {
        if (live.size() < 20 || rng() % 2) {
            nvme_dma dma;
            ASSERT_EQ(nvme_dma_alloc(c, 1 + rng() % 60000, &dma), 0);
            ASSERT_EQ(first_other(dma, 0), dma.len);
            memset(dma.addr, mark_of(dma), dma.len);
            live.push_back(dma);
        } else {
            std::swap(live[rng() % live.size()], live.back());
            nvme_dma &dma = live.back();
            ASSERT_EQ(first_other(dma, mark_of(dma)), dma.len);
            nvme_dma_free(c, &dma);
            live.pop_back();
        }
    }
    for (auto &dma : live)
        nvme_dma_free(c, &dma);
}

TEST_F(Dma, RingsThatTheControllerMayUseAreNotReused)
{
    nvme_qpair qp;
    nvme_dma dma;

    opts.admin_timeout_ms = 50;
    open();
    ASSERT_EQ(nvme_qpair_create(c, 8, &qp), 0);
    uint64_t first = qp.sq_iova, end = qp.cq_iova + qp.cq_len;
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    EXPECT_EQ(nvme_qpair_delete(c, &qp), -EIO);
    ASSERT_EQ(nvme_dma_alloc(c, 4096, &dma), 0);
    EXPECT_TRUE(dma.iova >= end || dma.iova + dma.len <= first);
    nvme_dma_free(c, &dma);
    fake.status_of_opcode.clear();
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    ASSERT_EQ(nvme_dma_alloc(c, 4096, &dma), 0);
    EXPECT_EQ(dma.iova, first) << "the reset has ended the queue";
    nvme_dma_free(c, &dma);
}

TEST_F(Dma, AShareHasASeparateFile)
{
    nvme_dma drivers, a[8], b;

    open();
    unsigned before = regions();
    nvme_share first = nvme_share_new(c, 8), second = nvme_share_new(c, 1);
    ASSERT_EQ(nvme_dma_alloc_shared(c, second, 8192, &b), 0);
    for (auto &dma : a) {
        ASSERT_EQ(nvme_dma_alloc_shared(c, first, 8192, &dma), 0);
        EXPECT_EQ(dma.fd, a[0].fd);
        EXPECT_EQ(dma.fd_offset - a[0].fd_offset, dma.iova - a[0].iova);
    }
    EXPECT_EQ(regions(), before + 2);
    ASSERT_EQ(nvme_dma_alloc(c, 4096, &drivers), 0);
    EXPECT_NE(a[0].fd, b.fd);
    EXPECT_NE(a[0].fd, drivers.fd);
    EXPECT_NE(b.fd, drivers.fd);
    nvme_dma_free(c, &drivers);
    for (auto &dma : a)
        nvme_dma_free(c, &dma);
    EXPECT_EQ(regions(), before + 1);
    nvme_dma_free(c, &b);
    EXPECT_EQ(regions(), before);
}

TEST_F(Dma, AShareGrowsPastItsPairs)
{
    nvme_dma all[3];

    open();
    unsigned before = regions();
    nvme_share share = nvme_share_new(c, 2);
    for (auto &dma : all)
        ASSERT_EQ(nvme_dma_alloc_shared(c, share, 8192, &dma), 0);
    EXPECT_EQ(regions(), before + 2);
    EXPECT_NE(all[2].fd, all[0].fd);
    for (auto &dma : all)
        nvme_dma_free(c, &dma);
    EXPECT_EQ(regions(), before);
}

TEST_F(Dma, MemoryOfAShareIsZeroWhateverItsProcessWrote)
{
    nvme_dma a, b;

    open();
    nvme_share share = nvme_share_new(c, 2);
    ASSERT_EQ(nvme_dma_alloc_shared(c, share, 4096, &a), 0);
    std::vector<char> garbage(static_cast<size_t>(lseek(a.fd, 0, SEEK_END)), 0x5a);
    ASSERT_EQ(pwrite(a.fd, garbage.data(), garbage.size(), 0), (ssize_t)garbage.size());
    ASSERT_EQ(nvme_dma_alloc_shared(c, share, 4096, &b), 0);
    ASSERT_EQ(a.fd, b.fd);
    EXPECT_EQ(memcmp(b.addr, std::vector<char>(b.len).data(), b.len), 0);
    nvme_dma_free(c, &a);
    nvme_dma_free(c, &b);
}

TEST_F(Dma, AFileWhoseUnmapIsLateIsNotSharedAndUnmappedLater)
{
    uint64_t late, again;

    fake.t.maps_files = true;
    open();
    unsigned before = regions();
    nvme_mem mem = part(file(8192), 0, 8192);
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &late), 0);
    fake.late_unmaps = 1;
    EXPECT_EQ(nvme_unmap(c, late), -ETIMEDOUT);
    EXPECT_EQ(regions(), before + 1) << "the controller has it";
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &again), 0);
    EXPECT_NE(again, late);
    EXPECT_EQ(fake.maps.count(late), 0u);
    EXPECT_EQ(regions(), before + 1);
    EXPECT_EQ(nvme_unmap(c, again), 0);
    EXPECT_EQ(regions(), before);
}

TEST_F(Dma, APartOfAFileIsMappedWhereTheWholeFileIsRefused)
{

    fake.t.maps_files = true;
    open();
    nvme_mem mem = part(file(1 << 20), 4096, 8192);
    fake.longest_map = 8192;
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), 0);
    EXPECT_EQ(fake.maps[iova].len, 8192u);
    EXPECT_EQ(fake.maps[iova].fd_offset, 4096u);
    EXPECT_EQ(nvme_unmap(c, iova), 0);
}

TEST_F(Dma, AFileThatIsRefusedLeavesNoDescriptor)
{

    fake.t.maps_files = true;
    open();
    nvme_mem mem = part(file(1 << 20), 4096, 8192);
    fake.longest_map = 4096;
    int before = dup(mem.fd);
    ::close(before);
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), -EINVAL);
    int after = dup(mem.fd);
    ::close(after);
    EXPECT_EQ(after, before);
}

/* A program may run without standard input. */
TEST_F(Dma, AFileMayGetDescriptorZero)
{
    int input = dup(0);

    fake.t.maps_files = true;
    open();
    nvme_mem mem = part(file(1 << 20), 4096, 8192);
    ::close(0);
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), 0);
    EXPECT_EQ(fcntl(0, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(nvme_unmap(c, iova), 0);
    fake.longest_map = 4096;
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), -EINVAL);
    EXPECT_EQ(fcntl(0, F_GETFD), -1);
    dup2(input, 0);
    ::close(input);
}

TEST_F(Dma, MemoryWithoutPagesIsAnError)
{
    struct rlimit all, none;
    nvme_dma dma;

    open();
    size_t before = fake.maps.size();
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &all), 0);
    none = {0, all.rlim_max};
    auto handler = signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    int err = nvme_dma_alloc(c, 4 << 20, &dma);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &all), 0);
    signal(SIGXFSZ, handler);
    EXPECT_EQ(err, -EFBIG);
    EXPECT_EQ(fake.maps.size(), before);
}

TEST_F(Dma, AFileWithoutADescriptorIsNotMapped)
{
    struct rlimit all, few;

    fake.t.maps_files = true;
    open();
    nvme_mem mem = part(file(8192), 0, 8192);
    size_t before = fake.maps.size();
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
    int next = dup(mem.fd);
    ::close(next);
    few = {(rlim_t)next, all.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), -EMFILE);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
    EXPECT_EQ(fake.maps.size(), before);
}

TEST_F(Dma, ALackOfMemoryIsAnErrorOfTheMap)
{

    fake.t.maps_files = true;
    open();
    nvme_mem mem = part(file(8192), 0, 8192);
    out_of_memory = true;
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), -ENOMEM);
    out_of_memory = false;
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), 0);
    EXPECT_EQ(nvme_unmap(c, iova), 0);
}

TEST_F(Dma, MemoryWhoseUnmapIsLateCountsUntilItIsUnmapped)
{
    uint64_t late;
    nvme_dma dma;

    open();
    unsigned before = regions();
    nvme_mem mem = part(-1, 0, 4096);
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &late), 0);
    fake.late_unmaps = 2;
    EXPECT_FALSE(nvme_dma_is_late(c));
    EXPECT_EQ(nvme_unmap(c, late), -ETIMEDOUT);
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &late), 0);
    EXPECT_EQ(regions(), before + 2) << "late for the second time";
    EXPECT_TRUE(nvme_dma_is_late(c));
    EXPECT_EQ(nvme_unmap(c, late), 0);
    EXPECT_FALSE(nvme_dma_is_late(c));
    ASSERT_EQ(nvme_dma_alloc(c, 4 << 20, &dma), 0);
    EXPECT_EQ(regions(), before + 1) << "the allocation's";
    nvme_dma_free(c, &dma);
    EXPECT_EQ(regions(), before);
}

TEST_F(Dma, ARefusedRegionIsReported)
{
    nvme_dma_budget budget;

    fake.t.max_regions = 8;
    open();
    EXPECT_FALSE(bd_lacks_regions(c, &why));
    EXPECT_STREQ(why.text, "");
    map_all();
    unmap_all();
    nvme_dma_regions(c, &budget);
    EXPECT_FALSE(budget.full);
    EXPECT_TRUE(budget.refused);
    EXPECT_TRUE(bd_lacks_regions(c, &why));
    EXPECT_NE(std::string(why.text).find("8 DMA regions do not suffice"), std::string::npos)
        << why.text;
}

TEST_F(Dma, FewerRegionsThanAMountNeedsAreTooFew)
{

    fake.t.max_regions = 3;
    open();
    EXPECT_EQ(bd_open_namespace(c, 1, 1, 4, &dev, &why), -ENOSPC);
    EXPECT_EQ(dev, nullptr);
    EXPECT_NE(std::string(why.text).find("3 DMA regions do not suffice"), std::string::npos)
        << why.text;
}

TEST_F(Dma, BuffersLeaveRegionsToTheDriverAndFindRoomAgain)
{
    nvme_dma large;

    fake.t.max_regions = 64;
    open();
    nvme_mem mem = part(-1, 0, 4096);
    EXPECT_EQ(map_all(), -ENOSPC);
    EXPECT_EQ(regions(), 56u);
    ASSERT_EQ(nvme_dma_alloc(c, 16 << 20, &large), 0) << "an arena more";
    EXPECT_EQ(nvme_unmap(c, iovas.back()), 0);
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iovas.back()), -ENOSPC)
        << "the arena has taken its place";
    iovas.pop_back();
    nvme_dma_free(c, &large);
    ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), 0);
    iovas.push_back(iova);
    unmap_all();
    EXPECT_EQ(regions(), 1u);
}

TEST_F(Dma, BuffersLeaveRegionsToLeases)
{
    nvme_dma_budget budget;

    fake.t.max_regions = 64;
    open();
    nvme_mem mem = part(-1, 0, 4096);
    map_all();
    nvme_dma_regions(c, &budget);
    EXPECT_TRUE(budget.full);
    for (unsigned i = 0; i < 4; i++) {
        ASSERT_EQ(nvme_map(c, &mem, NVME_MAP_LEASE, &iova), 0) << i;
        iovas.push_back(iova);
        EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_BUFFER, &iova), -ENOSPC);
    }
    EXPECT_EQ(nvme_map(c, &mem, NVME_MAP_LEASE, &iova), -ENOSPC);
    EXPECT_EQ(regions(), 60u) << "the rest is the driver's";
    unmap_all();
}

TEST_F(Dma, PartsOfAFileShareARegionWhereFilesAreMapped)
{
    uint64_t a, b, other;
    int fd, again;

    fake.t.max_regions = 64;
    fake.t.maps_files = true;
    open();
    fd = file(1 << 20);
    again = dup(fd);
    fds.push_back(again);
    unsigned before = regions();
    nvme_mem first = part(fd, 0x3000, 0x1000), second = part(again, 0x8000, 0x2000);
    nvme_mem another = part(file(1 << 20), 0x3000, 0x1000);
    ASSERT_EQ(nvme_map(c, &first, NVME_MAP_BUFFER, &a), 0);
    ASSERT_EQ(nvme_map(c, &second, NVME_MAP_BUFFER, &b), 0);
    EXPECT_EQ(b - a, 0x5000u);
    EXPECT_EQ(regions(), before + 1);
    ASSERT_EQ(nvme_map(c, &another, NVME_MAP_BUFFER, &other), 0);
    EXPECT_EQ(regions(), before + 2) << "another file, of the same size";
    EXPECT_EQ(nvme_unmap(c, a), 0);
    EXPECT_EQ(regions(), before + 2) << "the second is in use";
    EXPECT_EQ(nvme_unmap(c, b), 0);
    EXPECT_EQ(nvme_unmap(c, other), 0);
    EXPECT_EQ(regions(), before);
}

TEST_F(Dma, AGrownFileGetsAnotherRegion)
{
    uint64_t a, b;

    fake.t.maps_files = true;
    open();
    int fd = file(0x10000);
    nvme_mem first = part(fd, 0, 0x1000), later = part(fd, 0x10000, 0x1000);
    ASSERT_EQ(nvme_map(c, &first, NVME_MAP_BUFFER, &a), 0);
    ASSERT_EQ(ftruncate(fd, 0x20000), 0);
    ASSERT_EQ(nvme_map(c, &later, NVME_MAP_BUFFER, &b), 0);
    EXPECT_EQ(regions(), 3u);
    EXPECT_EQ(fake.maps.at(b - 0x10000).len, 0x20000u);
    EXPECT_EQ(nvme_unmap(c, b), 0);
    EXPECT_EQ(nvme_unmap(c, a), 0);
}

/* A controller that has failed may still have commands: no buffer stays in its reach. */
TEST_F(Dma, AFailedControllerLosesASharedRegionAtOnce)
{
    uint64_t a, b;

    opts.admin_timeout_ms = 50;
    fake.t.maps_files = true;
    fake.has_reset = fake.reset_fails = true;
    open();
    int fd = file(1 << 20);
    nvme_mem first = part(fd, 0, 0x1000), second = part(fd, 0x1000, 0x1000);
    ASSERT_EQ(nvme_map(c, &first, NVME_MAP_BUFFER, &a), 0);
    ASSERT_EQ(nvme_map(c, &second, NVME_MAP_BUFFER, &b), 0);
    fake.never_disabled = true;
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), -EIO);
    EXPECT_EQ(fake.maps.count(a), 1u);
    EXPECT_EQ(nvme_unmap(c, b), 0);
    EXPECT_EQ(fake.maps.count(a), 0u);
    EXPECT_EQ(nvme_unmap(c, a), 0);
}

// --- Addresses for a controller: inside the windows, apart from each other, never page 0 ---------

constexpr uint64_t PAGE = 4096;
constexpr uint64_t MIB = 1 << 20;

class Iova : public ::testing::Test
{
  protected:
    void SetUp() override { nvme_iova_init(&v); }

    void TearDown() override { nvme_iova_destroy(&v); }

    /* 0 when there is no room. */
    uint64_t take(size_t len, size_t align = PAGE, void *owner = nullptr)
    {
        uint64_t iova = 0;
        int rc = nvme_iova_take(&v, len, align, owner, &iova);
        EXPECT_EQ(rc, iova ? 0 : -ENOSPC);
        return iova;
    }

    nvme_iova v;
};

TEST_F(Iova, PageZeroIsNeverAllocated)
{
    EXPECT_EQ(nvme_iova_allow(&v, 0, PAGE - 1), -EINVAL);
    EXPECT_EQ(take(PAGE), 0u) << "there is no window";
    ASSERT_EQ(nvme_iova_allow(&v, 0, 2 * PAGE - 1), 0);
    EXPECT_EQ(take(PAGE), PAGE);
    EXPECT_EQ(take(PAGE), 0u);
}

TEST_F(Iova, WindowsAreRoundedInwards)
{
    ASSERT_EQ(nvme_iova_allow(&v, 5 * PAGE + 1, 8 * PAGE - 2), 0);
    EXPECT_EQ(take(2 * PAGE), 0u) << "the last page of the window is not whole";
    EXPECT_EQ(take(PAGE), 6 * PAGE);
}

TEST_F(Iova, WindowsMustAscendAndHoldAPage)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    EXPECT_EQ(nvme_iova_allow(&v, 2 * MIB - PAGE, 3 * MIB - 1), -EINVAL) << "overlaps";
    EXPECT_EQ(nvme_iova_allow(&v, PAGE, MIB - 1), -EINVAL) << "lies below";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB, 3 * MIB), -EINVAL) << "ends before it starts";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB + 1, 4 * MIB + 2 * PAGE - 2), -EINVAL) << "no whole page";
    EXPECT_EQ(nvme_iova_allow(&v, 4 * MIB, 5 * MIB - 1), 0);
}

TEST_F(Iova, TheEndOfTheAddressSpaceDoesNotOverflow)
{
    ASSERT_EQ(nvme_iova_allow(&v, UINT64_MAX - MIB + 1, UINT64_MAX), 0);
    EXPECT_EQ(take(MIB), 0u);
    uint64_t iova = take(MIB - 2 * PAGE);
    EXPECT_EQ(iova, UINT64_MAX - MIB + 1);
    EXPECT_EQ(take(PAGE), 0u);
    EXPECT_EQ(nvme_iova_allow(&v, UINT64_MAX, UINT64_MAX), -EINVAL);
}

TEST_F(Iova, TheWholeAddressSpaceCanBeOneWindow)
{
    ASSERT_EQ(nvme_iova_allow(&v, 0, UINT64_MAX), 0);
    EXPECT_EQ(take(SIZE_MAX & ~(PAGE - 1)), 0u);
    EXPECT_EQ(take(size_t(1) << 62), PAGE);
}

TEST_F(Iova, APageStaysFreeBetweenRanges)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    uint64_t a = take(PAGE), b = take(PAGE), c = take(PAGE);
    EXPECT_EQ(b, a + 2 * PAGE);
    EXPECT_EQ(c, b + 2 * PAGE);
    ASSERT_EQ(nvme_iova_give(&v, b), 0);
    EXPECT_EQ(take(2 * PAGE), c + 2 * PAGE) << "would touch its neighbour";
    EXPECT_EQ(take(PAGE), b);
}

TEST_F(Iova, APageStaysFreeBetweenRangesOfTouchingWindows)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, MIB + PAGE - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, MIB + PAGE, MIB + 4 * PAGE - 1), 0);
    EXPECT_EQ(take(PAGE), MIB);
    EXPECT_EQ(take(PAGE), MIB + 2 * PAGE);
}

TEST_F(Iova, RangesDoNotCrossWindows)
{
    ASSERT_EQ(nvme_iova_allow(&v, MIB, MIB + 2 * PAGE - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, 2 * MIB, 2 * MIB + 4 * PAGE - 1), 0);
    EXPECT_EQ(take(3 * PAGE), 2 * MIB);
    EXPECT_EQ(take(2 * PAGE), MIB);
}

TEST_F(Iova, RangesAreAligned)
{
    ASSERT_EQ(nvme_iova_allow(&v, PAGE, 8 * MIB - 1), 0);
    EXPECT_EQ(take(PAGE), PAGE);
    EXPECT_EQ(take(2 * MIB, 2 * MIB), 2 * MIB);
    EXPECT_EQ(take(PAGE, size_t(1) << 63), 0u);
}

TEST_F(Iova, OwnersAreFoundByTheirStartOnly)
{
    int a, b;
    ASSERT_EQ(nvme_iova_allow(&v, MIB, 2 * MIB - 1), 0);
    uint64_t x = take(2 * PAGE, PAGE, &a), y = take(PAGE, PAGE, &b);
    ASSERT_NE(nvme_iova_find(&v, x), nullptr);
    EXPECT_EQ(nvme_iova_find(&v, x)->owner, &a);
    EXPECT_EQ(nvme_iova_find(&v, x)->len, 2 * PAGE);
    EXPECT_EQ(nvme_iova_find(&v, y)->owner, &b);
    EXPECT_EQ(nvme_iova_find(&v, x + PAGE), nullptr);
    EXPECT_EQ(nvme_iova_give(&v, x + PAGE), -ENOENT);
    EXPECT_EQ(nvme_iova_give(&v, x), 0);
    EXPECT_EQ(nvme_iova_give(&v, x), -ENOENT);
    EXPECT_EQ(nvme_iova_find(&v, x), nullptr);
}

TEST_F(Iova, AFullTableIsFilledAndEmptiedWithoutMovingIt)
{
    constexpr size_t N = 65535; /* of VFIO's type 1 */
    std::vector<uint64_t> taken;
    ASSERT_EQ(nvme_iova_allow(&v, PAGE, UINT32_MAX), 0);
    auto start = std::clock();
    for (size_t i = 0; i < N; i++)
        taken.push_back(take(PAGE));
    for (uint64_t iova : taken)
        ASSERT_EQ(nvme_iova_give(&v, iova), 0);
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 2) << "a search for each takes seconds";
    EXPECT_EQ(v.n_used, 0u);
    EXPECT_EQ(take(PAGE), taken[0]);
}

/* A model of the taken ranges: every range is in a window, and a page from all other ranges. */
class TakenModel
{
  public:
    void add(uint64_t start, uint64_t len)
    {
        auto above = at.lower_bound(start);
        if (above != at.end()) {
            EXPECT_LE(start + len + PAGE, above->first);
        }
        if (above != at.begin()) {
            auto below = std::prev(above);
            EXPECT_GE(start, below->first + below->second + PAGE);
        }
        bool low = start >= 16 * PAGE && start + len <= MIB;
        bool high = start >= 3 * MIB && start + len <= 4 * MIB;
        EXPECT_TRUE(low || high) << std::hex << start << " + " << len;
        at[start] = len;
    }

    std::map<uint64_t, uint64_t> at;
};

TEST_F(Iova, RandomAllocationsDoNotOverlap)
{
    std::mt19937 rng(4);
    TakenModel taken;
    unsigned refused = 0;
    ASSERT_EQ(nvme_iova_allow(&v, 16 * PAGE, MIB - 1), 0);
    ASSERT_EQ(nvme_iova_allow(&v, 3 * MIB, 4 * MIB - 1), 0);
    for (int i = 0; i < 20000; i++) {
        if (rng() % 2) {
            size_t len = (1 + rng() % 24) * PAGE, align = PAGE << rng() % 4;
            uint64_t iova = take(len, align);
            refused += iova == 0;
            EXPECT_EQ(iova % align, 0u);
            if (iova)
                taken.add(iova, len);
        } else if (!taken.at.empty()) {
            auto it = std::next(taken.at.begin(), rng() % taken.at.size());
            EXPECT_EQ(nvme_iova_give(&v, it->first), 0);
            taken.at.erase(it);
        }
        ASSERT_FALSE(HasFailure()) << "step " << i;
    }
    EXPECT_GT(refused, 0u);
    EXPECT_EQ(v.n_used, taken.at.size());
}

} // namespace
