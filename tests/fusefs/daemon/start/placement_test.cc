/* SPDX-License-Identifier: BSD-2-Clause */
// Tests what is known of the places of GPUs and drives, in a sysfs of the test's own.
#include <string>

#include <gtest/gtest.h>

#include "fusefs/daemon/start/placement.h"
#include "tests/blockdev/pci/pci_tree.h"

namespace
{

constexpr const char *kDrive = "0000:c1:00.0", *kNear = "0000:c2:00.0", *kFar = "0000:3b:00.0";

class Placement : public ::testing::Test
{
  protected:
    // Puts a device below a root complex, as the kernel lays it out.
    void add(const std::string &bdf, const std::string &way, const char *class_code,
             const char *vendor, int node)
    {
        std::string folder = "sys/devices/" + way + "/" + bdf;
        tree_.dir(folder);
        tree_.link(PciTree::device(bdf), folder);
        tree_.pci(bdf, class_code);
        tree_.text(PciTree::device(bdf) + "/vendor", std::string(vendor) + "\n");
        tree_.text(PciTree::device(bdf) + "/numa_node", std::to_string(node) + "\n");
    }
    void gpu(const std::string &bdf, const std::string &way, int node)
    {
        add(bdf, way, "0x030200", "0x10de", node);
    }

    PciTree tree_;
};

TEST_F(Placement, AGpuHasANodeAndADistance)
{
    add(kDrive, "pci0000:c0/0000:c0:01.0", "0x010802", "0x144d", 1);
    gpu(kNear, "pci0000:c0/0000:c0:01.0", 1);
    gpu(kFar, "pci0000:3a/0000:3a:00.0", 0);
    placement p = placement_of(tree_.root(), "0000:C2:00.0", kDrive);
    EXPECT_EQ(p.numa_node, 1);
    EXPECT_EQ(p.distance, PCI_DISTANCE_SWITCH);
    p = placement_of(tree_.root(), kFar, kDrive);
    EXPECT_EQ(p.numa_node, 0);
    EXPECT_EQ(p.distance, PCI_DISTANCE_FAR);
    p = placement_of(tree_.root(), kFar, "");
    EXPECT_EQ(p.numa_node, 0) << "the drive is simulated";
    EXPECT_EQ(p.distance, PCI_DISTANCE_UNKNOWN);
    p = placement_of(tree_.root(), "", kDrive);
    EXPECT_EQ(p.numa_node, -1) << "a CPU executor";
    EXPECT_EQ(placement_of(tree_.root(), "0000:77:00.0", kDrive).numa_node, -1);
}

TEST_F(Placement, GpusOfOneNodeHaveItInCommon)
{
    int node = 7;

    EXPECT_EQ(placement_gpus(tree_.root(), &node), 0u);
    EXPECT_EQ(node, -1);
    add(kDrive, "pci0000:c0/0000:c0:01.0", "0x010802", "0x144d", 0);
    gpu(kNear, "pci0000:c0/0000:c0:01.0", 1);
    EXPECT_EQ(placement_gpus(tree_.root(), &node), 1u);
    EXPECT_EQ(node, 1);
    gpu("0000:c3:00.0", "pci0000:c0/0000:c0:03.0", 1);
    EXPECT_EQ(placement_gpus(tree_.root(), &node), 2u);
    EXPECT_EQ(node, 1);
    gpu("0000:c4:00.0", "pci0000:3a/0000:3a:00.0", 0);
    gpu("0000:c5:00.0", "pci0000:3a/0000:3a:01.0", 0);
    EXPECT_EQ(placement_gpus(tree_.root(), &node), 4u);
    EXPECT_EQ(node, -1) << "there are two nodes";
}

} // namespace
