# SPDX-License-Identifier: BSD-2-Clause
"""Folders to test in, and device memory: of a GPU, or of a CUDA driver without one.

GPUNVME_LIBRARY names libgpunvme.so. The mount is the one that GPUNVME_MOUNT is a folder of, or is made
by GPUNVME_MKFS and GPUNVME_DAEMON (in PATH: mkfs.gpunvme, gpunvmefs) with GPUNVME_MOUNT_OPTIONS.
GPUNVME_FAKE_CUDA names the driver without a GPU. A missing one skips the tests that need it.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
import time

import numpy as np
import pytest


def _driver():
    """libcuda.so.1 with a context, or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    return driver


DRIVER = None if "GPUNVME_FAKE_CUDA" in os.environ else _driver()


def _mounted(folder, daemon):
    for _ in range(1200):
        if os.path.ismount(folder):
            return
        assert daemon.poll() is None, "the daemon ended"
        time.sleep(0.05)
    pytest.fail("the mount does not appear")


def _mount():
    programs = [os.environ.get(variable) or shutil.which(name)
                for variable, name in (("GPUNVME_MKFS", "mkfs.gpunvme"),
                                       ("GPUNVME_DAEMON", "gpunvmefs"))]
    if not all(programs):
        pytest.skip("no mkfs.gpunvme and gpunvmefs in PATH, GPUNVME_MOUNT is not set")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    options = os.environ.get("GPUNVME_MOUNT_OPTIONS", 
                             f"direct=all,executor={'cuda' if DRIVER else 'cpu'}")
    top = tempfile.mkdtemp(prefix="gpunvme-python-", dir="/dev/shm")
    image, folder = os.path.join(top, "image"), os.path.join(top, "mnt")
    os.mkdir(folder)
    subprocess.run([programs[0], "-q", "-s", "512M", image], check=True, timeout=60)
    with subprocess.Popen([programs[1], image, folder, "-f", "-o", options]) as daemon:
        _mounted(folder, daemon)
        yield folder
        # The library has a directory of the mount open as long as this process lives.
        subprocess.run(["umount", "-l", folder], check=True, timeout=60)
        daemon.terminate()
        daemon.wait(60)
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def mount():
    given = os.environ.get("GPUNVME_MOUNT")
    if given:
        with tempfile.TemporaryDirectory(prefix="gpunvme-python-", dir=given) as name:
            yield name
    else:
        yield from _mount()


@pytest.fixture
def tmpfs():
    with tempfile.TemporaryDirectory(prefix="gpunvme-python-", dir="/dev/shm") as name:
        yield name


@pytest.fixture(params=["tmpfs", "mount"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(name="content")
def fixture_content(request):
    """Returns SIZE random bytes; SIZE is a constant of the test module."""
    return np.random.default_rng(1).integers(0, 256, request.module.SIZE, dtype=np.uint8)


@pytest.fixture(name="path")
def fixture_path(folder, content):
    """A file with the content."""
    name = os.path.join(folder, "file")
    content.tofile(name)
    yield name
    os.unlink(name)


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


def pytest_configure(config):
    config.addinivalue_line("markers", "driver: uses the CUDA driver by itself")


def pytest_collection_modifyitems(items):
    for item in items:
        if "cuda" in item.fixturenames:
            item.add_marker("driver")


@pytest.fixture(scope="session")
def cuda():
    """Memory and streams of the driver: the GPU's, or of the one without a GPU."""
    name = os.environ.get("GPUNVME_FAKE_CUDA")
    if not name and DRIVER is None:
        pytest.skip("no CUDA device, and GPUNVME_FAKE_CUDA is not set")
    return Cuda(ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) if name else DRIVER)


@pytest.fixture(name="torch")
def fixture_torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(name="device", params=["cpu", "cuda"])
def fixture_device(request, torch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    return request.param
