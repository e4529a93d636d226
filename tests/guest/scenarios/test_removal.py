# SPDX-License-Identifier: BSD-2-Clause
"""Drives that leave: because the system asks for them, and by surprise."""
import contextlib
import time

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([
    Controller("asked", [Namespace("asked.img")], behind_port=True),
    Controller("pulled", [Namespace("pulled.img")], behind_port=True),
])
# Registers and doorbells of a drive that is gone.
GONE = r"^Invalid (read|write) at addr 0x\w+, size [48], "
SLACK = 20
FILES = """
    head -c 1000000 /dev/urandom >"$MNT/kept"
    (cd "$MNT" && sha256sum kept >/tmp/sums && sync kept)
"""


def device(name):
    return f"vfio:$(bdf_of {name})"


def serve(guest, name):
    guest.run(f"""
        gpunvme bind -f "$(bdf_of {name})" >/dev/null
        mkfs.gpunvme -qf {device(name)}
        serve {device(name)}
        {FILES}
    """)


def put_back(guest, name):
    """In the slot again, it holds all durable data."""
    guest.monitor.execute("device_add", driver="nvme", id=f"nvme-{name}", serial=name,
                          bus=f"{name}-port", drive=f"{name}n1")
    guest.run(f"""
        until disk_of {name} 1 2>/dev/null; do sleep 0.1; done
        gpunvme bind -f "$(bdf_of {name})" >/dev/null
        serve {device(name)}
        (cd "$MNT" && sha256sum -c --quiet /tmp/sums)
        umount "$MNT"
        served
        fsck.gpunvme -n {device(name)}
    """, timeout=90)


@contextlib.contextmanager
def at_most(seconds):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


def test_a_drive_the_system_asks_for_is_handed_over(guest):
    """The mount goes, the daemon ends in order, and the slot is empty."""
    serve(guest, "asked")
    writer = guest.start('while mountpoint -q "$MNT" && echo more >>"$MNT/log"; do :; done')
    guest.monitor.execute("device_del", id="nvme-asked")
    with at_most(30):
        said = guest.run("served 60")
        guest.run('while [ -e "/sys/bus/pci/devices/$(bdf_of asked)/vendor" ] && '
                  '[ "$(bdf_of asked)" != 0000:00:10.0 ]; do sleep 0.1; done')
    assert "status 0" in said, said
    assert writer.wait(30) is not None
    put_back(guest, "asked")


def pull(guest, name):
    serve(guest, name)
    writer = guest.start('while echo more >>"$MNT/log" && sync "$MNT/log"; do :; done; exit 3')
    guest.run("sleep 0.5")
    guest.monitor.execute("qom-set", path=f"/machine/peripheral/nvme-{name}", property="realized",
                          value=False)
    return writer


def test_a_drive_that_is_pulled_is_given_up(guest, lab):
    """With D = 1 s, all ends within 2 D + 2 s, and the mount can be left. The daemon's own end is
    not seen here: QEMU does not tell the port that the slot is empty, as hardware does, so the
    kernel tries for a minute to reset the drive, and then QEMU crashes. Last in this file."""
    writer = pull(guest, "pulled")
    with at_most(4):
        assert writer.wait(60) == 3
    with at_most(1):
        guest.run("""
            echo 3 >/proc/sys/vm/drop_caches
            cat "$MNT/kept" >/dev/null 2>&1 && exit 1
            touch "$MNT/new" 2>/dev/null && exit 1
            umount "$MNT"
        """)
    assert "the drive is gone" in guest.run("cat /tmp/daemon.log")
    assert guest.complaints(GONE) == []
    lab.kill()
