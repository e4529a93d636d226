# SPDX-License-Identifier: BSD-2-Clause
"""Finds the samples in shards (tars of WebDataset, MDS) and the place of each of their fields."""

import json
import os
import re
import struct
import tarfile
from typing import Any, NamedTuple

from ._file import File

_MEMBER = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # WebDataset's key and field
_HEADER = struct.Struct("<I")


class Sample(NamedTuple):
    """Describes a sample of a shard: offset and length of each field in the file."""

    key: str
    fields: dict[str, tuple[int, int]]


def index_tar(path: Any) -> list[Sample]:
    """Returns the samples of a tar, whose neighbouring members of one base name are one sample.

    Raises ValueError for a file that is no tar or is compressed.
    """
    samples: list[Sample] = []
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                found = _MEMBER.match(member.name)
                if not member.isreg() or not found or re.fullmatch("__[^/]*__", member.name):
                    continue
                if member.issparse():
                    raise ValueError(f"{member.name} is sparse")
                key, field = found[1], found[2].lower()
                if not samples or samples[-1].key != key:
                    samples.append(Sample(key, {}))
                if field in samples[-1].fields:
                    raise ValueError(f"{member.name} occurs twice")
                samples[-1].fields[field] = (member.offset_data, member.size)
    except (tarfile.TarError, ValueError) as error:
        raise ValueError(f"{path}: not a tar of samples: {error}") from None
    return _checked(path, samples)


def index_mds(path: Any) -> list[Sample]:
    """Returns the samples of a shard of MosaicML's MDS. Raises ValueError for any other file."""
    try:
        with File(path) as file:
            return _checked(path, _of_mds(file))
    except (struct.error, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a shard of MDS: {error!r}") from None


def _of_mds(file: File) -> list[Sample]:
    fd, end = file.fileno(), file.size()
    n = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))[0]
    table = 4 * (n + 2)  # the number, and n + 1 offsets
    if table > end:
        raise ValueError(f"{n} samples do not fit into {end} bytes")
    offsets = struct.unpack(f"<{n + 1}I", os.pread(fd, table - 4, 4))
    if any(one > other for one, other in zip((table, *offsets), (*offsets, end))):
        raise ValueError("the offsets are not in order")
    described = json.loads(os.pread(fd, offsets[0] - table, table))
    names, sizes = described["column_names"], described["column_sizes"]
    if len(names) != len(sizes) or not all(isinstance(name, str) for name in names):
        raise ValueError("columns lack names or sizes")
    heads = _heads(file, offsets, sum(size is None for size in sizes))
    return [Sample(str(i), _fields(names, sizes, heads[i], offsets[i])) for i in range(n)]


def _heads(file: File, offsets: tuple[int, ...], columns: int) -> list[tuple[int, ...]]:
    """Reads the lengths before each sample, which are those of columns without a fixed length."""
    head = struct.Struct(f"<{columns}I")
    n = len(offsets) - 1
    if not head.size or not n:
        return [()] * n
    memory = bytearray(head.size * n)
    if any(moved != head.size for moved in file.readv(memory, list(offsets[:-1]), head.size)):
        raise ValueError("a sample lacks its lengths")
    return list(head.iter_unpack(memory))


def _fields(names: list[str], sizes: list[int | None], head: tuple[int, ...],
            begin: int) -> dict[str, tuple[int, int]]:
    given, at, fields = iter(head), begin + 4 * len(head), {}
    for name, fixed in zip(names, sizes):
        size = next(given) if fixed is None else fixed
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"{name}: the column has the size {size!r}")
        fields[name] = (at, size)
        at += size
    return fields


def _checked(path: Any, samples: list[Sample]) -> list[Sample]:
    end = os.stat(path).st_size
    for sample in samples:
        for field, (offset, size) in sample.fields.items():
            if offset + size > end:
                raise ValueError(f"{path}: {sample.key}: {field} ends behind the end of the file")
    return samples
