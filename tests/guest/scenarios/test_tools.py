# SPDX-License-Identifier: BSD-2-Clause
"""The command gpunvme on drives of the kernel and of VFIO, and its refusals."""
import json

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([
    Controller("one", [Namespace("one.img")]),
    Controller("used", [Namespace("used.img")]),
    Controller("foreign", [Namespace("foreign.img")]),
    Controller("first", [Namespace("first.img")]),
    Controller("second", [Namespace("second.img")], beside=True),
    Controller("known", [Namespace("known.img")], {"use-intel-id": "on"}),
])


def facts(guest, command):
    return json.loads(guest.run(command))


def test_check_finds_nothing_to_fail(guest):
    every = guest.run('gpunvme check; gpunvme check "$(bdf_of one)"')
    assert "FAIL" not in every
    assert "IOMMU group" in every and "MDTS" in every.upper()


def test_bind_and_unbind_hand_over_the_drive(guest):
    address = guest.run('bdf_of one').strip()
    dry = guest.run(f"gpunvme bind -n {address}; gpunvme list")
    assert "/dev/nvme" in next(line for line in dry.splitlines() if " one " in line)
    guest.run(f"gpunvme bind {address}; gpunvme bind {address}")
    ours = [drive for drive in facts(guest, "gpunvme list -o json")["drives"]
            if drive["address"] == address]
    assert [drive["driver"] for drive in ours] == ["vfio-pci"]
    guest.run(f"gpunvme unbind {address}; gpunvme unbind {address}; disk_of one 1")


def test_identify_says_the_same_through_both_drivers(guest):
    through_kernel = facts(guest, 'gpunvme identify -o json "$(bdf_of one)"')
    guest.run('gpunvme bind "$(bdf_of one)"')
    through_vfio = facts(guest, 'gpunvme identify -o json "$(bdf_of one)"')
    registers = facts(guest, 'gpunvme regs -o json "$(bdf_of one)"')
    guest.run('gpunvme unbind "$(bdf_of one)"')
    assert through_kernel.pop("through") != through_vfio.pop("through")
    assert through_vfio.pop("quirks") == "Flush after FUA"
    for answer in (through_kernel, through_vfio):
        answer.pop("device", None)
    assert through_kernel == through_vfio
    assert through_vfio["controller"]["sn"] == "one"
    assert "0x00010400" in json.dumps(registers) or "66560" in json.dumps(registers)


def test_a_controller_is_known_by_its_pci_ids(guest):
    guest.run('gpunvme bind "$(bdf_of known)"')
    found = facts(guest, 'gpunvme identify -o json "$(bdf_of known)"')
    assert found["quirks"] == "no Write Zeroes, Flush after FUA"
    guest.run('drive="vfio:$(bdf_of known)"; mkfs.gpunvme -q "$drive"; gpunvmefs "$drive" "$MNT"; '
              'gpunvme info "$MNT" | grep "no Write Zeroes"; umount "$MNT"; '
              'wait_unused "$drive"; fsck.gpunvme -n "$drive"; '
              'gpunvme unbind "$(bdf_of known)"')


REFUSED = {
    "mounted": ('mkfs.gpunvme -q "$(disk_of used 1)"; gpunvmefs "$(disk_of used 1)" "$MNT"',
                "used", 'umount "$MNT"; wait_unused "$(disk_of used 1)"; '
                'wipefs -qa "$(disk_of used 1)"'),
    "swap": ('mkswap -q "$(disk_of used 1)"; swapon "$(disk_of used 1)"', "used",
             'swapoff -a; wipefs -qa "$(disk_of used 1)"'),
    "held open": ('python3 -c "import os,time; os.open(\'$(disk_of used 1)\', os.O_RDWR|os.O_EXCL);'
                  ' print(1, flush=True); time.sleep(600)" > /tmp/held & echo $! >/tmp/holder;'
                  ' until [ -s /tmp/held ]; do sleep 0.1; done', "used", "kill $(cat /tmp/holder)"),
    "foreign signature": ('mke2fs -qF "$(disk_of foreign 1)"', "foreign", ""),
}


@pytest.mark.parametrize("use", REFUSED)
def test_a_drive_in_use_is_not_taken(guest, use):
    before, name, after = REFUSED[use]
    guest.run(before)
    output = guest.run(f'gpunvme bind "$(bdf_of {name})"', status=1)
    assert one_line(output)
    assert f"driver={name}" in guest.run(f"""
        disk_of {name} 1 >/dev/null && echo driver={name}
        {after}
    """)


def one_line(output):
    """`program: object: what is wrong`, once; lines of bash do not count."""
    said = [line for line in output.splitlines() if not line.startswith("failed here:")]
    return len(said) == 1 and said[0].count(": ") >= 2


def test_what_an_iommu_guards_is_driven_with_it(guest):
    output = guest.run("""
        gpunvme bind -f "$(bdf_of one)" >/dev/null
        mkfs.gpunvme -qf --noiommu "vfio:$(bdf_of one)" && exit 1
        gpunvme unbind "$(bdf_of one)" >/dev/null
    """)
    assert "an IOMMU guards it" in output, output


def test_a_group_is_taken_as_a_whole(guest):
    output = guest.run("""
        gpunvme bind "$(bdf_of first)" >/dev/null
        timeout 20 mkfs.gpunvme -q vfio:$(bdf_of first) && exit 1
        bdf_of second
    """)
    said, second = output.splitlines()
    assert second in said and one_line(said)
    guest.run("""
        gpunvme bind "$(bdf_of second)"
        mkfs.gpunvme -q vfio:$(bdf_of first)
        gpunvme unbind "$(bdf_of first)"
        gpunvme unbind "$(bdf_of second)"
    """)


def test_a_user_needs_the_group_and_memory_to_lock(guest):
    """Without root: the rights on /dev/vfio, then a limit of locked memory, are asked for."""
    output = guest.run("""
        gpunvme bind -f "$(bdf_of one)" >/dev/null
        as_user() {
            setpriv --reuid=65534 --regid=65534 --clear-groups mkfs.gpunvme -qf vfio:$(bdf_of one)
        }
        group=/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$(bdf_of one)/iommu_group")")
        as_user || echo refused
        chown 65534 "$group"
        (ulimit -l 64; as_user) || echo refused
        (ulimit -l unlimited; as_user) && echo made
        gpunvme unbind "$(bdf_of one)" >/dev/null
    """)
    rights, refused, memory, refused_too, made = output.splitlines()
    assert (refused, refused_too, made) == ("refused", "refused", "made")
    assert "/dev/vfio/" in rights and "lock" in memory, output


@pytest.mark.parametrize("address", ["0000:00:1f.2", "0000:00:1e.7", "0000:zz:00.0", "nonsense"])
@pytest.mark.parametrize("command", ["bind", "unbind", "check", "identify", "regs"])
def test_what_is_no_nvme_drive_is_refused(guest, command, address):
    output = guest.run(f"gpunvme {command} {address} || echo status $?")
    assert "status 1" in output or "status 2" in output, output


@pytest.mark.parametrize("program", ["mkfs.gpunvme -q", "fsck.gpunvme -n", 'gpunvmefs'])
@pytest.mark.parametrize("device", ["vfio:0000:00:1f.2", "vfio:0000:00:1e.7", "vfio:nonsense",
                                    "vfio:$(bdf_of one)", "vfio:$(bdf_of one)/7"])
def test_programs_refuse_what_vfio_cannot_give(guest, program, device):
    mountpoint = '"$MNT"' if program == "gpunvmefs" else ""
    output = guest.run(f'timeout 20 {program} "{device}" {mountpoint} || echo "status $?"')
    said = output.splitlines()
    assert len(said) == 2 and said[0].startswith(f"{program.split()[0]}: vfio:"), output
    assert said[1].startswith("status ") and said[1] not in ("status 0", "status 124"), output
