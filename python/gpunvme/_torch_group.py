# SPDX-License-Identifier: BSD-2-Clause
"""Loads tensors of torch by a process group, or by one process for several devices."""

import contextlib
import ctypes
import fcntl
import functools
import itertools
import mmap
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import distributed

from ._file import File
from ._group import ALIGN, Errors, MissingRank, boot
from ._safetensors import (Entry, Progress, Slices, opened, read_entry, read_range, reporter,
                           slice_of, start_read, take, waited)

Empty = Callable[[Entry, Any], torch.Tensor]
Reserve = Callable[[list[Entry], Any], None]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class _Board:
    """All ranks of one host map this page, in which each stores how many meetings it has reached.

    A rank has two numbers, which it stores in turn, because others may not have read the last one.
    It locks a byte for as long as it has the page. The kernel releases the lock of a process that
    ends, in whichever container.
    """

    PATIENCE = 600.0  # seconds, the default of NCCL's groups
    LOOK = 0.1  # seconds between two looks for ranks that have ended
    NAP = 2e-5  # seconds; with none, threads that read would wait for the interpreter for 5 ms

    def __init__(self, path: str, rank: int, size: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        os.posix_fallocate(self._file, 0, 2 * 8 * size)  # an error here, instead of SIGBUS later
        self._numbers = memoryview(mmap.mmap(self._file, 2 * 8 * size)).cast("q")
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._rank, self._turn = rank, 0

    def meet(self, failed: bool = False) -> bool:
        """Waits for all ranks. Returns true if any of them has failed."""
        self._turn += 1
        numbers = self._numbers[self._turn % 2::2]
        numbers[self._rank] = 2 * self._turn + failed
        begun = looked = time.monotonic()
        while min(found := numbers.tolist()) < 2 * self._turn:
            now = time.monotonic()
            if now - begun > self.PATIENCE:
                late = found.index(min(found))
                raise MissingRank(f"rank {late} did not come in {now - begun:.0f} s")
            if now - looked > self.LOOK:
                self._look(numbers)
                looked = now
            time.sleep(self.NAP)
        return any(number & 1 for number in found)

    def _look(self, numbers: memoryview) -> None:
        """Raises an error if a rank has ended before this meeting, not after it."""
        for rank, number in enumerate(numbers.tolist()):
            if number < 2 * self._turn and self._has_ended(rank) and numbers[rank] == number:
                raise MissingRank(f"rank {rank} of {len(numbers)} has ended")

    def _has_ended(self, rank: int) -> bool:
        with contextlib.suppress(BlockingIOError):  # it holds its lock
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
            return True
        return False


class _Offer(NamedTuple):
    """Has what the other ranks need to copy from the tensors of a rank."""

    host: tuple[str, int, int]  # boot, device of BOARDS, user
    board: str  # path; that of rank 0 is used
    handles: list[bytes]  # of allocations
    places: dict[str, tuple[int, int]]  # of each tensor: number of its allocation, and place there


BOARDS = "/dev/shm"
SHARED = ("cuda",)  # kinds of memory
SHORT = 1 << 20  # bytes; torch's allocator has segments of 2 MiB for tensors of as many
MOST = 64  # allocations of a rank that are mapped: the first takes 10 ms or more, others 1 ms

_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_driver = functools.cache(lambda: ctypes.CDLL("libcuda.so.1"))


class _Handle(ctypes.Structure):
    """Has the layout of CUipcMemHandle."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of CUDA's driver, in whose context torch has made the memory of this thread.

    Threads that read go on meanwhile, because this releases the interpreter's lock, unlike torch.
    """
    error = getattr(_driver(), name)(*arguments)
    if error:
        raise RuntimeError(f"{name}: error {error} of CUDA")


def _allocation_of(memory: torch.Tensor) -> tuple[int, int]:
    """Returns the address of its allocation, and its place there."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    address = memory.data_ptr()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size),
          ctypes.c_uint64(address))
    return base.value, address - base.value


def _export(base: int) -> bytes:
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
    return bytes(handle)


class _Mapped:
    """Maps an allocation of another process."""

    def __init__(self, handle: bytes) -> None:
        self._base = ctypes.c_uint64()
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(self._base), _Handle.from_buffer_copy(handle),
              ctypes.c_uint(_LAZY_PEER_ACCESS))

    def at(self, place: int) -> Any:
        """Returns the address of a place for ProcessGroup.copy()."""
        return self._base.value + place

    def close(self) -> None:
        _call("cuIpcCloseMemHandle", self._base)


class ProcessGroup:
    """Connects the ranks of a process group of torch (Peers).

    Ranks of one host copy from each other's memory by the copy engines of their GPUs. A kernel takes
    turns with the kernels that read, which belong to another process, so both wait for milliseconds,
    the longer if it waits for another rank, as NCCL's do. Those gather where there is no other way,
    and tensors of at most SHORT bytes.
    """

    def __init__(self, group: Any, device: Any) -> None:
        if not isinstance(group, distributed.ProcessGroup):
            raise TypeError(f"group: {group!r} is no process group of torch.distributed that has "
                            "this process")
        self._group, self._device, self.kind = group, device, torch.device(device).type
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._board: _Board | None = None
        self._offers: list[_Offer] = []
        self._mapped: list[list[_Mapped]] = []  # the allocations of each rank; none of this one

    def exchange(self, value: Any) -> list[Any]:
        found = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return _flat(tensor)

    def can_show(self, array: torch.Tensor) -> bool:
        return self.kind in SHARED and array.numel() > SHORT

    def offer(self, arrays: dict[str, torch.Tensor]) -> _Offer | None:
        if not arrays or not boot():
            return None
        numbers: dict[int, int] = {}  # by the address of an allocation
        places = {}
        try:
            for name, memory in arrays.items():
                base, place = _allocation_of(memory)
                places[name] = numbers.setdefault(base, len(numbers)), place
            if len(numbers) > MOST:
                return None
            return _Offer((boot(), os.stat(BOARDS).st_dev, os.geteuid()),
                          f"{BOARDS}/gpunvme-group-{uuid.uuid4().hex}",
                          [_export(base) for base in numbers], places)
        except (OSError, RuntimeError):  # CUDA does not export memory of some allocators
            return None

    def join(self, offers: list[_Offer | None]) -> None:
        found = [offer for offer in offers if offer is not None]
        if len(found) < self.size or len({offer.host for offer in found}) > 1:
            return
        self._offers, errors = found, Errors(self)
        with errors.kept():
            self._board = _Board(found[0].board, self.rank, self.size)
        try:
            errors.agree(None)
        finally:
            with contextlib.suppress(FileNotFoundError):  # another rank has removed it
                os.unlink(found[0].board)

    def share(self) -> bool:
        if self._board is None:
            return False
        failed = True
        try:
            with contextlib.suppress(OSError, RuntimeError):  # the devices do not reach each other
                self._map()
                failed = False
        finally:
            failed = self._board.meet(failed)
        return not failed

    def _map(self) -> None:
        """Maps the allocations of all other ranks."""
        for rank, offer in enumerate(self._offers):
            self._mapped.append([])
            if rank != self.rank:
                self._mapped[-1].extend(_Mapped(handle) for handle in offer.handles)

    def shown(self, rank: int, name: str) -> Any:
        number, place = self._offers[rank].places[name]
        return self._mapped[rank][number].at(place)

    def meet(self, failed: bool) -> bool:
        assert self._board is not None
        return self._board.meet(failed)

    def rows(self, nbytes: int) -> torch.Tensor:
        """Returns rows with a block behind their bytes, which reports an error to all ranks."""
        return torch.empty((self.size + 1, nbytes + ALIGN), dtype=torch.uint8, device=self._device)

    def gather(self, rows: torch.Tensor, failed: bool) -> bool:
        """The ranks meet before NCCL, whose kernels would wait for a rank that has ended."""
        if self._board and self._board.meet(failed):
            return True
        rows[-1, -ALIGN] = int(failed)
        distributed.all_gather_into_tensor(_flat(rows[:-1]), rows[-1], group=self._group)
        return any(rows[:-1, -ALIGN].tolist())

    def copy(self, to: torch.Tensor, source: torch.Tensor | int, place: int = 0) -> None:
        if isinstance(source, torch.Tensor):
            to.copy_(source[place:place + to.numel()])
        elif to.numel():
            stream: Any = torch.cuda.current_stream(self._device)
            _call("cuMemcpyAsync", ctypes.c_uint64(to.data_ptr()), ctypes.c_uint64(source + place),
                  ctypes.c_size_t(to.numel()), ctypes.c_void_p(stream.cuda_stream))

    def end_copies(self) -> None:
        """Called before finish(), because a rank may free its tensors afterwards.

        CUDA does not define what becomes of a mapping whose memory its owner has freed.
        """
        if self.kind == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.close()

    def finish(self, failed: bool = False) -> bool:
        """Without a board no rank waits, because it shows no memory of its own to others."""
        return self._board is None or self._board.meet(failed)

    def close(self) -> None:
        """Unmaps the others' memory. shown() is not called afterwards."""
        while self._mapped:
            for mapped in self._mapped.pop():
                mapped.close()


# --- Devices of one process ------------------------------------------------------------------------

_SHORTEST, _LONGEST = 1 << 20, 64 << 20  # bytes of a part
_PARTS = 8  # of each device, at least


class _Part(NamedTuple):
    """Describes bytes of a tensor that one device reads and the others copy."""

    file: File
    entry: Entry
    at: int
    nbytes: int


def _cut(entries: list[tuple[File, Entry]], total: int, devices: int) -> list[list[_Part]]:
    """Returns the parts of each device: contiguous shares of about the same size."""
    length = min(max(total // devices // _PARTS, _SHORTEST), _LONGEST)
    shares: list[list[_Part]] = [[] for _ in range(devices)]
    before = 0
    for file, entry in entries:
        at = 0
        while at < entry.nbytes:
            end = (entry.begin + at + length) // ALIGN * ALIGN - entry.begin
            nbytes = min(end, entry.nbytes) - at
            shares[(before + at) * devices // total].append(_Part(file, entry, at, nbytes))
            at += nbytes
        before += entry.nbytes
    return shares


def _read_and_copy(part: _Part, reader: torch.Tensor, others: list[torch.Tensor]) -> int:
    """Reads into the tensor of one device, from which the other devices copy."""
    read_range(part.file, reader, part.nbytes, part.entry.begin + part.at, part.at)
    end = part.at + part.nbytes
    for other in others:
        _flat(other)[part.at:end].copy_(_flat(reader)[part.at:end], non_blocking=True)
    return part.nbytes


class _Devices:
    """Has the tensors by name for each device, and starts the reads that fill them."""

    def __init__(self, entries: list[tuple[File, Entry]], devices: list[Any], empty: Empty,
                 reserve: Reserve, slices: Slices) -> None:
        self.tensors: list[dict[str, torch.Tensor]] = []
        self._slices: list[list[tuple[File, Entry, torch.Tensor]]] = []
        self.total, whole = 0, entries
        for i, device in enumerate(devices):
            parts = [(file, entry, slice_of(entry, slices, i, len(devices)))
                     for file, entry in entries]
            reserve([part for _, _, part in parts], device)
            tensors = {part.name: empty(part, device) for _, _, part in parts}
            self.tensors.append(tensors)
            cut = [(file, part, tensors[part.name]) for file, entry, part in parts
                   if part is not entry]
            whole = [(file, entry) for file, entry, part in parts if part is entry]
            self._slices.append(cut)
            self.total += sum(part.nbytes for _, part, _ in cut)
        nbytes = sum(entry.nbytes for _, entry in whole)
        self._shares = _cut(whole, nbytes, len(devices))
        self.total += nbytes

    def start(self, threads: int, reads: list[Future[int]]) -> None:
        """Adds the reads of all devices in turn, so that all are busy."""
        for _, piece in _in_turn(self._slices):
            start_read(reads, threads, read_entry, *piece)
        for i, part in _in_turn(self._shares):
            found = [tensors[part.entry.name] for tensors in self.tensors]
            start_read(reads, threads, _read_and_copy, part, found.pop(i), found)


def _in_turn(lists: list[list[Any]]) -> Iterator[tuple[int, Any]]:
    """Yields the first members with the numbers of their lists, then the second ones."""
    for turn in itertools.zip_longest(*lists):
        yield from ((i, member) for i, member in enumerate(turn) if member is not None)


def load_on_devices(paths: Any, devices: list[Any], empty: Empty, *, reserve: Reserve,
                    slices: Slices, progress: bool | Progress,
                    threads: int) -> list[dict[str, torch.Tensor]]:
    """Returns the tensors by name for each device, whose memory empty() makes."""
    reads: list[Future[int]] = []
    begun = time.monotonic()
    with opened(paths) as entries:
        load = _Devices(entries, devices, empty, reserve, slices)
        try:
            with waited(reads):
                load.start(threads, reads)
                take(reads, load.total, begun, reporter(progress))
        finally:
            for device in {torch.device(device) for device in devices}:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
    return load.tensors
