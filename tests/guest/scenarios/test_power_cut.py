"""The power goes in the middle of writes, and the drive's volatile cache with it: a fresh qcow2
image loses, when QEMU is killed, what was not flushed, and keeps what was."""
import random
import time

import pytest

from machine import Controller, Machine, Namespace

CANARY = """
    disk=$(disk_of drive 2)
    dd if=/dev/urandom of=/tmp/canary bs=64K count=1 status=none
    dd if=/tmp/canary of="$disk" bs=64K oflag=direct conv=fsync status=none
    dd if=/tmp/canary of="$disk" bs=64K oflag=direct seek=64 status=none
"""


def machine(round_number):
    """The second namespace shows that the cache is one: each round has a fresh one."""
    return Machine([Controller("drive", [
        Namespace("drive.qcow2", "2G", format="qcow2"),
        Namespace(f"canary-{round_number}.qcow2", "64M", format="qcow2")])])


def cut(lab, device, number, rng, format_it=False):
    """One round: mount, write until the power goes. Returns the log of what was made durable."""
    guest = lab.boot(machine(number))
    guest.run(f"{CANARY}\n{device.prepare}\n"
              + (f"mkfs.gpunvme -q {device.name}\n" if format_it else "")
              + f'gpunvmefs {device.name} "$MNT"')
    job = guest.start(f'python3 -B "$SOURCE/tests/guest/writers.py" write "$MNT" {number}')
    job.until(lambda output: output.count("\n") > 3, timeout=60)
    time.sleep(rng.uniform(0, 2))
    lab.kill()
    log = lab.path(f"written-{number}")
    with open(log, "w", encoding="utf-8") as file:
        file.write(job.output)
    return log


def check(lab, device, number, logs):
    guest = lab.boot(machine(number))
    zeros = guest.run("""
        disk=$(disk_of drive 2)
        cmp -n 65536 "$disk" /dev/zero >/dev/null && echo "the flushed block is lost"
        cmp -n 65536 -i 4194304:0 "$disk" /dev/zero && echo "the cache was volatile"
    """, status=None)
    assert "the flushed block is lost" not in zeros and "the cache was volatile" in zeros
    for log in logs:
        lab.share(log)
    names = " ".join(f"/run/guest/{log.rsplit('/', 1)[1]}" for log in logs)
    guest.run(f"""
        {device.prepare}
        gpunvmefs {device.name} "$MNT"
        python3 -B "$SOURCE/tests/guest/writers.py" check "$MNT" {names}
        umount "$MNT"
        wait_unused {device.name}
        fsck.gpunvme -n {device.name}
    """, timeout=120)
    lab.power_off()


class KernelDriver:
    prepare = ""
    name = "$(disk_of drive 1)"


class OurDriver:
    prepare = 'gpunvme bind -f "$(bdf_of drive)" >/dev/null'
    name = "vfio:$(bdf_of drive)/1"


@pytest.mark.parametrize("device", [OurDriver, pytest.param(KernelDriver, marks=pytest.mark.slow)])
def test_fsynced_files_survive(lab, device):
    rng, logs = random.Random(4), []
    for number in range(2):
        logs.append(cut(lab, device, number, rng, format_it=number == 0))
        check(lab, device, number, logs)
