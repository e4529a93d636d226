# SPDX-License-Identifier: BSD-2-Clause
"""Folders to test in, and device memory of a CUDA driver without a GPU.

GPUNVME_LIBRARY names libgpunvme.so; GPUNVME_MKFS and GPUNVME_DAEMON the programs that make a mount;
GPUNVME_FAKE_CUDA the driver. What is missing skips the tests that need it.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
import time

import pytest


def _mounted(folder, daemon):
    for _ in range(200):
        if os.path.ismount(folder):
            return
        assert daemon.poll() is None, daemon.stderr.read()
        time.sleep(0.05)
    pytest.fail("the mount does not appear")


def _mount():
    programs = os.environ.get("GPUNVME_MKFS"), os.environ.get("GPUNVME_DAEMON")
    if not all(programs):
        pytest.skip("GPUNVME_MKFS and GPUNVME_DAEMON are not set")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    top = tempfile.mkdtemp(prefix="gpunvme-python-", dir="/dev/shm")
    image, folder = os.path.join(top, "image"), os.path.join(top, "mnt")
    os.mkdir(folder)
    subprocess.run([programs[0], "-q", "-s", "128M", image], check=True, timeout=60)
    with subprocess.Popen([programs[1], image, folder, "-f", "-o", "executor=cpu"],
                          stderr=subprocess.PIPE, text=True) as daemon:
        _mounted(folder, daemon)
        yield folder
        # The library has a directory of the mount open as long as this process lives.
        subprocess.run(["umount", "-l", folder], check=True, timeout=60)
        daemon.terminate()
        daemon.wait(60)
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def mount():
    yield from _mount()


@pytest.fixture(params=["tmpfs", "mount"])
def folder(request):
    if request.param == "mount":
        yield request.getfixturevalue("mount")
    else:
        with tempfile.TemporaryDirectory(prefix="gpunvme-python-", dir="/dev/shm") as name:
            yield name


class DeviceArray:
    """Bytes in device memory, as cupy or torch describe them."""

    def __init__(self, driver, nbytes, readonly=False):
        self._driver, self.nbytes, self._readonly = driver, nbytes, readonly
        address = ctypes.c_ulonglong()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
        self.address = address.value

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, self._readonly),
                "version": 3}

    def get(self):
        out = (ctypes.c_ubyte * self.nbytes)()
        self._driver.cuMemcpyDtoH_v2(out, ctypes.c_ulonglong(self.address),
                                     ctypes.c_size_t(self.nbytes))
        return bytes(out)

    def put(self, content):
        self._driver.cuMemcpyHtoD_v2(ctypes.c_ulonglong(self.address), content,
                                     ctypes.c_size_t(len(content)))

    def free(self):
        self._driver.cuMemFree_v2(ctypes.c_ulonglong(self.address))


class Cuda:
    """The driver."""

    def __init__(self, driver):
        self.driver = driver

    def array(self, nbytes, readonly=False):
        return DeviceArray(self.driver, nbytes, readonly)

    def stream(self):
        out = ctypes.c_void_p()
        assert self.driver.cuStreamCreate(ctypes.byref(out), 0) == 0
        return out.value

    def synchronize(self, stream):
        self.driver.cuStreamSynchronize(ctypes.c_void_p(stream))


@pytest.fixture(scope="session")
def cuda():
    name = os.environ.get("GPUNVME_FAKE_CUDA")
    if not name:
        pytest.skip("GPUNVME_FAKE_CUDA is not set")
    return Cuda(ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL))
