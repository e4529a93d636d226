/* SPDX-License-Identifier: BSD-2-Clause */
/* VFIO without hardware: what the kernel can answer, and every way in which opening ends early. */
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "blockdev/vfio/vfio_internal.h"
#include "tests/blockdev/pci/pci_tree.h"

namespace
{

const uint64_t PAGE = 4096;

/* --- Answers with capabilities --------------------------------------------------------------- */

/* A struct of the kernel's interface with capabilities behind it. */
class Answer
{
  public:
    explicit Answer(size_t fixed) : end(fixed) { bytes.resize(VFIO_ANSWER); }

    template <typename T> T *as() { return reinterpret_cast<T *>(bytes.data()); }

    /* Appends a capability of `len` bytes and links it behind the one before. */
    template <typename T> T *cap(uint16_t id, size_t len)
    {
        auto *header = reinterpret_cast<vfio_info_cap_header *>(&bytes[end]);

        header->id = id;
        header->version = 1;
        if (last)
            reinterpret_cast<vfio_info_cap_header *>(&bytes[last])->next = (uint32_t)end;
        else
            first = (uint32_t)end;
        last = end;
        end += (len + 7) & ~(size_t)7;
        return reinterpret_cast<T *>(header);
    }

    const void *find(uint16_t id, size_t min)
    {
        return vfio_find_cap(bytes.data(), end, first, id, min);
    }

    size_t end, last = 0;
    uint32_t first = 0;
    alignas(8) std::vector<char> bytes;
};

TEST(VfioCaps, AreFoundInTheChainIfTheyAreComplete)
{
    Answer a(16);

    a.cap<char>(7, 16);
    auto *second = a.cap<char>(9, 24);
    EXPECT_EQ(a.find(9, 24), second);
    EXPECT_EQ(a.find(9, 25), nullptr);
    EXPECT_EQ(a.find(8, 8), nullptr);
}

TEST(VfioCaps, CirclesAndOffsetsOutsideEndTheSearch)
{
    Answer a(16);

    auto *one = a.cap<vfio_info_cap_header>(7, 8);
    one->next = 16;
    EXPECT_EQ(a.find(9, 8), nullptr);
    one->next = UINT32_MAX;
    EXPECT_EQ(a.find(9, 8), nullptr);
    a.first = (uint32_t)a.end - 4;
    EXPECT_EQ(a.find(7, 8), nullptr);
    a.first = 0;
    EXPECT_EQ(a.find(7, 8), nullptr);
}

class Windows : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        nvme_iova_init(&iova);
        answer.as<vfio_iommu_type1_info>()->flags = VFIO_IOMMU_INFO_CAPS;
    }

    void TearDown() override { nvme_iova_destroy(&iova); }

    int read(const std::vector<std::pair<uint64_t, uint64_t>> &ranges, uint32_t said)
    {
        size_t len = sizeof(vfio_iommu_type1_info_cap_iova_range) + ranges.size() * 16;
        auto *cap = answer.cap<vfio_iommu_type1_info_cap_iova_range>(
            VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, len);

        cap->nr_iovas = said;
        for (size_t i = 0; i < ranges.size(); i++)
            cap->iova_ranges[i] = {ranges[i].first, ranges[i].second};
        answer.as<vfio_iommu_type1_info>()->cap_offset = answer.first;
        return vfio_group_windows(&iova, answer.bytes.data(), answer.end);
    }

    bool allowed(uint64_t address) const
    {
        for (size_t i = 0; i < iova.n_windows; i++)
            if (address >= iova.windows[i].start &&
                address - iova.windows[i].start < iova.windows[i].len)
                return true;
        return false;
    }

    Answer answer{sizeof(vfio_iommu_type1_info)};
    struct nvme_iova iova;
};

TEST_F(Windows, AreThoseThatTheKernelAllows)
{
    ASSERT_EQ(read({{0, 0xfedfffff}, {0xfef00000, 0x7fffffffff}}, 2), 0);
    EXPECT_FALSE(allowed(0));
    EXPECT_TRUE(allowed(PAGE));
    EXPECT_TRUE(allowed(0xfedfffff));
    EXPECT_FALSE(allowed(0xfee00000));
    EXPECT_FALSE(allowed(0xfeefffff));
    EXPECT_TRUE(allowed(0xfef00000));
    EXPECT_FALSE(allowed(0x8000000000));
}

TEST_F(Windows, ACountBeyondTheReplyIsRefused)
{
    ASSERT_EQ(read({{0x100000, 0x1fffff}}, 1000000), 0);
    EXPECT_EQ(iova.n_windows, 1u);
}

TEST_F(Windows, NothingUsableIsAnError)
{
    EXPECT_EQ(read({{0, 0xfff}, {0x2000, 0x1000}}, 2), -EPROTO);
}

TEST_F(Windows, AreNeverGuessed)
{
    answer.as<vfio_iommu_type1_info>()->flags = 0;
    EXPECT_EQ(vfio_group_windows(&iova, answer.bytes.data(), answer.end), -EPROTO);
    EXPECT_EQ(iova.n_windows, 0u);
}

// The answer to VFIO_IOMMU_GET_INFO of a container that takes 1234 mappings.
class Regions : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        info()->flags = VFIO_IOMMU_INFO_CAPS;
        first_ = answer_.cap<vfio_info_cap_header>(7, 16);
        cap_ = answer_.cap<vfio_iommu_type1_info_dma_avail>(
            VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, sizeof(vfio_iommu_type1_info_dma_avail));
        cap_->avail = 1234;
        info()->cap_offset = answer_.first;
    }

    vfio_iommu_type1_info *info() { return answer_.as<vfio_iommu_type1_info>(); }

    unsigned regions(size_t len)
    {
        unsigned n = 99;

        EXPECT_EQ(vfio_group_regions(answer_.bytes.data(), len, &n), 0);
        return n;
    }

    unsigned regions() { return regions(answer_.end); }

    Answer answer_{sizeof(vfio_iommu_type1_info)};
    vfio_info_cap_header *first_ = nullptr;
    vfio_iommu_type1_info_dma_avail *cap_ = nullptr;
};

TEST_F(Regions, AreThoseThatTheKernelStillAccepts)
{
    EXPECT_EQ(regions(), 1234u);
}

TEST_F(Regions, OfAKernelThatAcceptsNoneAreAnError)
{
    unsigned n;

    cap_->avail = 0;
    EXPECT_EQ(vfio_group_regions(answer_.bytes.data(), answer_.end, &n), -ENOSPC);
}

TEST_F(Regions, OfOldKernelsAreUnknown)
{
    cap_->header.id = 8;
    EXPECT_EQ(regions(), 0u) << "no such capability";
    cap_->header.id = VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL;
    info()->flags = 0;
    EXPECT_EQ(regions(), 0u) << "no capabilities";
}

TEST_F(Regions, OfInvalidChainsAreUnknown)
{
    const auto second = first_->next;

    for (size_t len = 0; len < sizeof(*cap_); len++)
        EXPECT_EQ(regions(second + len), 0u) << len << " bytes of it";
    for (uint32_t next : {answer_.first, answer_.first - 8, uint32_t(answer_.end),
                          uint32_t(answer_.end) - 4, UINT32_MAX, UINT32_MAX - 7}) {
        first_->next = next;
        EXPECT_EQ(regions(), 0u) << "the next at " << next;
    }
    first_->next = second;
    for (uint32_t at : {0u, uint32_t(answer_.end), UINT32_MAX}) {
        info()->cap_offset = at;
        EXPECT_EQ(regions(), 0u) << "the first at " << at;
    }
    info()->cap_offset = second;
    EXPECT_EQ(regions(), 1234u);
}

class Doorbells : public ::testing::Test
{
  protected:
    void region(uint64_t size, uint32_t flags = VFIO_REGION_INFO_FLAG_MMAP)
    {
        answer.as<vfio_region_info>()->flags = flags;
        answer.as<vfio_region_info>()->size = size;
    }

    void sparse(const std::vector<std::pair<uint64_t, uint64_t>> &areas, uint32_t said)
    {
        auto *cap = answer.cap<vfio_region_info_cap_sparse_mmap>(
            VFIO_REGION_INFO_CAP_SPARSE_MMAP,
            sizeof(vfio_region_info_cap_sparse_mmap) + areas.size() * 16);

        cap->nr_areas = said;
        for (size_t i = 0; i < areas.size(); i++)
            cap->areas[i] = {areas[i].first, areas[i].second};
        answer.as<vfio_region_info>()->flags |= VFIO_REGION_INFO_FLAG_CAPS;
        answer.as<vfio_region_info>()->cap_offset = answer.first;
    }

    size_t len(uint64_t limit)
    {
        return vfio_doorbells_len(answer.bytes.data(), answer.end, limit);
    }

    Answer answer{sizeof(vfio_region_info)};
};

TEST_F(Doorbells, EndWhereTheInterruptTableBegins)
{
    region(4 * PAGE);
    EXPECT_EQ(len(4 * PAGE), 3 * PAGE);
    EXPECT_EQ(len(2 * PAGE), PAGE);
    EXPECT_EQ(len(3 * PAGE - 1), PAGE);
    EXPECT_EQ(len(2 * PAGE - 8), 0u) << "the table is in the page of the doorbells";
}

TEST_F(Doorbells, EndWhereTheKernelForbidsMapping)
{
    region(8 * PAGE);
    sparse({{0, 3 * PAGE}, {4 * PAGE, 4 * PAGE}}, 2);
    EXPECT_EQ(len(8 * PAGE), 2 * PAGE);
    EXPECT_EQ(len(2 * PAGE), PAGE);
}

TEST_F(Doorbells, AreNotMappedWithoutTheKernelsPermission)
{
    region(4 * PAGE, 0);
    EXPECT_EQ(len(4 * PAGE), 0u);
    region(4 * PAGE);
    sparse({{0, PAGE}, {2 * PAGE, 2 * PAGE}}, 2);
    EXPECT_EQ(len(4 * PAGE), 0u);
}

TEST_F(Doorbells, ImpossibleAreasAreRefused)
{
    region(4 * PAGE);
    sparse({{PAGE, UINT64_MAX - 8}, {0, 8 * PAGE}, {UINT64_MAX - 8, 16}}, 1000);
    EXPECT_EQ(len(4 * PAGE), 0u);
}

/* --- Opening --------------------------------------------------------------------------------- */

class VfioOpen : public ::testing::Test
{
  protected:
    void SetUp() override { fds = count_fds(); }

    void TearDown() override { EXPECT_EQ(count_fds(), fds) << "a descriptor is left open"; }

    static size_t count_fds()
    {
        std::filesystem::directory_iterator folder("/proc/self/fd");

        return (size_t)std::distance(begin(folder), end(folder));
    }

    int open()
    {
        why.text[0] = 0;
        return vfio_open_at(tree.root(), BDF, &defaults, &t, &why);
    }

    /* All that sysfs shows of a drive VFIO can have; dev is empty. */
    void bound()
    {
        tree.pci(BDF);
        tree.group(BDF, 7);
        tree.driver(BDF, "vfio-pci");
    }

    bool says(const char *text) const { return strstr(why.text, text) != nullptr; }

    void expect_refused(int err, const char *text)
    {
        EXPECT_EQ(open(), err);
        EXPECT_TRUE(says(text)) << why.text;
    }

    const bd_open_opts defaults = {};
    PciTree tree;
    struct nvme_transport *t = nullptr;
    struct reason why = {};
    size_t fds = 0;
};

TEST_F(VfioOpen, ReportsAnInvalidAddress)
{
    EXPECT_EQ(vfio_open_at(tree.root(), "nvme0", &defaults, &t, &why), -EINVAL);
    EXPECT_TRUE(says("no PCI address")) << why.text;
    EXPECT_EQ(vfio_open_at(tree.root(), "nvme0", &defaults, &t, nullptr), -EINVAL);
}

TEST_F(VfioOpen, ReportsADeviceThatIsAbsentOrNoNvme)
{
    expect_refused(-ENODEV, "no such PCI device");
    tree.pci(BDF, "0x030000");
    expect_refused(-ENODEV, "not an NVMe controller");
}

TEST_F(VfioOpen, ReportsTheDriverThatHasIt)
{
    bound();
    tree.driver(BDF, "nvme");
    expect_refused(-EBUSY, "nvme drives it");
}

TEST_F(VfioOpen, ReportsANeighbourInTheGroup)
{
    bound();
    tree.pci("0000:c1:00.1");
    tree.group("0000:c1:00.1", 7);
    tree.driver("0000:c1:00.1", "nvme");
    expect_refused(-EXDEV, "0000:c1:00.1");
}

TEST_F(VfioOpen, RequiresAnIommu)
{
    bound();
    tree.remove(PciTree::device(BDF) + "/iommu_group");
    expect_refused(-ENOTSUP, "no IOMMU");
}

TEST_F(VfioOpen, ReportsMissingNodes)
{
    bound();
    expect_refused(-ENOTSUP, "/dev/vfio/vfio is missing");
}

TEST_F(VfioOpen, DoesNotTakeAFileForVfio)
{
    bound();
    tree.text("dev/vfio/vfio", "");
    tree.text("dev/vfio/7", "");
    expect_refused(-ENOTSUP, "speaks no VFIO");
}

TEST_F(VfioOpen, PrefersIommufdIfItsFilesExist)
{
    bound();
    tree.text("dev/iommu", "");
    tree.text("dev/vfio/devices/vfio3", "");
    tree.dir(PciTree::device(BDF) + "/vfio-dev/vfio3");
    expect_refused(-ENOTTY, "VFIO does not open it");
    tree.remove("dev/vfio/devices/vfio3");
    expect_refused(-ENOTSUP, "/dev/vfio/vfio is missing");
}

TEST_F(VfioOpen, ReportsMissingRights)
{
    bound();
    tree.text("dev/vfio/vfio", "");
    std::filesystem::permissions(tree.top, std::filesystem::perms(0755));
    std::filesystem::permissions(tree.top + "/dev/vfio/vfio", std::filesystem::perms(0600));
    if (geteuid() != 0 || seteuid(65534) != 0)
        GTEST_SKIP() << "needs root, to become a user without rights";
    int rc = open();
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_EQ(rc, -EACCES);
    EXPECT_TRUE(says("no rights on")) << why.text;
}

} // namespace
