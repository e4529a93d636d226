# SPDX-License-Identifier: BSD-2-Clause
"""Implements a store of Zarr 3 in a folder, which reads its values by gpunvme.

    import zarr
    from gpunvme.zarr import Store
    array = zarr.open_array(Store("/mnt/array"), mode="r")
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
from zarr.abc.store import (ByteRequest, OffsetByteRequest, RangeByteRequest,
                            SuffixByteRequest)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from ._file import File

__all__ = ["Store"]

_LONGEST = 1 << 30  # of one read in a list, which takes less than 2^31 bytes


def _range(request: ByteRequest | None, size: int) -> tuple[int, int]:
    """Returns begin and end of a request in a file of this size."""
    if request is None:
        return 0, size
    if isinstance(request, RangeByteRequest):
        return min(request.start, size), min(max(request.start, request.end), size)
    if isinstance(request, OffsetByteRequest):
        return min(request.offset, size), size
    if isinstance(request, SuffixByteRequest):
        return max(0, size - request.suffix), size
    raise TypeError(f"{request!r}: not a range of bytes")


def _read(path: Path, prototype: BufferPrototype,
          requests: list[ByteRequest | None]) -> list[Buffer | None]:
    """Reads ranges of a file by one READV, into memory of the prototype's kind."""
    try:
        file = File(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return [None] * len(requests)
    with file:
        size = file.size()
        ranges = [_range(request, size) for request in requests]
        sizes = [end - begin for begin, end in ranges]
        memory: Any = prototype.nd_buffer.empty(shape=(sum(sizes),),
                                                dtype=numpy.dtype("B")).as_ndarray_like()
        if hasattr(memory, "__cuda_array_interface__"):
            memory.device.synchronize()  # earlier work may still use the memory
        starts = [at for begin, end in ranges for at in range(begin, end, _LONGEST)]
        parts = [min(_LONGEST, end - at) for begin, end in ranges
                 for at in range(begin, end, _LONGEST)]
        if starts and file.readv(memory, starts, parts) != parts:
            raise OSError(f"{path}: the file has become shorter")
    ends = numpy.cumsum(sizes).tolist()
    return [prototype.buffer.from_array_like(memory[end - n:end]) for end, n in zip(ends, sizes)]


class Store(LocalStore):  # type: ignore[misc, unused-ignore]  # Any where zarr is missing
    """Works like zarr.storage.LocalStore, but the ranges of a value in one request are one READV.

    With zarr.config.enable_gpu() values are read straight into GPU memory.
    """

    def with_read_only(self, read_only: bool = False) -> "Store":
        return type(self)(root=self.root, read_only=read_only)

    async def get(self, key: str, prototype: BufferPrototype | None = None,
                  byte_range: ByteRequest | None = None) -> Buffer | None:
        prototype = prototype or default_buffer_prototype()
        found = await asyncio.to_thread(_read, self.root / key, prototype, [byte_range])
        return found[0]

    async def get_partial_values(self, prototype: BufferPrototype,
                                 key_ranges: Iterable[tuple[str, ByteRequest | None]]
                                 ) -> list[Buffer | None]:
        asked = list(key_ranges)
        by_key: dict[str, list[int]] = {}
        for i, (key, _) in enumerate(asked):
            by_key.setdefault(key, []).append(i)
        found: list[Buffer | None] = [None] * len(asked)
        reads = [asyncio.to_thread(_read, self.root / key, prototype, [asked[i][1] for i in places])
                 for key, places in by_key.items()]
        for places, values in zip(by_key.values(), await asyncio.gather(*reads)):
            for i, value in zip(places, values):
                found[i] = value
        return found
