# SPDX-License-Identifier: BSD-2-Clause
"""Writes tensors to consecutive places of a file by few long writes."""

import contextlib
import errno
import functools
import queue
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ._file import File

# Tensors of these devices are copied into pieces of the file, which takes far less time than to
# write them. Two pieces of each device exist at a time. Pieces are shorter if the device has no
# memory for them.
_STAGED = ("cuda",)
_PIECES = (256 << 20, 32 << 20, 2 << 20)
# Other tensors below this size are joined, because a copy takes less time than another write.
_SMALL = 256 << 10
_JOINED = 32 << 20  # bytes of joined tensors of the host, which exist once for each thread
_GAP = 4096  # bytes between two tensors that may be written as zeros

Placed = tuple[torch.Tensor, int]  # and its offset in the file


class _Part(NamedTuple):
    tensor: torch.Tensor
    begin: int  # of its bytes
    end: int
    at: int  # offset of the first one in the file


class _Run:
    """A run has tensors that follow each other in the file and are copied to one device."""

    def __init__(self, tensor: torch.Tensor, at: int) -> None:
        self.device, self.small = tensor.device, tensor.nbytes < _SMALL
        self.placed = [(tensor, at)]

    def staged(self) -> bool:
        return self.device.type in _STAGED

    def take(self, tensor: torch.Tensor, at: int) -> bool:
        """Adds a tensor, or returns False."""
        other, (before, place) = _Run(tensor, at), self.placed[-1]
        both = self.small and other.small and at + tensor.nbytes - self.placed[0][1] <= _JOINED
        if not (0 <= at - place - before.nbytes < _GAP
                and (self.device == other.device or self.small or other.small)
                and (self.staged() or other.staged() or both)):
            return False
        if not self.staged():
            self.device = other.device
        self.small = self.small and other.small
        self.placed += other.placed
        return True


def _runs_of(placed: Iterable[Placed]) -> list[_Run]:
    runs: list[_Run] = []
    for tensor, at in placed:
        if not runs or not runs[-1].take(tensor, at):
            runs.append(_Run(tensor, at))
    return runs


def _cut(placed: list[Placed], size: int) -> list[list[_Part]]:
    """Returns the parts of each piece. Pieces end at multiples of size in the file."""
    pieces: dict[int, list[_Part]] = {}
    for tensor, at in placed:
        for n in range(at // size, -(-(at + tensor.nbytes) // size)):
            first, end = max(at, n * size), min(at + tensor.nbytes, (n + 1) * size)
            pieces.setdefault(n, []).append(_Part(tensor, first - at, end - at, first))
    return list(pieces.values())


def _length(piece: list[_Part]) -> int:
    return piece[-1].at + piece[-1].end - piece[-1].begin - piece[0].at


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of the elements in their order, of a copy if the memory has another one."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.reshape(-1).view(torch.uint8)


def _write(file: File, memory: torch.Tensor, at: int, piece: list[_Part]) -> int:
    """Writes a piece from memory. Returns the bytes of its tensors, without those between them."""
    if memory.nbytes and file.write(memory, memory.nbytes, at) != memory.nbytes:
        raise OSError(errno.EIO, "not written as a whole", file.name)
    return sum(part.end - part.begin for part in piece)


class _Staging:
    """A piece is copied into one half of this memory while the other half is written."""

    def __init__(self, device: torch.device, pieces: list[list[_Part]]) -> None:
        longest = -(-max(map(_length, pieces)) // _GAP) * _GAP
        halves = torch.empty((min(len(pieces), 2), longest), dtype=torch.uint8, device=device)
        self._zeros = torch.zeros(_GAP, dtype=torch.uint8, device=device)
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for half in halves:
            self._free.put(half)
        self._stream: Any = None
        if device.type == "cuda":
            # Copies do not wait for later work of the caller's stream. Earlier work may still use
            # the memory.
            cuda: Any = torch.cuda
            self._stream = cuda.Stream(device)
            self._stream.wait_stream(cuda.current_stream(device))

    def _fill(self, memory: torch.Tensor, piece: list[_Part]) -> None:
        """Returns after the copies have ended."""
        cuda: Any = torch.cuda
        found, end = [], piece[0].at
        with cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            for part in piece:
                if part.at > end:
                    found.append(self._zeros[:part.at - end])
                found.append(_bytes_of(part.tensor)[part.begin:part.end].to(memory.device))
                end = part.at + part.end - part.begin
            torch.cat(found, out=memory)
        if self._stream:
            self._stream.synchronize()

    def write(self, file: File, piece: list[_Part]) -> int:
        """Waits for a free half. The library bounds the writes of the other ones."""
        half = self._free.get()
        try:
            memory = half[:_length(piece)]
            self._fill(memory, piece)
            return _write(file, memory, piece[0].at, piece)
        finally:
            self._free.put(half)


def _stage(device: torch.device, runs: list[_Run]) -> tuple[_Staging, list[list[_Part]]]:
    """Returns the pieces of runs and memory for them: of the host if the device has none."""
    def cut(size: int) -> list[list[_Part]]:
        return [piece for run in runs for piece in _cut(run.placed, size)]

    for size in _PIECES:
        with contextlib.suppress(torch.OutOfMemoryError):
            return _Staging(device, cut(size)), cut(size)
    return _Staging(torch.device("cpu"), cut(_PIECES[0])), cut(_PIECES[0])


def _write_joined(file: File, placed: list[Placed]) -> int:
    """Writes tensors of the host, which are one long one or a few small ones."""
    piece = [_Part(tensor, 0, tensor.nbytes, at) for tensor, at in placed]
    if len(piece) > 1:
        staging = _Staging(torch.device("cpu"), [piece])
        return staging.write(file, piece)
    return _write(file, _bytes_of(piece[0].tensor), piece[0].at, piece)


def writes_of(file: File, placed: Iterable[Placed]) -> list[Callable[[], int]]:
    """Returns functions that write tensors, which are complete and have bytes, at their offsets.

    Tensors are in the order of these. Each function returns the bytes of tensors that it wrote.
    """
    writes: list[Callable[[], int]] = []
    by_device: dict[torch.device, list[_Run]] = {}
    for run in _runs_of(placed):
        if run.staged():
            by_device.setdefault(run.device, []).append(run)
        else:
            writes.append(functools.partial(_write_joined, file, run.placed))
    for device, runs in by_device.items():
        staging, pieces = _stage(device, runs)
        writes += [functools.partial(staging.write, file, piece) for piece in pieces]
    return writes
