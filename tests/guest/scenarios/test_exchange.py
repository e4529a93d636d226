# SPDX-License-Identifier: BSD-2-Clause
"""The same bytes by every path: the kernel's NVMe driver and ours in turns on one namespace, and
images that the simulated controller of the host has written or reads."""
import os
import subprocess

import pytest

from machine import Controller, Machine, Namespace

MACHINE = Machine([Controller("drive", [Namespace("drive.img", "256M", lba=4096)])])
OURS, KERNELS = "vfio:$(bdf_of drive)", "$(disk_of drive 1)"


def add(number):
    """A file of each size, and the sums of all."""
    return f"""
        for size in 0 1 4095 100000 3000001; do
            head -c "$size" /dev/urandom >"$MNT/{number}-$size"
        done
        (cd "$MNT" && sha256sum * >/tmp/sums && sync -- *)
    """


def mounted(device, script):
    return f"""
        gpunvmefs {device} "$MNT"
        {script}
        umount "$MNT"
        wait_unused {device}
        fsck.gpunvme -n {device}
    """


CHECK = '(cd "$MNT" && sha256sum -c --quiet /tmp/sums)'


@pytest.mark.smoke
def test_the_kernels_driver_and_ours_take_turns(guest):
    guest.run(f"mkfs.gpunvme -q {KERNELS}\n" + mounted(KERNELS, add(0)))
    for number in (1, 2):
        guest.run('gpunvme bind "$(bdf_of drive)"\n' + mounted(OURS, CHECK + add(f"ours-{number}")))
        guest.run('gpunvme unbind "$(bdf_of drive)"\n'
                  + mounted(KERNELS, CHECK + add(f"kernel-{number}")))


def test_both_drivers_write_the_same_bytes(guest):
    uuid = "11111111-2222-3333-4444-555555555555"
    make = f"SOURCE_DATE_EPOCH=1 mkfs.gpunvme -qf -U {uuid} -E hash_seed={uuid}"
    zero = f"dd if=/dev/zero of={KERNELS} bs=1M count=64 oflag=direct status=none"
    guest.run(f"""
        {zero}
        {make} {KERNELS}
        head -c 64M {KERNELS} | sha256sum >/tmp/by-kernel
        {zero}
        gpunvme bind "$(bdf_of drive)"
        {make} {OURS}
        gpunvme unbind "$(bdf_of drive)"
        head -c 64M {KERNELS} | sha256sum >/tmp/by-ours
        cmp /tmp/by-kernel /tmp/by-ours
    """)


class Host:
    """The project's programs on this machine, with the simulated controller."""

    def __init__(self, lab):
        self.lab, self.image = lab, lab.path("drive.img")
        self.mountpoint = lab.path("mnt")
        os.makedirs(self.mountpoint, exist_ok=True)

    def run(self, script):
        build = self.lab.build
        path = f"{build}/client:{build}/fusefs/daemon:{build}/mkfs:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=120,
                              check=False, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr

    def mounted(self, script):
        self.run(f"""
            gpunvmefs {self.image} {self.mountpoint} -o sim=lba:4096
            trap 'umount -l {self.mountpoint}' EXIT
            (cd {self.mountpoint} && {script})
            trap - EXIT
            umount {self.mountpoint}
            for _ in $(seq 300); do
                fsck.gpunvme -n {self.image} && exit 0
                sleep 0.1
            done
            exit 1
        """)


@pytest.fixture
def host(lab):
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("mounting on this machine needs root and /dev/fuse")
    return Host(lab)


def test_images_travel_between_guest_and_simulator(lab, host):
    """Written through VFIO, read and extended by the simulator, read again through VFIO."""
    lab.power_off()
    guest = lab.boot(MACHINE)
    guest.run(f"""
        gpunvme bind -f "$(bdf_of drive)"
        mkfs.gpunvme -qf {OURS}
    """ + mounted(OURS, add("guest") + 'cp /tmp/sums "$MNT/guest-sums"'))
    lab.power_off()
    host.mounted("sha256sum -c --quiet guest-sums; head -c 5000000 /dev/urandom >from-host; "
                 "gpunvme read -q from-host; sha256sum * >host-sums; sync -- *")
    guest = lab.boot(MACHINE)
    guest.run('gpunvme bind -f "$(bdf_of drive)"\n'
              + mounted(OURS, '(cd "$MNT" && sha256sum -c --quiet host-sums)\n'
                        'gpunvme read -q "$MNT/from-host"'))
    lab.power_off()
