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
from ._safetensors import (Entry, Progress, Slices, in_batches, load_entries, opened, read_batch,
                           reads_of, reporter, slice_of, start_read, waited)

ALIGN = 4096
MIN_CHUNK = 4 << 20  # bytes that a rank reads for one exchange, at least
CHUNK = 128 << 20  # and at most
_ROUNDS = 16  # exchanges at least, where chunks are not shorter than that for it
_READ = 64 << 20  # bytes of one read


class Peers(Protocol):
    """Connects the ranks, and handles memory of this one. Collective operations are bounded."""

    rank: int
    size: int
    kind: str  # of memory, which is the same at all ranks

    def exchange(self, value: Any) -> list[Any]:
        """Collective: returns the values of all ranks."""

    def flat(self, tensor: Any) -> Any:
        """Returns the bytes of a tensor as an array."""

    def can_show(self, array: Any) -> bool:
        """Returns true if other ranks may copy from the array. All ranks return the same for it."""

    def offer(self, arrays: dict[str, Any]) -> Any:
        """Returns what the other ranks need to copy from these arrays, or none."""

    def join(self, offers: list[Any]) -> None:
        """Collective: prepares share(). Raises an error at all ranks if one rank cannot."""

    def share(self) -> bool:
        """Collective: maps the arrays of the other ranks. Returns false at all ranks if one cannot.

        It may raise an error at one rank alone, and then returns false at the others.
        """

    def shown(self, rank: int, name: str) -> Any:
        """Returns the array of another rank, which share() has mapped, for copy()."""

    def meet(self, failed: bool) -> bool:
        """Collective: waits for all ranks, after share(). Returns true if one has failed."""

    def rows(self, nbytes: int) -> Any:
        """Returns memory for gather(): a row for each rank, and a last one that this rank fills."""

    def gather(self, rows: Any, failed: bool) -> bool:
        """Collective: copies the last row of each rank to its row at all ranks.

        Returns true if one has failed.
        """

    def copy(self, to: Any, source: Any, place: int = 0) -> None:
        """Starts to fill an array from this place of another one, after the copies before it."""

    def end_copies(self) -> None:
        """Waits for the copies of this rank, and unmaps what share() has mapped."""

    def finish(self, failed: bool = False) -> bool:
        """Collective: waits until all ranks have come. Returns true if one may have failed."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


# --- Places ----------------------------------------------------------------------------------------

class _Place(NamedTuple):
    """Locates a tensor of a file among the bytes of all tensors."""

    place: int
    file: File
    entry: Entry


class _Part(NamedTuple):
    """Describes the bytes of a tensor that are in a chunk."""

    file: File
    entry: Entry
    at: int
    place: int
    nbytes: int


class Layout:
    """Places the tensors' bytes one after the other. A multiple of ALIGN is one in its file, too."""

    def __init__(self, entries: list[tuple[File, Entry]]) -> None:
        self._places: list[_Place] = []
        self.nbytes = 0
        for file, entry in entries:
            if entry.nbytes:
                place = self.nbytes + (entry.begin - self.nbytes) % ALIGN
                self._places.append(_Place(place, file, entry))
                self.nbytes = place + entry.nbytes

    def parts(self, begin: int, end: int) -> Iterator[_Part]:
        """Yields the parts of tensors at these places. Their places count from `begin`."""
        first = bisect.bisect_right(self._places, begin, key=lambda found: found.place) - 1
        for place, file, entry in self._places[max(first, 0):]:
            if place >= end:
                return
            low, high = max(begin, place), min(end, place + entry.nbytes)
            if low < high:
                yield _Part(file, entry, low - place, low - begin, high - low)


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
    """Identifies a file that a rank has opened."""

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

class MissingRank(RuntimeError):
    """Raised for a rank that does not come. Another collective operation would wait for it, too."""


class Errors:
    """Keeps the first error of this rank until all ranks know of it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.first: BaseException | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except MissingRank:
            raise
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


class _Exchange:
    """Has each rank read a share of these tensors into place, and copy the others' shares."""

    def __init__(self, peers: Peers, entries: list[tuple[File, Entry]],
                 arrays: dict[str, Any]) -> None:
        self._peers, self._arrays = peers, arrays
        self._layout = Layout(entries)
        self._shares = Shares(self._layout, peers.size)
        self.chunk = self._shares.chunk
        self._reads: list[list[Future[None]]] = []  # of each round

    def start(self, threads: int, reads: list[Future[None]]) -> None:
        """Adds the reads of this rank's share. Short parts of a file are read together."""
        for turn in range(self._shares.rounds):
            before = len(reads)
            for file, batch in in_batches(self._pieces(turn)):
                start_read(reads, threads, read_batch, file, reads_of(file, batch))
            self._reads.append(reads[before:])

    def _pieces(self, turn: int) -> Iterator[tuple[File, int, tuple[int, Any]]]:
        for part in self._layout.parts(*self._shares.part(self._peers.rank, turn)):
            for at in range(part.at, part.at + part.nbytes, _READ):
                n = min(_READ, part.at + part.nbytes - at)
                yield part.file, n, (part.entry.begin + at, self._array(part, at, n))

    def _array(self, part: _Part, at: int, nbytes: int) -> Any:
        return self._arrays[part.entry.name][at:at + nbytes]

    def run(self, rows: Any, errors: Errors, report: Callable[[int], None]) -> bool:
        """Collective: returns false if a rank has failed. rows: None if share() has mapped all."""
        for turn in range(self._shares.rounds):
            with errors.kept():
                for read in self._reads[turn]:
                    read.result()
            if self._meet(turn, rows, errors):
                return False
            with errors.kept():
                report(self._copy(turn, rows))
        return True

    def _meet(self, turn: int, rows: Any, errors: Errors) -> bool:
        """Collective: returns true if a rank has failed, otherwise all ranks have read the chunk."""
        if rows is None:
            return self._peers.meet(errors.first is not None)
        with errors.kept():
            for part in self._layout.parts(*self._shares.part(self._peers.rank, turn)):
                self._peers.copy(rows[-1][part.place:part.place + part.nbytes],
                                 self._array(part, part.at, part.nbytes))
        return self._peers.gather(rows, errors.first is not None)

    def _copy(self, turn: int, rows: Any) -> int:
        """Copies a chunk of each other rank. Returns the bytes of tensors in the round."""
        done = 0
        for rank in range(self._peers.size):
            for part in self._layout.parts(*self._shares.part(rank, turn)):
                done += part.nbytes
                if rank == self._peers.rank:
                    continue
                to = self._array(part, part.at, part.nbytes)
                if rows is None:
                    self._peers.copy(to, self._peers.shown(rank, part.entry.name), part.at)
                else:
                    self._peers.copy(to, rows[rank], part.place)
        return done


class _Load:
    """Makes the tensors of one rank, and fills them."""

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
        whole = [(file, entry) for file, entry, part in mine if part is entry]
        self._order = [part.name for _, _, part in mine]
        self._whole = {entry.name: empty(entry) for _, entry in whole}
        arrays = {name: peers.flat(tensor) for name, tensor in self._whole.items()}
        shown = {name: array for name, array in arrays.items() if peers.can_show(array)}
        self._shown = _Exchange(peers, [found for found in whole if found[1].name in shown], arrays)
        self._gathered = _Exchange(peers, [found for found in whole if found[1].name not in shown],
                                   arrays)
        self.reads: list[Future[None]] = []
        self.total = sum(part.nbytes for _, _, part in mine)
        self.plan = repr((list(slices.items()), peers.kind))
        self.offer = peers.offer(shown)

    def start(self) -> None:
        """Starts the reads of tensors that are exchanged. They use the tensors and files."""
        for exchange in self._shown, self._gathered:
            exchange.start(self._threads, self.reads)

    def read_slices(self, report: Progress | None) -> dict[str, Any]:
        def reported(done: int, _: int, seconds: float) -> None:
            if report:
                report(done, self.total, seconds)

        return load_entries(self._slices, self._empty, reported, self._threads)

    def exchange_all(self, errors: Errors, report: Progress | None, done: int) -> None:
        """Collective: exchanges all chunks, or those before an error of any rank.

        Mapping the others' memory takes 10 to 20 ms, in which CUDA registers no memory. The reads,
        which go on meanwhile, have had theirs registered when the first one ends.
        """
        shared, rows, begun = False, None, time.monotonic()

        def reported(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if report:
                report(done, self.total, time.monotonic() - begun)

        wait(self.reads, return_when=FIRST_COMPLETED)
        with errors.kept():
            shared = self._peers.share()
        if chunk := max(self._gathered.chunk, 0 if shared else self._shown.chunk):
            with errors.kept():
                rows = self._peers.rows(chunk)
            errors.agree(None)
        if self._shown.run(None if shared else rows, errors, reported):
            self._gathered.run(rows, errors, reported)

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
    errors, report = Errors(peers), reporter(progress)
    with contextlib.ExitStack() as stack:
        told, parts = None, {}
        with errors.kept():
            entries = stack.enter_context(opened(paths))
            mine = _Load(peers, entries, empty, slices, threads, reserve)
            stack.enter_context(waited(mine.reads))
            told = _Told(mine.plan, _versions(entries), mine.offer)
        for rank, theirs in enumerate(found := errors.agree(told)):
            _compare(theirs.versions, found[0].versions, rank)
            if theirs.plan != found[0].plan:
                raise ValueError(f"rank {rank} has other slices, or memory of another kind, than "
                                 "rank 0")
        peers.join([theirs.offer for theirs in found])
        with errors.kept():
            mine.start()  # after agree(), whose kernels would wait for a turn beside those that read
            parts = mine.read_slices(report)
        mine.exchange_all(errors, report, sum(part.nbytes for part in parts.values()))
        with errors.kept():
            mine.check()
        with errors.kept():
            peers.end_copies()
        if peers.finish(errors.first is not None):
            errors.agree(None)
        return mine.result(parts)
