# SPDX-License-Identifier: BSD-2-Clause
"""Records by kind and number, as a catalogue beside the data tells."""

import array
import ctypes
import errno
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _native
from ._file import File
from ._memory import Memory, memory_of
from ._native import check, library


class Records:
    """Records of one size, one behind the other in a file."""

    def __init__(self, file: File, offset: int, size: int, count: int) -> None:
        if offset < 0 or count < 0 or not 0 < size < 1 << 31:
            raise ValueError(f"{count} records of {size} bytes at {offset}")
        self.file, self.offset, self.size, self.count = file, offset, size, count

    def __len__(self) -> int:
        return self.count

    def _native(self) -> _native.Records:
        return _native.Records(self.file._handle(), self.offset, self.count, self.size)

    def _memory(self, out: Any, n: int) -> Memory:
        memory = memory_of(out, True)
        if n * self.size > memory.nbytes:
            raise ValueError(f"{n} records of {self.size} bytes into a buffer of {memory.nbytes}")
        return memory

    def read(self, first: int, n: int, out: Any) -> None:
        """Records [first, first + n), in one read. IndexError: there are not as many."""
        if first < 0 or n < 0 or first + n > self.count:
            raise IndexError(f"records {first} to {first + n} of {self.count}")
        memory, result = self._memory(out, n), _native.Result()
        check(library.gpunvme_records_read(ctypes.byref(self._native()), first, n, memory.address,
                                           ctypes.byref(result)), self.file.name)
        self.file._note(result)

    def gather(self, index: Any, out: Any) -> None:
        """The records of these numbers, in this order, in one call.

        index: integers, or int64 in contiguous memory of the host or of a GPU (a tensor, an array),
        which must be ready. IndexError: a number that is no record's.
        """
        listed, n = _index(index)
        memory, result = self._memory(out, n), _native.Result()
        done = library.gpunvme_records_gather(ctypes.byref(self._native()), listed.address, n,
                                              memory.address, ctypes.byref(result))
        if done == -errno.ERANGE:
            raise IndexError(library.gpunvme_error().decode())
        check(done, self.file.name)
        self.file._note(result)


def _index(index: Any) -> tuple[Memory, int]:
    """Where the numbers are, and how many."""
    kind = str(getattr(index, "dtype", "")).rsplit(".", maxsplit=1)[-1]
    if kind != "int64":
        if kind and hasattr(index, "tolist"):
            index = index.tolist()
        index = array.array("q", index)
    memory = memory_of(index, False)
    return memory, memory.nbytes // 8


class Catalogue(Mapping[str, Records]):
    """The kinds of a catalogue: a JSON file

    {"version": 1, "kinds": {"image": {"file": "images.bin", "offset": 0, "size": 12288,
                                       "count": 50000}}}
    """

    def __init__(self, path: Any) -> None:
        self._kinds: dict[str, Records] = {}
        self._files: dict[str, File] = {}
        with open(path, encoding="utf-8") as f:
            text = f.read()
        try:
            self._read(json.loads(text), os.path.dirname(os.fspath(path)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self.close()
            raise ValueError(f"{path}: not a catalogue: {error!r}") from None
        except OSError:
            self.close()
            raise

    def _read(self, described: Any, folder: str) -> None:
        if described["version"] != 1:
            raise ValueError("version is not 1")
        for kind, entry in described["kinds"].items():
            offset, size, count = (entry[name] for name in ("offset", "size", "count"))
            if not all(type(n) is int for n in (offset, size, count)):
                raise ValueError(f"{kind}: no whole numbers")
            name = os.path.join(folder, entry["file"])
            if name not in self._files:
                self._files[name] = File(name)
            records = Records(self._files[name], offset, size, count)
            if offset + size * count > records.file.size():
                raise ValueError(f"{kind}: the file is shorter than its records")
            self._kinds[kind] = records

    def __getitem__(self, kind: str) -> Records:
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def close(self) -> None:
        """No read may be under way."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def write_catalogue(path: Any, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes one; it appears as a whole. kinds: as in the file."""
    temporary = f"{os.fspath(path)}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump({"version": 1, "kinds": kinds}, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
