# SPDX-License-Identifier: BSD-2-Clause
"""Open files."""

import array
import ctypes
import itertools
import operator
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from . import _native
from ._memory import Memory, memory_of, part_of, stream_of
from ._native import check, library, process

_FLAGS = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC}
_PENDING = -(1 << 63)


class IOFuture:
    """A transfer by a thread."""

    def __init__(self, future: "Future[int]") -> None:
        self._future = future

    def get(self, timeout: float | None = None) -> int:
        """The bytes moved, when it has ended."""
        return self._future.result(timeout)

    result = get

    def done(self) -> bool:
        """True once it has ended."""
        return self._future.done()


class IOFutureStream:
    """A transfer in a stream; its memory is held until the stream has passed it."""

    _under_way: "set[IOFutureStream]" = set()

    def __init__(self, file: "File", memory: Memory, address: int, size: int, file_offset: int,
                 write: bool, stream: int | None) -> None:
        self._keep = (file, memory.keep)
        self._size, self._offset = ctypes.c_size_t(size), ctypes.c_int64(file_offset)
        self._zero, self._bytes = ctypes.c_int64(0), ctypes.c_int64(_PENDING)
        what = _native.Async(int(write), address, ctypes.pointer(self._size),
                             ctypes.pointer(self._offset), ctypes.pointer(self._zero),
                             ctypes.pointer(self._bytes), None, None)
        self._hold()
        try:
            check(library.gpunvme_io_submit(file._handle(), ctypes.byref(what), stream), file.name)
        except OSError:
            self._under_way.discard(self)
            raise

    def _hold(self) -> None:
        """Those that have ended are let go, whether they were asked for their result or not."""
        for other in [other for other in tuple(self._under_way) if other.done()]:
            self._under_way.discard(other)
        self._under_way.add(self)

    def done(self) -> bool:
        """True once the stream has passed it."""
        return self._bytes.value != _PENDING

    def get(self, timeout: float | None = None) -> int:
        """The bytes moved, when the stream has come to it."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if until is not None and time.monotonic() > until:
                raise TimeoutError("the stream has not come to the transfer")
            time.sleep(20e-6)
        bytes_moved = self._bytes.value
        if bytes_moved < 0:
            raise OSError(-bytes_moved, os.strerror(-bytes_moved))
        return bytes_moved

    check_bytes_done = get


_read, _write = library.gpunvme_io_read, library.gpunvme_io_write  # found once


class _Threads:
    """The threads of pread() and pwrite(); a child of fork() makes its own."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.workers = 8
        self.lock = threading.Lock()

    def submit(self, call: Any, *arguments: Any) -> IOFuture:
        with self.lock:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(self.workers, "gpunvme")
            return IOFuture(self.pool.submit(call, *arguments))

    def resize(self, workers: int) -> None:
        if workers < 1:
            raise ValueError("at least one thread")
        with self.lock:
            self.pool, self.workers = None, workers

    def forked(self) -> None:
        self.pool, self.lock = None, threading.Lock()


threads = _Threads()
os.register_at_fork(after_in_child=threads.forked)


def _close(handle: int, generation: int, descriptor: int, owned: bool) -> None:
    if generation == process.generation:
        library.gpunvme_io_file_close(handle)
    if owned:
        os.close(descriptor)


def _free(address: int, generation: int) -> None:
    if generation == process.generation and process.io is not None:
        library.gpunvme_io_unregister(process.io, address)


def _as_numpy(values: Any) -> Any:
    """Of an array or a tensor of integers; None: of a list, or without numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(values, "dtype"):
        return None
    values = values.cpu().numpy() if hasattr(values, "cpu") else numpy.asarray(values)
    return values.ravel() if values.dtype.kind in "iu" else None


class _NumpyPieces:
    """As _Pieces, without a Python object for each number."""

    def __init__(self, offsets: Any, sizes: Any, places: Any) -> None:
        numpy = sys.modules["numpy"]
        self.n = len(offsets)
        self.array = numpy.zeros(self.n, dtype=[("offset", "<i8"), ("place", "<i8"),
                                                ("len", "<i4"), ("result", "<i4")])
        lengths = numpy.full(self.n, sizes) if isinstance(sizes, int) else numpy.asarray(sizes)
        if places is None:
            places = numpy.cumsum(lengths) - lengths
        if not self.n == len(lengths) == len(places):
            raise ValueError(f"{self.n} offsets, {len(lengths)} sizes, {len(places)} places")
        if self.n and not 0 <= lengths.min() <= lengths.max() < 1 << 31:
            raise ValueError("a size of 2^31 bytes or more, or below 0")
        if self.n and min(offsets.min(), places.min()) < 0:
            raise ValueError("a negative offset")
        self.array["offset"], self.array["place"], self.array["len"] = offsets, places, lengths
        self.end = int((places + lengths).max()) if self.n else 0
        self.address = self.array.ctypes.data

    def results(self) -> list[int]:
        found: list[int] = self.array["result"].tolist()
        return found


def _make_pieces(file_offsets: Any, sizes: Any, buf_offsets: Any) -> "_Pieces | _NumpyPieces":
    offsets = _as_numpy(file_offsets)
    lengths = sizes if isinstance(sizes, int) else _as_numpy(sizes)
    places = None if buf_offsets is None else _as_numpy(buf_offsets)
    if offsets is None or lengths is None or (places is None) != (buf_offsets is None):
        return _Pieces(file_offsets, sizes, buf_offsets)
    return _NumpyPieces(offsets, lengths, places)


class _Pieces:
    """An array of struct gpunvme_piece; offsets and sizes are lists, arrays or tensors."""

    def __init__(self, file_offsets: Any, sizes: Any, buf_offsets: Any) -> None:
        offsets = _numbers(file_offsets)
        self.n = len(offsets)
        lengths = array.array("q", [sizes]) * self.n if isinstance(sizes, int) else _numbers(sizes)
        places = _numbers(buf_offsets) if buf_offsets is not None else _packed(lengths)
        if not self.n == len(lengths) == len(places):
            raise ValueError(f"{self.n} offsets, {len(lengths)} sizes, {len(places)} places")
        if self.n and not 0 <= min(lengths) <= max(lengths) < 1 << 31:
            raise ValueError("a size of 2^31 bytes or more, or below 0")
        if self.n and min(min(offsets), min(places)) < 0:
            raise ValueError("a negative offset")
        self.end = max(map(operator.add, places, lengths), default=0)
        # Three words each: the length takes half of the last one, the result the other half.
        self.words = array.array("q", bytes(24 * self.n))
        self.words[0::3], self.words[1::3], self.words[2::3] = offsets, places, lengths
        self.address = self.words.buffer_info()[0]

    def results(self) -> list[int]:
        return array.array("i", self.words.tobytes())[5::6].tolist()


def _numbers(values: Any) -> "array.array[int]":
    return array.array("q", values.tolist() if hasattr(values, "tolist") else values)


def _packed(lengths: "array.array[int]") -> "array.array[int]":
    return array.array("q", [0, *itertools.accumulate(lengths)][:-1])


class File:
    """An open file: of a gpunvmefs mount, or of any file system.

    Buffers are objects with __cuda_array_interface__, DLPack or the buffer protocol, contiguous.
    Errors are OSError with the library's words.
    """

    def __init__(self, file: Any, mode: str = "r", *, direct: bool = False) -> None:
        if mode not in _FLAGS:
            raise ValueError(f"mode {mode!r}: one of {', '.join(_FLAGS)}")
        flags = _FLAGS[mode] | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
        self._owned = not isinstance(file, int)
        self._fd = os.open(file, flags, 0o666) if self._owned else file
        self.name = file
        self._path: int = 0
        self._why: bytes | None = None
        try:
            self._attach()
        except OSError:
            if self._owned:
                os.close(self._fd)
            raise

    def _attach(self) -> None:
        out = ctypes.c_void_p()
        check(library.gpunvme_io_file_open(process.handle(), self._fd, ctypes.byref(out)),
              self.name)
        self._file, self._generation = out.value, process.generation
        self._end = weakref.finalize(self, _close, self._file, self._generation, self._fd,
                                     self._owned)
        self._end.atexit = False

    def _handle(self) -> int:
        if not self._end.alive:
            raise ValueError("the file is closed")
        if self._generation != process.generation:
            self._end.detach()
            self._attach()
        return self._file

    # --- Transfers -----------------------------------------------------------------------------

    def _move(self, call: Any, address: int, size: int, file_offset: int) -> int:
        if file_offset < 0:
            raise ValueError("a negative offset")
        result = _native.Result()
        moved: int = call(self._handle(), address, size, file_offset, ctypes.byref(result))
        if moved < 0:
            check(moved, self.name)
        self._path, self._why = result.path, result.why
        return moved

    def _note(self, result: _native.Result) -> None:
        self._path, self._why = result.path, result.why

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0,
             buf_offset: int = 0) -> int:
        """Reads into the buffer: the bytes read, fewer than size at the end of the file only.

        size None: what the buffer has from buf_offset on.
        """
        memory = memory_of(buf, True)
        address, size = part_of(memory, size, buf_offset)
        return self._move(_read, address, size, file_offset)

    def write(self, buf: Any, size: int | None = None, file_offset: int = 0,
              buf_offset: int = 0) -> int:
        """Writes from the buffer: the bytes written."""
        memory = memory_of(buf, False)
        address, size = part_of(memory, size, buf_offset)
        return self._move(_write, address, size, file_offset)

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0,
              buf_offset: int = 0) -> IOFuture:
        """read() by a thread."""
        return threads.submit(self.read, buf, size, file_offset, buf_offset)

    def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0,
               buf_offset: int = 0) -> IOFuture:
        """write() by a thread."""
        return threads.submit(self.write, buf, size, file_offset, buf_offset)

    def readv(self, buf: Any, file_offsets: Any, sizes: Any, buf_offsets: Any = None) -> list[int]:
        """Many reads in one call: the bytes of each.

        file_offsets, sizes and buf_offsets are lists, arrays or tensors (of indices times the size
        of a record, for example); sizes may be one number. buf_offsets None: one after the other.
        OSError for the first read that failed.
        """
        memory = memory_of(buf, True)
        pieces, result = _make_pieces(file_offsets, sizes, buf_offsets), _native.Result()
        if pieces.end > memory.nbytes:
            raise ValueError(f"reads of {pieces.end} bytes into a buffer of {memory.nbytes}")
        check(library.gpunvme_io_readv(self._handle(), memory.address, memory.nbytes,
                                       pieces.address, pieces.n, ctypes.byref(result)), self.name)
        self._note(result)
        moved = pieces.results()
        failed = min(moved, default=0)
        if failed < 0:
            raise OSError(-failed, os.strerror(-failed), self.name)
        return moved

    def read_async(self, buf: Any, size: int | None = None, file_offset: int = 0,
                   buf_offset: int = 0, stream: Any = None) -> IOFutureStream:
        """A read in the order of a CUDA stream."""
        memory = memory_of(buf, True)
        address, size = part_of(memory, size, buf_offset)
        return IOFutureStream(self, memory, address, size, file_offset, False, stream_of(stream))

    def write_async(self, buf: Any, size: int | None = None, file_offset: int = 0,
                    buf_offset: int = 0, stream: Any = None) -> IOFutureStream:
        """A write in the order of a CUDA stream."""
        memory = memory_of(buf, False)
        address, size = part_of(memory, size, buf_offset)
        return IOFutureStream(self, memory, address, size, file_offset, True, stream_of(stream))

    def alloc_host(self, nbytes: int) -> memoryview:
        """Zeroed host memory that the mount of the file reaches by itself.

        It is freed when nothing (a numpy array made from it, for example) refers to it any more.
        """
        out = ctypes.c_void_p()
        check(library.gpunvme_io_alloc_host(self._handle(), nbytes, ctypes.byref(out)), self.name)
        array = (ctypes.c_ubyte * nbytes).from_address(out.value)
        weakref.finalize(array, _free, out.value, process.generation).atexit = False
        return memoryview(array).cast("B")

    # --- The file ------------------------------------------------------------------------------

    @property
    def path_taken(self) -> str | None:
        """How the last transfer went: "gpu", "bounce", "mixed"; None: there was none."""
        return _native.PATHS[self._path]

    @property
    def why(self) -> str:
        """Why the last transfer did not take the GPU path; empty if it did."""
        return (self._why or b"").decode()

    @property
    def on_mount(self) -> bool:
        """True if a gpunvmefs mount serves the file."""
        return library.gpunvme_io_file_why(self._handle()) is None

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def size(self) -> int:
        """Of the file, in bytes."""
        return os.fstat(self._fd).st_size

    @property
    def closed(self) -> bool:
        """True after close()."""
        return not self._end.alive

    def close(self) -> None:
        """No transfer may be under way."""
        self._end()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def register(buf: Any) -> None:
    """Keeps memory registered until deregister(): for buffers that are used again and again.

    CUDA allocations are registered at their first use by themselves.
    """
    memory = memory_of(buf, False)
    check(library.gpunvme_io_register(process.handle(), memory.address, memory.nbytes))


def deregister(buf: Any) -> None:
    """Ends register() of the same memory."""
    check(library.gpunvme_io_unregister(process.handle(), memory_of(buf, False).address))
