# SPDX-License-Identifier: BSD-2-Clause
"""The guest's kernel and its initramfs, from a kernel package unpacked and not installed."""
import lzma
import os
import shutil
import struct
import subprocess
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "fuse", "nvme", "vfio_pci", "vfio_iommu_type1")
SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"
DECOMPRESS = ((b"\xfd7zXZ\0", lzma.decompress), (b"\x5d\0\0", lzma.decompress),
              (b"\x1f\x8b", lambda data: zlib.decompressobj(31).decompress(data)),
              (b"\x28\xb5\x2f\xfd", lambda data: tool(["zstd", "-dcq"], data)))


class KernelError(Exception):
    pass


def tool(argv, data=None, **options):
    """Runs a program and returns its output."""
    try:
        return subprocess.run(argv, input=data, check=True, timeout=120,
                              stdout=subprocess.PIPE, **options).stdout
    except FileNotFoundError:
        raise KernelError(f"{argv[0]}: not here; run scripts/setup.sh --guest") from None


def decompress(data):
    for magic, function in DECOMPRESS:
        if data.startswith(magic):
            return function(data)
    return None


def uncompressed(image):
    """The ELF image inside a bzImage (Linux boot protocol, payload_offset and payload_length): QEMU
    starts it by PVH, in a third of the time. None when the compression is not known."""
    with open(image, "rb") as file:
        data = file.read()
    setup_sects, = struct.unpack_from("<B", data, 0x1f1)
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (setup_sects + 1) * 512 + offset
    elf = decompress(data[start:start + length - 4])  # its length stands behind it
    return elf if elf and elf.startswith(b"\x7fELF") else None


class Kernel:
    """`root` has the boot/ and lib/ of one kernel's packages; files made from it go to `cache`."""

    def __init__(self, root, cache):
        versions = os.listdir(os.path.join(root, "lib", "modules"))
        if len(versions) != 1:
            raise KernelError(f"{root}: holds {len(versions)} kernels, expected one")
        self.root, self.version = os.path.abspath(root), versions[0]
        self.dir = os.path.join(cache, self.version)
        os.makedirs(self.dir, exist_ok=True)
        self.packed = os.path.join(self.root, "boot", "vmlinuz-" + self.version)
        if not os.path.exists(self.packed):  # Debian's packages from 7.0 on
            self.packed = os.path.join(self.root, "lib", "modules", self.version, "vmlinuz")
        self.image = self._make("vmlinux", self._image)
        self.initrd = self._make("initramfs", self._initramfs)

    def _make(self, name, function):
        """Makes a file unless it is there and newer than its source; a package's files
        are as old as the package, so their change times count."""
        path = os.path.join(self.dir, name)
        sources = (self.packed, os.path.join(HERE, "init"), os.path.abspath(__file__))
        if not os.path.exists(path) or os.path.getmtime(path) < max(map(os.path.getctime, sources)):
            temporary = f"{path}.{os.getpid()}"
            function(temporary)
            os.rename(temporary, path)
        return path

    def _image(self, path):
        elf = uncompressed(self.packed)
        if elf is None:
            shutil.copyfile(self.packed, path)
            return
        with open(path, "wb") as file:
            file.write(elf)

    def modules(self, names=MODULES):
        """Returns the files of modules and of their dependences, in the order of loading."""
        lib = os.path.join(self.root, "lib", "modules", self.version)
        if not os.path.exists(os.path.join(lib, "modules.dep.bin")):
            tool(["depmod", "-b", self.root, self.version], env={"PATH": SBIN})
        with open(os.path.join(lib, "modules.dep"), encoding="utf-8") as file:
            here = {os.path.basename(line.split(":")[0]).split(".")[0].replace("-", "_")
                    for line in file}
        files = []
        for module in names:
            # Packages from 7.0 on do not list what is built in (modules.builtin).
            if module not in here:
                continue
            found = tool(["modprobe", "-d", self.root, "-S", self.version, "--show-depends",
                          module], env={"PATH": SBIN}).decode()
            files += [line.split()[1] for line in found.splitlines() if line.startswith("insmod ")]
        return list(dict.fromkeys(files))

    def _initramfs(self, path):
        top = path + ".d"
        shutil.rmtree(top, ignore_errors=True)
        for name in ("bin", "modules", "dev", "proc", "sys", "host", "root"):
            os.makedirs(os.path.join(top, name))
        busybox = shutil.which("busybox", path=SBIN)
        if busybox is None:
            raise KernelError("busybox: not here; run scripts/setup.sh --guest")
        shutil.copy(busybox, os.path.join(top, "bin", "busybox"))
        shutil.copyfile(os.path.join(HERE, "init"), os.path.join(top, "init"))
        os.chmod(os.path.join(top, "init"), 0o755)
        for number, module in enumerate(self.modules()):
            with open(module, "rb") as file:
                data = file.read()
            name = f"{number:02}-{os.path.basename(module).split('.')[0]}.ko"
            with open(os.path.join(top, "modules", name), "wb") as file:
                file.write(decompress(data) or data)
        os.chmod(top, 0o755)
        names = tool(["find", ".", "-print0"], cwd=top)
        with open(path, "wb") as file:
            file.write(tool(["cpio", "--null", "-o", "-H", "newc", "-R", "0:0", "--quiet"], names,
                            cwd=top))
        shutil.rmtree(top)
