# SPDX-License-Identifier: BSD-2-Clause
"""Drives that fail: media errors, commands that take too long, resets from outside, daemons that
are killed. What the manual page promises in RECOVERY must come true, in the time it names."""
import contextlib
import json
import time

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "512M")])])
DEVICE = "vfio:$(bdf_of drive)"
INJECTED = r"pci_nvme_err_(aio|req_status) "
# The kernel turns BAR and bus mastering off meanwhile, and afterwards the queues are gone: doorbells
# and entries of rings are lost, and registers are read until one answers.
NOBODY = (r"^Invalid (write at addr 0x\w+, size 4|read at addr 0x\w+, size [48]), |"
          r"^pci_nvme_ub_db_wr_invalid_[sc]q |^pci_nvme_err_(addr_(read|write)|cfs) ")
# Seconds that a step may take beside the event that it waits for: emulation on a busy machine.
SLACK = 20


@pytest.fixture
def mount(guest):
    """A fresh file system with two files, known to /tmp/sums, and a short deadline."""
    guest.run(f"""
        gpunvme bind -f "$(bdf_of drive)" >/dev/null
        mkfs.gpunvme -qf {DEVICE}
        serve {DEVICE}
        head -c 4000000 /dev/urandom >"$MNT/one"
        head -c 4000000 /dev/urandom >"$MNT/two"
        cd "$MNT"
        sha256sum one two >/tmp/sums
        sync one two
    """)
    yield guest
    guest.run('umount -l "$MNT" 2>/dev/null || true; served', timeout=120)


@contextlib.contextmanager
def at_most(seconds):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


FORGET = "echo 3 >/proc/sys/vm/drop_caches\n"
COMPARE = FORGET + '(cd "$MNT" && sha256sum -c --quiet /tmp/sums)\n'
END = f"""
    umount "$MNT"
    [ "$(served | tail -n 1)" = "ended with status 0" ]
    fsck.gpunvme -n {DEVICE}
"""


@pytest.mark.complaints(INJECTED)
@pytest.mark.parametrize("kind", ["read", "write", "flush"])
def test_an_error_that_passes_is_not_seen(mount, kind):
    with mount.errors("drive", kind, times=1):
        mount.run(COMPARE + """
            head -c 100000 /dev/urandom >"$MNT/three"
            sync "$MNT/three"
        """)
    mount.run(COMPARE + END)


@pytest.mark.complaints(INJECTED)
def test_a_bad_sector_is_an_error_of_its_file_only(mount):
    extents = json.loads(mount.run('gpunvme extents -o json "$MNT/one"'))["extents"]
    sector = extents[0]["device_offset"] // 512 + 1000
    with mount.errors("drive", "read", sector=sector), at_most(5):
        mount.run(FORGET + """
            cat "$MNT/one" >/dev/null 2>&1 && exit 1
            gpunvme read -q "$MNT/one" && exit 1
            cat "$MNT/two" | cmp - <(cat "$MNT/two")
            gpunvme read -q "$MNT/two"
            echo new >"$MNT/three"
            sync "$MNT/three"
        """)
    mount.run(COMPARE + END)


@pytest.mark.complaints(INJECTED)
@pytest.mark.parametrize("kind,times", [("write", None), ("flush", 8)])
def test_nothing_is_called_durable_that_is_not(mount, kind, times):
    """Then the mount is read-only, and the next one finds all durable data."""
    with mount.errors("drive", kind, times), at_most(10):
        mount.run("""
            head -c 100000 /dev/urandom >"$MNT/three" || true
            sync "$MNT/three" && exit 1
            sync "$MNT/three" && exit 1
            touch "$MNT/four" && exit 1
            cmp <(cd "$MNT" && sha256sum one two) /tmp/sums
            umount "$MNT"
        """)
    assert "ended with status 2" in mount.run("served")
    mount.run(f"serve {DEVICE}\n" + COMPARE + 'echo new >"$MNT/five"\nsync "$MNT/five"\n' + END)


def test_late_commands_are_recovered(mount):
    """Each command takes longer than the deadline: aborts, new queues and resets, no wrong byte."""
    with mount.slowness("drive", 1), at_most(60):
        mount.run(FORGET + 'head -c 200000 "$MNT/one" >/tmp/head', timeout=120)
    mount.run('cmp -n 200000 /tmp/head "$MNT/one"\n' + COMPARE + END)


@pytest.mark.complaints(NOBODY)
def test_resets_from_outside_go_unnoticed(mount):
    """Many, so that they also come in the middle of the driver's own."""
    writer = mount.start("""
        for i in $(seq 4); do
            dd if=/dev/urandom of="$MNT/new-$i" bs=1M count=12 status=none
            sync "$MNT/new-$i"
            (cd "$MNT" && sha256sum "new-$i") >>/tmp/new-sums
        done
    """)
    mount.run("""
        for i in $(seq 6); do
            sleep 0.3
            echo 1 >"/sys/bus/pci/devices/$(bdf_of drive)/reset"
        done
    """)
    assert writer.wait(60) == 0, writer.output
    assert "was reset" in mount.run("cat /tmp/daemon.log")
    mount.run("cat /tmp/new-sums >>/tmp/sums\n" + COMPARE + END)


def test_a_killed_daemon_leaves_a_usable_drive(mount):
    mount.run(f"""
        head -c 1000000 /dev/urandom >"$MNT/three"
        (cd "$MNT" && sha256sum three >>/tmp/sums && sync three)
        (while :; do head -c 100000 /dev/urandom >"$MNT/churn" || exit 0; done) 2>/dev/null &
        sleep 0.5
        pkill -9 -x gpunvmefs
        umount -l "$MNT"
        served
        serve {DEVICE}
    """ + COMPARE + END)
