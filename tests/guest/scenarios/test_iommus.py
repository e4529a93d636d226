# SPDX-License-Identifier: BSD-2-Clause
"""Machines with another IOMMU, and with none."""
import pytest

from machine import Controller, Machine, Namespace

CONTROLLERS = [Controller("drive", [Namespace("drive.img", "1G")])]


END_TO_END = """
    gpunvme bind -f "$(bdf_of drive)"
    export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE=vfio:$(bdf_of drive)
    "$BUILD/tests/e2e/e2e_test"
"""


@pytest.mark.slow
def test_end_to_end_behind_an_amd_iommu(lab):
    guest = lab.boot(Machine(CONTROLLERS, iommu="amd-iommu"))
    guest.run(END_TO_END, timeout=150)
    lab.power_off()


@pytest.mark.slow
def test_end_to_end_through_iommufd(lab):
    guest = lab.boot(Machine(CONTROLLERS))
    if "no iommufd" in guest.run('[ -c /dev/iommu ] || echo "no iommufd"'):
        lab.power_off()
        pytest.skip("this kernel has no iommufd; tests/guest/kernel.sh builds one that has")
    assert "iommufd" in guest.run("gpunvme check")
    guest.run(END_TO_END, timeout=150)
    lab.power_off()


def test_without_an_iommu_nothing_is_driven(lab):
    guest = lab.boot(Machine(CONTROLLERS, iommu=None))
    output = guest.run("""
        gpunvme check "$(bdf_of drive)" | grep "^WARN *iommu .*no drive" || echo "no such line"
        gpunvme bind "$(bdf_of drive)" >/dev/null || true
        timeout 20 mkfs.gpunvme -qf vfio:$(bdf_of drive) || echo "status $?"
        timeout 20 mkfs.gpunvme -qf --noiommu vfio:$(bdf_of drive) || echo "status $?"
        gpunvme unbind "$(bdf_of drive)" >/dev/null
        disk_of drive 1
    """)
    assert "no such line" not in output and "mkfs.gpunvme: vfio:" in output, output
    assert output.count("status 1") == 2 and "/dev/nvme" in output, output
    assert "noiommu mode" in output, "the kernel has none, or it is off"
    # The memory of such drives, on a kernel that has large pages: Debian's.
    guest.run("""
        echo 32 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
        "$BUILD/tests/blockdev/blockdev_pci_test" --gtest_filter='Physical*' >/tmp/said || {
            cat /tmp/said
            exit 1
        }
        ! grep SKIPPED /tmp/said
    """)
    lab.power_off()
