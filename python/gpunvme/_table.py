# SPDX-License-Identifier: BSD-2-Clause
"""Tables give access to rows of tensors in files by number."""

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import _gguf, _native
from ._file import File, _Calls
from ._native import check, library, process, refuse_after_fork
from ._safetensors import Entry, SafetensorError, shards_of

PAD, ZEROS = 1, 2  # flags of a gather
INSERTIONS = {"all": 0, "second touch": 1}
_CUDA = 1  # an executor


class CacheOptions(NamedTuple):
    """The lines of all caches of a table, and which lines are kept."""

    nbytes: int
    insertion: str


class Part(NamedTuple):
    """Describes a tensor of a file whose rows belong to the table."""

    path: Any
    entry: Entry


def tensors_of(path: Any) -> Iterable[Part]:
    """Yields all tensors of a GGUF file, or of what shards_of() takes."""
    if str(path).endswith(".gguf"):
        with File(path) as file:
            for entry in _gguf.read_header(file):
                yield Part(path, entry)
        return
    for shard in shards_of(path):
        with File(shard.path) as file:
            for entry in shard.entries(file):
                yield Part(shard.path, entry)


def find(paths: Any, names: str | Sequence[str]) -> list[Part]:
    """Returns the tensors with these names, in this order. Their rows have one type and shape."""
    found: dict[str, Part] = {}
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        for part in tensors_of(path):
            if found.setdefault(part.entry.name, part) is not part:
                raise SafetensorError(f"{part.path}: {part.entry.name}: in two files")
    wanted = [names] if isinstance(names, str) else list(names)
    missing = [name for name in wanted if name not in found]
    if missing or not wanted:
        raise KeyError(f"no tensor {missing[0]}" if missing else "no names of tensors")
    parts = [found[name] for name in wanted]
    for part in parts:
        _check_rows(part, parts[0])
    return parts


def _check_rows(part: Part, first: Part) -> None:
    name, shape = part.entry.name, part.entry.shape
    if not shape or not part.entry.nbytes or part.entry.nbytes % shape[0]:
        raise ValueError(f"{name}: shape {list(shape)} of {part.entry.dtype} has no rows of bytes")
    if (part.entry.dtype, shape[1:]) != (first.entry.dtype, first.entry.shape[1:]):
        raise ValueError(f"{name}: rows of {list(shape[1:])} {part.entry.dtype}, where "
                         f"{first.entry.name} has {list(first.entry.shape[1:])} "
                         f"{first.entry.dtype}")


def _serves(file: File, on_gpu: bool) -> bool:
    """Returns False if kernels of a GPU drive the leases: they do not reach pageable memory."""
    info = _native.Info()
    return on_gpu or library.gpunvme_info(file.fileno(), ctypes.byref(info)) != 0 or \
        info.executor != _CUDA


def _open_all(paths: Iterable[Any], direct: bool) -> dict[Any, File]:
    files: dict[Any, File] = {}
    try:
        for path in dict.fromkeys(paths):
            files[path] = File(path, direct=direct)
    except OSError:
        _close_all(files)
        raise
    return files


def _open_files(paths: Sequence[Any], on_gpu: bool) -> tuple[dict[Any, File], str]:
    """Opens all files on leased queues. If one has none, opens all without and keeps why."""
    files = _open_all(paths, False)
    if not all(_serves(file, on_gpu) for file in files.values()):
        return files, ""
    try:
        leased = _open_all(paths, True)
    except OSError as error:
        return files, error.strerror or str(error)
    _close_all(files)
    return leased, ""


def _close_all(files: dict[Any, File]) -> None:
    for file in files.values():
        file.close()


def _close(handle: int, caches: list[int], generation: int) -> None:
    if generation == process.generation:
        library.gpunvme_table_close(handle)
        for cache in caches:
            library.gpunvme_cache_close(cache)


class RawTable:
    """Holds a table of the library, with the files that it reads."""

    def __init__(self, parts: Sequence[Part], max_rows: int, on_gpu: bool, unit: int,
                 staging: int, cache: CacheOptions) -> None:
        first = parts[0].entry
        self.row_bytes = first.nbytes // first.shape[0]
        self.rows = sum(part.entry.shape[0] for part in parts)
        self.max_rows = max_rows
        paths = [part.path for part in parts]
        self._files, self._why = _open_files(paths, on_gpu)
        try:
            self._open(parts, _native.TableOptions(0, unit, staging))
            if cache.nbytes and not self._why:
                self._open_caches(parts, cache)
        except BaseException:
            if hasattr(self, "_end"):
                self._end()
            _close_all(self._files)
            raise

    def _open(self, parts: Sequence[Part], options: _native.TableOptions) -> None:
        segments = (_native.Segment * len(parts))()
        handle = ctypes.c_void_p()
        for segment, part in zip(segments, parts, strict=True):
            file = self._files[part.path]
            segment.file = file._lease or file._file
            segment.offset, segment.rows = part.entry.begin, part.entry.shape[0]
        check(library.gpunvme_table_open(segments, len(parts), self.row_bytes, self.max_rows,
                                         ctypes.byref(options), ctypes.byref(handle)),
              parts[0].path)
        self._handle = handle.value or 0
        why = library.gpunvme_table_why(self._handle)
        self._why = "" if why is None else self._why or why.decode()
        self._caches: list[int] = []
        self._end = weakref.finalize(self, _close, self._handle, self._caches, process.generation)
        self._end.atexit = False
        self._generation = process.generation
        self._calls = _Calls(self._end)

    def _open_caches(self, parts: Sequence[Part], options: CacheOptions) -> None:
        """Opens a cache for each file, whose part of the bytes is that of its rows."""
        unit = library.gpunvme_table_unit(self._handle)
        rows = dict.fromkeys((part.path for part in parts), 0)
        for part in parts:
            rows[part.path] += part.entry.shape[0]
        for path, n in rows.items():
            cache, nbytes = ctypes.c_void_p(), max(options.nbytes * n // self.rows, unit)
            check(library.gpunvme_cache_open(self._files[path]._lease, nbytes, unit,
                                             ctypes.byref(cache)), path)
            self._caches.append(cache.value or 0)
            check(library.gpunvme_cache_set_insertion(cache, INSERTIONS[options.insertion]))
            check(library.gpunvme_table_use_cache(self._handle, cache), path)

    @property
    def why(self) -> str:
        """The reason why gathers do not take the direct path, or empty if they do."""
        return self._why

    def _begin(self, call: object) -> int:
        if self._generation != process.generation:
            refuse_after_fork("a table")
        self._calls.begin(call, threading.get_ident())
        return self._handle

    def gather(self, what: _native.Gather, stream: int | None) -> None:
        """Calls gpunvme_table_gather(). The caller keeps the memory until the stream is past it."""
        call = object()
        try:
            check(library.gpunvme_table_gather(self._begin(call), ctypes.byref(what), stream))
        finally:
            self._calls.end(call)

    def stats(self) -> dict[str, int]:
        """Returns sums over all finished gathers."""
        found, call = _native.TableStats(), object()
        try:
            check(library.gpunvme_table_stats(self._begin(call), ctypes.byref(found),
                                              ctypes.sizeof(found)))
        finally:
            self._calls.end(call)
        return {name: getattr(found, name) for name in _native.TABLE_SUMS}

    def drop_cache(self) -> None:
        """Makes all lines of the caches invalid. No gather may be in a stream."""
        call = object()
        try:
            self._begin(call)
            for cache in self._caches:
                check(library.gpunvme_cache_drop(cache))
        finally:
            self._calls.end(call)

    def close(self) -> None:
        """Closes the table after calls of other threads. No gather may be in a stream."""
        self._calls.close()
        _close_all(self._files)
