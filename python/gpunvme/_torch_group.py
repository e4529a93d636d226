# SPDX-License-Identifier: BSD-2-Clause
"""Loads tensors of torch by a process group, or by one process for several devices."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import distributed

from ._file import File
from ._group import ALIGN
from ._safetensors import (Entry, Progress, Slices, opened, pool, read_entry, read_range, reporter,
                           slice_of, take, waited)

Empty = Callable[[Entry, Any], torch.Tensor]
Reserve = Callable[[list[Entry], Any], None]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class ProcessGroup:
    """The ranks of a process group of torch (Peers)."""

    def __init__(self, group: Any, device: Any) -> None:
        if not isinstance(group, distributed.ProcessGroup):
            raise TypeError(f"group: {group!r} is no process group of torch.distributed that has "
                            "this process")
        self._group, self._device, self.kind = group, device, torch.device(device).type
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def exchange(self, value: Any) -> list[Any]:
        found = [None] * self.size
        distributed.all_gather_object(found, value, group=self._group)
        return found

    def memory(self, nbytes: int) -> torch.Tensor:
        found = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        if found.is_cuda:
            torch.cuda.synchronize(self._device)
        return found

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return _flat(tensor)

    def gather(self, memory: torch.Tensor) -> None:
        part = memory.view(self.size, -1)[self.rank]
        distributed.all_gather_into_tensor(memory, part, group=self._group)


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
