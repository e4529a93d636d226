# SPDX-License-Identifier: BSD-2-Clause
"""Drives that no IOMMU guards, driven all the same. Debian's kernels cannot; kernel.sh builds one."""
import pytest

from machine import Controller, Machine, Namespace

pytestmark = pytest.mark.slow

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "1G")], {"max_ioqpairs": 8})],
                  iommu=None)
DEVICE = "vfio:$(bdf_of drive)"
SWITCH = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB"
# Several of a mount's queue pairs fit in, its bounce memory, and the file system's own.
ENOUGH = 48


@pytest.fixture(autouse=True)
def mode(guest):
    if "no mode" in guest.run(f'[ -e {SWITCH} ] || echo "no mode"'):
        pytest.skip("this kernel has no noiommu mode; tests/guest/kernel.sh builds one that has")


@pytest.fixture
def drive(guest, mode):
    """The drive bound, with large pages for it, which all must have come back in the end."""
    guest.run(f"""
        echo 1 >{SWITCH}
        echo {ENOUGH} >{PAGES}/nr_hugepages
        gpunvme bind -f "$(bdf_of drive)"
    """)
    yield guest
    output = guest.run(f"""
        wait_unused {DEVICE}
        cat {PAGES}/free_hugepages
        echo 0 >{PAGES}/nr_hugepages
        gpunvme unbind "$(bdf_of drive)"
    """)
    assert output.splitlines()[0] == str(ENOUGH), output


def said(output, *sentences):
    """Each part of the output, which lines of === end, has its sentence."""
    parts = output.split("===\n")
    assert len(parts) == len(sentences) + 1, output
    for part, sentence in zip(parts, sentences):
        assert sentence in part, output


def test_nothing_is_driven_without_leave_memory_and_the_option(guest):
    output = guest.run(f"""
        drive=$(bdf_of drive)
        refused() {{
            ! timeout 20 "$@"
            echo "==="
        }}
        echo 0 >{SWITCH}
        refused gpunvme bind "$drive"
        refused mkfs.gpunvme -qf --noiommu "vfio:$drive"
        echo 1 >{SWITCH}
        refused mkfs.gpunvme -qf --noiommu "vfio:$drive"
        gpunvme bind "$drive" >/dev/null
        refused mkfs.gpunvme -qf --noiommu "vfio:$drive"
        refused gpunvmefs "vfio:$drive" "$MNT" -o noiommu
        echo 7 >{PAGES}/nr_hugepages
        refused mkfs.gpunvme -qf "vfio:$drive"
        refused mkfs.gpunvme -qf --noiommu "vfio:$drive"
        echo 0 >{PAGES}/nr_hugepages
        gpunvme unbind "$drive" >/dev/null
    """)
    said(output, "no IOMMU guards it", "noiommu mode is off: echo 1 >", "nvme drives it",
         "too few large pages", "too few large pages", "no IOMMU guards it", "too few large pages")


def test_every_program_warns(drive):
    output = drive.run(f"""
        gpunvme bind "$(bdf_of drive)"
        echo "==="
        for program in "gpunvme check -N" "gpunvme identify -N" "mkfs.gpunvme -f --noiommu" \\
                "fsck.gpunvme -n --noiommu" "dump.gpunvme --noiommu"; do
            $program "{DEVICE}" 2>&1 >/dev/null
            echo "==="
        done
        gpunvmefs "{DEVICE}" "$MNT" -o noiommu
        echo "==="
        gpunvme info "$MNT"
        umount "$MNT"
    """)
    said(output, *["can write to any memory of this machine"] * 7)
    assert "the drive reaches no memory but the daemon's own" in output.split("===\n")[-1], output


def test_end_to_end_while_the_kernel_moves_what_it_can(drive):
    drive.run(f"""
        (trap - ERR; while sleep 0.2; do echo 1 >/proc/sys/vm/compact_memory; done) &
        export GPUNVME_TEST_SMALL=1 GPUNVME_TEST_NOIOMMU=1 GPUNVME_TEST_DEVICE={DEVICE}
        "$BUILD/tests/e2e/e2e_test"
        kill %1
    """, timeout=150)


def test_a_killed_daemon_leaves_a_drive_to_mount_again(drive):
    """While it reads and writes; synced data is there, and its memory goes back."""
    output = drive.run(f"""
        mkfs.gpunvme -qf --noiommu {DEVICE}
        for round in 1 2; do
            serve {DEVICE} noiommu
            head -c 5000000 /dev/urandom >"$MNT/kept-$round"
            sync "$MNT/kept-$round"
            (cd "$MNT" && sha256sum kept-$round) >>/tmp/sums
            (trap - ERR; while dd if=/dev/zero of="$MNT/lost" bs=1M count=64; do :; done) 2>&1 |
                tail -n 1 &
            (trap - ERR; while cat "$MNT"/kept-* && echo 3 >/proc/sys/vm/drop_caches; do :; done) \\
                >/dev/null 2>&1 &
            sleep 1
            kill -9 "$(pgrep -x gpunvmefs)"
            umount -l "$MNT"
            served
            wait
            wait_unused {DEVICE}
            grep "free\\|[0-9]" {PAGES}/free_hugepages
        done
        serve {DEVICE} noiommu
        (cd "$MNT" && sha256sum -c --quiet /tmp/sums)
        umount "$MNT"
        served | tail -n 1
        fsck.gpunvme -n --noiommu {DEVICE}
    """, timeout=120)
    lines = output.splitlines()
    assert lines.count(str(ENOUGH)) == 2 and lines.count("ended with status 137") == 2, output
    assert "ended with status 0" in lines and lines[-1].endswith(": clean"), output
