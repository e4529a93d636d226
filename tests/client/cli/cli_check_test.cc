/* SPDX-License-Identifier: BSD-2-Clause */
// What `gpunvme check` concludes about machines made of files.
#include <gtest/gtest.h>

#include <cstring>

#include "client/cli/check/cli_check.h"
#include "client/cli/common/mounts.h"
#include "client/cli/ctrlr/cli_target.h"
#include "tests/blockdev/pci/pci_tree.h"
#include "tests/client/cli/cli_report.h"

namespace
{

constexpr char kDrive[] = "0000:c1:00.0";

class CheckTest : public ::testing::Test
{
  protected:
    ~CheckTest() override { check_free(&check_); }

    // The finding of that id; null when there is none.
    const struct check_finding *find(const std::string &id) const
    {
        for (size_t i = 0; i < check_.n; i++) {
            if (id == check_.all[i].id)
                return &check_.all[i];
        }
        return nullptr;
    }

    void expect(const std::string &id, enum check_level level, const std::string &said) const
    {
        const struct check_finding *f = find(id);
        ASSERT_NE(f, nullptr) << id;
        EXPECT_EQ(f->level, level) << id << ": " << f->text;
        EXPECT_NE(std::string(f->text).find(said), std::string::npos) << f->text;
        EXPECT_EQ(f->level == CHECK_OK, f->advice[0] == '\0') << f->advice;
    }

    void check_drive(const char *bdf = kDrive)
    {
        struct pci_device pci;
        ASSERT_EQ(pci_read(tree_.root(), bdf, &pci), 0);
        check_pci(&check_, tree_.root(), &pci);
    }

    // A device in its place below a root complex, as the kernel lays it out.
    void place(const std::string &bdf, const std::string &way)
    {
        std::string folder = "sys/devices/" + way + "/" + bdf;
        tree_.dir(folder);
        std::filesystem::rename(tree_.top + "/" + PciTree::device(bdf),
                                tree_.top + "/" + folder + ".new");
        tree_.remove(folder);
        std::filesystem::rename(tree_.top + "/" + folder + ".new", tree_.top + "/" + folder);
        tree_.link(PciTree::device(bdf), folder);
    }

    void gpu(const std::string &bdf)
    {
        tree_.pci(bdf, "0x030200");
        tree_.text(PciTree::device(bdf) + "/vendor", "0x10de\n");
        tree_.text(PciTree::device(bdf) + "/resource",
                   "0x0000000080000000 0x0000000080ffffff 0x0\n"
                   "0x0000000000000000 0x0000000000000000 0x0\n"
                   "0x0000004000000000 0x0000005fffffffff 0x0\n");
        tree_.driver(bdf, "nvidia");
    }

    PciTree tree_;
    struct check check_ = {};
};

TEST_F(CheckTest, ABareMachineIsWarnedAboutAndNotFailed)
{
    check_machine(&check_, tree_.root());
    check_gpu(&check_, tree_.root());
    expect("iommu", CHECK_WARN, "off or absent");
    expect("vfio", CHECK_WARN, "not loaded");
    expect("gpu", CHECK_WARN, "no NVIDIA GPU");
    expect("fuse", CHECK_FAIL, "/dev/fuse");
    EXPECT_EQ(check_.worst, CHECK_FAIL);
}

TEST_F(CheckTest, AMachineWithAllOfItIsInOrder)
{
    tree_.pci(kDrive);
    tree_.group(kDrive, 7);
    tree_.dir("sys/class/iommu/dmar0");
    tree_.dir("sys/bus/pci/drivers/vfio-pci");
    tree_.text("dev/vfio/vfio", "");
    tree_.text("dev/fuse", "");
    check_machine(&check_, tree_.root());
    expect("iommu", CHECK_OK, "1 units, 1 groups");
    expect("vfio", CHECK_OK, "interface: group");
    expect("fuse", CHECK_OK, "/dev/fuse");
}

TEST_F(CheckTest, AnActiveLockdownIsReported)
{
    tree_.text("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    check_machine(&check_, tree_.root());
    expect("lockdown", CHECK_WARN, "[integrity]");
}

/* Tests the line p2p, which depends on the driver and the VFIO interface. */
class P2pTest : public CheckTest
{
  protected:
    void expect_p2p(const char *version, enum check_level level, const char *said)
    {
        tree_.text("proc/driver/nvidia/version",
                   std::string("NVRM version: NVIDIA UNIX ") + version + "  Release\n");
        check_gpu(&check_, tree_.root());
        expect("p2p", level, said);
        check_free(&check_);
        check_ = {};
    }
};

TEST_F(P2pTest, ReportsWhyADriveCannotReachGpuMemory)
{
    gpu("0000:3b:00.0");
    expect_p2p("x86_64 Kernel Module  610.43.02", CHECK_WARN, "closed kernel modules");
    expect_p2p("Open Kernel Module for x86_64  580.65.06", CHECK_WARN, "does not map it");
    expect_p2p("Open Kernel Module for x86_64  610.42.01", CHECK_WARN, "does not map it");
    expect_p2p("Open Kernel Module for x86_64  610.43.02", CHECK_OK, "the mount tries");
    tree_.dir("sys/bus/pci/drivers/vfio-pci");
    expect_p2p("Open Kernel Module for x86_64  610.43.02", CHECK_WARN, "iommufd pins pages");
    tree_.text("dev/vfio/vfio", "");
    expect_p2p("Open Kernel Module for x86_64  611.01", CHECK_OK, "tier 2");
}

TEST_F(P2pTest, SaysThatTheWindowIsSmall)
{
    gpu("0000:3b:00.0");
    tree_.text(PciTree::device("0000:3b:00.0") + "/resource",
               "0x0000000080000000 0x0000000080ffffff 0x0\n"
               "0x0000004000000000 0x000000400fffffff 0x0\n");
    check_gpu(&check_, tree_.root());
    expect("p2p_window", CHECK_WARN, "0000:3b:00.0: the window is too small");
}

struct Driver {
    const char *name, *version;
    enum check_level level;
    const char *said;
    bool doorbells_doubted;
};

class DriverTest : public CheckTest, public ::testing::WithParamInterface<Driver>
{
};

TEST_P(DriverTest, FlavourAndVersionAreUnderstood)
{
    gpu("0000:3b:00.0");
    tree_.text("proc/driver/nvidia/version", GetParam().version);
    tree_.text("proc/driver/nvidia/params",
               "ResmanDebugLevel: 4294967295\nRegistryDwords: \"PeerMappingOverride=1\"\n");
    check_gpu(&check_, tree_.root());
    expect("gpu", CHECK_OK, "131072 MiB");
    const struct check_finding *f = find("nvidia_modules");
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(f->level, GetParam().level);
    EXPECT_NE(std::string(f->text).find(GetParam().said), std::string::npos) << f->text;
    f = find("doorbells");
    ASSERT_EQ(f != nullptr, std::string(GetParam().name) != "nonsense");
    if (f) {
        EXPECT_EQ(f->level, GetParam().doorbells_doubted ? CHECK_WARN : CHECK_OK) << f->text;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Versions, DriverTest,
    ::testing::Values(
        Driver{"open",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release "
               "Build  (dvs-builder@U16)  Sun Mar 30\n",
               CHECK_OK, "open kernel modules, version 570.133", false},
        Driver{"open_early",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n",
               CHECK_OK, "570.86", true},
        Driver{"closed",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15\n",
               CHECK_WARN, "closed kernel modules, version 535.183", false},
        Driver{"broken_branch", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri\n",
               CHECK_WARN, "560.35", true},
        Driver{"nonsense", "\x01\x02 no version\n", CHECK_WARN, "not understood", false}),
    [](const auto &info) { return info.param.name; });

TEST_F(CheckTest, AGoodDriveHasNoFailure)
{
    tree_.pci(kDrive);
    tree_.driver(kDrive, "vfio-pci");
    tree_.group(kDrive, 7);
    tree_.text(PciTree::device(kDrive) + "/reset", "");
    tree_.text(PciTree::device(kDrive) + "/current_link_speed", "32.0 GT/s PCIe\n");
    tree_.text(PciTree::device(kDrive) + "/current_link_width", "4\n");
    tree_.text(PciTree::device(kDrive) + "/max_link_width", "4\n");
    check_drive();
    expect("driver", CHECK_OK, "vfio-pci");
    expect("group", CHECK_OK, "group 7, 1 device in it");
    expect("bar0", CHECK_OK, "16384");
    expect("link", CHECK_OK, "x4 of x4");
    expect("reset", CHECK_OK, "can be reset");
    EXPECT_EQ(check_.worst, CHECK_OK);
}

TEST_F(CheckTest, ANarrowLinkANeighbourAndNoIommuAreNamed)
{
    tree_.pci(kDrive);
    tree_.text(PciTree::device(kDrive) + "/current_link_speed", "8.0 GT/s PCIe\n");
    tree_.text(PciTree::device(kDrive) + "/current_link_width", "2\n");
    tree_.text(PciTree::device(kDrive) + "/max_link_width", "4\n");
    check_drive();
    expect("link", CHECK_WARN, "x2 of x4");
    expect("group", CHECK_WARN, "no IOMMU");
    expect("driver", CHECK_WARN, "no driver");
}

TEST_F(CheckTest, ASharedGroupFailsAndNamesTheOther)
{
    tree_.pci(kDrive);
    tree_.driver(kDrive, "vfio-pci");
    tree_.group(kDrive, 7);
    tree_.pci("0000:c2:00.0", "0x020000");
    tree_.driver("0000:c2:00.0", "igb");
    tree_.group("0000:c2:00.0", 7);
    check_drive();
    expect("group_shared", CHECK_FAIL, "0000:c2:00.0");
}

TEST_F(CheckTest, ADeviceOfAnotherClassFailsAtOnce)
{
    tree_.pci(kDrive, "0x020000");
    check_drive();
    expect("pci", CHECK_FAIL, "not an NVMe controller");
    EXPECT_EQ(check_.n, 1u);
}

TEST_F(CheckTest, AGpuHasItsNumaNode)
{
    gpu("0000:c2:00.0");
    tree_.text(PciTree::device("0000:c2:00.0") + "/numa_node", "1\n");
    check_gpu(&check_, tree_.root());
    expect("gpu", CHECK_OK, "NUMA node 1");
}

TEST_F(CheckTest, TheDistanceToAGpuDependsOnTheBridgesInBetween)
{
    tree_.pci(kDrive);
    gpu("0000:c2:00.0");
    gpu("0000:c3:00.0");
    gpu("0000:3b:00.0");
    place(kDrive, "pci0000:c0/0000:c0:01.0");
    place("0000:c2:00.0", "pci0000:c0/0000:c0:01.0");
    place("0000:c3:00.0", "pci0000:c0/0000:c0:03.0");
    place("0000:3b:00.0", "pci0000:3a/0000:3a:00.0");
    EXPECT_EQ(pci_distance(tree_.root(), kDrive, "0000:c2:00.0"), PCI_DISTANCE_SWITCH);
    EXPECT_EQ(pci_distance(tree_.root(), kDrive, "0000:c3:00.0"), PCI_DISTANCE_ROOT);
    EXPECT_EQ(pci_distance(tree_.root(), kDrive, "0000:3b:00.0"), PCI_DISTANCE_FAR);
    EXPECT_EQ(pci_distance(tree_.root(), kDrive, "0000:77:00.0"), PCI_DISTANCE_UNKNOWN);
    check_drive();
    expect("topology", CHECK_WARN,
           "0000:3b:00.0: in another root complex"); // the first, by address
}

// A mount with the default options, and what check_tier() says of it.
struct Tier {
    const char *name;
    struct check_executor x;
    enum check_level level;
    const char *said, *reason, *advice; // of the finding; advice NULL: there is none
};

class TierTest : public CheckTest, public ::testing::WithParamInterface<Tier>
{
};

TEST_P(TierTest, IsReportedWithItsExecutorAndTheReason)
{
    const Tier &want = GetParam();
    check_tier(&check_, &want.x);
    expect("tier", want.level, want.said);
    const struct check_finding *f = find("tier");
    ASSERT_NE(f, nullptr);
    EXPECT_NE(std::string(f->text).find(want.reason), std::string::npos) << f->text;
    EXPECT_NE(std::string(f->advice).find(want.advice ? want.advice : ""), std::string::npos)
        << f->advice;
}

struct check_executor executor(const char *gpu, bool rings, bool mmio)
{
    struct check_executor x = {};
    x.gpu = gpu;
    x.no_gpu = "no driver";
    x.rings = rings;
    x.mmio = mmio;
    return x;
}

struct check_executor none(bool kernel, bool noiommu)
{
    struct check_executor x = executor("A GPU", true, true);
    x.kernel = kernel;
    x.noiommu = noiommu;
    return x;
}

INSTANTIATE_TEST_SUITE_P(
    Mounts, TierTest,
    ::testing::Values(Tier{"gpu", executor("A GPU", true, true), CHECK_OK,
                           "tier 1, the GPU (A GPU)", "unless the mount finds a provider", nullptr},
                      Tier{"gpu_of_a_server", executor("A GPU", true, false), CHECK_OK,
                           "tier 1, the GPU (A GPU)", "reaches host memory only", nullptr},
                      Tier{"registers_not_mapped", executor("A GPU", false, true), CHECK_WARN,
                           "tier 0, the GPU (A GPU)", "which CUDA does not map",
                           "the line doorbells"},
                      Tier{"page_not_mapped", executor("A GPU", false, false), CHECK_WARN, "tier 0",
                           "which CUDA does not map", "tmpfs"},
                      Tier{"cpu", executor(nullptr, false, false), CHECK_OK,
                           "tier 1, the CPU executor", "no driver", nullptr},
                      Tier{"kernel", none(true, false), CHECK_WARN, "none, no executor",
                           "not bound to vfio-pci", "gpunvme bind"},
                      Tier{"noiommu", none(false, true), CHECK_WARN, "none, no executor",
                           "without an IOMMU", "IOMMU on"}),
    [](const auto &info) { return info.param.name; });

TEST_F(CheckTest, JsonHasEveryFindingAndTheWorst)
{
    check_machine(&check_, tree_.root());
    Json root = document([&](struct cli_out *o) { check_print(&check_, o); });
    EXPECT_EQ(json_object_array_length(member(root.get(), "checks")), check_.n);
    EXPECT_EQ(text(root.get(), "worst"), "fail");
    struct json_object *first = json_object_array_get_idx(member(root.get(), "checks"), 0);
    EXPECT_EQ(text(first, "id"), "iommu");
    EXPECT_EQ(text(first, "level"), "warn");
    EXPECT_NE(text(first, "advice"), "");
}

class TargetTest : public ::testing::Test
{
  protected:
    int find(const std::string &text)
    {
        why_ = {};
        return cli_target_find(tree_.root(), text.c_str(), &target_, &why_);
    }

    PciTree tree_;
    struct cli_target target_ = {};
    reason why_ = {};
};

TEST_F(TargetTest, AnAddressMeansWhoeverDrivesIt)
{
    tree_.pci(kDrive);
    ASSERT_EQ(find("c1:00.0"), 0) << why_.text;
    EXPECT_EQ(target_.driver, CLI_DRIVER_NONE);
    EXPECT_STREQ(target_.bdf, kDrive);
    tree_.driver(kDrive, "vfio-pci");
    ASSERT_EQ(find(kDrive), 0) << why_.text;
    EXPECT_EQ(target_.driver, CLI_DRIVER_VFIO);
    tree_.disk(kDrive, "nvme0n1", "259:0");
    ASSERT_EQ(find(kDrive), 0) << why_.text;
    EXPECT_EQ(target_.driver, CLI_DRIVER_KERNEL);
    EXPECT_EQ(std::string(target_.path), std::string(tree_.root()) + "/dev/nvme0");
}

TEST_F(TargetTest, DeviceStringsKeepTheirNamespace)
{
    ASSERT_EQ(find("vfio:c1:00.0/3"), 0) << why_.text;
    EXPECT_EQ(target_.nsid, 3u);
    ASSERT_EQ(find("vfio:c1:00.0"), 0) << why_.text;
    EXPECT_EQ(target_.nsid, 0u);
    ASSERT_EQ(find("vfio-user:/run/nvme"), 0) << why_.text;
    EXPECT_EQ(target_.driver, CLI_DRIVER_VFIO_USER);
    EXPECT_STREQ(target_.path, "/run/nvme");
}

TEST_F(TargetTest, InvalidTargetsAreRefusedWithAMessage)
{
    tree_.pci(kDrive, "0x020000");
    for (const char *text : {"", "c1:00.0", "0000:77:00.0", "vfio:c1:00", "vfio:c1:00.0/0",
                             "vfio-user:", "/nonexistent", "/dev/null", "/etc"}) {
        EXPECT_LT(find(text), 0) << text;
        EXPECT_NE(why_.text[0], '\0') << text;
    }
}

TEST(Mounts, AreFoundByDriveAndByNode)
{
    PciTree tree;
    tree.text("mounts", "/dev/sda1 / ext4 rw 0 0\n"
                        "vfio:c1:00.0/2 /mnt/a\\040b fuse.gpunvmefs rw,nosuid 0 0\n"
                        "/dev/nvme1n1 /mnt/c fuseblk.gpunvmefs ro 0 0\n"
                        "garbage\n");
    struct cli_mounts mounts;
    ASSERT_EQ(cli_mounts_read((tree.top + "/mounts").c_str(), &mounts), 0);
    ASSERT_EQ(mounts.n, 2u);
    const struct cli_mount *drive = cli_mounts_find(&mounts, kDrive, nullptr);
    ASSERT_NE(drive, nullptr);
    EXPECT_STREQ(drive->point, "/mnt/a b");
    const struct cli_mount *node = cli_mounts_find(&mounts, nullptr, "/dev/nvme1n1");
    ASSERT_NE(node, nullptr);
    EXPECT_STREQ(node->options, "ro");
    EXPECT_EQ(cli_mounts_find(&mounts, "0000:c2:00.0", "/dev/nvme2n1"), nullptr);
    cli_mounts_free(&mounts);
}

} // namespace
