# SPDX-License-Identifier: BSD-2-Clause
"""Starts a guest whose NVMe drive is gpunvme-sim, which QEMU (vfio-user-pci) gives to it."""
import contextlib
import json
import os
import re
import subprocess

from machine import Machine

MEMORY_MIB = 1024


class SimMachine(Machine):
    """QEMU and the guest's files come from `system`; `sock` is the simulator's socket. The drive
    has memory of the guest that it can map."""

    def __init__(self, system, sock):
        super().__init__([], MEMORY_MIB, iommu=None)
        self.root, self.sock = os.path.abspath(system), sock

    def qemu(self):
        return [f"{self.root}/lib64/ld-linux-x86-64.so.2",
                "--library-path", f"{self.root}/usr/lib/x86_64-linux-gnu",
                f"{self.root}/usr/bin/qemu-system-x86_64",
                "-L", f"{self.root}/usr/share/qemu", "-L", f"{self.root}/usr/share/seabios"]

    def kernel_parameters(self):
        return ["iomem=relaxed"]  # nvme-cli maps the registers, which the driver has claimed

    def arguments(self, folder):
        drive = {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": self.sock}}
        return [*super().arguments(folder),
                "-object", f"memory-backend-memfd,id=memory,size={self.memory_mib}M,share=on",
                "-machine", "memory-backend=memory", "-device", json.dumps(drive)]


@contextlib.contextmanager
def strict_sim(lab, *arguments, ignored=None):
    """Yields the socket of a simulator, which must have seen no mistake at the end, except those
    whose line contains `ignored`."""
    sock = lab.path("sim.sock")
    argv = [os.path.join(lab.build, "sim", "serve", "gpunvme-sim"), "--strict", *arguments, sock]
    with open(lab.path("sim.err"), "w+", encoding="utf-8") as err, \
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=err, text=True) as process:
        assert process.stdout.readline().startswith("listening on")
        yield sock
        process.terminate()
        status = process.wait(10)
        err.seek(0)
        said = err.read()
        counted = re.search(r"driver: (\d+) mistakes, and (\d+) of the protocol", said)
        mistakes = sum(map(int, counted.groups())) if counted else 0
        assert status == (3 if mistakes else 0), said
        assert mistakes == (said.count(ignored) if ignored else 0), said
