"""Machines with another IOMMU, and with none."""
import pytest

from machine import Controller, Machine, Namespace

CONTROLLERS = [Controller("drive", [Namespace("drive.img", "1G")])]


@pytest.mark.slow
def test_end_to_end_behind_an_amd_iommu(lab):
    guest = lab.boot(Machine(CONTROLLERS, iommu="amd-iommu"))
    guest.run("""
        gpunvme bind "$(bdf_of drive)"
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE=vfio:$(bdf_of drive)
        "$BUILD/tests/e2e/e2e_test"
    """, timeout=150)
    lab.power_off()


def test_without_an_iommu_nothing_is_driven(lab):
    guest = lab.boot(Machine(CONTROLLERS, iommu=None))
    output = guest.run("""
        gpunvme check "$(bdf_of drive)" | grep "^WARN *iommu .*no drive can be" || echo "no such line"
        gpunvme bind "$(bdf_of drive)" >/dev/null || true
        timeout 20 mkfs.gpunvme -qf vfio:$(bdf_of drive) || echo "status $?"
        gpunvme unbind "$(bdf_of drive)" >/dev/null
        disk_of drive 1
    """)
    assert "no such line" not in output and "mkfs.gpunvme: vfio:" in output, output
    assert "status 1" in output and "/dev/nvme" in output, output
    lab.power_off()
