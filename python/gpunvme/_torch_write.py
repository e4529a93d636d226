# SPDX-License-Identifier: BSD-2-Clause
"""Writes tensors to consecutive places of a file by few long writes."""

import contextlib
import errno
import functools
import queue
from collections.abc import Callable, Iterable, Iterator
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
        self.parts = [_Part(tensor, 0, tensor.nbytes, at)]

    def staged(self) -> bool:
        return self.device.type in _STAGED

    def take(self, tensor: torch.Tensor, at: int) -> bool:
        """Adds a tensor, or returns False."""
        other, last = _Run(tensor, at), self.parts[-1]
        both = self.small and other.small and at + tensor.nbytes - self.parts[0].at <= _JOINED
        if not (0 <= at - last.at - (last.end - last.begin) < _GAP
                and (self.device == other.device or self.small or other.small)
                and (self.staged() or other.staged() or both)):
            return False
        if not self.staged():
            self.device = other.device
        self.small = self.small and other.small
        self.parts += other.parts
        return True

    def cut(self, size: int) -> list[list[_Part]]:
        """Removes and returns the parts of all pieces but the last.

        Pieces end at multiples of size in the file.
        """
        if _length(self.parts) <= size - self.parts[0].at % size:
            return []
        pieces: dict[int, list[_Part]] = {}
        for tensor, begin, end, at in self.parts:
            for n in range(at // size, -(-(at + end - begin) // size)):
                first, behind = max(at, n * size), min(at + end - begin, (n + 1) * size)
                pieces.setdefault(n, []).append(
                    _Part(tensor, begin + first - at, begin + behind - at, first))
        *ready, self.parts = pieces.values()
        return ready


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

    def __init__(self, device: torch.device, size: int, end: int) -> None:
        self.size = size  # pieces end at multiples of it in the file, so none is longer
        shape = (1 if end <= size else 2, min(-(-end // _GAP) * _GAP, size))
        halves = torch.empty(shape, dtype=torch.uint8, device=device)
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
        """Returns after the copies have ended. Small parts and zeros are joined by one of them."""
        cuda: Any = torch.cuda
        joined: list[torch.Tensor] = []
        begin = end = piece[0].at

        def join() -> None:
            if joined:
                length = sum(data.nbytes for data in joined)
                torch.cat(joined, out=memory[end - begin - length:end - begin])
                joined.clear()

        with cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
            for part in piece:
                if part.at > end:
                    joined.append(self._zeros[:part.at - end])
                data = _bytes_of(part.tensor)[part.begin:part.end].to(memory.device)
                end = part.at
                if data.nbytes >= _SMALL:
                    join()
                    memory[end - begin:end - begin + data.nbytes].copy_(data)
                else:
                    joined.append(data)
                end += data.nbytes
            join()
        if self._stream:
            self._stream.synchronize()

    def fill(self, file: File, piece: list[_Part]) -> Callable[[], int]:
        """Waits for a free half, fills it, and returns a function that writes and frees it.

        The library bounds the writes of the other half.
        """
        half = self._free.get()
        memory = half[:_length(piece)]
        self._fill(memory, piece)

        def write() -> int:
            try:
                return _write(file, memory, piece[0].at, piece)
            finally:
                self._free.put(half)
        return write


def _stage(device: torch.device, end: int) -> _Staging:
    """Returns memory for the pieces of a file: of the host if the device has none."""
    for size in _PIECES:
        with contextlib.suppress(torch.OutOfMemoryError):
            return _Staging(device, size, end)
    return _Staging(torch.device("cpu"), _PIECES[0], end)


def _write_joined(file: File, piece: list[_Part]) -> int:
    """Writes tensors of the host, which are one long one or a few small ones."""
    if len(piece) > 1:
        return _Staging(torch.device("cpu"), _JOINED, _length(piece)).fill(file, piece)()
    return _write(file, _bytes_of(piece[0].tensor), piece[0].at, piece)


def writes_of(file: File, placed: Iterable[Placed], end: int) -> Iterator[Callable[[], int]]:
    """Yields functions that write tensors, which have bytes, at their offsets, the last before end.

    Tensors are in the order of these, and no more of them are taken than the next function needs.
    Each function returns the bytes of tensors that it wrote. Other threads call functions while the
    next ones are made, which may wait for the end of an earlier call.
    """
    stagings: dict[torch.device, _Staging] = {}

    def pieces_of(run: _Run, is_whole: bool) -> Iterator[Callable[[], int]]:
        if not run.staged():
            if is_whole:
                yield functools.partial(_write_joined, file, run.parts)
            return
        staging = stagings.get(run.device) or _stage(run.device, end)
        stagings[run.device] = staging
        for piece in run.cut(staging.size) + ([run.parts] if is_whole else []):
            yield staging.fill(file, piece)

    run: _Run | None = None
    for tensor, at in placed:
        if run and run.take(tensor, at):
            yield from pieces_of(run, False)
            continue
        if run:
            yield from pieces_of(run, True)
        run = _Run(tensor, at)
    if run:
        yield from pieces_of(run, True)
