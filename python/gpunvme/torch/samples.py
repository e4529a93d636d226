# SPDX-License-Identifier: BSD-2-Clause
"""Reads samples of WebDataset's tars and of MDS shards by number."""

import functools
import os
from collections.abc import Iterable
from typing import Any

import torch

from .._file import File
from .._samples import Sample, index_mds, index_tar
from . import _synchronize

_ALIGN = 16  # of a field in memory, for views of other types


class SampleDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Reads samples of shards (NAME.tar of WebDataset, NAME.mds of MosaicML) as bytes in tensors.

        data = SampleDataset(["/mnt/0.tar", "/mnt/1.tar"], device="cuda")
        data[17]                        # {"__key__": "n01/17", "jpg": tensor, "cls": tensor}
        data.__getitems__([3, 1, 2])    # one call for each shard that has some

    The shards are indexed when it is made; tensors are of uint8. A dataset for
    torch.utils.data.DataLoader with collate_fn=list, also with workers, which need device="cpu" if
    they come by fork. fields: names of those that are read; None means all.
    """

    def __init__(self, shards: Any, device: Any = "cuda", *,
                 fields: Iterable[str] | None = None) -> None:
        paths = [shards] if isinstance(shards, str | os.PathLike) else list(shards)
        only = None if fields is None else frozenset(fields)
        self._open([os.fspath(path) for path in paths],
                   [[_only(sample, only) for sample in _index(path)] for path in paths], device)

    def _open(self, paths: list[str], found: list[list[Sample]], device: Any) -> None:
        self._paths, self._found, self.device = paths, found, torch.device(device)
        self._samples = [(shard, sample) for shard, samples in enumerate(found)
                         for sample in samples]
        self._files: list[File] = []
        try:
            for path in paths:
                self._files.append(File(path))
        except OSError:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._samples)

    def __reduce__(self) -> tuple[Any, ...]:
        paths = [os.path.abspath(path) for path in self._paths]
        return functools.partial(_again, device=self.device), (paths, self._found)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, index: list[int]) -> list[dict[str, Any]]:
        samples = [self._samples[i] for i in index]
        by_shard: dict[int, list[tuple[int, int, int]]] = {}
        found, at = [], 0
        for shard, sample in samples:
            places = {}
            for field, (offset, size) in sample.fields.items():
                by_shard.setdefault(shard, []).append((offset, size, at))
                places[field] = (at, size)
                at += -(-size // _ALIGN) * _ALIGN
            found.append((sample.key, places))
        memory = torch.empty(at, dtype=torch.uint8, device=self.device)
        _synchronize(self.device)
        for shard, pieces in by_shard.items():
            self._read(self._files[shard], pieces, memory)
        return [{"__key__": key, **{field: memory[begin:begin + size]
                                    for field, (begin, size) in places.items()}}
                for key, places in found]

    @staticmethod
    def _read(file: File, pieces: list[tuple[int, int, int]], memory: torch.Tensor) -> None:
        offsets, sizes, places = zip(*pieces)
        if file.readv(memory, offsets, sizes, places) != list(sizes):
            raise OSError(f"{file.name}: the file has become shorter")

    def close(self) -> None:
        """Closes the shards."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "SampleDataset":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _index(path: Any) -> list[Sample]:
    return index_mds(path) if str(path).endswith(".mds") else index_tar(path)


def _only(sample: Sample, fields: frozenset[str] | None) -> Sample:
    if fields is None:
        return sample
    return Sample(sample.key, {name: place for name, place in sample.fields.items()
                               if name in fields})


def _again(paths: list[str], found: list[list[Sample]], device: Any) -> SampleDataset:
    """Makes a dataset from a pickle, without indexing the shards again."""
    made = SampleDataset.__new__(SampleDataset)
    made._open(paths, found, device)
    return made
