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


@pytest.mark.slow
def test_noiommu_mode_is_refused(lab):
    """Also where the kernel offers it, and when it is asked for: it is not supported."""
    guest = lab.boot(Machine(CONTROLLERS, iommu=None))
    switch = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
    if "no mode" in guest.run(f'[ -e {switch} ] || echo "no mode"'):
        lab.power_off()
        pytest.skip("this kernel has no noiommu mode; tests/guest/kernel.sh builds one that has")
    output = guest.run(f"""
        echo 1 >{switch}
        gpunvme bind "$(bdf_of drive)" >/dev/null || true
        timeout 20 mkfs.gpunvme -qf vfio:$(bdf_of drive) || echo "status $?"
        timeout 20 mkfs.gpunvme -qf --noiommu vfio:$(bdf_of drive) || echo "status $?"
        timeout 20 gpunvmefs vfio:$(bdf_of drive) "$MNT" -o noiommu || echo "status $?"
        gpunvme unbind "$(bdf_of drive)" >/dev/null || true
    """)
    statuses = [line for line in output.splitlines() if line.startswith("status ")]
    assert statuses == ["status 1", "status 1", "status 32"], output
    lab.power_off()


def test_without_an_iommu_nothing_is_driven(lab):
    guest = lab.boot(Machine(CONTROLLERS, iommu=None))
    output = guest.run("""
        gpunvme check "$(bdf_of drive)" | grep "^WARN *iommu .*no drive" || echo "no such line"
        gpunvme bind "$(bdf_of drive)" >/dev/null || true
        timeout 20 mkfs.gpunvme -qf vfio:$(bdf_of drive) || echo "status $?"
        gpunvme unbind "$(bdf_of drive)" >/dev/null
        disk_of drive 1
    """)
    assert "no such line" not in output and "mkfs.gpunvme: vfio:" in output, output
    assert "status 1" in output and "/dev/nvme" in output, output
    lab.power_off()
