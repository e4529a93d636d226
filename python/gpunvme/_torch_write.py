# SPDX-License-Identifier: BSD-2-Clause
"""Writes tensors to consecutive places of a file by few long writes."""

import errno
from collections.abc import Iterable
from typing import Any

import torch

from ._file import File

# Tensors below these sizes are joined, because a copy takes less time than another write.
_SMALL = {"cuda": 16 << 20, "cpu": 256 << 10}
_PIECE = 32 << 20  # bytes of joined tensors, which exist once for each thread
_GAP = 4096  # bytes between two tensors that may be written as zeros

Placed = tuple[torch.Tensor, int]  # and its offset in the file


def _is_joined(run: list[Placed], tensor: torch.Tensor, at: int) -> bool:
    before, place = run[-1]
    small = _SMALL.get(tensor.device.type, 0)
    return (tensor.device == before.device and max(tensor.nbytes, before.nbytes) < small
            and tensor.is_contiguous() and before.is_contiguous()
            and 0 <= at - place - before.nbytes < _GAP
            and at + tensor.nbytes - run[0][1] <= _PIECE)


def runs_of(placed: Iterable[Placed]) -> list[list[Placed]]:
    """Groups tensors, in the order of their offsets. Each run is for one call of write_run()."""
    runs: list[list[Placed]] = []
    for tensor, at in placed:
        if runs and _is_joined(runs[-1], tensor, at):
            runs[-1].append((tensor, at))
        else:
            runs.append([(tensor, at)])
    return runs


def _join(run: list[Placed]) -> torch.Tensor:
    """Returns the bytes of the tensors, with zeros between them, after the copies have ended."""
    parts, end, device = [], run[0][1], run[0][0].device
    for tensor, at in run:
        if at > end:
            parts.append(torch.zeros(at - end, dtype=torch.uint8, device=device))
        parts.append(tensor.reshape(-1).view(torch.uint8))
        end = at + tensor.nbytes
    joined = torch.cat(parts)
    if device.type == "cuda":
        cuda: Any = torch.cuda
        cuda.current_stream(device).synchronize()
    return joined


def write_run(file: File, run: list[Placed]) -> int:
    """Writes tensors whose contents are complete, and returns their bytes without the gaps."""
    nbytes = sum(tensor.nbytes for tensor, _ in run)
    tensor, at = run[0]
    if len(run) > 1:
        try:
            tensor = _join(run)
        except torch.OutOfMemoryError:
            return sum(write_run(file, [one]) for one in run)
    if tensor.nbytes and file.write(tensor, tensor.nbytes, at) != tensor.nbytes:
        raise OSError(errno.EIO, "not written as a whole", file.name)
    return nbytes
