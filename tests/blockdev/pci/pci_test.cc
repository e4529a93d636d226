/* SPDX-License-Identifier: BSD-2-Clause */
/* What sysfs and proc say about PCI drives, on machines made of files. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "blockdev/pci/pci.h"
#include "layout/format.h"
#include "tests/blockdev/pci/pci_tree.h"

namespace
{

const char *const OTHER = "0000:c1:00.1";

class Pci : public ::testing::Test
{
  protected:
    /* Calls f with the drive as the kernel shows it now. */
    template <typename F> int call(F f)
    {
        struct pci_device p;

        why.text[0] = 0;
        int rc = pci_find(tree.root(), BDF, &p, &why);
        return rc ? rc : f(tree.root(), &p);
    }

    int unused()
    {
        return call([&](auto... p) { return pci_check_unused(p..., &why); });
    }

    int vfio()
    {
        return call([&](auto... p) { return pci_check_vfio(p..., &why); });
    }

    int bind(bool dry = false)
    {
        return call([&](auto... p) { return pci_bind(p..., dry, &why); });
    }

    int unbind()
    {
        return call([&](auto... p) { return pci_unbind(p..., false, &why); });
    }

    void expect_busy(const char *because)
    {
        EXPECT_EQ(unused(), -EBUSY);
        EXPECT_STREQ(why.text, because);
    }

    std::string driver()
    {
        struct pci_device p;

        return pci_read(tree.root(), BDF, &p) ? "gone" : p.driver;
    }

    /* A disk with a DOS partition table: one partition of type Linux, from sector 8. */
    static std::string partitioned()
    {
        std::string disk(1 << 20, 0);

        disk[450] = (char)0x83;
        disk[454] = 8;
        disk[458] = 64;
        disk[510] = 0x55;
        disk[511] = (char)0xaa;
        return disk;
    }

    PciTree tree;
    struct reason why = {};
};

/* A drive of the kernel's with two partitions, not in use. */
class IdleDrive : public Pci
{
  protected:
    IdleDrive()
    {
        tree.pci(BDF);
        tree.group(BDF, 7);
        tree.disk(BDF, "nvme0n1", "259:0");
        tree.partition("nvme0n1", "nvme0n1p1", "259:1");
        tree.partition("nvme0n1", "nvme0n1p2", "259:2");
    }
};

TEST(PciAddress, BothFormsBecomeTheLongOneInLowerCase)
{
    char bdf[NVME_BDF_LEN];

    ASSERT_EQ(pci_parse("c1:00.0", bdf), 0);
    EXPECT_STREQ(bdf, "0000:c1:00.0");
    ASSERT_EQ(pci_parse("000A:C1:1F.7", bdf), 0);
    EXPECT_STREQ(bdf, "000a:c1:1f.7");
}

TEST(PciAddress, AnythingElseIsRefused)
{
    char bdf[NVME_BDF_LEN];

    for (const char *text : {"", "c1:00", "c1:00.8", "c1:20.0", "c1-00.0", "g1:00.0", "c1:00.00",
                             "0000:c1:00.0 ", "00000:c1:00.0", "../../../c1:", "0000:c1:00.0/1"})
        EXPECT_EQ(pci_parse(text, bdf), -EINVAL) << text;
}

TEST_F(IdleDrive, ADeviceIsReadWithAllItsAttributes)
{
    struct pci_device p;

    tree.text(PciTree::device(BDF) + "/numa_node", "1\n");
    tree.text(PciTree::device(BDF) + "/current_link_speed", "16.0 GT/s PCIe\n");
    tree.text(PciTree::device(BDF) + "/current_link_width", "4\n");
    tree.text(PciTree::device(BDF) + "/max_link_width", "8\n");
    tree.text(PciTree::device(BDF) + "/reset", "");
    ASSERT_EQ(pci_read(tree.root(), "c1:00.0", &p), 0);
    EXPECT_STREQ(p.bdf, BDF);
    EXPECT_EQ(p.vendor, 0x144d);
    EXPECT_EQ(p.subsystem_device, 0xa801);
    EXPECT_EQ(p.class_code, PCI_CLASS_NVME);
    EXPECT_STREQ(p.driver, "nvme");
    EXPECT_STREQ(p.kernel_name, "nvme0");
    EXPECT_EQ(p.iommu_group, 7);
    EXPECT_EQ(p.group_devices, 1u);
    EXPECT_FALSE(p.iommu_identity);
    EXPECT_EQ(p.numa_node, 1);
    EXPECT_EQ(p.bar0_len, 0x4000u);
    EXPECT_STREQ(p.link_speed, "16.0 GT/s PCIe");
    EXPECT_EQ(p.link_width, 4u);
    EXPECT_EQ(p.link_width_max, 8u);
    EXPECT_TRUE(p.can_reset);
}

TEST_F(Pci, MissingAndInvalidAttributesAreOmitted)
{
    struct pci_device p;

    tree.pci(BDF);
    tree.text(PciTree::device(BDF) + "/numa_node", "-1\n");
    tree.text(PciTree::device(BDF) + "/vendor", "0x144d0000\n");
    tree.text(PciTree::device(BDF) + "/current_link_width", "4 lanes\n");
    tree.text(PciTree::device(BDF) + "/current_link_speed", "\x1b[31m" + std::string(500, 'x'));
    tree.text(PciTree::device(BDF) + "/resource", "nothing\n");
    tree.link(PciTree::device(BDF) + "/driver", "sys/bus/pci/drivers/" + std::string(60, 'd'));
    ASSERT_EQ(pci_read(tree.root(), BDF, &p), 0);
    EXPECT_EQ(p.vendor, 0);
    EXPECT_EQ(p.numa_node, -1);
    EXPECT_EQ(p.iommu_group, -1);
    EXPECT_EQ(p.bar0_len, 0u);
    EXPECT_EQ(p.link_width, 0u);
    EXPECT_EQ(strlen(p.link_speed), sizeof(p.link_speed) - 1);
    EXPECT_EQ(p.link_speed[0], '?');
    EXPECT_STREQ(p.driver, "");
    EXPECT_FALSE(p.can_reset);
}

TEST_F(Pci, OnlyNvmeControllersAreListedInOrder)
{
    struct pci_device *list;
    size_t n;

    tree.pci("0000:c2:00.0");
    tree.pci("0000:02:00.0", "0x020000");
    tree.pci("0000:01:00.0");
    tree.pci("0001:00:00.0", "0x010802");
    ASSERT_EQ(pci_list(tree.root(), pci_is_nvme, &list, &n), 0);
    ASSERT_EQ(n, 3u);
    EXPECT_STREQ(list[0].bdf, "0000:01:00.0");
    EXPECT_STREQ(list[1].bdf, "0000:c2:00.0");
    EXPECT_STREQ(list[2].bdf, "0001:00:00.0");
    free(list);
}

TEST_F(Pci, AMachineWithoutPciHasNoControllers)
{
    struct pci_device *list;
    size_t n = 1;

    tree.remove("sys");
    ASSERT_EQ(pci_list(tree.root(), pci_is_nvme, &list, &n), 0);
    EXPECT_EQ(n, 0u);
    free(list);
}

TEST_F(Pci, AnAbsentDeviceAndOneOfAnotherKindAreNamedAsSuch)
{
    EXPECT_EQ(unused(), -ENODEV);
    EXPECT_STREQ(why.text, "no such PCI device: lspci -D lists them");
    tree.pci(BDF, "0x020000");
    for (int rc : {unused(), vfio(), bind(), unbind()})
        EXPECT_EQ(rc, -ENODEV);
    EXPECT_STREQ(why.text, "not an NVMe controller (its class is 020000, not 010802)");
}

/* --- In use ---------------------------------------------------------------------------------- */

TEST_F(IdleDrive, AnIdleDriveIsFree)
{
    tree.mount("8:1", "/");
    EXPECT_EQ(unused(), 0) << why.text;
}

TEST_F(IdleDrive, AMountedPartitionIsNamed)
{
    tree.mount("259:2", "/srv/my\\040data");
    expect_busy("nvme0n1p2 is mounted on /srv/my data");
}

TEST_F(IdleDrive, AFileSystemOverSeveralDevicesIsFoundByItsSource)
{
    tree.mount("0:45", "/pool", "/dev/nvme0n1p1");
    expect_busy("nvme0n1p1 is mounted on /pool");
}

TEST_F(IdleDrive, TheBootDriveIsNamedAsSuchWhateverElseIsMounted)
{
    tree.mount("259:1", "/data");
    tree.mount("259:2", "/");
    tree.mount("259:2", "/data/again");
    expect_busy("nvme0n1p2 is mounted on /: this system runs from it");
}

TEST_F(IdleDrive, SwapIsInUse)
{
    tree.append("proc/swaps", "/dev/nvme0n1p1                  partition\t8388604\t0\t-2\n");
    expect_busy("nvme0n1p1 is swap space in use");
}

TEST_F(IdleDrive, VolumesOfLvmAreInUseMountedOrNot)
{
    tree.block("dm-0", "253:0");
    tree.text("sys/class/block/dm-0/dm/uuid", "LVM-abcdef\n");
    tree.text("sys/class/block/dm-0/dm/name", "vg-root\n");
    tree.dir("sys/class/block/nvme0n1p2/holders/dm-0");
    expect_busy("nvme0n1p2 belongs to LVM volume vg-root");
    tree.mount("253:0", "/");
    expect_busy("nvme0n1p2, part of LVM volume vg-root, is mounted on /: this system runs "
                "from it");
}

TEST_F(IdleDrive, HoldersOfHoldersAreFollowedAndCirclesEnd)
{
    tree.block("md0", "9:0");
    tree.block("dm-1", "253:1");
    tree.text("sys/class/block/dm-1/dm/uuid", "CRYPT-LUKS2-1\n");
    tree.text("sys/class/block/dm-1/dm/name", "secret\n");
    tree.dir("sys/class/block/nvme0n1/holders/md0");
    tree.dir("sys/class/block/md0/holders/dm-1");
    tree.dir("sys/class/block/dm-1/holders/md0");
    tree.mount("253:1", "/home");
    expect_busy("nvme0n1, part of md array md0, part of encrypted volume secret, is mounted "
                "on /home");
}

TEST_F(Pci, WithMultipathTheDiskAboveThePathsIsInspected)
{
    tree.pci(BDF);
    tree.driver(BDF, "nvme");
    tree.dir(PciTree::device(BDF) + "/nvme/nvme0/nvme3c0n1");
    tree.dir(PciTree::device(BDF) + "/nvme/nvme0/ng3c0n1");
    tree.block("nvme3n1", "259:9");
    EXPECT_EQ(unused(), 0) << why.text;
    tree.mount("259:9", "/data");
    expect_busy("nvme3n1 is mounted on /data");
}

TEST_F(IdleDrive, AForeignSignatureIsAReasonButOursIsNot)
{
    std::string disk = partitioned();

    tree.text("dev/nvme0n1", disk);
    EXPECT_EQ(unused(), -EEXIST);
    EXPECT_STREQ(why.text, "nvme0n1 holds a partition table (dos)");
    uint32_t magic = LAY_MAGIC_LABEL;
    memcpy(disk.data(), &magic, sizeof(magic));
    tree.text("dev/nvme0n1", disk);
    EXPECT_EQ(unused(), 0) << why.text;
}

TEST_F(IdleDrive, AMountTakesPrecedenceOverASignature)
{
    tree.text("dev/nvme0n1", partitioned());
    EXPECT_EQ(unused(), -EEXIST);
    tree.mount("259:1", "/data");
    EXPECT_EQ(unused(), -EBUSY);
}

TEST_F(IdleDrive, ADriveThatCannotBeInspectedIsNotFree)
{
    tree.remove("dev/nvme0n1p1");
    EXPECT_EQ(unused(), -ENOENT);
    EXPECT_NE(strstr(why.text, "/dev/nvme0n1p1 cannot be opened"), nullptr) << why.text;
}

TEST_F(Pci, AControllerThatIsStartingIsNotFree)
{
    tree.pci(BDF);
    tree.driver(BDF, "nvme");
    tree.text(PciTree::device(BDF) + "/nvme/nvme0/state", "connecting\n");
    EXPECT_EQ(unused(), -EBUSY);
}

TEST_F(IdleDrive, NonsenseInMountinfoIsSkipped)
{
    tree.append("proc/self/mountinfo", "1 2\n\n - \n3 4 259:1\n3 4 259:1 / - ext4\n");
    tree.append("proc/self/mountinfo", "5 6 259:1 / /x rw - ext4\n" + std::string(100000, 'a'));
    EXPECT_EQ(unused(), 0) << why.text;
}

/* --- VFIO and drivers ------------------------------------------------------------------------ */

TEST_F(Pci, VfioGetsABoundDeviceThatIsAloneInItsGroup)
{
    tree.pci(BDF);
    tree.group(BDF, 7);
    tree.driver(BDF, "vfio-pci");
    EXPECT_EQ(vfio(), 0) << why.text;
}

TEST_F(Pci, VfioRequiresAnIommuAndTheModule)
{
    tree.pci(BDF);
    tree.driver(BDF, "nvme");
    EXPECT_EQ(vfio(), -ENOTSUP);
    EXPECT_NE(strstr(why.text, "no IOMMU"), nullptr) << why.text;
    tree.group(BDF, 7);
    EXPECT_EQ(vfio(), -ENOTSUP);
    EXPECT_STREQ(why.text, "VFIO is not loaded: run modprobe vfio-pci");
    tree.dir("sys/bus/pci/drivers/vfio-pci");
    EXPECT_EQ(vfio(), -EBUSY);
    EXPECT_STREQ(why.text, "nvme drives it: hand it over with gpunvme bind 0000:c1:00.0");
}

TEST_F(Pci, AGroupCreatedByVfioIsNoIommu)
{
    tree.pci(BDF);
    tree.group(BDF, 7);
    tree.driver(BDF, "vfio-pci");
    tree.text("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    EXPECT_EQ(vfio(), -ENOTSUP);
    EXPECT_NE(strstr(why.text, "no IOMMU"), nullptr) << why.text;
}

TEST_F(Pci, ANeighbourInTheGroupMustNotHaveAnotherDriver)
{
    tree.pci(BDF);
    tree.group(BDF, 7);
    tree.driver(BDF, "vfio-pci");
    tree.pci("0000:c0:00.0", "0x060400");
    tree.driver("0000:c0:00.0", "pcieport");
    tree.group("0000:c0:00.0", 7);
    tree.pci(OTHER, "0x020000");
    tree.group(OTHER, 7);
    EXPECT_EQ(vfio(), 0) << why.text;
    tree.driver(OTHER, "e1000e");
    EXPECT_EQ(vfio(), -EXDEV);
    EXPECT_NE(strstr(why.text, "group 7 with 0000:c1:00.1, which e1000e drives"), nullptr)
        << why.text;
    struct pci_device p;
    ASSERT_EQ(pci_read(tree.root(), BDF, &p), 0);
    EXPECT_EQ(p.group_devices, 2u);
}

TEST_F(IdleDrive, BindingAndUnbindingMoveTheDevice)
{
    FakeKernel kernel(tree, BDF, "nvme");
    ASSERT_EQ(bind(true), 0) << why.text;
    EXPECT_EQ(driver(), "nvme") << "a check changes nothing";
    ASSERT_EQ(bind(), 0) << why.text;
    EXPECT_EQ(driver(), "vfio-pci");
    ASSERT_EQ(bind(true), 0) << why.text;
    ASSERT_EQ(bind(), 0) << why.text;
    EXPECT_EQ(kernel.probes, 1);
    ASSERT_EQ(unbind(), 0) << why.text;
    for (int i = 0; i < 500 && driver() != "nvme"; i++)
        usleep(10000);
    EXPECT_EQ(driver(), "nvme");
    EXPECT_EQ(unbind(), 0) << why.text;
    EXPECT_EQ(kernel.unbinds, 2);
}

TEST_F(IdleDrive, ADeviceThatADriverRefusesReturnsToItsFormerDriver)
{
    FakeKernel kernel(tree, BDF, "nvme", "vfio-pci");
    EXPECT_EQ(bind(), -ETIMEDOUT);
    EXPECT_NE(strstr(why.text, "vfio-pci did not take it"), nullptr) << why.text;
    for (int i = 0; i < 500 && driver() != "nvme"; i++)
        usleep(10000);
    EXPECT_EQ(driver(), "nvme");
}

TEST_F(Pci, BindingNeedsTheModuleAndAnIommu)
{
    tree.pci(BDF);
    tree.driver(BDF, "nvme");
    EXPECT_EQ(bind(), -ENOENT);
    EXPECT_STREQ(why.text, "the driver vfio-pci is not loaded: run modprobe vfio-pci");
    EXPECT_EQ(bind(true), -ENOENT) << "a dry run says so, too";
    tree.dir("sys/bus/pci/drivers/vfio-pci");
    EXPECT_EQ(bind(), -ENOTSUP);
    EXPECT_EQ(bind(true), -ENOTSUP);
    EXPECT_EQ(driver(), "nvme");
    tree.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    FakeKernel kernel(tree, BDF, "nvme");
    EXPECT_EQ(bind(), 0) << why.text;
}

/* virtio-iommu and Arm's SMMU make the group when a driver is first offered the device. */
TEST_F(Pci, AGroupThatAppearsAtTheFirstProbeIsWaitedFor)
{
    tree.pci(BDF);
    tree.dir("sys/class/iommu/virtio0");
    FakeKernel kernel(tree, BDF, "nvme");
    kernel.makes_group = 3;
    EXPECT_EQ(bind(true), 0) << why.text;
    ASSERT_EQ(bind(), 0) << why.text;
    EXPECT_EQ(driver(), "vfio-pci");
    EXPECT_EQ(vfio(), 0) << why.text;
}

TEST_F(Pci, ADeviceThatGetsNoGroupWhenItIsProbedIsGivenBack)
{
    tree.pci(BDF);
    tree.dir("sys/class/iommu/virtio0");
    FakeKernel kernel(tree, BDF, "nvme", "vfio-pci");
    EXPECT_EQ(bind(), -ENOTSUP);
    EXPECT_NE(strstr(why.text, "no IOMMU guards it"), nullptr) << why.text;
    for (int i = 0; i < 500 && driver() != "nvme"; i++)
        usleep(10000);
    EXPECT_EQ(driver(), "nvme");
    EXPECT_EQ(bind(), -ENOTSUP) << "it has had a driver: no further attempt";
    EXPECT_EQ(kernel.probes, 2);
}

TEST_F(IdleDrive, WithoutRootNothingIsBound)
{
    tree.dir("sys/bus/pci/drivers/vfio-pci");
    chmod(tree.top.c_str(), 0755);
    chmod((tree.top + "/" + PciTree::device(BDF) + "/driver_override").c_str(), 0444);
    bool was_root = geteuid() == 0;
    ASSERT_EQ(was_root ? seteuid(65534) : 0, 0);
    int rc = bind();
    ASSERT_EQ(was_root ? seteuid(0) : 0, 0);
    EXPECT_EQ(rc, -EACCES);
    EXPECT_STREQ(why.text, "cannot choose its driver: needs root");
}

} // namespace
