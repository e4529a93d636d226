# SPDX-License-Identifier: BSD-2-Clause
"""The project's programs on block devices of the kernel's own NVMe driver."""
import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([
    Controller("plain", [Namespace("plain.img", "1G")]),
    Controller("large", [Namespace("large.img", "1G", lba=4096)]),
])


@pytest.mark.parametrize("name", ["plain", "large"])
def test_mkfs_mount_fsck(guest, name):
    guest.run(f"""
        disk=$(disk_of {name} 1)
        mkfs.gpunvme -q "$disk"
        gpunvmefs "$disk" "$MNT"
        head -c 5000000 /dev/urandom >/tmp/data
        cp /tmp/data "$MNT/data"
        sync "$MNT/data"
        gpunvme read -q "$MNT/data"
        umount "$MNT"
        wait_unused "$disk"
        fsck.gpunvme -n "$disk"
        gpunvmefs "$disk" "$MNT"
        cmp /tmp/data "$MNT/data"
        umount "$MNT"
    """)
