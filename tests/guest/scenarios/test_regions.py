# SPDX-License-Identifier: BSD-2-Clause
"""The kernel's limit of mappings (dma_entry_limit of vfio_iommu_type1) is the budget of regions."""
import json

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "1G")])])
LIMIT = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
SHORT = "raise dma_entry_limit of vfio_iommu_type1"


@pytest.fixture(scope="module", name="drive")
def bound(guest):
    guest.run('gpunvme bind -f "$(bdf_of drive)"; mkfs.gpunvme -qf vfio:$(bdf_of drive)')
    return guest


def limited(guest, limit, script, timeout=60):
    """The output of a script on the drive $DEVICE, whose container takes so many mappings."""
    return guest.run(f"""
        echo {limit} >{LIMIT}
        BDF=$(bdf_of drive) DEVICE=vfio:$(bdf_of drive)
        {script}
    """, timeout)


# Reads, writes and ends like any other mount.
MOUNTED = """
    if timeout 20 gpunvmefs "$DEVICE" "$MNT" -o executor=cpu; then
        head -c 8000000 /dev/urandom >/tmp/data
        cp /tmp/data "$MNT/data" && sync "$MNT/data"
        gpunvme read -q "$MNT/data" >/dev/null
        cmp /tmp/data "$MNT/data"
        gpunvme info -o json "$MNT" | tr -d '\\n'
        echo
        umount "$MNT"
        wait_unused "$DEVICE"
    fi
"""


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_mount_without_room_says_what_to_raise(drive, limit):
    output = limited(drive, limit, """
        timeout 20 mkfs.gpunvme -qf "$DEVICE" || true
        timeout 20 fsck.gpunvme -n "$DEVICE" || true
        timeout 20 gpunvmefs "$DEVICE" "$MNT" || true
        gpunvme check "$BDF" | grep -c "dma_entry_limit\\|dma_regions" || true
    """)
    *said, checked = [line for line in output.splitlines() if "failed here" not in line]
    assert len(said) == 3 and all(SHORT in line for line in said), output
    assert checked == "1", output


@pytest.mark.parametrize("limit", [4, 8])
def test_a_mount_without_room_for_the_executor_reads_and_writes(drive, limit):
    output = limited(drive, limit, MOUNTED)
    said, info = output.splitlines()
    assert SHORT in said, output
    info = json.loads(info)
    assert info["dma_region_limit"] == limit and info["dma_regions"] <= limit
    assert SHORT in info["fallback"]


def test_a_small_budget_is_shown_and_suffices(drive):
    output = limited(drive, 16, 'gpunvme check "$BDF" | grep dma_regions; ' + MOUNTED)
    checked, info = output.splitlines()
    assert "16 DMA regions at most" in checked and checked.startswith("WARN"), output
    info = json.loads(info)
    assert info["dma_region_limit"] == 16 and info["dma_regions"] <= 12
    assert info["executor"] == "cpu", output


def test_buffers_that_fill_the_budget_are_staged_until_there_is_room(drive):
    output = limited(drive, 24, """
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_DEVICE=$DEVICE
        "$BUILD/tests/e2e/buffer_test" --gtest_filter=*FillTheTable*
    """, timeout=120)
    assert "[  PASSED  ] 1 test" in output and "SKIPPED" not in output, output


def test_the_kernels_own_limit_is_none(drive):
    output = limited(drive, 65535, 'gpunvme check "$BDF" | grep dma_regions; ' + MOUNTED)
    assert output.startswith("OK") and "65535 DMA regions at most" in output, output
