# SPDX-License-Identifier: BSD-2-Clause
"""Loads tensors by ranks, each of which reads a part of the bytes and gets the rest from the others.

All ranks call the same collective operations in the same order, whatever fails at one of them: an
error is kept until the others know of it.
"""

import bisect
import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple, Protocol

from ._file import File
from ._safetensors import (LONG_PIECE, Entry, Progress, Slices, load_entries, opened, pool,
                           read_range, read_ranges, reporter, slice_of, waited)

ALIGN = 4096
MIN_CHUNK = 4 << 20  # bytes that a rank reads for one exchange, at least
CHUNK = 128 << 20  # and at most
AHEAD = 10  # exchanges whose bytes are read while others are exchanged, or buffers mapped
BUFFERS = AHEAD + 2  # of one exchange each: copies of two are under way
_ROUNDS = 16  # exchanges at least, where chunks are not shorter than that for it
_READ = 64 << 20  # bytes of one read


class Peers(Protocol):
    """The ranks, and memory of this one. Collective operations are bounded in time."""

    rank: int
    size: int
    kind: str  # of memory, which is the same at all ranks

    def exchange(self, value: Any) -> list[Any]:
        """Collective: returns the values of all ranks."""

    def rows(self, n: int, nbytes: int) -> Any:
        """Returns n buffers of this many bytes as one array, into which reads need not wait."""

    def offer(self, buffers: Any) -> Any:
        """Returns what other ranks need for share(). Buffers are a result of rows()."""

    def share(self, buffers: Any, offers: list[Any]) -> bool:
        """Collective: lets gather() show the other ranks' buffers instead of copies.

        Returns false at all ranks if gather() makes copies. An error is that of one rank.
        """

    def flat(self, tensor: Any) -> Any:
        """Returns the bytes of a tensor as an array."""

    def gather(self, buffers: Any, i: int, failed: bool) -> tuple[Any, bool]:
        """Collective: returns what each rank has in its buffer i, and true if one has failed.

        By then all ranks have finished their copies from what the last gather() but one returned.
        """

    def copy(self, to: Any, row: Any, place: int) -> None:
        """Starts to fill an array from this place of a row that gather() returned."""

    def end_copies(self) -> None:
        """Waits for the copies of this rank, and unmaps what share() has mapped."""

    def finish(self, failed: bool = False) -> bool:
        """Collective: waits until all ranks have come. Returns true if one may have failed."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


# --- Places ----------------------------------------------------------------------------------------

class _Range(NamedTuple):
    """Bytes of a file that have a place among those of all files."""

    place: int
    file: File
    begin: int
    nbytes: int


class _Copy(NamedTuple):
    """Bytes of a tensor that are in a chunk."""

    entry: Entry
    at: int
    place: int
    nbytes: int


class Layout:
    """Places the tensors' bytes one after the other. Blocks of files stay aligned there."""

    def __init__(self, entries: list[tuple[File, Entry]]) -> None:
        self.ranges: list[_Range] = []
        self.places: list[tuple[int, Entry]] = []
        self.nbytes = 0
        for file, entry in entries:
            if entry.nbytes:
                self._add(file, entry)

    def _add(self, file: File, entry: Entry) -> None:
        last, end = self.ranges[-1] if self.ranges else None, entry.begin + entry.nbytes
        if last and last.file is file and entry.begin <= last.begin + last.nbytes + ALIGN:
            self.ranges[-1] = last._replace(nbytes=end - last.begin)
        else:
            begin = entry.begin // ALIGN * ALIGN
            self.ranges.append(_Range(self.nbytes, file, begin, end - begin))
        last = self.ranges[-1]
        self.places.append((last.place + entry.begin - last.begin, entry))
        self.nbytes = last.place + _aligned(last.nbytes)

    def reads(self, begin: int, end: int) -> Iterator[_Range]:
        """Yields the ranges at these places. Their places count from `begin`."""
        first = bisect.bisect_right(self.ranges, begin, key=lambda found: found.place) - 1
        for place, file, start, nbytes in self.ranges[max(first, 0):]:
            if place >= end:
                return
            low, high = max(begin, place), min(end, place + nbytes)
            if low < high:
                yield _Range(low - begin, file, start + low - place, high - low)

    def copies(self, begin: int, end: int) -> Iterator[_Copy]:
        """Yields the parts of tensors at these places. Their places count from `begin`."""
        first = bisect.bisect_right(self.places, begin, key=lambda found: found[0]) - 1
        for place, entry in self.places[max(first, 0):]:
            if place >= end:
                return
            low, high = max(begin, place), min(end, place + entry.nbytes)
            if low < high:
                yield _Copy(entry, low - place, low - begin, high - low)


class Shares:
    """Divides a layout: one contiguous share for each rank, which is exchanged in chunks."""

    def __init__(self, layout: Layout, size: int) -> None:
        self._nbytes = layout.nbytes
        self.share = _aligned(-(-layout.nbytes // size))
        self.chunk = min(_aligned(max(self.share // _ROUNDS, MIN_CHUNK)), CHUNK, self.share)
        self.rounds = -(-self.share // self.chunk) if self.share else 0

    def part(self, rank: int, turn: int) -> tuple[int, int]:
        """Returns begin and end of the places that the rank reads in a round."""
        begin = rank * self.share + turn * self.chunk
        end = min(begin + self.chunk, (rank + 1) * self.share, self._nbytes)
        return begin, max(begin, end)


# --- Files -----------------------------------------------------------------------------------------

class _Version(NamedTuple):
    """What a rank has opened."""

    name: str
    contents: str  # digest of what the header describes, and the size
    disk: tuple[str, int]  # boot of the host, and device
    state: tuple[int, int, int]  # number of the inode there, time of change, size


class _Told(NamedTuple):
    """A rank sends this to the others before it reads."""

    plan: str
    versions: list[_Version]
    offer: Any  # Peers


def boot() -> str:
    """Returns the identity of this boot of the host, or nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _state(file: File) -> tuple[int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_mtime_ns, found.st_size


def _versions(entries: list[tuple[File, Entry]]) -> list[_Version]:
    by_file: dict[File, list[Entry]] = {}
    for file, entry in entries:
        by_file.setdefault(file, []).append(entry)
    versions, here = [], boot()
    for file, found in by_file.items():
        state = _state(file)
        digest = hashlib.sha256(repr((state[2], [tuple(entry) for entry in found])).encode())
        versions.append(_Version(os.path.basename(os.fspath(file.name)), digest.hexdigest(),
                                 (here, os.fstat(file.fileno()).st_dev), state))
    return versions


def _changed(name: str, how: str) -> OSError:
    return OSError(errno.ESTALE, f"{how}: load it again", name)


def _compare(mine: list[_Version], first: list[_Version], rank: int) -> None:
    """Raises an error if the rank has not opened what rank 0 has.

    Equal headers suffice for files of different file systems, which may be copies.
    """
    if len(mine) != len(first):
        raise ValueError(f"rank {rank} has {len(mine)} files with tensors, rank 0 has {len(first)}")
    for one, other in zip(mine, first, strict=True):
        if (one.name, one.contents) != (other.name, other.contents):
            raise ValueError(f"{one.name}: rank {rank} has another file than rank 0, which has "
                             f"{other.name}")
        if one.disk == other.disk and one.disk[0] and one.state != other.state:
            raise _changed(one.name, f"replaced before rank {rank} opened it, or rank 0")


# --- Loading ---------------------------------------------------------------------------------------

class _Errors:
    """Keeps the first error of this rank until all ranks know of it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.first: BaseException | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # pylint: disable=broad-exception-caught  # raised later
            self.first = self.first or error

    def agree(self, value: Any) -> list[Any]:
        """Collective: returns the values of all ranks, or raises an error at all of them."""
        error = self.first and f"{type(self.first).__name__}: {self.first}"
        found = self._peers.exchange((error, value))
        if self.first is not None:
            raise self.first
        for rank, (text, _) in enumerate(found):
            if text is not None:
                raise RuntimeError(f"rank {rank} of {self._peers.size}: {text}")
        return [theirs for _, theirs in found]


class _Load:
    """The part of one rank."""

    def __init__(self, peers: Peers, entries: list[tuple[File, Entry]],
                 empty: Callable[[Entry], Any], slices: Slices, threads: int,
                 reserve: Callable[[list[Entry]], None] | None) -> None:
        self._peers, self._empty, self._threads = peers, empty, threads
        mine = [(file, entry, slice_of(entry, slices, peers.rank, peers.size))
                for file, entry in entries]
        if reserve:
            reserve([part for _, _, part in mine])
        self._slices = [(file, part) for file, entry, part in mine if part is not entry]
        self._files = list(dict.fromkeys(file for file, _ in entries))
        self._states = [_state(file) for file in self._files]
        self._layout = Layout([(file, entry) for file, entry, part in mine if part is entry])
        self._shares = Shares(self._layout, peers.size)
        self._order = [part.name for _, _, part in mine]
        self._whole = {part.name: empty(part) for _, entry, part in mine if part is entry}
        self._flat = {name: peers.flat(tensor) for name, tensor in self._whole.items()}
        self._buffers = peers.rows(min(self._shares.rounds, BUFFERS), self._shares.chunk)
        self.total = sum(part.nbytes for _, _, part in mine)
        self.plan = repr((list(slices.items()), peers.kind, self._shares.chunk, self._shares.share))
        self.offer = peers.offer(self._buffers)

    def read_slices(self, report: Progress | None) -> dict[str, Any]:
        def reported(done: int, _: int, seconds: float) -> None:
            if report:
                report(done, self.total, seconds)

        return load_entries(self._slices, self._empty, reported, self._threads)

    def _start(self, turn: int) -> list[Future[None]]:
        """Starts to read this rank's chunk. The short ranges of a file are one list."""
        if turn >= self._shares.rounds:
            return []
        lists: dict[File, list[_Range]] = {}
        memory, reads, threads = self._buffers[turn % BUFFERS], [], pool(self._threads)
        for found in self._layout.reads(*self._shares.part(self._peers.rank, turn)):
            if found.nbytes < LONG_PIECE:
                lists.setdefault(found.file, []).append(found)
                continue
            for at in range(0, found.nbytes, _READ):
                reads.append(threads.submit(
                    read_range, found.file, memory, min(_READ, found.nbytes - at),
                    found.begin + at, found.place + at))
        for file, short in lists.items():
            reads.append(threads.submit(read_ranges, file, memory, [r.begin for r in short],
                                        [r.nbytes for r in short], [r.place for r in short]))
        return reads

    def _copy(self, rows: Any, turn: int) -> int:
        """Copies a chunk of each rank. Returns the bytes of tensors in it."""
        done = 0
        for rank in range(self._peers.size):
            for entry, at, place, n in self._layout.copies(*self._shares.part(rank, turn)):
                self._peers.copy(self._flat[entry.name][at:at + n], rows[rank], place)
                done += n
        return done

    def _share(self, offers: list[Any], errors: _Errors) -> None:
        """Collective: raises an error at all ranks if one cannot prepare gather()."""
        shared = False
        with errors.kept():
            shared = self._peers.share(self._buffers, offers)
        if not shared:
            errors.agree(None)

    def exchange_all(self, offers: list[Any], errors: _Errors, report: Progress | None,
                     done: int) -> None:
        """Collective: reads and exchanges all chunks, or those before an error of any rank.

        Copies within a device are kernels, which wait for milliseconds for their turn with those of
        the mount. Mapping the others' buffers takes 10 to 20 ms, in which CUDA registers no memory.
        Meanwhile reads go on.
        """
        reads: list[Future[None]] = []
        rounds: list[list[Future[None]]] = []

        def start_next() -> None:
            rounds.append(self._start(len(rounds)))
            reads.extend(rounds[-1])

        begun = time.monotonic()
        with waited(reads):
            with errors.kept():
                for _ in range(AHEAD):
                    start_next()
            wait(reads, return_when=FIRST_COMPLETED)  # the mount has registered the buffers
            if self._shares.rounds:
                self._share(offers, errors)
            for turn in range(self._shares.rounds):
                with errors.kept():
                    for read in rounds[turn]:
                        read.result()
                rows, failed = self._peers.gather(self._buffers, turn % BUFFERS,
                                                  errors.first is not None)
                if failed:
                    return
                with errors.kept():
                    start_next()  # into the buffer of the last round but one
                    done += self._copy(rows, turn)
                if report:
                    with errors.kept():
                        report(done, self.total, time.monotonic() - begun)

    def check(self) -> None:
        """Raises an error if a file has changed since it was opened."""
        for file, state in zip(self._files, self._states, strict=True):
            if _state(file) != state:
                raise _changed(file.name, "changed while it was read")

    def result(self, slices: dict[str, Any]) -> dict[str, Any]:
        tensors = self._whole | slices
        return {name: tensors[name] for name in self._order}


def load_group(paths: Any, peers: Peers, empty: Callable[[Entry], Any], *, slices: Slices,
               progress: bool | Progress = False, threads: int = 8,
               reserve: Callable[[list[Entry]], None] | None = None) -> dict[str, Any]:
    """Collective: returns the tensors by name, of each this rank's slice or all.

    Raises the error of this rank, or RuntimeError with that of another.
    """
    errors, report = _Errors(peers), reporter(progress)
    with contextlib.ExitStack() as files:
        told, parts = None, {}
        with errors.kept():
            entries = files.enter_context(opened(paths))
            mine = _Load(peers, entries, empty, slices, threads, reserve)
            told = _Told(mine.plan, _versions(entries), mine.offer)
        for rank, theirs in enumerate(found := errors.agree(told)):
            _compare(theirs.versions, found[0].versions, rank)
            if theirs.plan != found[0].plan:
                raise ValueError(f"rank {rank} has other slices, or memory of another kind, than "
                                 "rank 0")
        with errors.kept():
            parts = mine.read_slices(report)
        mine.exchange_all([theirs.offer for theirs in found], errors, report,
                          sum(part.nbytes for part in parts.values()))
        with errors.kept():
            mine.check()
        with errors.kept():
            peers.end_copies()
        if peers.finish(errors.first is not None):
            errors.agree(None)
        return mine.result(parts)
