# SPDX-License-Identifier: BSD-2-Clause
"""What a guest has: NVMe controllers with their namespaces, and other devices with memory, as
QEMU's options."""
import os
from dataclasses import dataclass, field


@dataclass
class Namespace:
    """`image` is the name of a file in the run's folder; it is made when it is not there. A fresh
    qcow2 has a volatile cache: a power cut loses clusters that were not flushed since their first
    write. One for each block of the file system, so that no block is saved by its neighbours."""
    image: str
    size: str = "256M"
    lba: int = 512
    format: str = "raw"

    def image_options(self):
        return ["-o", "cluster_size=4096"] if self.format == "qcow2" else []


@dataclass
class Controller:
    """`name` is its serial number, and nvme-NAME its id in QEMU. `behind_port`: in a slot that can
    be emptied. `beside`: in the slot of the controller before it, so in its IOMMU group."""
    name: str
    namespaces: list
    options: dict = field(default_factory=dict)
    behind_port: bool = False
    beside: bool = False


@dataclass
class Peer:
    """An ivshmem device, whose BAR 2 is memory: it stands in for a GPU. `name` is for bdf_of, and
    its id in QEMU. With `behind_port` it is in a slot that can be emptied."""
    name: str
    mib: int = 16
    behind_port: bool = False


def properties(options):
    return "".join(f",{key}={value}" for key, value in options.items())


class Machine:
    """Controllers, and how to give them to QEMU. Slots from 10 (hex) on are theirs. `iommu` is a
    device of QEMU, or None."""

    FIRST_SLOT = 0x10
    root = "/"  # folder of the host that the guest has as its root

    def __init__(self, controllers, memory_mib=1024, iommu="intel-iommu,intremap=on", peers=()):
        self.controllers = controllers
        self.peers = list(peers)
        self.memory_mib = memory_mib
        self.iommu = iommu

    def qemu(self):
        """The program, and arguments that come before all others."""
        return ["qemu-system-x86_64"]

    def peer_address(self, peer):
        return f"{self.FIRST_SLOT + len(self.controllers) + self.peers.index(peer):02x}.0"

    def addresses(self):
        """Of controllers and peers, by name."""
        return {**{c.name: self.address(c) for c in self.controllers},
                **{p.name: self.peer_address(p) for p in self.peers}}

    def slot(self, controller):
        return self.FIRST_SLOT + self.controllers.index(controller) - controller.beside

    def address(self, controller):
        """Slot and function; behind a port that of the port."""
        return f"{self.slot(controller):02x}.{int(controller.beside)}"

    def arguments(self, folder):
        # qboot leaves the drives alone, and is quick.
        args = ["-m", str(self.memory_mib), "-bios", "qboot.rom"]
        if self.iommu:
            args += ["-device", self.iommu]
        for controller in self.controllers:
            args += self._controller(controller, folder)
        for peer in self.peers:
            memory = f"{peer.name}-memory"
            address = self.peer_address(peer)
            where, port = self._place(peer.name, f"bus=pcie.0,addr={address}",
                                      int(address.split(".")[0], 16), peer.behind_port)
            args += ["-object", f"memory-backend-ram,id={memory},size={peer.mib}M,share=on",
                     *port, "-device", f"ivshmem-plain,id={peer.name},memdev={memory},{where}"]
        return args

    @staticmethod
    def _place(name, where, slot, behind_port):
        """Returns the place of a device, and the port that it needs."""
        if not behind_port:
            return where, []
        return (f"bus={name}-port",
                ["-device", f"pcie-root-port,id={name}-port,{where},chassis={slot},slot={slot}"])

    def kernel_parameters(self):
        return ["intel_iommu=on"] if self.iommu else []

    def _controller(self, controller, folder):
        name, slot = controller.name, self.slot(controller)
        where, args = self._place(name, f"bus=pcie.0,addr={self.address(controller)},"
                                  "multifunction=on", slot, controller.behind_port)
        options = properties(controller.options)
        args += ["-device", f"nvme,id=nvme-{name},serial={name},{where}{options}"]
        for nsid, namespace in enumerate(controller.namespaces, 1):
            node = f"{name}n{nsid}"
            args += self._backend(node, namespace, folder)
            args += ["-device", f"nvme-ns,bus=nvme-{name},nsid={nsid},drive={node},"
                     f"logical_block_size={namespace.lba},physical_block_size={namespace.lba}"]
        return args

    @staticmethod
    def _backend(node, namespace, folder):
        """`node` names the top, NODE-image the image, so that filters can come between."""
        image = os.path.join(folder, namespace.image)
        file = f"{node}-image" if namespace.format == "raw" else f"{node}-file"
        args = ["-blockdev", f"file,node-name={file},filename={image},locking=off,discard=unmap"]
        if namespace.format != "raw":
            args += ["-blockdev", f"{namespace.format},node-name={node}-image,file={file}"]
        return args + ["-blockdev", f"raw,node-name={node},file={node}-image"]
