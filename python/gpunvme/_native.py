# SPDX-License-Identifier: BSD-2-Clause
"""libgpunvme.so, and the one handle of this process."""

import ctypes
import os
import threading

PATHS = {0: None, 1: "gpu", 2: "bounce", 3: "mixed"}


class Options(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("chunk", ctypes.c_size_t), ("crossover", ctypes.c_uint64)]


class Result(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("nvme_status", ctypes.c_uint32),
                ("commands", ctypes.c_uint64), ("why", ctypes.c_char_p),
                ("staged", ctypes.c_uint32)]


class CallsOf(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64), ("ns", ctypes.c_uint64),
                ("buckets", ctypes.c_uint64 * 24)]


class Calls(ctypes.Structure):
    _fields_ = [("by", CallsOf * 4 * 3), ("enqueued", ctypes.c_uint64),
                ("enqueued_bytes", ctypes.c_uint64), ("pipeline_read_bytes", ctypes.c_uint64),
                ("pipeline_written_bytes", ctypes.c_uint64)]


class Piece(ctypes.Structure):
    _fields_ = [("file_offset", ctypes.c_uint64), ("buffer_offset", ctypes.c_uint64),
                ("len", ctypes.c_uint32), ("result", ctypes.c_int32)]


class Async(ctypes.Structure):
    _fields_ = [("write", ctypes.c_int), ("addr", ctypes.c_void_p),
                ("len", ctypes.POINTER(ctypes.c_size_t)),
                ("file_offset", ctypes.POINTER(ctypes.c_int64)),
                ("addr_offset", ctypes.POINTER(ctypes.c_int64)),
                ("bytes", ctypes.POINTER(ctypes.c_int64)),
                ("done", ctypes.c_void_p), ("arg", ctypes.c_void_p)]


class Records(ctypes.Structure):
    _fields_ = [("file", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                ("count", ctypes.c_uint64), ("size", ctypes.c_uint32)]


class Range(ctypes.Structure):
    _fields_ = [("file", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("len", ctypes.c_size_t)]


class Step(ctypes.Structure):
    _fields_ = [("ranges", ctypes.POINTER(Range)), ("n", ctypes.c_size_t)]


class StreamOptions(ctypes.Structure):
    _fields_ = [("readers", ctypes.c_uint32), ("loop", ctypes.c_uint32),
                ("direct", ctypes.c_uint32)]


_PROTOTYPES = {
    "gpunvme_connect": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_disconnect": (None, [ctypes.c_void_p]),
    "gpunvme_register": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_alloc_host": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t,
                                          ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_buffer_addr": (ctypes.c_void_p, [ctypes.c_void_p]),
    "gpunvme_direct_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p,
                                           ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_direct_close": (None, [ctypes.c_void_p]),
    "gpunvme_file_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int,
                                         ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_file_close": (None, [ctypes.c_void_p]),
    "gpunvme_file_size": (ctypes.c_uint64, [ctypes.c_void_p]),
    "gpunvme_file_read": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                             ctypes.c_uint64]),
    "gpunvme_io_open": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_io_close": (None, [ctypes.c_void_p]),
    "gpunvme_io_file_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int,
                                            ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_io_file_close": (None, [ctypes.c_void_p]),
    "gpunvme_io_file_why": (ctypes.c_char_p, [ctypes.c_void_p]),
    "gpunvme_io_register": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "gpunvme_io_unregister": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "gpunvme_io_alloc_host": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t,
                                             ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_io_read": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                           ctypes.c_uint64, ctypes.POINTER(Result)]),
    "gpunvme_io_write": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_uint64, ctypes.POINTER(Result)]),
    "gpunvme_io_readv": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.POINTER(Result)]),
    "gpunvme_io_submit": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Async),
                                         ctypes.c_void_p]),
    "gpunvme_records_gather": (ctypes.c_int, [ctypes.POINTER(Records), ctypes.c_void_p,
                                              ctypes.c_size_t, ctypes.c_void_p,
                                              ctypes.POINTER(Result)]),
    "gpunvme_records_read": (ctypes.c_int, [ctypes.POINTER(Records), ctypes.c_uint64,
                                            ctypes.c_size_t, ctypes.c_void_p,
                                            ctypes.POINTER(Result)]),
    "gpunvme_stream_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Step), ctypes.c_size_t,
                                           ctypes.c_void_p, ctypes.c_size_t,
                                           ctypes.POINTER(StreamOptions),
                                           ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_stream_next": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p,
                                               ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_stream_close": (None, [ctypes.c_void_p]),
    "gpunvme_calls": (None, [ctypes.POINTER(Calls), ctypes.c_size_t]),
    "gpunvme_error": (ctypes.c_char_p, []),
}


def _load() -> ctypes.CDLL:
    name = os.environ.get("GPUNVME_LIBRARY", "libgpunvme.so.0")
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"{name}: {error}; install gpunvmefs, or name its libgpunvme.so in "
                          "GPUNVME_LIBRARY") from None
    for function, (result, arguments) in _PROTOTYPES.items():
        found = getattr(library, function)
        found.restype, found.argtypes = result, arguments
    return library


library = _load()


def check(result: int, what: str = "") -> int:
    """The result, or the OSError that a negative one is."""
    if result >= 0:
        return result
    reason = library.gpunvme_error().decode()
    raise OSError(-result, reason, what or None)


class _Process:
    """The handle of this process: a child of fork() makes its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.options = Options()
        self.io: int | None = None
        self.generation = 0

    def handle(self) -> int:
        with self.lock:
            if self.io is None:
                out = ctypes.c_void_p()
                check(library.gpunvme_io_open(ctypes.byref(self.options), ctypes.byref(out)))
                self.io = out.value
            return self.io

    def forked(self) -> None:
        self.lock = threading.Lock()
        self.io = None
        self.generation += 1


process = _Process()
os.register_at_fork(after_in_child=process.forked)


def configure(*, path: str | None = None, threads: int = 0, chunk: int = 0,
              crossover: int = 0) -> None:
    """Options of all transfers of this process, before its first file is opened.

    path: "gpu" or "bounce" only, None: chosen for each transfer; threads and chunk (bytes) of
    the bounce pipeline; reads and writes of GPU memory below crossover bytes bounce. 0: the
    default; of crossover, that the faster path is measured for each length.
    """
    number = {None: 0, "gpu": 1, "bounce": 2}[path]
    with process.lock:
        if process.io is not None:
            raise RuntimeError("gpunvme.configure() comes before the first file")
        process.options = Options(number, threads, chunk, crossover)
