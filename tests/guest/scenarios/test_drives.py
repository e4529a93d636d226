# SPDX-License-Identifier: BSD-2-Clause
"""Every kind of controller that QEMU can be: handed over, formatted, mounted, and the end-to-end
suite run on it through the GPU path (the CPU executor), beside the checks of the tools."""
import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([
    Controller("plain", [Namespace("plain.img", "1G")]),
    Controller("large", [Namespace("large.img", "1G", lba=4096)], {"mdts": 1}),
    Controller("whole", [Namespace("whole.img", "1G", lba=4096)], {"mdts": 0}),
    Controller("mega", [Namespace("mega.img", "1G")], {"mdts": 8, "cmb_size_mb": 16}),
    Controller("few", [Namespace("few.img", "1G")],
               {"mdts": 3, "max_ioqpairs": 5, "msix_qsize": 6}),
    Controller("apart", [Namespace("apart.img", "1G", lba=4096)],
               {"msix-exclusive-bar": "on", "max_ioqpairs": 128, "msix_qsize": 129}),
    Controller("double", [Namespace("double-1.img", "1G", lba=4096),
                          Namespace("double-2.img", "1G", lba=512)]),
], memory_mib=1536)
DRIVES = [pytest.param("plain", 1, marks=pytest.mark.smoke), ("large", 1), ("whole", 1),
          ("mega", 1), ("few", 1), ("apart", 1),
          ("double", 1), ("double", 2)]


def device(name, nsid=1):
    return f"vfio:$(bdf_of {name})/{nsid}"


@pytest.fixture(scope="module")
def drives(guest):
    """All of them bound to vfio-pci."""
    for controller in MACHINE.controllers:
        guest.run(f'gpunvme bind "$(bdf_of {controller.name})"')
    return guest


@pytest.mark.parametrize("name,nsid", DRIVES)
def test_end_to_end(drives, name, nsid):
    drives.run(f"""
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE={device(name, nsid)}
        "$BUILD/tests/e2e/e2e_test"
    """, timeout=150)


@pytest.mark.parametrize("suite", ["names", "data", "mixed"])
def test_posix(drives, suite):
    drives.run(f"""
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE={device("plain")}
        "$BUILD/tests/e2e/posix_{suite}_test"
    """, timeout=150)


@pytest.mark.parametrize("tier", ["Tier1", "Tier0"])
def test_buffers_that_the_drive_is_not_given(drives, tier):
    """Memory that stands in for a GPU's, which VFIO does not map: all its data is staged."""
    drives.run(f"""
        export GPUNVME_TEST_DEVICE={device("plain")}
        "$BUILD/tests/e2e/buffer_test" --gtest_filter="*/{tier}"
    """, timeout=300)


def test_two_drives_at_once(drives):
    drives.run(f"""
        mkdir -p /mnt/a /mnt/b
        mkfs.gpunvme -qf {device("plain")}
        mkfs.gpunvme -qf {device("large")}
        gpunvmefs {device("plain")} /mnt/a
        gpunvmefs {device("large")} /mnt/b
        head -c 20000000 /dev/urandom >/tmp/data
        cp /tmp/data /mnt/a/data & cp /tmp/data /mnt/b/data & wait
        gpunvme read -q /mnt/a/data
        gpunvme read -q /mnt/b/data
        cmp /mnt/a/data /mnt/b/data
        cmp /tmp/data /mnt/b/data
        timeout 20 gpunvmefs {device("plain")} "$MNT" && exit 1
        umount /mnt/a /mnt/b
        wait_unused {device("plain")}
        wait_unused {device("large")}
        fsck.gpunvme -n {device("plain")}
        fsck.gpunvme -n {device("large")}
    """)


@pytest.mark.slow
def test_daemons_killed_in_the_middle_of_writes(drives):
    drives.run(f"""
        export GPUNVME_TEST_DEVICE={device("plain")}
        python3 -B "$SOURCE/tests/crash/kill_daemon.py" "$BUILD/mkfs/mkfs.gpunvme" \\
            "$BUILD/mkfs/fsck.gpunvme" "$BUILD/fusefs/daemon/gpunvmefs" 10
    """, timeout=600)
