# SPDX-License-Identifier: BSD-2-Clause
"""Removes drives and devices with memory during reads of one into the memory of the other."""
import contextlib
import time

import pytest

from machine import Controller, Machine, Namespace, Peer

MACHINE = Machine([Controller("asked", [Namespace("asked.img")], behind_port=True),
                   Controller("pulled", [Namespace("pulled.img")], behind_port=True),
                   Controller("stays", [Namespace("stays.img")])],
                  peers=[Peer("gpu0"), Peer("gpu1", behind_port=True),
                         Peer("gpu2", behind_port=True)])
TOOL = '"$SOURCE/tests/guest/peer_memory.py"'
OPTIONS = "executor=cpu,p2p=require,cpu_memory=$(bdf_of gpu0)"
# Registers and doorbells of a drive that is gone.
GONE = r"^Invalid (read|write) at addr 0x\w+, size [48], "
# Data for memory that has left, until it is unmapped.
LOST = r"^Invalid (read|write) at addr |DMAR: .*[Ff]ault|^pci_nvme_err_addr_"
SLACK = 20


def bar(name):
    return f'"/sys/bus/pci/devices/$(bdf_of {name})/resource2"'


@contextlib.contextmanager
def at_most(seconds):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


def serve(guest, drive, gpu):
    """Makes a mount with gpu0 and the other device."""
    guest.run(f"""
        for bdf in "$(bdf_of gpu0)" "$(bdf_of {gpu})"; do
            [ "$(cat "/sys/bus/pci/devices/$bdf/enable")" != 0 ] ||
                echo 1 >"/sys/bus/pci/devices/$bdf/enable"
        done
        gpunvme bind -f "$(bdf_of {drive})" >/dev/null
        mkfs.gpunvme -qf "vfio:$(bdf_of {drive})"
        serve "vfio:$(bdf_of {drive})" executor=cpu
        head -c 4000000 /dev/urandom >"$MNT/file"
        sync "$MNT/file"
        umount "$MNT"
        served
        serve "vfio:$(bdf_of {drive})" "{OPTIONS},cpu_memory=$(bdf_of {gpu})"
    """, timeout=180)


def own(guest, gpu):
    """Starts an application that reads into the memory."""
    job = guest.start(f'{TOOL} own {bar(gpu)} "$MNT/file"')
    job.until(lambda printed: "reading" in printed, 60)
    return job


@pytest.mark.slow
def test_a_drive_the_system_asks_for_leaves_the_memory_alone(guest):
    serve(guest, "asked", "gpu1")
    application = own(guest, "gpu0")
    guest.monitor.execute("device_del", id="nvme-asked")
    with at_most(30):
        assert "ended with status 0" in guest.run("served 60")
    with at_most(5):
        assert application.wait(60) == 1
    assert "READ: E" in application.output, application.output
    assert "0 pages" in guest.run(f"{TOOL} take {bar('gpu0')}")


@pytest.mark.slow
@pytest.mark.complaints(LOST)
def test_memory_the_system_asks_for_is_unmapped(guest):
    """The drive's commands may succeed without the memory, but no READ does. The mount goes on with
    the other device."""
    serve(guest, "stays", "gpu1")
    application = own(guest, "gpu1")
    guest.monitor.execute("device_del", id="gpu1")
    with at_most(30):
        assert application.wait(90) == 1
    assert "READ: ESTALE" in application.output, application.output
    output = guest.run(f"""
        {TOOL} verify {bar("gpu0")} "$MNT/file" "$MNT/copy"
        umount "$MNT"
        served
    """, timeout=180)
    assert "tier 2, staged False" in output and "ended with status 0" in output, output


@pytest.mark.slow
@pytest.mark.complaints(LOST)
def test_memory_that_has_left_is_unmapped_without_a_read(guest):
    """The kernel may give the addresses to another device, which commands of a lease would reach."""
    serve(guest, "stays", "gpu2")
    application = guest.start(f'{TOOL} hold {bar("gpu2")} "$MNT/file"')
    application.until(lambda printed: "holding" in printed, 60)
    guest.monitor.execute("device_del", id="gpu2")
    output = guest.run(f"""
        until grep -q 'the device of 1 registered buffers has left' /tmp/daemon.log; do
            sleep 0.1
        done
        kill "$(pgrep -f "peer_memory.py hold")"
        umount "$MNT"
        served
    """, timeout=120)
    assert "ended with status 0" in output, output


@pytest.mark.slow
def test_a_drive_that_is_pulled_leaves_the_memory_alone(guest, lab):
    """Is the last test in this file, for the reason in test_removal.py."""
    serve(guest, "pulled", "gpu0")
    application = own(guest, "gpu0")
    guest.monitor.execute("qom-set", path="/machine/peripheral/nvme-pulled", property="realized",
                          value=False)
    with at_most(4):
        assert application.wait(60) == 1
    assert "READ: E" in application.output, application.output
    assert "the drive is gone" in guest.run("cat /tmp/daemon.log")
    assert guest.complaints(GONE) == []
    lab.kill()
