# SPDX-License-Identifier: BSD-2-Clause
"""Reads and writes open files."""

import array
import asyncio
import atexit
import ctypes
import errno
import fcntl
import itertools
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from . import _native
from ._memory import Memory, memory_of, part_of, stream_of
from ._native import FILE_DIRECT, check, library, process, refuse_after_fork

_FLAGS = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC}
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_DIRECT | os.O_SYNC | os.O_NOATIME
_PENDING = -(1 << 63)
_PATIENCE = 30.0  # seconds without progress of a stream
_read, _write = library.gpunvme_read, library.gpunvme_write  # found once

# --- Ownership -------------------------------------------------------------------------------------


class _Calls:
    """Counts the calls that use a handle. After close() the last call ends the handle.

    A call is a key of a dictionary. Dictionary operations are atomic, so no lock is held across
    fork(), and an exception between two operations loses no call.
    """

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._calls: dict[object, int] = {}  # the thread that makes the call, or 0
        self._finish = finish
        self._ended = threading.Event()
        self.closing = False

    def begin(self, call: object, thread: int = 0) -> None:
        self._calls[call] = thread
        if self.closing:
            self.end(call)
            raise ValueError("the file is closed")

    def end(self, call: object) -> None:
        self._calls.pop(call, None)
        if self.closing:
            self._ended.set()
            if not self._calls:
                self._finish()

    def close(self) -> None:
        """Refuses new calls, and waits for those of other threads and of streams.

        The library bounds each transfer, so the wait ends. If a signal handler interrupted a call
        of this thread and comes here, that call ends the handle when it continues.
        """
        self.closing = True
        until = time.monotonic() + _PATIENCE
        while others := self._others():
            streams = [call for call in others if isinstance(call, IOFutureStream)]
            if self._ended.wait(1e-3 if streams else None) or len(streams) < len(others):
                until = time.monotonic() + _PATIENCE
            self._ended.clear()
            if streams and time.monotonic() > until:
                raise TimeoutError(f"a stream has not come to a transfer for {_PATIENCE:.0f} s")
        if not self._calls:
            self._finish()

    def _others(self) -> list[object]:
        own = threading.get_ident()
        for call in tuple(self._calls):
            if isinstance(call, IOFutureStream):
                call.done()
        return [call for call, thread in tuple(self._calls.items()) if thread != own]


def _close(handle: int, lease: int | None, generation: int, descriptor: int) -> None:
    if generation == process.generation:
        library.gpunvme_file_close(lease)
        library.gpunvme_file_close(handle)
    os.close(descriptor)


def _free(address: int, generation: int) -> None:
    if generation == process.generation and process.io is not None:
        library.gpunvme_unregister(process.io, address)


def _reopen(descriptor: int) -> int:
    """Opens the file again, and closes the descriptor that was inherited from the parent."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & _KEPT_FLAGS
    try:
        fresh = os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)
    except OSError:  # there is no /proc, or the file's mode no longer admits this user
        return descriptor
    os.close(descriptor)
    return fresh


def _position(file_offset: int) -> int:
    at = operator.index(file_offset)
    if at < 0:
        raise ValueError("a negative offset")
    if at >= 1 << 63:
        raise OverflowError(f"offset {at} is 2^63 or more")
    return at


# --- Futures ---------------------------------------------------------------------------------------


class IOFuture(Future[int]):
    """Is a transfer made by a thread. The result is the bytes moved; coroutines may await it."""

    get = Future.result
    _all: "weakref.WeakSet[IOFuture]" = weakref.WeakSet()

    def __init__(self) -> None:
        super().__init__()
        self._outcome: int | BaseException | None = None
        self._all.add(self)

    def __await__(self) -> Generator[Any, None, int]:
        return asyncio.wrap_future(self).__await__()

    def run(self, call: Callable[..., int], *arguments: Any) -> None:
        """Makes the transfer. A thread of the pool calls this."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            self._outcome = call(*arguments)
        except BaseException as error:  # pylint: disable=broad-exception-caught  # it is the result
            self._outcome = error.with_traceback(None)  # which would hold the file and the memory
        self._settle()

    def _settle(self) -> None:
        if isinstance(self._outcome, int):
            self.set_result(self._outcome)
        else:
            self.set_exception(self._outcome)

    @classmethod
    def forked(cls) -> None:
        """Replaces the locks, which threads of the parent may have held, in a child of fork()."""
        for future in tuple(cls._all):
            Future.__init__(future)
            if future._outcome is None:
                future._outcome = OSError(errno.ECANCELED, "a transfer of the parent process")
            future._settle()


class _Threads:
    """The threads of pread() and pwrite(); a child of fork() makes its own."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.workers = 8
        self.lock = threading.Lock()  # protects both

    def submit(self, future: IOFuture, call: Callable[..., int], *arguments: Any) -> None:
        with self.lock:
            if self.pool is None:
                self.pool = ThreadPoolExecutor(self.workers, "gpunvme")
            self.pool.submit(future.run, call, *arguments)

    def resize(self, workers: int) -> None:
        if workers < 1:
            raise ValueError("at least one thread")
        with self.lock:
            self.pool, self.workers = None, workers

    def forked(self) -> None:
        self.pool, self.lock = None, threading.Lock()


threads = _Threads()


class IOFutureStream:
    """A transfer in the order of a stream. It holds its memory until the stream has passed it."""

    _under_way: "set[IOFutureStream]" = set()

    def __init__(self, file: "File", memory: Memory, part: tuple[int, int], file_offset: int,
                 write: bool, stream: int | None) -> None:
        self._file, self._keep, self._generation = file, memory.keep, process.generation
        self._size, self._offset = ctypes.c_size_t(part[1]), ctypes.c_int64(_position(file_offset))
        self._zero, self._bytes = ctypes.c_int64(0), ctypes.c_int64(_PENDING)
        what = _native.Async(int(write), part[0], ctypes.pointer(self._size),
                             ctypes.pointer(self._offset), ctypes.pointer(self._zero),
                             ctypes.pointer(self._bytes), None, None)
        self._hold()
        try:
            handle = file._begin(self)
            check(library.gpunvme_submit_stream(handle, ctypes.byref(what), stream), file.name)
        except BaseException:
            self._let_go()
            raise

    def _hold(self) -> None:
        """Those that have ended are let go, whether they were asked for their result or not."""
        self._under_way.add(self)
        for other in tuple(self._under_way):
            if other is not self:
                other.done()

    def _let_go(self) -> None:
        self._under_way.discard(self)
        self._file._calls.end(self)

    def done(self) -> bool:
        """True once the stream has passed it."""
        if self._bytes.value == _PENDING:
            return False
        if self in self._under_way:
            self._let_go()
        return True

    def get(self, timeout: float | None = None) -> int:
        """Returns the bytes moved, when the stream has come to it."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if self._generation != process.generation:
                refuse_after_fork("a transfer in a stream", self._file.name)
            if until is not None and time.monotonic() > until:
                raise TimeoutError("the stream has not come to the transfer")
            time.sleep(20e-6)
        bytes_moved = self._bytes.value
        if bytes_moved < 0:
            raise OSError(-bytes_moved, os.strerror(-bytes_moved))
        return bytes_moved

    check_bytes_done = get

    @classmethod
    def at_exit(cls) -> None:
        """Waits for all transfers, because the interpreter frees their memory when it ends."""
        until = time.monotonic() + _PATIENCE
        while not all([one.done() for one in tuple(cls._under_way)]) and time.monotonic() < until:
            time.sleep(1e-3)


_registered: dict[int, tuple[Memory, int]] = {}  # the buffer, and the process that registered it


def _forked() -> None:
    process.forked()
    threads.forked()
    IOFuture.forked()
    IOFutureStream._under_way.clear()


os.register_at_fork(after_in_child=_forked)
atexit.register(IOFutureStream.at_exit)

# --- Lists -----------------------------------------------------------------------------------------


_MASK = "a mask of booleans where numbers are due: take nonzero() of it"


def _as_numpy(values: Any) -> Any:
    """Returns an array of integers, or None for a list and without numpy."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, range):
        return numpy.arange(values.start, values.stop, values.step)
    if numpy is None or not hasattr(values, "dtype"):
        return None
    for move in ("cpu", "get"):  # torch, cupy
        values = getattr(values, move)() if hasattr(values, move) else values
    values = numpy.asarray(values).ravel()
    if values.dtype.kind == "b":
        raise TypeError(_MASK)
    if values.dtype.kind == "u" and len(values) and values.max() >= 1 << 63:
        raise OverflowError("a number of 2^63 or more")
    return values if values.dtype.kind in "iu" else None


class _NumpyPieces:
    """Makes pieces without a Python object for each number."""

    def __init__(self, offsets: Any, sizes: Any, places: Any) -> None:
        numpy = sys.modules["numpy"]
        self.n = len(offsets)
        self.array = numpy.zeros(self.n, dtype=[("offset", "<i8"), ("place", "<i8"),
                                                ("len", "<i4"), ("result", "<i4")])
        lengths = numpy.full(self.n, sizes) if isinstance(sizes, int) else sizes
        if places is None:
            places = numpy.cumsum(lengths) - lengths
        if not self.n == len(lengths) == len(places):
            raise ValueError(f"{self.n} offsets, {len(lengths)} sizes, {len(places)} places")
        if self.n and not 0 <= lengths.min() <= lengths.max() < 1 << 31:
            raise ValueError("a size of 2^31 bytes or more, or below 0")
        if self.n and min(offsets.min(), places.min()) < 0:
            raise ValueError("a negative offset")
        if self.n and places.max() >= 1 << 62:
            raise ValueError("a place beyond any buffer")
        self.array["offset"], self.array["place"], self.array["len"] = offsets, places, lengths
        self.end = int((self.array["place"] + self.array["len"]).max()) if self.n else 0
        self.address = self.array.ctypes.data

    def results(self) -> list[int]:
        found: list[int] = self.array["result"].tolist()
        return found

    def are_whole(self) -> bool:
        """Is true if every read has all of its bytes."""
        return bool((self.array["result"] == self.array["len"]).all())


def numbers(values: Any) -> Any:
    """Returns an array of numpy, or without it of the standard library. TypeError means a mask."""
    found = _as_numpy(values)
    if found is None:
        found = _numbers(values)
        numpy = sys.modules.get("numpy")
        return found if numpy is None else numpy.asarray(found)
    return found


def make_pieces(file_offsets: Any, sizes: Any, buf_offsets: Any) -> "_Pieces | _NumpyPieces":
    """Returns an array of struct gpunvme_piece. The numbers are lists, arrays or tensors."""
    if hasattr(sizes, "__index__") and not getattr(sizes, "ndim", 0):  # also of numpy
        sizes = operator.index(sizes)
    else:
        sizes = numbers(sizes)
    places = None if buf_offsets is None else numbers(buf_offsets)
    kind = _NumpyPieces if "numpy" in sys.modules else _Pieces
    return kind(numbers(file_offsets), sizes, places)


class _Pieces:
    """Does what _NumpyPieces does without numpy."""

    def __init__(self, offsets: Any, sizes: Any, places: Any) -> None:
        self.n = len(offsets)
        lengths = array.array("q", [sizes]) * self.n if isinstance(sizes, int) else sizes
        places = places if places is not None else _packed(lengths)
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

    def are_whole(self) -> bool:
        """Is true if every read has all of its bytes."""
        halves = array.array("i", self.words.tobytes())
        return halves[4::6] == halves[5::6]


def _numbers(values: Any) -> "array.array[int]":
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if bool in set(map(type, listed)):
        raise TypeError(_MASK)
    return array.array("q", listed)


def _packed(lengths: "array.array[int]") -> "array.array[int]":
    return array.array("q", [0, *itertools.accumulate(lengths)][:-1])


# --- Files -----------------------------------------------------------------------------------------


class File:
    """Represents an open file of a gpunvmefs mount or of any other file system.

    file is a path, or a descriptor, which the object duplicates. With direct=True, reads use queues
    that the mount lends (-o direct=) and make no call into its daemon. Such reads see the file as
    it was when it was opened; they reach CUDA memory of the mount's GPU and memory of alloc_host().

    Buffers are contiguous objects with __cuda_array_interface__, DLPack or the buffer protocol.
    Errors are OSError with the library's words. close() waits for transfers. A child of fork()
    opens the file again at its first use, but a direct file refuses use there. Unpickling opens
    the path again.
    """

    def __init__(self, file: Any, mode: str = "r", *, direct: bool = False) -> None:
        if mode not in _FLAGS:
            raise ValueError(f"mode {mode!r}: one of {', '.join(_FLAGS)}")
        self.name, self.mode, self.direct = file, mode, direct
        self._opened: Any = None if isinstance(file, int) else os.path.abspath(file)
        self._path: int = 0
        self._why: bytes | None = None
        self._attach(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3) if isinstance(file, int)
                     else os.open(file, _FLAGS[mode] | os.O_CLOEXEC, 0o666))

    def _attach(self, descriptor: int) -> None:
        """Opens the file in the library. Closes the descriptor on an error."""
        handle, lease = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            check(library.gpunvme_file_open(process.handle(), descriptor, 0, ctypes.byref(handle)),
                  self.name)
            if self.direct:
                check(library.gpunvme_file_open(process.handle(), descriptor, FILE_DIRECT,
                                                ctypes.byref(lease)), self.name)
        except OSError:
            _close(handle.value or 0, None, process.generation, descriptor)
            raise
        self._fd, self._file, self._lease = descriptor, handle.value, lease.value
        self._end = weakref.finalize(self, _close, self._file or 0, self._lease,
                                     process.generation, descriptor)
        self._end.atexit = False
        self._calls = _Calls(self._end)
        self._generation = process.generation

    def _begin(self, call: object, thread: int = 0) -> int | None:
        """Registers a call and returns the handle, which is valid until the call ends."""
        if self._generation != process.generation:
            self._move_here()
        self._calls.begin(call, thread)
        return self._file

    def _move_here(self) -> None:
        """Opens the file again in a child of fork(), and leaves the parent's handle as it is."""
        if self._calls.closing:
            raise ValueError("the file is closed")
        if self.direct:
            refuse_after_fork("a direct file", self.name)
        with process.reopening:
            if self._generation != process.generation:
                self._end.detach()
                self._attach(_reopen(self._fd))

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        if self._opened is None:
            raise TypeError(f"a file of descriptor {self.name} has no path to be opened by: it is "
                            "not pickled")
        mode = self.mode.replace("w+", "r+").replace("w", "r+")  # nothing is truncated again
        return _open_again, (type(self), self._opened, mode, self.direct)

    # --- Transfers -----------------------------------------------------------------------------

    def _move(self, _: Memory, write: bool, address: int, size: int, file_offset: int) -> int:
        """Makes the transfer of a call that has begun, and holds the memory meanwhile."""
        result = _native.Result()
        leased = self._lease is not None and not write
        call = _write if write else _read
        moved: int = call(self._lease if leased else self._file, address, size, file_offset,
                          ctypes.byref(result))
        if moved < 0:
            check(moved, self.name)
        self._path, self._why = result.path, result.why
        return moved

    def transfer(self, write: bool, memory: Memory, size: int | None, file_offset: int,
                 buf_offset: int) -> int:
        """Does what read() and write() do, for a buffer that is already described."""
        address, size = part_of(memory, size, buf_offset)
        file_offset, call = _position(file_offset), object()
        try:
            self._begin(call, threading.get_ident())
            return self._move(memory, write, address, size, file_offset)
        finally:
            self._calls.end(call)

    def _start(self, write: bool, buf: Any, size: int | None, file_offset: int,
               buf_offset: int = 0) -> IOFuture:
        """Starts a transfer that uses the file and the memory until the future is done."""
        memory, future = memory_of(buf, not write), IOFuture()
        address, size = part_of(memory, size, buf_offset)
        file_offset = _position(file_offset)
        future.add_done_callback(lambda ended: self._calls.end(ended))
        try:
            self._begin(future)
            threads.submit(future, self._move, memory, write, address, size, file_offset)
        except BaseException:
            future.cancel()
            raise
        return future

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0,
             buf_offset: int = 0) -> int:
        """Reads into the buffer: the bytes read, fewer than size at the end of the file only.

        size None: what the buffer has from buf_offset on.
        """
        return self.transfer(False, memory_of(buf, True), size, file_offset, buf_offset)

    def write(self, buf: Any, size: int | None = None, file_offset: int = 0,
              buf_offset: int = 0) -> int:
        """Writes from the buffer: the bytes written."""
        return self.transfer(True, memory_of(buf, False), size, file_offset, buf_offset)

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0,
              buf_offset: int = 0) -> IOFuture:
        """read() by a thread."""
        return self._start(False, buf, size, file_offset, buf_offset)

    def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0,
               buf_offset: int = 0) -> IOFuture:
        """write() by a thread."""
        return self._start(True, buf, size, file_offset, buf_offset)

    def read_pieces(self, memory: Memory, pieces: "_Pieces | _NumpyPieces") -> None:
        """Does what readv() does, and leaves the results in the pieces."""
        result, call = _native.Result(), object()
        if pieces.end > memory.nbytes:
            raise ValueError(f"reads of {pieces.end} bytes into a buffer of {memory.nbytes}")
        try:
            handle = self._begin(call, threading.get_ident())
            check(library.gpunvme_readv(handle, memory.address, memory.nbytes, pieces.address,
                                           pieces.n, ctypes.byref(result)), self.name)
        finally:
            self._calls.end(call)
        self._path, self._why = result.path, result.why

    def readv(self, buf: Any, file_offsets: Any, sizes: Any, buf_offsets: Any = None) -> list[int]:
        """Many reads in one call: the bytes of each.

        file_offsets, sizes and buf_offsets are lists, arrays or tensors (of indices times the size
        of a record, for example); sizes may be one number. buf_offsets None: one after the other.
        OSError for the first read that failed.
        """
        pieces = make_pieces(file_offsets, sizes, buf_offsets)
        self.read_pieces(memory_of(buf, True), pieces)
        moved = pieces.results()
        failed = min(moved, default=0)
        if failed < 0:
            raise OSError(-failed, os.strerror(-failed), self.name)
        return moved

    def read_direct(self, part: tuple[int, int], file_offset: int, result: Any,
                    stream: Any) -> None:
        """Launches a read of a direct file into registered memory, in the order of a stream.

        part: address and length; result: a c_int64 in pinned memory, for the bytes read or -errno.
        The caller keeps both, and the file open, until the stream has passed the read.
        """
        size, zero, call = ctypes.c_size_t(part[1]), ctypes.c_int64(0), object()
        offset = ctypes.c_int64(_position(file_offset))
        what = _native.Async(0, part[0], ctypes.pointer(size), ctypes.pointer(offset),
                             ctypes.pointer(zero), ctypes.pointer(result), None, None)
        try:
            self._begin(call, threading.get_ident())
            check(library.gpunvme_submit_stream(self._lease, ctypes.byref(what), stream_of(stream)),
                  self.name)
        finally:
            self._calls.end(call)

    def read_async(self, buf: Any, size: int | None = None, file_offset: int = 0,
                   buf_offset: int = 0, stream: Any = None) -> IOFutureStream:
        """A read in the order of a CUDA stream."""
        memory = memory_of(buf, True)
        return IOFutureStream(self, memory, part_of(memory, size, buf_offset), file_offset,
                              False, stream_of(stream))

    def write_async(self, buf: Any, size: int | None = None, file_offset: int = 0,
                    buf_offset: int = 0, stream: Any = None) -> IOFutureStream:
        """A write in the order of a CUDA stream."""
        memory = memory_of(buf, False)
        return IOFutureStream(self, memory, part_of(memory, size, buf_offset), file_offset,
                              True, stream_of(stream))

    def alloc_host(self, nbytes: int) -> memoryview:
        """Returns zeroed host memory that the mount of the file reaches by itself.

        It is freed when nothing (a numpy array made from it, for example) refers to it any more.
        """
        out, call = ctypes.c_void_p(), object()
        try:
            handle = self._begin(call, threading.get_ident())
            check(library.gpunvme_alloc_host(handle, nbytes, ctypes.byref(out)), self.name)
        finally:
            self._calls.end(call)
        address = out.value or 0
        array = (ctypes.c_ubyte * nbytes).from_address(address)
        weakref.finalize(array, _free, address, process.generation).atexit = False
        return memoryview(array).cast("B")

    # --- The file ------------------------------------------------------------------------------

    @property
    def path_taken(self) -> str | None:
        """How the last transfer went: "gpu", "bounce", "mixed", "direct"; None: there was none."""
        return _native.PATHS[self._path]

    @property
    def why(self) -> str:
        """Why the last transfer did not take the GPU path; empty if it did."""
        return (self._why or b"").decode()

    @property
    def on_mount(self) -> bool:
        """Is true if a gpunvmefs mount serves the file."""
        call = object()
        try:
            handle = self._begin(call, threading.get_ident())
            return library.gpunvme_file_why(handle) is None
        finally:
            self._calls.end(call)

    def _check_open(self) -> None:
        if self._calls.closing:
            raise ValueError("the file is closed")

    def fileno(self) -> int:
        """The object's own descriptor."""
        self._check_open()
        return self._fd

    def size(self) -> int:
        """Is the size of the file in bytes."""
        return os.fstat(self.fileno()).st_size

    @property
    def closed(self) -> bool:
        """Is true after close()."""
        return self._calls.closing

    def close(self) -> None:
        """Waits for all transfers, including futures that have not begun and those in streams.

        Raises TimeoutError if a stream makes no progress for 30 s. The last transfer then closes
        the file.
        """
        if self._generation != process.generation:  # the parent's transfers are not ours
            self._calls = _Calls(self._end)
        self._calls.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _open_again(kind: type[File], path: Any, mode: str, direct: bool) -> File:
    return kind(path, mode, direct=direct) if direct else kind(path, mode)


def register(buf: Any) -> None:
    """Registers a buffer and holds it until deregister(), for buffers that are used repeatedly.

    CUDA allocations are registered automatically at their first use.
    """
    memory = memory_of(buf, False)
    check(library.gpunvme_register(process.handle(), memory.address, memory.nbytes))
    _registered[memory.address] = memory, process.generation


def deregister(buf: Any) -> None:
    """Ends register() of the same memory. A child of fork() only forgets its parent's."""
    address = memory_of(buf, False).address
    if _registered.get(address, (None, process.generation))[1] == process.generation:
        check(library.gpunvme_unregister(process.handle(), address))
    _registered.pop(address, None)
