# SPDX-License-Identifier: BSD-2-Clause
"""LMCache's GPU storage backend over gpunvme. The slab is a file of a mount, or
any other file.

For LMCache 0.5.6, which finds files of its folder gds_backends by name. The wheel of this folder
installs the file there.
"""

import ctypes
import os

import torch
from gpunvme import _native
from gpunvme import deregister, register
from lmcache.v1.gpu_connector.gds_backends._file import FDGDSHandle, FileGDSBackend
from lmcache.v1.gpu_connector.gds_backends.base import Submission


class Backend(FileGDSBackend):
    """All files and memory use the one handle that gpunvme has in a process."""

    name = "gpunvme"

    def open_handle(self, fd: int, path: str) -> "AsyncHandle":
        try:
            handle = self.register_handle(fd)
        except OSError:
            os.close(fd)
            raise
        return AsyncHandle(self, fd, handle, path)

    def register_handle(self, fd: int) -> int:
        out = ctypes.c_void_p()
        _native.check(_native.library.gpunvme_file_open(_native.process.handle(), fd, 0,
                                                        ctypes.byref(out)), f"fd {fd}")
        return out.value or 0

    def deregister_handle(self, handle: int) -> None:
        _native.library.gpunvme_file_close(handle)

    def register_buffer(self, buf: torch.Tensor) -> None:
        register(buf)

    def deregister_buffer(self, buf: torch.Tensor) -> None:
        deregister(buf)

    def register_stream(self, raw_stream: int) -> None:
        """Does nothing: transfers name their stream, and streams need no state."""

    def deregister_stream(self, raw_stream: int) -> None:
        """Does nothing, like register_stream()."""


class AsyncHandle(FDGDSHandle):
    """Is a slab whose transfers are in the order of a stream."""

    def _submit(self, write: bool, buf_base: int, submission: Submission,
                raw_stream: int) -> Submission:
        what = _native.Async(int(write), buf_base, ctypes.pointer(submission.size),
                             ctypes.pointer(submission.file_offset),
                             ctypes.pointer(submission.buf_offset),
                             ctypes.pointer(submission.result), None, None)
        _native.check(_native.library.gpunvme_submit_stream(self._handle, ctypes.byref(what),
                                                        raw_stream or None), self.path)
        return submission

    def read_async(self, buf_base: int, size: int, file_offset: int, buf_offset: int,
                   raw_stream: int) -> Submission:
        return self._submit(False, buf_base, Submission(size, file_offset, buf_offset), raw_stream)

    def write_async(self, buf_base: int, size: int, file_offset: int, buf_offset: int,
                    raw_stream: int) -> Submission:
        return self._submit(True, buf_base, Submission(size, file_offset, buf_offset), raw_stream)
