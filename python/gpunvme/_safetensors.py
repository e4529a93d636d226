# SPDX-License-Identifier: BSD-2-Clause
"""Reads the format of safetensors: an 8-byte length, a JSON header, and the tensors' bytes."""

import collections
import contextlib
import errno
import fnmatch
import functools
import json
import math
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ._file import File, make_pieces
from ._memory import Memory, allocation_of, memory_of


class SafetensorError(ValueError):
    """The file is not what the format says."""


_Theirs: Any = ()  # the class of the package's errors
reference: Any = None  # its parser, which judges files where it is installed
with contextlib.suppress(ImportError):
    from safetensors import SafetensorError as _Theirs
    from safetensors import safe_open as reference
if not TYPE_CHECKING and reference:
    SafetensorError = type("SafetensorError", (_Theirs, SafetensorError),
                           {"__doc__": SafetensorError.__doc__, "__module__": __name__})

MAX_HEADER = 100_000_000
MAX_DEPTH = 127  # of nested values, the outermost included
FIRST_READ = 64 << 10  # has all of most headers
# In the order of safetensors, whose files have tensors of later types first.
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
        "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
        "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}
PIECES = 1 << 16  # of one list of reads
LONG_PIECE = 1 << 20  # bytes of a piece that takes a read of its own
Progress = Callable[[int, int, float], None]
Slices = Mapping[str, int | None]  # the dimension by a pattern of names


class Entry(NamedTuple):
    """A tensor of a file, or a slice of one: pieces of equal length, each `stride` after the last."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    nbytes: int
    pieces: int = 1
    stride: int = 0


# --- The header ------------------------------------------------------------------------------------

Header = tuple[list[tuple[str, str, list[int]]], dict[str, str]]  # in the order of the bytes


class _Pairs(list[tuple[str, Any]]):
    """Returns the members of a JSON object, in which a name may be repeated."""

    def once(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Returns a dictionary. Raises ValueError if one of these names is repeated."""
        for name in names:
            if sum(name == other for other, _ in self) > 1:
                raise ValueError(f"{name} comes twice")
        return dict(self)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    return _refuse(text) if value in (float("inf"), float("-inf")) else value


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, list):
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        for part in value:
            _check_depth(part[1] if isinstance(value, _Pairs) else part, depth + 1)


def _tensor(described: Any) -> tuple[str, list[int], int, int]:
    """Returns type, shape, and begin and end of the bytes. Raises ValueError or KeyError."""
    if isinstance(described, _Pairs):
        found = described.once(("dtype", "shape", "data_offsets"))
        described = [found[name] for name in ("dtype", "shape", "data_offsets")]
    if not isinstance(described, list) or len(described) != 3:
        raise ValueError("no description of a tensor")
    dtype, shape, offsets = described
    if isinstance(dtype, _Pairs) and len(dtype) == 1 and dtype[0][1] is None:
        dtype = dtype[0][0]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"dtype {dtype} is not known")
    for sizes in (shape, offsets):
        if type(sizes) is not list or not all(map(_is_size, sizes)):
            raise ValueError("sizes that are no whole numbers")
    first, last = offsets
    return dtype, shape, first, last


def _bits(dtype: str, shape: Iterable[int]) -> int:
    elements = 1
    for length in shape:
        elements *= length
        if elements >= 1 << 64:
            raise ValueError("more elements than 2^64")
    return elements * BITS[dtype]


def _parse(text: str, nbytes: int) -> Header:
    """Applies the rules of safetensors: tensors fill the file without holes.

    Raises ValueError or KeyError for a header that safetensors refuses.
    """
    header = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse, parse_float=_float,
                        parse_int=lambda n: int(n) if n != "-0" else -0.0)
    if not isinstance(header, _Pairs):
        raise ValueError("the header is no object")
    _check_depth(header, 1)
    if "\\u" in text:
        json.dumps(header, ensure_ascii=False).encode()  # fails for half a pair of surrogates
    metadata = header.once(("__metadata__",)).get("__metadata__")
    if metadata is not None and not isinstance(metadata, _Pairs):
        raise ValueError("metadata that is no object")
    if not all(isinstance(value, str) for _, value in metadata or []):
        raise ValueError("metadata that is no text")
    # The last one of repeated names counts, but all must be valid.
    tensors = [(name, *found) for name, found in
               {name: _tensor(value) for name, value in header if name != "__metadata__"}.items()]
    tensors.sort(key=lambda t: (t[3], t[4], t[0]))
    end = 0
    for name, dtype, shape, first, last in tensors:
        if first != end or last < first or (last - first) * 8 != _bits(dtype, shape):
            raise ValueError(f"{name}: bytes {first} to {last} for shape {shape} of {dtype} behind "
                             f"byte {end}")
        end = last
    if end != nbytes:
        raise ValueError(f"{nbytes} bytes of data, of which tensors have {end}")
    return [(name, dtype, shape) for name, dtype, shape, _, _ in tensors], dict(metadata or [])


def _by_reference(fd: int) -> Header:
    """Lets the package safetensors parse the open file. Raises ValueError if it refuses it."""
    try:
        with reference(f"/proc/self/fd/{fd}", "np") as f:
            slices = [(name, f.get_slice(name)) for name in f.offset_keys()]
            return ([(name, part.get_dtype(), part.get_shape()) for name, part in slices],
                    f.metadata() or {})
    except _Theirs as error:
        raise ValueError(str(error)) from None


def _by_ourselves(fd: int, end: int) -> Header:
    first = os.pread(fd, FIRST_READ, 0)
    length = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else MAX_HEADER + 1
    if length > min(MAX_HEADER, end - 8):
        raise ValueError("not a safetensors file")
    text = first[8:8 + length]
    try:
        return _parse((text if len(text) == length else os.pread(fd, length, 8)).decode(),
                      end - 8 - length)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_header(file: File) -> tuple[list[Entry], dict[str, str]]:
    """Returns the tensors in the order of their bytes, and the metadata."""
    fd = file.fileno()
    try:
        if hasattr(reference, "offset_keys") and os.path.exists(f"/proc/self/fd/{fd}"):
            tensors, metadata = _by_reference(fd)
        else:
            tensors, metadata = _by_ourselves(fd, file.size())
        begin = 8 + struct.unpack("<Q", os.pread(fd, 8, 0))[0]
        entries = []
        for name, dtype, shape in tensors:
            entries.append(Entry(name, dtype, tuple(shape), begin, _bits(dtype, shape) // 8))
            begin += entries[-1].nbytes
    except (ValueError, KeyError, struct.error) as error:
        raise SafetensorError(f"{file.name}: {error}") from None
    return entries, metadata


# --- Files and shards ------------------------------------------------------------------------------


class Shard(NamedTuple):
    """Describes a file, and the tensors that its index assigns to it. None means all tensors."""

    path: Any
    names: set[str] | None = None

    def entries(self, file: File) -> list[Entry]:
        found = read_header(file)[0]
        if self.names is None:
            return found
        missing = self.names - {entry.name for entry in found}
        if missing:
            raise SafetensorError(f"{self.path}: {min(missing)}: in the index, but not in the file")
        return [entry for entry in found if entry.name in self.names]


def _of_index(path: str) -> list[Shard]:
    by_file: dict[str, set[str]] = {}
    try:
        with open(path, encoding="utf-8") as f:
            for name, shard_name in json.load(f)["weight_map"].items():
                if os.path.basename(shard_name) != shard_name:
                    raise ValueError(f"{shard_name}: not in this folder")
                by_file.setdefault(shard_name, set()).add(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"{path}: not an index: {error!r}") from None
    folder = os.path.dirname(path)
    return [Shard(os.path.join(folder, name), by_file[name]) for name in sorted(by_file)]


def _of_folder(path: str) -> list[Shard]:
    """Returns the files that an index names, or all files, whose number their names must match."""
    names = sorted(os.listdir(path))
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    if indexes:
        return _of_index(os.path.join(path, indexes[0]))
    files = [name for name in names if name.endswith(".safetensors")]
    counted = [re.search(r"-\d+-of-(\d+)\.safetensors$", name) for name in files]
    due = {int(found[1]) if found else len(files) for found in counted}
    if due != {len(files)}:
        raise SafetensorError(f"{path}: {len(files)} files of safetensors, where their names say "
                              f"{sorted(due) or 'nothing'}")
    return [Shard(os.path.join(path, name)) for name in files]


def shards_of(paths: Any) -> Iterator[Shard]:
    """Yields the shards of a file, a folder, an index of shards, or a list of these."""
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = os.fspath(given)
        if os.path.isdir(path):
            yield from _of_folder(path)
        elif str(path).endswith(".index.json"):
            yield from _of_index(path)
        else:
            yield Shard(given)


def shard(entries: Iterable[tuple[Any, Entry]], rank: int, ranks: int) -> list[tuple[Any, Entry]]:
    """Returns the rank's part of the tensors. All ranks read about the same number of bytes."""
    loads = [0] * ranks
    mine = []
    for file, entry in sorted(entries, key=lambda e: (-e[1].nbytes, e[1].name)):
        least = loads.index(min(loads))
        loads[least] += entry.nbytes
        if least == rank:
            mine.append((file, entry))
    return sorted(mine, key=lambda e: (str(e[0].name), e[1].begin))


def _dimension(name: str, slices: Slices) -> int | None:
    """Returns that of the first pattern which matches the name."""
    return next((dim for pattern, dim in slices.items() if fnmatch.fnmatchcase(name, pattern)), None)


def slice_of(entry: Entry, slices: Slices, rank: int, ranks: int) -> Entry:
    """Returns the rank's slice, as torch.chunk() cuts the tensor, or all of it without a dimension.

    Ranks beyond the length of the dimension have an empty slice.
    """
    dim, shape = _dimension(entry.name, slices), entry.shape
    if dim is None:
        return entry
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"{entry.name}: shape {list(shape)} has no dimension {dim}")
    dim %= len(shape)
    length = -(-shape[dim] // ranks)
    first = min(rank * length, shape[dim])
    length = min(length, shape[dim] - first)
    bits = math.prod(shape[dim + 1:]) * BITS[entry.dtype]
    if any(n * bits % 8 for n in (first, length, shape[dim])):
        raise SafetensorError(f"{entry.name}: slices of {entry.dtype} in dimension {dim} of "
                              f"{list(shape)} are no whole bytes")
    pieces, stride, nbytes = math.prod(shape[:dim]), shape[dim] * bits // 8, length * bits // 8
    if pieces * nbytes == 0 or nbytes == stride:
        pieces, nbytes = 1, nbytes * pieces
    return entry._replace(shape=(*shape[:dim], length, *shape[dim + 1:]), pieces=pieces,
                          begin=entry.begin + first * bits // 8, nbytes=nbytes * pieces,
                          stride=stride)


def print_progress(done: int, total: int, seconds: float) -> None:
    """Prints a line on standard error."""
    rate = done / seconds / 1e9 if seconds else 0.0
    end = "\n" if done == total else ""
    print(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate:.2f} GB/s", end=end, file=sys.stderr,
          flush=True)


def read_range(file: File, memory: Any, nbytes: int, begin: int, place: int = 0) -> None:
    """Reads all of these bytes to a place in the memory."""
    if nbytes and file.read(memory, nbytes, begin, place) != nbytes:
        raise SafetensorError(f"{file.name}: the file has become shorter")


def _read_pieces(file: File, memory: Memory, pieces: Any) -> bool:
    """Reads a list by one call. Returns False if the file ends before one of its ranges does."""
    file.read_pieces(memory, pieces)
    if pieces.are_whole():
        return True
    failed = min(pieces.results())
    if failed < 0:
        raise OSError(-failed, os.strerror(-failed), file.name)
    return False


def read_ranges(file: File, memory: Any, begins: Any, nbytes: Any, places: Any) -> None:
    """Reads all of these ranges by one call."""
    if not _read_pieces(file, memory_of(memory, True), make_pieces(begins, nbytes, places)):
        raise SafetensorError(f"{file.name}: the file has become shorter")


def _read_memory(file: File, memory: Memory, begin: int) -> bool:
    return not memory.nbytes or file.read(memory, None, begin) == memory.nbytes


Reads = list[Callable[[], bool]]


def reads_of(file: File, wanted: Iterable[tuple[int, Any]]) -> Reads:
    """Returns functions that fill tensors from offsets of the file, or return False where it ends.

    One function reads by one call into all tensors of an allocation of CUDA. The functions do little
    in Python, because threads that call them would compete with the caller for the interpreter.
    """
    lists: dict[int, list[tuple[int, Memory]]] = {}
    for i, (begin, tensor) in enumerate(wanted):
        memory = memory_of(tensor, True)
        lists.setdefault(allocation_of(memory) or -i - 1, []).append((begin, memory))
    reads: Reads = []
    for found in lists.values():
        if len(found) == 1:
            reads.append(functools.partial(_read_memory, file, found[0][1], found[0][0]))
            continue
        first = min(memory.address for _, memory in found)
        end = max(memory.address + memory.nbytes for _, memory in found)
        pieces = make_pieces([begin for begin, _ in found], [memory.nbytes for _, memory in found],
                             [memory.address - first for _, memory in found])
        whole = Memory(first, end - first, found)
        reads.append(functools.partial(_read_pieces, file, whole, pieces))
    return reads


def read_entry(file: File, entry: Entry, tensor: Any) -> int:
    """Reads a tensor or a slice of one. Returns its bytes."""
    begin, stride, n = entry.begin, entry.stride, entry.nbytes // entry.pieces
    if entry.pieces == 1 or n >= LONG_PIECE:
        for i in range(entry.pieces):
            read_range(file, tensor, n, begin + i * stride, i * n)
    else:
        for i in range(0, entry.pieces, PIECES):
            end = min(i + PIECES, entry.pieces)
            read_ranges(file, tensor, range(begin + i * stride, begin + end * stride, stride), n,
                        range(i * n, end * n, n))
    return entry.nbytes


def read_batch(file: File, reads: Reads, slices: Iterable[tuple[Entry, Any]] = ()) -> None:
    """Calls these functions of reads_of(), and reads slices into their tensors."""
    if not all(read() for read in reads):
        raise SafetensorError(f"{file.name}: the file has become shorter")
    for entry, tensor in slices:
        read_entry(file, entry, tensor)


def in_batches(things: Iterable[tuple[File, int, Any]]) -> Iterator[tuple[File, list[Any]]]:
    """Yields a thing of LONG_PIECE bytes alone, and shorter ones together until they have as many.

    Each of the things is a file, a number of bytes, and what is yielded.
    """
    short: list[Any] = []
    of, total = None, 0
    for file, nbytes, thing in things:
        if nbytes >= LONG_PIECE:
            yield file, [thing]
            continue
        if of and (of is not file or total >= LONG_PIECE):
            yield of, short
            short, total = [], 0
        of, total = file, total + nbytes
        short.append(thing)
    if of:
        yield of, short


_pools: dict[int, ThreadPoolExecutor] = {}  # by the number of threads, which are kept
os.register_at_fork(after_in_child=_pools.clear)


def pool(threads: int) -> ThreadPoolExecutor:
    """Returns the threads that read, which are kept for the next call."""
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(max(threads, 1), "gpunvme-load")
    return _pools[threads]


def start_read(reads: list[Future[Any]], threads: int, read: Callable[..., Any],
               *arguments: Any) -> None:
    """Has a thread read, and adds the future.

    The caller yields the interpreter to the first threads, because one that waits for it while the
    caller goes on begins 5 ms later.
    """
    reads.append(pool(threads).submit(read, *arguments))
    if len(reads) <= threads:
        time.sleep(0)


@contextlib.contextmanager
def waited(reads: list[Future[Any]]) -> Iterator[None]:
    """Cancels reads at the end and waits for those that have begun: they use memory and files."""
    try:
        yield
    finally:
        for read in reads:
            read.cancel()
        wait(reads)


@contextlib.contextmanager
def opened(paths: Any) -> Iterator[list[tuple[File, Entry]]]:
    """Opens all files of the paths and gives their tensors, in the order of their bytes."""
    names: set[str] = set()
    with contextlib.ExitStack() as files:
        entries = []
        for part in shards_of(paths):
            file = files.enter_context(File(part.path))
            for entry in part.entries(file):
                if entry.name in names:
                    raise SafetensorError(f"{file.name}: {entry.name}: in two files")
                names.add(entry.name)
                entries.append((file, entry))
        yield entries


def load(paths: Any, empty: Callable[[Entry], Any], *, rank: int = 0, ranks: int = 1,
         slices: Slices | None = None, progress: bool | Progress = False, threads: int = 8,
         reserve: Callable[[list[Entry]], None] | None = None) -> dict[str, Any]:
    """Returns tensors by name. Each owns its memory, which empty() makes and the file is read into.

    slices: dimensions in which the ranks share tensors, each of which has a slice; they all have
    the others. Without it they share the tensors. reserve: called before the first of them is made.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    with opened(paths) as entries:
        if slices is not None:
            entries = [(file, slice_of(entry, slices, rank, ranks)) for file, entry in entries]
        elif ranks > 1:
            entries = shard(entries, rank, ranks)
        if reserve:
            reserve([entry for _, entry in entries])
        return load_entries(entries, empty, reporter(progress), threads)


def reporter(progress: bool | Progress) -> Progress | None:
    return print_progress if progress is True else progress or None


def load_entries(entries: list[tuple[File, Entry]], empty: Callable[[Entry], Any],
                 report: Progress | None, threads: int) -> dict[str, Any]:
    """Makes the tensors and reads them. Returns them by name."""
    tensors: dict[str, Any] = {}
    total, begun = sum(e.nbytes for _, e in entries), time.monotonic()
    reads: list[Future[None]] = []
    order: list[list[Entry]] = []
    with waited(reads):
        for file, batch in in_batches((file, entry.nbytes, entry) for file, entry in entries):
            made = [(entry, empty(entry)) for entry in batch]
            tensors.update((entry.name, tensor) for entry, tensor in made)
            order.append(batch)
            start_read(reads, threads, read_batch, file,
                       reads_of(file, ((e.begin, tensor) for e, tensor in made if e.pieces == 1)),
                       [(entry, tensor) for entry, tensor in made if entry.pieces > 1])
        done = 0
        for read, batch in zip(reads, order):
            read.result()
            for entry in batch:
                done += entry.nbytes
                if report:
                    report(done, total, time.monotonic() - begun)
    return {entry.name: tensors[entry.name] for _, entry in entries}


def take(reads: list[Future[int]], total: int, begun: float, report: Progress | None) -> None:
    """Takes the results, which are numbers of bytes, and reports them."""
    done = 0
    for read in reads:
        done += read.result()
        if report:
            report(done, total, time.monotonic() - begun)


def stream(paths: Any, empty: Callable[[Entry], Any], keep: Callable[[str], bool] | None = None,
           ahead: int = 8) -> Iterator[tuple[str, Any]]:
    """Yields names and tensors, one file after the other. Up to `ahead` tensors are read meanwhile.

    keep: a function of the name, False for tensors that are not read.
    """
    for part in shards_of(paths):
        reads: collections.deque[tuple[str, Any, Future[int]]] = collections.deque()
        with File(part.path) as file:
            try:
                for entry in part.entries(file):
                    if keep is None or keep(entry.name):
                        tensor = empty(entry)
                        read = pool(ahead).submit(read_entry, file, entry, tensor)
                        reads.append((entry.name, tensor, read))
                    if len(reads) > ahead:
                        yield _taken(reads)
                while reads:
                    yield _taken(reads)
            finally:
                for _, _, read in reads:
                    read.cancel()
                wait([read for _, _, read in reads])


def _taken(reads: collections.deque[tuple[str, Any, Future[int]]]) -> tuple[str, Any]:
    name, tensor, read = reads[0]
    read.result()
    reads.popleft()
    return name, tensor


# --- Writing ---------------------------------------------------------------------------------------


def _header(entries: Iterable[Entry], metadata: dict[str, str] | None) -> tuple[bytes, list[Entry]]:
    """Returns header and places: larger types come first, then names in order, as in safetensors."""
    order = list(BITS)
    described: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    placed, at = [], 0
    for entry in sorted(entries, key=lambda e: (-order.index(e.dtype), e.name)):
        described[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape),
                                 "data_offsets": [at, at + entry.nbytes]}
        placed.append((entry, at))
        at += entry.nbytes
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    return header, [entry._replace(begin=begin + len(header)) for entry, begin in placed]


Jobs = Callable[[File, list[tuple[Any, int]]], Iterable[Callable[[], int]]]


def _write_each(file: File, placed: list[tuple[Any, int]]) -> Iterable[Callable[[], int]]:
    """Returns a write for each memory, which is at an offset of the file."""
    return [functools.partial(file.write, memory, None, at) for memory, at in placed]


def _write_all(path: str, entries: list[Entry], header: bytes, memory: dict[str, Any],
               threads: int, jobs: Jobs) -> None:
    with File(path, "r+") as file:
        end = entries[-1].begin + entries[-1].nbytes if entries else len(header)
        os.posix_fallocate(file.fileno(), 0, end)  # so that the parts lie together
        placed: list[tuple[Any, int]] = [(header, 0)]
        placed += [(memory[entry.name], entry.begin) for entry in entries if entry.nbytes]
        writes = [pool(threads).submit(job) for job in jobs(file, placed)]
        wait(writes)
        if sum(write.result() for write in writes) != end:
            raise OSError(errno.EIO, "not written as a whole", path)
        os.fsync(file.fileno())


def _mode_of(path: str) -> int:
    """Returns the permissions of a file that is replaced, or those of a new one."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def save(filename: Any, memory: dict[str, Any], entries: Iterable[Entry],
         metadata: dict[str, str] | None, threads: int = 8, jobs: Jobs = _write_each) -> None:
    """Writes a file, which appears as a whole and is on the drive when this returns.

    memory: of each tensor, by its name. The places of entries do not count. jobs: returns functions
    that write the header and memory, given in the order of offsets, and return the number of bytes.
    """
    if not all(isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
        raise SafetensorError("metadata that is no text")
    path = os.path.realpath(filename)
    folder, name = os.path.split(path)
    header, placed = _header(entries, metadata)
    fd, temporary = tempfile.mkstemp(prefix=f".{name[:200]}.", dir=folder)
    try:
        os.fchmod(fd, _mode_of(path))
        _write_all(temporary, placed, header, memory, threads, jobs)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# --- Opening ---------------------------------------------------------------------------------------


class Slice:
    """Represents a tensor of which a part is read: some rows of the first dimension."""

    def __init__(self, opened: "SafeOpen", entry: Entry) -> None:
        self._opened, self._entry = opened, entry

    def get_shape(self) -> list[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        return self._entry.dtype

    def __getitem__(self, key: Any) -> Any:
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        whole = not self._entry.shape or BITS[self._entry.dtype] % 8
        if whole or not isinstance(first, slice):
            return self._opened.get_tensor(self._entry.name)[key]
        start, stop, step = first.indices(self._entry.shape[0])
        if step != 1:
            return self._opened.get_tensor(self._entry.name)[key]
        rows, stride = max(stop - start, 0), self._entry.nbytes // max(self._entry.shape[0], 1)
        part = Entry(self._entry.name, self._entry.dtype, (rows, *self._entry.shape[1:]),
                     self._entry.begin + start * stride, rows * stride)
        tensor = self._opened._read(part)
        return tensor[(slice(None), *rest)] if rest else tensor


class SafeOpen:
    """Does what safetensors.safe_open does, over a File. A subclass makes the tensors.

    backend has the values of safetensors and no effect, because gpunvme reads.
    """

    def __init__(self, filename: Any, frameworks: tuple[str, ...], framework: str, device: Any,
                 backend: str, empty: Callable[[Entry], Any]) -> None:
        if framework not in frameworks:
            raise SafetensorError(f"framework {framework} is not one of {', '.join(frameworks)}")
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", '
                                  '"pread")')
        self._empty, self._again = empty, (os.path.abspath(filename), framework, device)
        self._file: File = File(filename)
        try:
            entries, self._metadata = read_header(self._file)
        except SafetensorError:
            self._file.close()
            raise
        self._tensors = {entry.name: entry for entry in entries}

    def __reduce__(self) -> tuple[Any, ...]:
        self._entries()
        return type(self), self._again

    def _entries(self) -> dict[str, Entry]:
        if self._file.closed:
            raise SafetensorError("File is closed")
        return self._tensors

    def _read(self, entry: Entry) -> Any:
        tensor = self._empty(entry)
        read_entry(self._file, entry, tensor)
        return tensor

    def _find(self, name: str) -> Entry:
        if name not in self._entries():
            raise SafetensorError(f"File does not contain tensor {name}")
        return self._tensors[name]

    def keys(self) -> list[str]:
        return sorted(self._entries())

    def offset_keys(self) -> list[str]:
        return list(self._entries())

    def metadata(self) -> dict[str, str] | None:
        self._entries()
        return self._metadata or None

    def get_tensor(self, name: str) -> Any:
        return self._read(self._find(name))

    def get_tensors(self) -> dict[str, Any]:
        """Returns all tensors by name."""
        entries = [(self._file, entry) for entry in self._entries().values()]
        return load_entries(entries, self._empty, None, 8)

    def get_slice(self, name: str) -> Slice:
        return Slice(self, self._find(name))

    def __enter__(self) -> "SafeOpen":
        return self

    def __exit__(self, _exc_type: Any, _exc_value: Any, _traceback: Any) -> None:
        self._file.close()
