# SPDX-License-Identifier: BSD-2-Clause
"""A file of a gpunvmefs mount, and memory of PyTorch's that it is read to, by libgpunvme."""

import ctypes
import os

import torch


class Options(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("chunk", ctypes.c_size_t), ("crossover", ctypes.c_uint64),
                ("lease_queues", ctypes.c_uint32), ("lease_depth", ctypes.c_uint32),
                ("flags", ctypes.c_uint32)]


class StreamTransfer(ctypes.Structure):
    _fields_ = [("write", ctypes.c_int), ("addr", ctypes.c_void_p),
                ("len", ctypes.POINTER(ctypes.c_size_t)),
                ("file_offset", ctypes.POINTER(ctypes.c_int64)),
                ("addr_offset", ctypes.POINTER(ctypes.c_int64)),
                ("bytes", ctypes.c_void_p), ("done", ctypes.c_void_p), ("arg", ctypes.c_void_p),
                ("pieces", ctypes.c_void_p), ("n_pieces", ctypes.c_size_t)]


PATH_GPU = 1
FILE_DIRECT = 1


class Mount:
    """The file at self.path, written elsewhere, and the target, registered. Raises OSError."""

    def __init__(self, library, folder):
        self.library = ctypes.CDLL(library, use_errno=False)
        self.library.gpunvme_error.restype = ctypes.c_char_p
        self.library.gpunvme_read.restype = ctypes.c_ssize_t
        self.library.gpunvme_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                              ctypes.c_uint64, ctypes.c_void_p]
        self.library.gpunvme_file_fd.argtypes = [ctypes.c_void_p]
        self.path = os.path.join(folder, f"peers.{os.getpid()}")
        self.handle, self.file, self.direct = (ctypes.c_void_p() for _ in range(3))
        self.fd, self.target = -1, None
        self.pinned = self.bytes = self.stream = None
        options = Options(path=PATH_GPU)
        self.must(self.library.gpunvme_open(ctypes.byref(options), ctypes.byref(self.handle)))

    def must(self, result):
        if result < 0:
            raise OSError(self.library.gpunvme_error().decode())
        return result

    def open(self, target):
        """The file that was written to its path; unlinks it."""
        self.fd = os.open(self.path, os.O_RDONLY)
        os.unlink(self.path)
        self.target = target.data_ptr()
        self.must(self.library.gpunvme_file_open(self.handle, self.fd, 0, ctypes.byref(self.file)))
        self.must(self.library.gpunvme_register(self.handle, ctypes.c_void_p(self.target),
                                                ctypes.c_size_t(target.numel())))

    def open_direct(self):
        """Where the mount lends it."""
        self.must(self.library.gpunvme_file_open(self.handle, self.fd, FILE_DIRECT,
                                                 ctypes.byref(self.direct)))
        self.pinned = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self.bytes = ctypes.c_int64.from_address(self.pinned.data_ptr())
        self.stream = torch.cuda.default_stream()

    def read_direct(self, to, offset, length):
        """In the default stream, and the wait for its end."""
        self.bytes.value = 0
        transfer = StreamTransfer(addr=self.target, len=ctypes.pointer(ctypes.c_size_t(length)),
                                  file_offset=ctypes.pointer(ctypes.c_int64(offset)),
                                  addr_offset=ctypes.pointer(ctypes.c_int64(to)),
                                  bytes=ctypes.addressof(self.bytes))
        self.must(self.library.gpunvme_submit_stream(self.direct, ctypes.byref(transfer), None))
        self.stream.synchronize()
        if self.bytes.value != length:
            raise OSError(f"direct path: {self.bytes.value} instead of {length} bytes")

    def reader(self, length):
        """call(i, place) that reads to piece i, by the persistent kernel.

        As short as a call of C from Python can be: a lookup is a tenth of a microsecond.
        """
        read, file, target = self.library.gpunvme_read, self.direct, self.target

        def call(i, place):
            if read(file, target + i * length, length, place, None) != length:
                why = self.library.gpunvme_error().decode() or "short read"
                raise OSError(f"direct path: {why}")

        return call

    def read(self, to, offset, length):
        if self.must(self.library.gpunvme_read(self.file, self.target + to, length, offset,
                                               None)) != length:
            raise OSError("short read")

    def idler(self):
        """call(i, place) of C that does nothing."""
        descriptor, file = self.library.gpunvme_file_fd, self.file
        return lambda i, place: descriptor(file)

    def close(self):
        self.library.gpunvme_close(self.handle)
        if self.fd >= 0:
            os.close(self.fd)
