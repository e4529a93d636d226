# SPDX-License-Identifier: BSD-2-Clause
"""Reads the header of a GGUF file, which says where each tensor is."""

import os
import struct
from typing import Any, BinaryIO

from ._file import File
from ._safetensors import Entry

MAX_HEADER = 256 << 20
_MAX_ITEMS = 1 << 24  # tensors, pairs, and elements of an array
_MAX_DEPTH = 4  # of nested arrays
# By number in ggml's enumeration: the type here, None for blocks; elements and bytes of a block.
_TYPES: dict[int, tuple[str | None, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: (None, 32, 18), 3: (None, 32, 20), 6: (None, 32, 22),
    7: (None, 32, 24), 8: (None, 32, 34), 9: (None, 32, 36), 10: (None, 256, 84),
    11: (None, 256, 110), 12: (None, 256, 144), 13: (None, 256, 176), 14: (None, 256, 210),
    15: (None, 256, 292), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 30: ("BF16", 1, 2)}
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value
_STRING, _ARRAY, _UINT32 = 8, 9, 4


class _Reader:
    """Takes values from the start of a file. Raises ValueError if the header ends too early."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.at = stream, 0

    def take(self, n: int) -> bytes:
        if n > MAX_HEADER - self.at:
            raise ValueError(f"the header has more than {MAX_HEADER} bytes")
        found = self._stream.read(n)
        if len(found) != n:
            raise ValueError("the file ends within its header")
        self.at += n
        return found

    def number(self, form: str) -> int:
        value: int = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]
        return value

    def count(self) -> int:
        n = self.number("Q")
        if n > _MAX_ITEMS:
            raise ValueError(f"an array or list has {n} items, more than {_MAX_ITEMS}")
        return n

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skips a value."""
        if kind == _STRING:
            self.take(self.number("Q"))
        elif kind == _ARRAY:
            if depth == _MAX_DEPTH:
                raise ValueError("arrays are nested too deeply")
            inner, n = self.number("I"), self.count()
            if inner in _SIZES:
                self.take(n * _SIZES[inner])
            else:
                for _ in range(n):
                    self.skip(inner, depth + 1)
        elif kind in _SIZES:
            self.take(_SIZES[kind])
        else:
            raise ValueError(f"a value has the unknown type {kind}")


def _alignment(reader: _Reader, pairs: int) -> int:
    alignment = 32
    for _ in range(pairs):
        key, kind = reader.text(), reader.number("I")
        if key == "general.alignment" and kind == _UINT32:
            alignment = reader.number("I")
        else:
            reader.skip(kind)
    if alignment < 8 or alignment & (alignment - 1):
        raise ValueError(f"the alignment {alignment} is not a power of two from 8 on")
    return alignment


def _entry(reader: _Reader) -> Entry:
    """Returns a tensor. Its place counts from the end of the header."""
    name, n_dims = reader.text(), reader.number("I")
    if not 0 < n_dims <= 8:
        raise ValueError(f"{name}: {n_dims} dimensions, not from 1 to 8")
    dims = [reader.number("Q") for _ in range(n_dims)]  # the last one of torch comes first
    kind, place = reader.number("I"), reader.number("Q")
    if kind not in _TYPES:
        raise ValueError(f"{name}: type {kind} is not known")
    dtype, elements, size = _TYPES[kind]
    if dims[0] % elements:
        raise ValueError(f"{name}: rows of {dims[0]} elements are not whole blocks of {elements}")
    if dtype is None:
        dims[0] = dims[0] // elements * size
    nbytes = 1 if dtype is None else size
    for length in dims:
        nbytes *= length
    if nbytes >= 1 << 63:
        raise ValueError(f"{name}: {nbytes} bytes are too many")
    return Entry(name, dtype or "U8", tuple(reversed(dims)), place, nbytes)


def read_header(file: File) -> list[Entry]:
    """Returns the tensors of a file. Rows of types with blocks are bytes. Raises ValueError."""
    try:
        with os.fdopen(os.dup(file.fileno()), "rb") as stream:
            stream.seek(0)
            return _read(_Reader(stream), file.size())
    except (ValueError, struct.error) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _read(reader: _Reader, size: int) -> list[Entry]:
    if reader.take(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    version = reader.number("I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not supported, only 2 and 3 are")
    tensors, pairs = reader.count(), reader.count()
    alignment = _alignment(reader, pairs)
    found: list[Any] = [_entry(reader) for _ in range(tensors)]
    begin = -(-reader.at // alignment) * alignment
    entries = [entry._replace(begin=begin + entry.begin) for entry in found]
    for entry in entries:
        if entry.begin + entry.nbytes > size:
            raise ValueError(f"{entry.name}: ends behind the end of the file")
    return entries
