# SPDX-License-Identifier: BSD-2-Clause
"""Loads libgpunvme.so, and keeps the one handle of this process."""

import ctypes
import errno
import os
import threading
from typing import NoReturn

FILE_DIRECT = 1
PATHS = {0: None, 1: "gpu", 2: "bounce", 3: "mixed", 4: "direct"}


class Options(ctypes.Structure):
    _fields_ = [("path", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("chunk", ctypes.c_size_t), ("crossover", ctypes.c_uint64),
                ("lease_queues", ctypes.c_uint32), ("lease_depth", ctypes.c_uint32),
                ("flags", ctypes.c_uint32)]


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


class Async(ctypes.Structure):
    _fields_ = [("write", ctypes.c_int), ("addr", ctypes.c_void_p),
                ("len", ctypes.POINTER(ctypes.c_size_t)),
                ("file_offset", ctypes.POINTER(ctypes.c_int64)),
                ("addr_offset", ctypes.POINTER(ctypes.c_int64)),
                ("bytes", ctypes.POINTER(ctypes.c_int64)),
                ("done", ctypes.c_void_p), ("arg", ctypes.c_void_p),
                ("pieces", ctypes.c_void_p), ("n_pieces", ctypes.c_size_t)]


class Info(ctypes.Structure):
    """The first members of struct gpunvme_ioc_info; the rest is room."""

    _fields_ = [("abi", ctypes.c_uint32 * 2), ("executor", ctypes.c_uint32),
                ("rest", ctypes.c_uint8 * 660)]


GPU_COUNTERS = ("transfers", "commands", "read_bytes", "written_bytes", "staged_read_bytes",
                "staged_written_bytes", "errors", "timeouts")


class Gpu(ctypes.Structure):
    _fields_ = [("uuid", ctypes.c_uint8 * 16), ("name", ctypes.c_char * 64),
                *((name, ctypes.c_uint32)
                  for name in ("state", "tier", "lease_tier", "queues", "buffers")),
                ("numa_node", ctypes.c_int16), ("distance", ctypes.c_uint8),
                ("reserved", ctypes.c_uint8), *((name, ctypes.c_uint64) for name in GPU_COUNTERS)]


class Gpus(ctypes.Structure):
    _fields_ = [("abi", ctypes.c_uint32 * 2), ("count", ctypes.c_uint32),
                ("reserved", ctypes.c_uint32), ("gpus", Gpu * 32)]


class Segment(ctypes.Structure):
    _fields_ = [("file", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("rows", ctypes.c_uint64)]


class TableOptions(ctypes.Structure):
    _fields_ = [("row_stride", ctypes.c_uint64), ("unit", ctypes.c_uint32),
                ("staging", ctypes.c_size_t)]


class TableStatus(ctypes.Structure):
    _fields_ = [("failed", ctypes.c_uint64), ("first_id", ctypes.c_int64),
                ("error", ctypes.c_int32), ("reads", ctypes.c_uint32)]


class Gather(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("id_bytes", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("n", ctypes.c_size_t), ("out", ctypes.c_void_p),
                ("out_stride", ctypes.c_size_t), ("status", ctypes.c_void_p)]


TABLE_SUMS = ("gathers", "rows", "reads", "failed", "commands", "hits")


class TableStats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in TABLE_SUMS]


_PROTOTYPES = {
    "gpunvme_open": (ctypes.c_int, [ctypes.POINTER(Options), ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_close": (None, [ctypes.c_void_p]),
    "gpunvme_file_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
                                            ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_file_close": (None, [ctypes.c_void_p]),
    "gpunvme_file_why": (ctypes.c_char_p, [ctypes.c_void_p]),
    "gpunvme_register": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]),
    "gpunvme_unregister": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "gpunvme_alloc_host": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t,
                                             ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_read": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                           ctypes.c_uint64, ctypes.POINTER(Result)]),
    "gpunvme_write": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_uint64, ctypes.POINTER(Result)]),
    "gpunvme_readv": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.c_void_p, ctypes.c_size_t,
                                        ctypes.POINTER(Result)]),
    "gpunvme_submit_stream": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Async),
                                         ctypes.c_void_p]),
    "gpunvme_info": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(Info)]),
    "gpunvme_gpus": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(Gpus)]),
    "gpunvme_table_open": (ctypes.c_int, [ctypes.POINTER(Segment), ctypes.c_size_t,
                                          ctypes.c_uint32, ctypes.c_size_t,
                                          ctypes.POINTER(TableOptions),
                                          ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_table_close": (None, [ctypes.c_void_p]),
    "gpunvme_table_why": (ctypes.c_char_p, [ctypes.c_void_p]),
    "gpunvme_table_gather": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(Gather),
                                            ctypes.c_void_p]),
    "gpunvme_table_stats": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(TableStats),
                                           ctypes.c_size_t]),
    "gpunvme_table_unit": (ctypes.c_uint32, [ctypes.c_void_p]),
    "gpunvme_table_use_cache": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "gpunvme_cache_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32,
                                          ctypes.POINTER(ctypes.c_void_p)]),
    "gpunvme_cache_close": (None, [ctypes.c_void_p]),
    "gpunvme_cache_set_insertion": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "gpunvme_cache_drop": (ctypes.c_int, [ctypes.c_void_p]),
    "gpunvme_calls": (None, [ctypes.POINTER(Calls), ctypes.c_size_t]),
    "gpunvme_error": (ctypes.c_char_p, []),
}


def _library_name() -> str:
    """Returns the library to load. Wheels of scripts/wheel.sh have theirs in this folder."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpunvme.so.0")
    return os.environ.get("GPUNVME_LIBRARY") or (own if os.path.exists(own) else "libgpunvme.so.0")


def _load() -> ctypes.CDLL:
    name = _library_name()
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
    """Returns the result, or raises the OSError that a negative one is."""
    if result >= 0:
        return result
    reason = library.gpunvme_error().decode()
    raise OSError(-result, reason, what or None)


def refuse_after_fork(what: str, name: object = None) -> NoReturn:
    """Raises the OSError for an object that only the process that made it may use."""
    raise OSError(errno.EOWNERDEAD, f"{what} does not survive fork(): make it in this process, or "
                  "start that by spawn", name)


class _Process:
    """Returns the library's handle. A child of fork() makes a handle and locks of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # protects io
        self.reopening = threading.Lock()  # one thread at a time opens inherited files again
        self.options = Options()
        self.io: int | None = None
        self.generation = 0
        self.uses_cuda = False
        self.lost_cuda = False

    def handle(self) -> int:
        with self.lock:
            if self.io is None:
                out = ctypes.c_void_p()
                check(library.gpunvme_open(ctypes.byref(self.options), ctypes.byref(out)))
                self.io = out.value or 0
            return self.io

    def check_cuda(self) -> None:
        """Refuses a buffer in CUDA memory in a child of a process that used CUDA."""
        if self.generation and not self.uses_cuda:
            self.lost_cuda = self.lost_cuda or bool(ctypes.CDLL("libcuda.so.1").cuInit(0))
        if self.lost_cuda:
            refuse_after_fork("CUDA")
        self.uses_cuda = True

    def forked(self) -> None:
        self.lock, self.reopening = threading.Lock(), threading.Lock()
        self.io = None
        self.generation += 1
        self.lost_cuda = self.lost_cuda or self.uses_cuda
        self.uses_cuda = False


process = _Process()


def configure(*, path: str | None = None, threads: int = 0, chunk: int = 0,
              crossover: int = 0) -> None:
    """Sets options of all transfers of this process, before its first file is opened.

    path: "gpu" or "bounce" only, None: chosen for each transfer; threads and chunk (bytes) of
    the bounce pipeline; reads and writes of GPU memory below crossover bytes bounce. 0: the
    default; of crossover, the sizes of gpunvme_open(3).
    """
    numbers = {None: 0, "gpu": 1, "bounce": 2}
    if path not in numbers:
        raise ValueError(f'path {path!r}: "gpu", "bounce" or None')
    with process.lock:
        if process.io is not None:
            raise RuntimeError("gpunvme.configure() comes before the first file")
        process.options = Options(numbers[path], threads, chunk, crossover)
