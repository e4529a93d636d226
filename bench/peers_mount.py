# SPDX-License-Identifier: BSD-2-Clause
"""A file of a gpunvmefs mount, and memory of PyTorch's that it is read to, by libgpunvme."""

import ctypes
import os

import torch


class Options(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("chunk", ctypes.c_size_t), ("crossover", ctypes.c_uint64)]


PATH_GPU = 1


class Mount:
    """The file at self.path, written elsewhere, and the target as a buffer. Raises OSError."""

    def __init__(self, library, folder):
        self.library = ctypes.CDLL(library, use_errno=False)
        self.library.gpunvme_error.restype = ctypes.c_char_p
        self.library.gpunvme_read.restype = ctypes.c_ssize_t
        self.library.gpunvme_read.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t,
                                              ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        self.library.gpunvme_buffer_len.restype = ctypes.c_size_t
        self.library.gpunvme_buffer_len.argtypes = [ctypes.c_void_p]
        self.path = os.path.join(folder, f"peers.{os.getpid()}")
        self.handle, self.buffer, self.fd = ctypes.c_void_p(), ctypes.c_void_p(), -1
        self.target = self.pinned = self.bytes = self.stream = None
        self.library.gpunvme_read_async.argtypes = [ctypes.c_void_p, ctypes.c_void_p,
                                                    ctypes.c_size_t, ctypes.c_uint64,
                                                    ctypes.c_void_p, ctypes.c_void_p]
        self.library.gpunvme_file_read.restype = ctypes.c_ssize_t
        self.library.gpunvme_file_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p,
                                                   ctypes.c_size_t, ctypes.c_uint64]
        self.direct, self.file = ctypes.c_void_p(), ctypes.c_void_p()
        self.must(self.library.gpunvme_connect(folder.encode(), ctypes.byref(self.handle)))
        options = Options(path=PATH_GPU)
        self.must(self.library.gpunvme_set_options(self.handle, ctypes.byref(options)))

    def must(self, result):
        if result < 0:
            raise OSError(self.library.gpunvme_error().decode())
        return result

    def open(self, target):
        """The file that was written to its path; unlinks it."""
        self.fd = os.open(self.path, os.O_RDONLY)
        os.unlink(self.path)
        self.target = target.data_ptr()
        self.must(self.library.gpunvme_register(
            self.handle, ctypes.c_void_p(self.target), ctypes.c_size_t(target.numel()),
            ctypes.byref(self.buffer)))

    def open_direct(self):
        """Where the mount lends it."""
        self.must(self.library.gpunvme_direct_open(self.handle, None, ctypes.byref(self.direct)))
        self.must(self.library.gpunvme_file_open(self.direct, self.fd, ctypes.byref(self.file)))
        self.pinned = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self.bytes = ctypes.c_int64.from_address(self.pinned.data_ptr())
        self.stream = torch.cuda.default_stream()

    def read_direct(self, to, offset, length):
        """In the default stream, and the wait for its end."""
        self.bytes.value = 0
        self.must(self.library.gpunvme_read_async(self.file, self.target + to, length, offset,
                                                  None, ctypes.addressof(self.bytes)))
        self.stream.synchronize()
        if self.bytes.value != length:
            raise OSError(f"direct path: {self.bytes.value} instead of {length} bytes")

    def reader(self, length):
        """call(i, place) that reads to piece i, by the persistent kernel.

        As short as a call of C from Python can be: a lookup is a tenth of a microsecond.
        """
        read, file, target = self.library.gpunvme_file_read, self.file, self.target

        def call(i, place):
            if read(file, target + i * length, length, place) != length:
                why = self.library.gpunvme_error().decode() or "short read"
                raise OSError(f"direct path: {why}")

        return call

    def read(self, to, offset, length):
        if self.must(self.library.gpunvme_read(self.buffer, self.fd, to, offset, length,
                                               None)) != length:
            raise OSError("short read")

    def idler(self):
        """call(i, place) of C that does nothing."""
        length, buffer = self.library.gpunvme_buffer_len, self.buffer
        return lambda i, place: length(buffer)

    def close(self):
        if self.direct:
            self.library.gpunvme_direct_close(self.direct)
        self.library.gpunvme_disconnect(self.handle)
        if self.fd >= 0:
            os.close(self.fd)
