# SPDX-License-Identifier: BSD-2-Clause
"""The format of safetensors: an 8-byte length, a JSON header, and the tensors' bytes."""

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from ._file import File

MAX_HEADER = 100 << 20
FIRST_READ = 64 << 10  # has all of most headers
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16,
        "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64,
        "U64": 64, "C64": 64}
Progress = Callable[[int, int, float], None]


class Entry(NamedTuple):
    """A tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    nbytes: int


class SafetensorError(ValueError):
    """The file is not what the format says."""


def _entry(path: str, name: str, described: Any, base: int, end: int) -> Entry:
    try:
        dtype, shape = described["dtype"], tuple(int(n) for n in described["shape"])
        first, last = (int(n) for n in described["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise SafetensorError(f"{path}: {name}: incomplete") from None
    if dtype not in BITS:
        raise SafetensorError(f"{path}: {name}: dtype {dtype} is not supported")
    elements = 1
    for length in shape:
        elements *= length
    if any(n < 0 for n in shape) or not 0 <= first <= last or base + last > end:
        raise SafetensorError(f"{path}: {name}: outside the file")
    if last - first != elements * BITS[dtype] // 8:
        raise SafetensorError(f"{path}: {name}: {last - first} bytes for shape {list(shape)} of "
                              f"{dtype}")
    return Entry(name, dtype, shape, base + first, last - first)


def read_header(file: File) -> tuple[list[Entry], dict[str, str]]:
    """The tensors in the order of their bytes, and the metadata."""
    fd, path, end = file.fileno(), str(file.name), file.size()
    first = os.pread(fd, FIRST_READ, 0)
    length = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else MAX_HEADER + 1
    if length > min(MAX_HEADER, end - 8):
        raise SafetensorError(f"{path}: not a safetensors file")
    try:
        text = first[8:8 + length]
        header = json.loads(text if len(text) == length else os.pread(fd, length, 8))
        metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else {}
        described = header.items()
    except (ValueError, AttributeError):
        raise SafetensorError(f"{path}: the header is not JSON") from None
    entries = [_entry(path, name, value, 8 + length, end) for name, value in described]
    return sorted(entries, key=lambda e: (e.begin, e.name)), metadata


def shard(entries: Iterable[tuple[Any, Entry]], rank: int, ranks: int) -> list[tuple[Any, Entry]]:
    """The rank's part of the tensors, so that all ranks read about the same number of bytes."""
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    loads = [0] * ranks
    mine = []
    for file, entry in sorted(entries, key=lambda e: (-e[1].nbytes, e[1].name)):
        least = loads.index(min(loads))
        loads[least] += entry.nbytes
        if least == rank:
            mine.append((file, entry))
    return sorted(mine, key=lambda e: (str(e[0].name), e[1].begin))


def print_progress(done: int, total: int, seconds: float) -> None:
    """A line on standard error."""
    rate = done / seconds / 1e9 if seconds else 0.0
    end = "\n" if done == total else ""
    print(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate:.2f} GB/s", end=end, file=sys.stderr,
          flush=True)


def _read(file: File, entry: Entry, tensor: Any) -> int:
    if entry.nbytes and file.read(tensor, entry.nbytes, entry.begin) != entry.nbytes:
        raise SafetensorError(f"{file.name}: {entry.name}: the file has become shorter")
    return entry.nbytes


_pools: dict[int, ThreadPoolExecutor] = {}  # by the number of threads, which are kept
os.register_at_fork(after_in_child=_pools.clear)


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(max(threads, 1), "gpunvme-load")
    return _pools[threads]


def load(paths: Any, empty: Callable[[Entry], Any], *, rank: int = 0, ranks: int = 1,
         progress: bool | Progress = False, threads: int = 8,
         reserve: Callable[[list[Entry]], None] | None = None) -> dict[str, Any]:
    """Tensors by name. Each owns its memory, which empty() makes and the file is read into.

    reserve: called before the first of them is made.
    """
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    report = print_progress if progress is True else progress or None
    files = [File(name) for name in names]
    try:
        entries = [(file, entry) for file in files for entry in read_header(file)[0]]
        mine = shard(entries, rank, ranks) if ranks > 1 else entries
        if reserve:
            reserve([entry for _, entry in mine])
        return _load(mine, empty, report, threads)
    finally:
        for file in files:
            file.close()


def _load(entries: list[tuple[File, Entry]], empty: Callable[[Entry], Any],
          report: Progress | None, threads: int) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    total, done, begun = sum(e.nbytes for _, e in entries), 0, time.monotonic()
    reads: list[Future[int]] = []
    try:
        for file, entry in entries:
            if entry.name in tensors:
                raise SafetensorError(f"{file.name}: {entry.name}: in two files")
            tensors[entry.name] = empty(entry)
            reads.append(_pool(threads).submit(_read, file, entry, tensors[entry.name]))
            if len(reads) <= threads:
                time.sleep(0)  # the thread begins to read now, and not when all tensors are made
        for read in reads:
            done += read.result()
            if report:
                report(done, total, time.monotonic() - begun)
    finally:
        for read in reads:
            read.cancel()
        wait(reads)
    return tensors


class Slice:
    """A tensor of which a part is read: some rows of the first dimension."""

    def __init__(self, opened: "SafeOpen", entry: Entry) -> None:
        self._opened, self._entry = opened, entry

    def get_shape(self) -> list[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Any:
        first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
        if not isinstance(first, slice) or not self._entry.shape:
            return self._opened.get_tensor(self._entry.name)[index]
        start, stop, step = first.indices(self._entry.shape[0])
        if step != 1:
            return self._opened.get_tensor(self._entry.name)[index]
        rows, stride = max(stop - start, 0), self._entry.nbytes // max(self._entry.shape[0], 1)
        part = Entry(self._entry.name, self._entry.dtype, (rows, *self._entry.shape[1:]),
                     self._entry.begin + start * stride, rows * stride)
        tensor = self._opened.read(part)
        return tensor[(slice(None), *rest)] if rest else tensor


class SafeOpen:
    """safetensors.safe_open over a File; a subclass says what tensors are made of."""

    def __init__(self, filename: Any, empty: Callable[[Entry], Any]) -> None:
        self._file, self._empty = File(filename), empty
        try:
            entries, self._metadata = read_header(self._file)
        except SafetensorError:
            self._file.close()
            raise
        self._entries = {entry.name: entry for entry in entries}

    def read(self, entry: Entry) -> Any:
        """The tensor that the entry describes."""
        tensor = self._empty(entry)
        _read(self._file, entry, tensor)
        return tensor

    def _find(self, name: str) -> Entry:
        if name not in self._entries:
            raise SafetensorError(f"{self._file.name}: {name}: no such tensor")
        return self._entries[name]

    def keys(self) -> list[str]:
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        return list(self._entries)

    def metadata(self) -> dict[str, str] | None:
        return self._metadata or None

    def get_tensor(self, name: str) -> Any:
        return self.read(self._find(name))

    def get_slice(self, name: str) -> Slice:
        return Slice(self, self._find(name))

    def __enter__(self) -> "SafeOpen":
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()
