# SPDX-License-Identifier: BSD-2-Clause
"""A drive whose DMA goes to the memory of another device (tier 2): an ivshmem BAR as GPU memory,
which the CPU executor loads and stores."""
import os
import re

import pytest

from machine import Controller, Machine, Namespace, Peer

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "512M")])],
                  peers=[Peer("gpu0"), Peer("gpu1"), Peer("small", 4)])
DEVICE = "vfio:$(bdf_of drive)"
TOOL = '"$SOURCE/tests/guest/peer_memory.py"'
OPTIONS = "executor=cpu,cpu_memory=$(bdf_of gpu0),cpu_memory=$(bdf_of gpu1)"
LIMIT = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
ROUNDS = int(os.environ.get("GPUNVME_KILL_ROUNDS", "2"))
# Bytes per second: the reads in flight of 4 MiB take a quarter of a second. A mount reads little, so
# that it is soon there again.
SLOW = 16_000_000
# Commands that a killed daemon had in flight: the IOMMU refuses their data, and the drive is reset.
LATE = (r"DMAR: .*[Ff]ault|^Invalid (read|write) at addr |^pci_nvme_err_(addr_|cfs|aio)|"
        r"^pci_nvme_ub_")


def bar(name):
    return f'"/sys/bus/pci/devices/$(bdf_of {name})/resource2"'


@pytest.fixture(scope="module", name="drive")
def bound(guest):
    guest.run(f"""
        gpunvme bind -f "$(bdf_of drive)" >/dev/null
        mkfs.gpunvme -qf {DEVICE}
        for gpu in gpu0 gpu1 small; do echo 1 >"/sys/bus/pci/devices/$(bdf_of $gpu)/enable"; done
        serve {DEVICE} executor=cpu
        head -c 12000000 /dev/urandom >"$MNT/file"
        sync "$MNT/file"
        umount "$MNT"
        served
    """, timeout=180)
    return guest


def served(guest, options, script, timeout=90):
    return guest.run(f"""
        serve {DEVICE} "{options}"
        {script}
        umount "$MNT"
        [ "$(served | tail -n 1)" = "ended with status 0" ]
    """, timeout)


def staged_bytes(output):
    counts = re.findall(r'"gpu_staged_(?:read|written)_bytes": *"?(\d+)', output)
    assert len(counts) == 2, output
    return sum(map(int, counts))


VERIFY = f"""
    {TOOL} verify {bar("gpu0")} "$MNT/file" "$MNT/copy"
    {TOOL} verify {bar("gpu1")} "$MNT/file" "$MNT/copy"
    gpunvme stats -o json "$MNT" | tr -d '\\n'
    echo
"""


@pytest.mark.smoke
def test_data_goes_to_the_memory_of_two_devices(drive):
    output = served(drive, OPTIONS + ",p2p=require", VERIFY)
    assert output.count("tier 2, staged False: the drive reaches GPU memory by VFIO (BAR)") == 2, \
        output
    assert staged_bytes(output) == 0, output


@pytest.mark.smoke
@pytest.mark.parametrize("p2p", ["require", "off"])
def test_memory_of_several_segments_is_one_buffer(drive, p2p):
    """As VMM memory of CUDA is: each segment has a handle of its own."""
    output = served(drive, f"{OPTIONS},p2p={p2p}", f"""
        {TOOL} segments {bar("gpu0")} {bar("gpu1")} "$MNT/file" "$MNT/copy"
        gpunvme stats -o json "$MNT" | tr -d '\\n'
        echo
    """)
    assert f"staged {p2p == 'off'}: " in output, output
    assert (staged_bytes(output) == 0) == (p2p == "require"), output


def test_the_same_bytes_are_staged_with_p2p_off(drive):
    output = served(drive, OPTIONS + ",p2p=off", VERIFY)
    assert output.count("tier 1, staged True: ") == 2 and "(p2p=off)" in output, output
    assert staged_bytes(output) > 0, output


def test_what_stands_in_the_way_is_said(drive):
    output = drive.run(f"""
        timeout 20 gpunvmefs {DEVICE} "$MNT" -o executor=cpu,p2p=require || echo "status $?"
        timeout 20 gpunvmefs {DEVICE} "$MNT" -o executor=cpu,cpu_memory=$(bdf_of drive) ||
            echo "status $?"
        timeout 20 gpunvmefs {DEVICE} "$MNT" -o gpu=off,p2p=require || echo "status $?"
    """)
    assert output.count("status ") == 3, output
    assert "p2p=require: buffers of the CPU executor are in host memory" in output, output
    assert "no ivshmem device of QEMU is at" in output, output
    assert "p2p=require,gpu=off: these contradict each other" in output, output


def test_this_kernel_releases_memory_after_the_drive(drive):
    output = drive.run("""
        "$BUILD/tests/blockdev/blockdev_pci_test" --gtest_filter='Release.*'
    """)
    assert "[  PASSED  ] 2 tests" in output and "SKIPPED" not in output, output


@pytest.mark.slow
@pytest.mark.complaints(LATE)
def test_mappings_outlive_a_reset_of_the_drive(drive):
    """Reads in flight end or are repeated, and the drive reaches the same memory afterwards."""
    output = served(drive, OPTIONS + ",p2p=require", f"""
        {TOOL} own {bar("gpu0")} "$MNT/file" >/tmp/own 2>&1 &
        application=$!
        until grep -q reading /tmp/own; do sleep 0.02; done
        for _ in 1 2 3; do
            sleep 1
            echo 1 >"/sys/bus/pci/devices/$(bdf_of drive)/reset"
        done
        sleep 3
        kill -0 $application
        kill -9 $application
        wait $application || true
        {VERIFY}
    """, timeout=180)
    assert output.count("tier 2, staged False") == 2, output


@pytest.mark.parametrize("p2p, limit", [
    ("auto", 256), ("require", 256), pytest.param("require", 65535, marks=pytest.mark.slow)])
def test_memory_without_room_in_the_iommus_table_is_refused_or_staged(drive, p2p, limit):
    """65,535 mappings are the kernel's own limit. Each buffer is one, and has a descriptor and a
    mapping in the daemon. The drive reaches the memory as soon as there is room."""
    output = drive.run(f"""
        old=$(cat {LIMIT}) maps=$(cat /proc/sys/vm/max_map_count)
        trap 'echo "$old" >{LIMIT}; echo "$maps" >/proc/sys/vm/max_map_count' EXIT
        echo {limit} >{LIMIT}
        echo 300000 >/proc/sys/vm/max_map_count
        ulimit -n 300000
        serve {DEVICE} "{OPTIONS},p2p={p2p},max_buffers={limit + 1}"
        {TOOL} fill {bar("gpu0")} "$MNT/file"
        {TOOL} verify {bar("gpu0")} "$MNT/file" "$MNT/copy"
        umount "$MNT"
        served
    """, timeout=90 + limit // 10)
    assert f"{limit + 1} buffers, then EMFILE" in output, output
    refusal = re.search(r"^full: (ENOSPC|staged True), ([\d.]+) s$", output, re.M)
    assert refusal and (refusal[1] == "ENOSPC") == (p2p == "require"), output
    assert float(refusal[2]) < 10, output
    assert f" of {limit} DMA regions are in use" in output, output
    assert "empty: staged False" in output and "tier 2, staged False" in output, output
    assert output.endswith("ended with status 0\n"), output


def test_a_report_has_what_was_tried(drive):
    output = drive.run(f"""
        bash "$SOURCE/scripts/p2p-report.sh" {DEVICE} 3000000 "{OPTIONS}"
        wait_unused drive
        grep -A 99 p2p=require p2p-report.txt
    """, timeout=120)
    assert "gpunvme verify" in output and "by VFIO (BAR)" in output, output
    assert "status 1" not in output, output


def killed(guest, victims, rounds, how="locked"):
    """How many of the rounds left data of another owner in the memory. Half of a round's time goes
    to the pages that are pinned, filled and compared, so the mount and its memory are small."""
    options = "executor=cpu,cpu_memory=$(bdf_of small),p2p=require,queues=1,depth=16"
    output = guest.run(f"""
        "$SOURCE/tests/guest/killed_owners.py" {DEVICE} "$MNT" "{options}" \\
            {bar("small")} "$MNT/file" "{how}" {rounds} {victims}
    """, timeout=120 + 60 * rounds)
    return int(output.split()[-1])


@pytest.mark.slow
@pytest.mark.complaints(LATE)
@pytest.mark.parametrize("victims", ["application", "daemon", "application daemon",
                                     "daemon application"])
def test_killed_owners_leave_no_writes_to_the_next_owner(drive, victims):
    with drive.slowness("drive", SLOW, "bps-total"):
        assert killed(drive, victims, ROUNDS) == 0


@pytest.mark.slow
@pytest.mark.complaints(LATE)
def test_an_owner_that_does_not_wait_is_written_to(drive):
    """Shows that the test above can fail: here memory is taken before its handles are closed."""
    with drive.slowness("drive", SLOW, "bps-total"):
        assert killed(drive, "application", 3, "unlocked") > 0
