# SPDX-License-Identifier: BSD-2-Clause
"""The direct path: reads on queues leased from a mount, without a call into its daemon."""

import ctypes
import os
import weakref
from typing import Any

from . import _native
from ._memory import memory_of, part_of
from ._native import check, library, process


class _Lease:
    """A connection to the mount of a file, and queue pairs leased from it."""

    def __init__(self, path: Any) -> None:
        self.mount, self.direct = ctypes.c_void_p(), ctypes.c_void_p()
        check(library.gpunvme_connect(os.fsencode(path), ctypes.byref(self.mount)), path)
        error = library.gpunvme_direct_open(self.mount, None, ctypes.byref(self.direct))
        if error < 0:
            reason = library.gpunvme_error().decode()
            library.gpunvme_disconnect(self.mount)
            raise OSError(-error, reason, path)
        weakref.finalize(self, _end, self.mount.value, self.direct.value,
                         process.generation).atexit = False


def _end(mount: int, direct: int, generation: int) -> None:
    if generation == process.generation:
        library.gpunvme_direct_close(direct)
        library.gpunvme_disconnect(mount)


class DirectFile:
    """A file of a mount that lends queues (-o direct=), for small reads one after another.

        with DirectFile("/mnt/table.bin", out) as f:    # out: a tensor on the mount's GPU
            f.read(out, 4096, file_offset=81920)

    Reads go into the buffers that were named, which stay registered; a mount without a GPU takes
    those of alloc() alone. The file is as it was when it was opened. Reads have no order with
    streams. PermissionError: the mount does not lend queues to this user.
    """

    def __init__(self, path: Any, *buffers: Any) -> None:
        self._lease, self._file = _Lease(path), ctypes.c_void_p()
        self._keep: list[Any] = []
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check(library.gpunvme_file_open(self._lease.direct, fd, ctypes.byref(self._file)), path)
        finally:
            os.close(fd)
        self._handle = self._file.value
        for buf in buffers:
            self.register(buf)

    def register(self, buf: Any) -> None:
        """Makes memory a target of reads, as long as the file is open."""
        memory, out = memory_of(buf, True), ctypes.c_void_p()
        check(library.gpunvme_register(self._lease.mount, memory.address, memory.nbytes,
                                       ctypes.byref(out)))
        self._keep.append(memory)

    def alloc(self, nbytes: int) -> memoryview:
        """Zeroed host memory for reads, until the file is closed."""
        out = ctypes.c_void_p()
        check(library.gpunvme_alloc_host(self._lease.mount, nbytes, ctypes.byref(out)))
        array = (ctypes.c_ubyte * nbytes).from_address(library.gpunvme_buffer_addr(out))
        array._lease = self._lease  # pylint: disable=protected-access  # what the memory ends with
        return memoryview(array).cast("B")

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0,
             buf_offset: int = 0) -> int:
        """As File.read(): the bytes read."""
        address, size = part_of(memory_of(buf, True), size, buf_offset)
        return self.read_to(address, size, file_offset)

    def read_to(self, address: int, size: int, file_offset: int) -> int:
        """The same to an address (tensor.data_ptr()), as fast as a call from Python can be."""
        n: int = library.gpunvme_file_read(self._handle, address, size, file_offset)
        if n < 0:
            raise OSError(-n, library.gpunvme_error().decode())
        return n

    def size(self) -> int:
        """Of the file when it was opened, in bytes."""
        if not self._handle:
            raise ValueError("the file is closed")
        return int(library.gpunvme_file_size(self._handle))

    def close(self) -> None:
        """No read may be under way. Queues are given back when memory of alloc() is gone, too."""
        if self._handle:
            library.gpunvme_file_close(self._handle)
        self._handle = None

    def __enter__(self) -> "DirectFile":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
        del self._lease
