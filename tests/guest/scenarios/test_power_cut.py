# SPDX-License-Identifier: BSD-2-Clause
"""The power goes in the middle of writes, and the drive's volatile cache with it: a fresh qcow2
image loses, when QEMU is killed, all data that was not flushed, and keeps the rest."""
import os
import random
import time

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([
    Controller("drive", [Namespace("drive.qcow2", "2G", format="qcow2")]),
    Controller("canary", [Namespace("canary.qcow2", "256M", format="qcow2")])])


def write_canary(guest, number):
    """On a drive of its own: a flushed block, and in a place not used before one that is not."""
    guest.run(f"""
        disk=$(disk_of canary 1)
        head -c 64K /dev/urandom >/tmp/block
        dd if=/tmp/block of="$disk" bs=64K seek={2 * number} oflag=direct conv=fsync status=none
        dd if=/tmp/block of="$disk" bs=64K seek={2 * number + 1000} oflag=direct status=none
    """)


def check_canary(guest, number):
    seen = guest.run(f"""
        disk=$(disk_of canary 1)
        lost() {{
            cmp -s <(dd if="$disk" bs=64K count=1 skip="$1" status=none) <(head -c 64K /dev/zero)
        }}
        if lost {2 * number}; then echo "what was flushed is lost"; fi
        if lost {2 * number + 1000}; then echo "what was not flushed is lost"; fi
    """)
    assert seen == "what was not flushed is lost\n", "the cut proves nothing"


def write_until_cut(lab, guest, device, number, rng):
    """Returns the log of the writes that were durable when the power went."""
    write_canary(guest, number)
    guest.run(f'gpunvmefs {device.name} "$MNT"')
    job = guest.start(f'python3 -B "$SOURCE/tests/guest/writers.py" write "$MNT" {number}')
    job.until(lambda output: output.count("\n") > 3, timeout=60)
    time.sleep(rng.uniform(0, 2))
    lab.kill()
    log = lab.path(f"written-{number}")
    with open(log, "w", encoding="utf-8") as file:
        file.write(job.output)
    return log


def check(lab, guest, device, logs):
    for log in logs:
        lab.share(log)
    names = " ".join(f"/run/guest/{os.path.basename(log)}" for log in logs)
    seen = guest.run(f"""
        {device.prepare}
        fsck.gpunvme -n {device.name} || :
        gpunvmefs {device.name} "$MNT"
        python3 -B "$SOURCE/tests/guest/writers.py" check "$MNT" {names}
        umount "$MNT"
        wait_unused {device.name}
        fsck.gpunvme -n {device.name}
    """, timeout=120)
    assert "transactions replayed" in seen


class KernelDriver:
    prepare = ""
    name = "$(disk_of drive 1)"


class OurDriver:
    prepare = 'gpunvme bind -f "$(bdf_of drive)" >/dev/null'
    name = "vfio:$(bdf_of drive)/1"


@pytest.mark.parametrize("device", [OurDriver, pytest.param(KernelDriver, marks=pytest.mark.slow)])
def test_fsynced_files_survive(lab, device, rounds=2):
    rng, logs = random.Random(4), []
    guest = lab.boot(MACHINE)
    guest.run(f"{device.prepare}\nmkfs.gpunvme -qf {device.name}")
    for number in range(rounds):
        logs.append(write_until_cut(lab, guest, device, number, rng))
        guest = lab.boot(MACHINE)
        check_canary(guest, number)
        check(lab, guest, device, logs)
    lab.power_off()
