"""What a guest has: NVMe controllers with their namespaces, as QEMU's options."""
import os
from dataclasses import dataclass, field


@dataclass
class Namespace:
    """`image` is the name of a file in the run's folder; it is made when it is not there. `format`
    qcow2 with a cache (power cuts lose what was not flushed) or raw. `faults` are options of
    blkdebug, `limits` those of a throttle group: both are put before the file."""
    image: str
    size: str = "256M"
    lba: int = 512
    format: str = "raw"
    faults: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)


@dataclass
class Controller:
    """`name` is its serial number, and nvme-NAME its id in QEMU. `behind_port`: in a slot that can
    be emptied. `beside`: in the slot of the controller before it, so in its IOMMU group."""
    name: str
    namespaces: list
    options: dict = field(default_factory=dict)
    behind_port: bool = False
    beside: bool = False


def properties(options):
    return "".join(f",{key}={value}" for key, value in options.items())


class Machine:
    """Controllers, and how to give them to QEMU. Slots from 10 (hex) on are theirs."""

    FIRST_SLOT = 0x10

    def __init__(self, controllers, memory_mib=1024, iommu=True, bios="qboot.rom"):
        self.controllers = controllers
        self.memory_mib = memory_mib
        self.iommu = iommu
        self.bios = bios

    def slot(self, controller):
        return self.FIRST_SLOT + self.controllers.index(controller) - controller.beside

    def address(self, controller):
        """Slot and function; behind a port that of the port."""
        return f"{self.slot(controller):02x}.{int(controller.beside)}"

    def arguments(self, folder):
        args = ["-m", str(self.memory_mib), "-bios", self.bios]
        if self.iommu:
            args += ["-device", "intel-iommu,intremap=on"]
        for controller in self.controllers:
            args += self._controller(controller, folder)
        return args

    def kernel_parameters(self):
        return ["intel_iommu=on"] if self.iommu else []

    def _controller(self, controller, folder):
        name, slot = controller.name, self.slot(controller)
        where, args = f"bus=pcie.0,addr={self.address(controller)},multifunction=on", []
        if controller.behind_port:
            args += ["-device", f"pcie-root-port,id={name}-port,{where},chassis={slot},slot={slot}"]
            where = f"bus={name}-port"
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
        """The file, then what delays it, then what makes it fail; `node` names the top."""
        args, below = [], f"{node}-file"
        image = os.path.join(folder, namespace.image)
        args += ["-blockdev", f"file,node-name={below},filename={image},cache.direct=off,"
                 "locking=off,discard=unmap"]
        if namespace.format != "raw":
            args += ["-blockdev", f"{namespace.format},node-name={node}-image,file={below}"]
            below = f"{node}-image"
        if namespace.limits:
            args += ["-object", f"throttle-group,id={node}-limits{properties(namespace.limits)}",
                     "-blockdev", f"throttle,node-name={node}-slow,throttle-group={node}-limits,"
                     f"file={below}"]
            below = f"{node}-slow"
        if namespace.faults:
            args += ["-blockdev", f"blkdebug,node-name={node}-faults,image={below}"
                     f"{properties(namespace.faults)}"]
            below = f"{node}-faults"
        return args + ["-blockdev", f"raw,node-name={node},file={below}"]
