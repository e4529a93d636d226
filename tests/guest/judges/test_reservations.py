# SPDX-License-Identifier: BSD-2-Clause
"""Reservations of block devices that Linux's NVMe driver drives (Linux 6.13 and later, for
nvmet): one namespace with two hosts, each with a block device of its own in the same guest."""
import os

import pytest

from kernel import decompress
from machine import Controller, Machine, Namespace

MACHINE = Machine([Controller("disk", [Namespace("disk.img", "256M")])])
# A and B are the block devices of the two hosts.
HOSTS = """
device_of() {
    local ctrlr
    for ctrlr in /sys/class/nvme/nvme*; do
        [ "$(cat "$ctrlr/hostnqn" 2>/dev/null)" = "$1" ] && echo "/dev/${ctrlr##*/}n1"
    done
}
A=$(device_of nqn.host-a) B=$(device_of nqn.host-b)
content() { head -c 1M /dev/zero | tr '\\0' "$1"; }
"""


@pytest.fixture(scope="module")
def hosts(lab, guest):
    """Returns the guest with one target and two connections to it."""
    modules = lab.kernel.modules(["nvme", "nvmet", "nvme_loop"])
    for number, module in enumerate(modules):
        name = os.path.basename(module).split(".")[0]
        with open(module, "rb") as file, \
                open(f"{guest.share}/{number:02}-{name}.ko", "wb") as plain:
            data = file.read()
            plain.write(decompress(data) or data)
    guest.run("""
        # Multipath would make one block device of both hosts'.
        rmmod nvme nvme_core
        for module in /run/guest/*.ko; do
            case $module in
            *-nvme-core.ko) insmod "$module" multipath=N ;;
            *) insmod "$module" 2>/tmp/why || grep -q "File exists" /tmp/why ;;
            esac
        done
        for _ in $(seq 100); do disk_of disk 1 2>/dev/null && break; sleep 0.1; done
        mount -t configfs configfs /sys/kernel/config
        cd /sys/kernel/config/nvmet
        mkdir -p subsystems/nqn.both/namespaces/1 ports/1
        echo 1 >subsystems/nqn.both/attr_allow_any_host
        cd subsystems/nqn.both/namespaces/1
        disk_of disk 1 | tr -d '\n' >device_path
        echo 1 >resv_enable
        echo 1 >enable
        cd ../../../../ports/1
        echo loop >addr_trtype
        ln -s ../../subsystems/nqn.both subsystems/
        for host in a b; do
            echo "transport=loop,nqn=nqn.both,hostnqn=nqn.host-$host,hostid=$(
                cat /proc/sys/kernel/random/uuid)" >/dev/nvme-fabrics
        done
    """)
    guest.run(HOSTS + """
        for _ in $(seq 100); do [ -b "$A" ] && [ -b "$B" ] && break; sleep 0.1; done
        [ "$A" != "$B" ]
        mkfs.gpunvme -q -f "$A"
    """)
    return guest


def run(guest, script):
    return guest.run(HOSTS + script, 120)


def test_another_host_is_refused_while_one_has_mounted(hosts):
    output = run(hosts, """
        gpunvmefs "$A" "$MNT" -o nommp
        content x >"$MNT/file"
        mkdir -p /tmp/b
        ! gpunvmefs "$B" /tmp/b -o nommp || exit 1
        ! mkfs.gpunvme -q -f "$B" || exit 1
        ! dd if=/dev/zero of="$B" bs=4k count=1 oflag=direct status=none || exit 1
        umount "$MNT"
        gpunvmefs "$B" /tmp/b -o nommp,reservation=require
        content x | cmp - /tmp/b/file
        umount /tmp/b
    """)
    assert output.count("reserved by the host with the key 0x") == 2, output
    assert "mount it once with reservation=preempt if that host is dead" in output


def test_a_host_continues_with_its_own_reservation(hosts):
    run(hosts, """
        gpunvmefs "$A" "$MNT" -o nommp
        pkill -KILL -x gpunvmefs
        umount -l "$MNT"
        wait_unused "$A"
        gpunvmefs "$A" "$MNT" -o nommp,reservation=require
        umount "$MNT"
    """)


def test_a_preempted_mount_writes_nothing_more(hosts):
    output = run(hosts, """
        serve "$A" nommp,commit=1
        content y >"$MNT/file"
        sync -f "$MNT/file"
        mkdir -p /tmp/b
        gpunvmefs "$B" /tmp/b -o nommp,reservation=preempt
        content z >/tmp/b/file
        sync -f /tmp/b/file
        ! { content w >"$MNT/file" && sync -f "$MNT/file"; } || exit 1
        umount "$MNT" || true
        served
        content z | cmp - /tmp/b/file
        umount /tmp/b
        fsck.gpunvme -n "$A"
    """)
    assert "another host has reserved the device" in output, output
