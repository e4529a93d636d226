# SPDX-License-Identifier: BSD-2-Clause
"""Loads tensors of torch by a process group, or by one process for several devices."""

import contextlib
import ctypes
import functools
import itertools
import mmap
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import distributed

from ._file import File
from ._group import ALIGN, boot
from ._safetensors import (Entry, Progress, Slices, opened, pool, read_entry, read_range, reporter,
                           slice_of, take, waited)

Empty = Callable[[Entry, Any], torch.Tensor]
Reserve = Callable[[list[Entry], Any], None]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class _Board:
    """All ranks of one host map this page, in which each stores how many meetings it has reached.

    A rank has two numbers, which it stores in turn, because others may not have read the last one.
    """

    PATIENCE = 600.0  # seconds, the default of NCCL's groups
    NAP = 2e-5  # seconds; with none, threads that read would wait for the interpreter for 5 ms

    def __init__(self, path: str, rank: int, size: int) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, 2 * 8 * size)  # an error here, instead of SIGBUS later
            self._numbers = memoryview(mmap.mmap(file, 2 * 8 * size)).cast("q")
        finally:
            os.close(file)
        self._rank, self._turn = rank, 0

    def meet(self, failed: bool = False) -> bool:
        """Waits for all ranks. Returns true if any of them has failed."""
        self._turn += 1
        numbers = self._numbers[self._turn % 2::2]
        numbers[self._rank] = 2 * self._turn + failed
        begun = time.monotonic()
        while min(found := numbers.tolist()) < 2 * self._turn:
            waited_for = time.monotonic() - begun
            if waited_for > self.PATIENCE:
                late = found.index(min(found))
                raise RuntimeError(f"rank {late} did not come in {waited_for:.0f} s")
            time.sleep(self.NAP)
        return any(number & 1 for number in found)


class _Offer(NamedTuple):
    """The other ranks need this to copy from the buffers of a rank."""

    host: tuple[str, int, int]  # boot, device of BOARDS, user
    board: str  # path; that of rank 0 is used
    handle: tuple[bytes, int]  # of the allocation, and the place of the buffers in it


BOARDS = "/dev/shm"
SHARED = ("cuda",)  # kinds of memory


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


def _export(memory: torch.Tensor) -> tuple[bytes, int]:
    handle, base, size = _Handle(), ctypes.c_uint64(), ctypes.c_size_t()
    address = ctypes.c_uint64(memory.data_ptr())
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
    _call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    return bytes(handle), address.value - base.value


class _Mapped:
    """Maps the buffers of another process, and gives the address of each."""

    def __init__(self, handle: tuple[bytes, int], nbytes: int) -> None:
        self._base, self._nbytes = ctypes.c_uint64(), nbytes
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(self._base),
              _Handle.from_buffer_copy(handle[0]), ctypes.c_uint(_LAZY_PEER_ACCESS))
        self._first = self._base.value + handle[1]

    def __getitem__(self, i: int) -> int:
        return self._first + i * self._nbytes

    def close(self) -> None:
        _call("cuIpcCloseMemHandle", self._base)


class ProcessGroup:
    """The ranks of a process group of torch (Peers).

    Ranks of one host copy from each other's memory by the copy engines of their GPUs. A kernel takes
    turns with the kernels that read, which belong to another process, so both wait for milliseconds,
    the longer if it waits for another rank, as NCCL's do. Those gather where there is no other way.
    """

    def __init__(self, group: Any, device: Any) -> None:
        if not isinstance(group, distributed.ProcessGroup):
            raise TypeError(f"group: {group!r} is no process group of torch.distributed that has "
                            "this process")
        self._group, self._device, self.kind = group, device, torch.device(device).type
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._board: _Board | None = None
        self._seen: list[torch.Tensor | _Mapped] = []  # the buffers of each rank
        self._gathered: torch.Tensor | None = None  # a buffer of each rank, where they are not seen
        self._copies: torch.cuda.Event | None = None  # follows those of the last gather() but one

    def exchange(self, value: Any) -> list[Any]:
        found = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found

    def rows(self, n: int, nbytes: int) -> torch.Tensor:
        """The block behind the bytes reports an error to the ranks of all_gather."""
        found = torch.empty((n, nbytes + ALIGN), dtype=torch.uint8, device=self._device)
        if found.is_cuda:
            torch.cuda.synchronize(self._device)
        return found

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return _flat(tensor)

    def offer(self, buffers: torch.Tensor) -> _Offer | None:
        if self.kind not in SHARED or self.size < 2 or not buffers.numel() or not boot():
            return None
        try:
            host = (boot(), os.stat(BOARDS).st_dev, os.geteuid())
            handle = _export(buffers)
        except (OSError, RuntimeError):
            return None
        return _Offer(host, f"{BOARDS}/gpunvme-group-{uuid.uuid4().hex}", handle)

    def share(self, buffers: torch.Tensor, offers: list[_Offer | None]) -> bool:
        found = [offer for offer in offers if offer is not None]
        if len(found) == self.size and len({offer.host for offer in found}) == 1:
            self._map(buffers, found)
        if self._board is None:
            self._gathered = buffers.new_empty((self.size, buffers.shape[1]))
        return self._board is not None

    def _map(self, buffers: torch.Tensor, found: list[_Offer]) -> None:
        """Collective: maps the buffers of all ranks, if all ranks can."""
        try:
            board, failed = _Board(found[0].board, self.rank, self.size), False
            try:
                for rank, offer in enumerate(found):
                    self._seen.append(buffers if rank == self.rank else
                                      _Mapped(offer.handle, buffers.stride(0)))
            except (OSError, RuntimeError):  # the devices do not reach each other
                failed = True
            if not board.meet(failed):
                self._board = board
        finally:
            with contextlib.suppress(FileNotFoundError):  # another rank has removed it
                os.unlink(found[0].board)

    def gather(self, buffers: torch.Tensor, i: int, failed: bool) -> tuple[Any, bool]:
        if self._board is not None:
            self._await_last_but_one()
            return [seen[i] for seen in self._seen], self._board.meet(failed)
        assert self._gathered is not None
        buffers[i, -ALIGN] = int(failed)
        distributed.all_gather_into_tensor(_flat(self._gathered), buffers[i], group=self._group)
        return self._gathered, any(self._gathered[:, -ALIGN].tolist())

    def copy(self, to: torch.Tensor, row: torch.Tensor | int, place: int) -> None:
        if isinstance(row, torch.Tensor):
            to.copy_(row[place:place + to.numel()])
        elif to.numel():
            stream: Any = torch.cuda.current_stream(self._device)
            _call("cuMemcpyAsync", ctypes.c_uint64(to.data_ptr()), ctypes.c_uint64(row + place),
                  ctypes.c_size_t(to.numel()), ctypes.c_void_p(stream.cuda_stream))

    def _await_last_but_one(self) -> None:
        if self.kind == "cuda":
            before, self._copies = self._copies, torch.cuda.current_stream(self._device).record_event()
            if before is not None:
                before.synchronize()

    def end_copies(self) -> None:
        """Called before finish(), because a rank may free its buffers afterwards.

        CUDA does not define what becomes of a mapping whose memory its owner has freed.
        """
        if self.kind == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.close()

    def finish(self, failed: bool = False) -> bool:
        """Without a board no rank waits: a gather has copied what it shows, and reports errors."""
        return self._board is None or self._board.meet(failed)

    def close(self) -> None:
        """Unmaps the others' buffers. gather() is not called afterwards."""
        while self._seen:
            seen = self._seen.pop()
            if not isinstance(seen, torch.Tensor):
                seen.close()


# --- Devices of one process ------------------------------------------------------------------------

_SHORTEST, _LONGEST = 1 << 20, 64 << 20  # bytes of a part
_PARTS = 8  # of each device, at least


class _Part(NamedTuple):
    """Bytes of a tensor that one device reads and the others copy."""

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
    """Tensors by name for each device, and the reads that fill them."""

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

    def start(self, threads: int) -> Iterator[Future[int]]:
        """Starts the reads of all devices in turn, so that all are busy."""
        for _, piece in _in_turn(self._slices):
            yield pool(threads).submit(read_entry, *piece)
        for i, part in _in_turn(self._shares):
            found = [tensors[part.entry.name] for tensors in self.tensors]
            yield pool(threads).submit(_read_and_copy, part, found.pop(i), found)


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
                reads.extend(load.start(threads))
                take(reads, load.total, begun, reporter(progress))
        finally:
            for device in {torch.device(device) for device in devices}:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
    return load.tensors
