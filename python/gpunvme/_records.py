# SPDX-License-Identifier: BSD-2-Clause
"""Records by kind and number, at the places that a catalogue beside the data names."""

import array
import errno
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ._file import File, make_pieces, numbers
from ._memory import Memory, memory_of

_LARGEST = 16 << 20  # bytes of a catalogue


class Records:
    """Records of one size, one behind the other in a file."""

    def __init__(self, file: File, offset: int, size: int, count: int) -> None:
        if offset < 0 or count < 0 or not 0 < size < 1 << 31:
            raise ValueError(f"{count} records of {size} bytes at {offset}")
        self.file, self.offset, self.size, self.count = file, offset, size, count

    def __len__(self) -> int:
        return self.count

    def _memory(self, out: Any, n: int) -> Memory:
        memory = memory_of(out, True)
        if n * self.size > memory.nbytes:
            raise ValueError(f"{n} records of {self.size} bytes into a buffer of {memory.nbytes}")
        return memory

    def _check(self, is_whole: bool) -> None:
        if not is_whole:
            raise OSError(errno.EIO, "the file ends within the records", self.file.name)

    def read(self, first: int, n: int, out: Any) -> None:
        """Records [first, first + n), in one read. IndexError: there are not as many."""
        if first < 0 or n < 0 or first + n > self.count:
            raise IndexError(f"records {first} to {first + n} of {self.count}")
        self._memory(out, n)
        size = n * self.size
        self._check(self.file.read(out, size, self.offset + first * self.size) == size)

    def gather(self, index: Any, out: Any) -> None:
        """The records of these numbers, in this order, in one call.

        index: integers, in a list, an array or a tensor of the host or of a GPU, which must be
        ready. IndexError: a number that is no record's.
        """
        found = numbers(index)
        ends = [] if not len(found) else [found.min(), found.max()] if hasattr(found, "min") else \
            [min(found), max(found)]
        for number in ends:
            if not 0 <= number < self.count:
                raise IndexError(f"record {number} of {self.count}")
        if isinstance(found, array.array):
            found = array.array("q", [self.offset + number * self.size for number in found])
        else:
            found = found.astype("int64") * self.size + self.offset
        pieces = make_pieces(found, self.size, None)
        self.file.read_pieces(self._memory(out, pieces.n), pieces)
        self._check(pieces.are_whole())


class Catalogue(Mapping[str, Records]):
    """Reads the kinds of a catalogue from a JSON file

    {"version": 1, "kinds": {"image": {"file": "images.bin", "offset": 0, "size": 12288,
                                       "count": 50000}}}
    """

    def __init__(self, path: Any) -> None:
        self._kinds: dict[str, Records] = {}
        self._files: dict[str, File] = {}
        self.path = os.path.abspath(path)
        with open(path, encoding="utf-8") as f:
            text = f.read(_LARGEST + 1)
        try:
            if len(text) > _LARGEST:
                raise ValueError(f"more than {_LARGEST} bytes")
            self._read(json.loads(text), os.path.dirname(os.fspath(path)))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Catalogue, (self.path,)

    def close(self) -> None:
        """Waits for reads, like File.close()."""
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
