# SPDX-License-Identifier: BSD-2-Clause
"""Saves and loads checkpoints of torch.distributed.checkpoint, from and to GPU memory.

    import torch.distributed.checkpoint as dcp
    from gpunvme.torch.dcp import Reader, Writer

    dcp.save(state, storage_writer=Writer("/mnt/step-1000"))
    saving = dcp.async_save(state, storage_writer=Writer("/mnt/step-2000"))
    dcp.load(state, storage_reader=Reader("/mnt/step-1000"))

The files have the bytes of tensors as they are in memory, at multiples of 4096, where torch's writer
has an archive for each. Reader also reads torch's checkpoints; torch's reader refuses these.
"""

import contextlib
import dataclasses
import errno
import gc
import io
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import (FileSystemReader, FileSystemWriter,
                                                     _StorageInfo)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (LoadPlan, LoadPlanner, ReadItem, SavePlan,
                                                  SavePlanner, WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult
from torch.utils._pytree import tree_map

from .._file import File
from .._safetensors import Reads, in_batches, reads_of, start_read, waited
from .._torch_write import writes_of
from . import ALIGN, _event, _synchronize

__all__ = ["Reader", "Writer"]

_RAW = "gpunvme.raw"  # the transformation that names these bytes in the metadata
_AT_A_TIME = 32  # a planner returns as many tensors before the first of them is written


def _done(value: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future


def _bytes_of(item: WriteItem) -> int:
    data = item.tensor_data
    if data is None:
        raise ValueError(f"{item.index.fqn}: neither bytes nor a tensor")
    return data.chunk.sizes.numel() * data.properties.dtype.itemsize


class Writer(FileSystemWriter):
    """Writes one file for each rank, from the memory of GPUs or the host.

    async_save() copies the tensors within the memory of their device, in the order of its current
    stream, and does not wait for the copies. They are written from there by a thread.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync_files: bool = True,
                 overwrite: bool = True, threads: int = 8) -> None:
        super().__init__(path, sync_files=sync_files, overwrite=overwrite)
        self._threads = threads
        self._copied: list[Any] | None = None  # events behind the copies of stage()

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        devices = set()

        def copy(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.device.type == "cuda":
                devices.add(value.device)
            return value.detach().clone()

        copied: dict[str, Any] = tree_map(copy, state_dict)
        self._copied = [_event(device) for device in devices]
        return copied

    def _place(self, plan: SavePlan) -> Iterator[tuple[WriteItem, int, int]]:
        """Yields tensors with their offsets and lengths."""
        at = 0
        for item in plan.items:
            if item.type != WriteItemType.BYTE_IO:
                size = _bytes_of(item)
                yield item, at, size
                at += -(-size // ALIGN) * ALIGN

    def _resolve(self, placed: list[tuple[WriteItem, int, int]], planner: SavePlanner,
                 copied: list[Any] | None) -> Iterator[tuple[torch.Tensor, int]]:
        """Yields tensors after the copies of stage(), or after all work on their devices."""
        for event in copied or ():
            event.synchronize()
        for first in range(0, len(placed), _AT_A_TIME):
            found = [(_checked(planner.resolve_data(item), item, size), at)
                     for item, at, size in placed[first:first + _AT_A_TIME]]
            for device in {tensor.device for tensor, _ in found} if copied is None else ():
                _synchronize(device)
            yield from (one for one in found if one[0].nbytes)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        name = f"{plan.storage_data.prefix}0.distcp"
        placed, copied = list(self._place(plan)), self._copied
        end = placed[-1][1] + placed[-1][2] if placed else 0
        self._copied = None
        with File(os.path.join(self.path, name), "w+") as file:
            os.ftruncate(file.fileno(), 0)
            if end:
                os.posix_fallocate(file.fileno(), 0, end)  # so that the parts lie together
            with ThreadPoolExecutor(self._threads, "gpunvme-save") as pool:
                tensors = self._resolve(placed, planner, copied)
                writes = [pool.submit(write) for write in writes_of(file, tensors, end)]
                results = [_result(item, name, at, size, [_RAW]) for item, at, size in placed]
                results += _write_bytes(file, name, end, plan, planner)
            for write in writes:
                write.result()
            if self.sync_files:
                os.fsync(file.fileno())
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        if self.sync_files:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _checked(tensor: Any, item: WriteItem, size: int) -> torch.Tensor:
    if tensor.nbytes != size:
        raise ValueError(f"{item.index.fqn}: {tensor.nbytes} bytes, but the plan has {size}")
    found: torch.Tensor = tensor.detach()
    return found


def _write_bytes(file: File, name: str, at: int, plan: SavePlan,
                 planner: SavePlanner) -> list[WriteResult]:
    """Writes all items except tensors, in torch's format, after the tensors."""
    results, content = [], bytearray()
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            data = planner.resolve_data(item)
            if not isinstance(data, io.BytesIO):
                raise ValueError(f"{item.index.fqn}: not the bytes that the plan has")
            results.append(_result(item, name, at + len(content), data.getbuffer().nbytes, None))
            content += data.getbuffer()
    if content and file.write(content, len(content), at) != len(content):
        raise OSError(errno.EIO, "not written as a whole", file.name)
    return results


def _result(item: WriteItem, name: str, at: int, size: int,
            transforms: list[str] | None) -> WriteResult:
    return WriteResult(index=item.index, size_in_bytes=size,
                       storage_data=_StorageInfo(name, at, size, transforms))


class Reader(FileSystemReader):
    """Reads checkpoints of Writer directly into the tensors, and those of torch like torch."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 8) -> None:
        super().__init__(path)
        self._threads = threads
        self._described: dict[str, Any] = {}

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._described = metadata.state_dict_metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Defers the garbage collector, which would scan all objects because of the new ones."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            return super().read_metadata(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        wanted: list[tuple[ReadItem, _StorageInfo]] = []
        rest = []
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if _RAW in (info.transform_descriptors or ()):
                wanted.append((item, info))
            else:
                rest.append(item)
        if rest:
            super().read_data(dataclasses.replace(plan, items=rest), planner)
        targets = [planner.resolve_tensor(item).detach() for item, _ in wanted]
        for device in {target.device for target in targets}:
            _synchronize(device)
        names = {info.relative_path for _, info in wanted}
        with contextlib.ExitStack() as opened:
            files = {name: opened.enter_context(File(os.path.join(self.path, name)))
                     for name in sorted(names)}
            self._read([(files[info.relative_path], item, info, target)
                        for (item, info), target in zip(wanted, targets)])
        for (item, _), target in zip(wanted, targets):
            planner.commit_tensor(item, target)
        return _done(None)

    def _read(self, wanted: list[tuple[File, ReadItem, _StorageInfo, torch.Tensor]]) -> None:
        """Reads rows straight into the targets, and other parts by way of whole tensors."""
        reads: list[Future[None]] = []

        def direct() -> Iterator[tuple[File, int, tuple[int, torch.Tensor]]]:
            for file, item, info, target in wanted:
                sizes, dtype = self._saved(item)
                _check_sizes(file, item, info.length, sizes, dtype, target)
                if (target.dtype == dtype and target.is_contiguous()
                        and item.lengths[1:] == sizes[1:]):
                    first = item.storage_offsets[0] if item.storage_offsets else 0
                    at = info.offset + (first * (info.length // sizes[0]) if first else 0)
                    yield file, target.nbytes, (at, target)
                else:
                    whole = sizes, dtype, info.offset
                    start_read(reads, self._threads, _read_part, file, item, whole, target)

        with waited(reads):
            for file, batch in in_batches(direct()):
                start_read(reads, self._threads, _fill, file, reads_of(file, batch))
            for read in reads:
                read.result()

    def _saved(self, item: ReadItem) -> tuple[torch.Size, torch.dtype]:
        """Returns size and type of a saved part of a tensor."""
        index, described = item.storage_index, self._described[item.storage_index.fqn]
        if not isinstance(described, TensorStorageMetadata):
            raise ValueError(f"{index.fqn}: no tensor in the metadata")
        for chunk in described.chunks:
            if index.offset is None or chunk.offsets == index.offset:
                return chunk.sizes, described.properties.dtype
        raise ValueError(f"{index.fqn}: no part at {index.offset} in the metadata")


def _check_sizes(file: File, item: ReadItem, nbytes: int, sizes: torch.Size, dtype: torch.dtype,
                 target: torch.Tensor) -> None:
    if nbytes != sizes.numel() * dtype.itemsize:
        raise ValueError(f"{file.name}: {item.storage_index.fqn}: {nbytes} bytes for "
                         f"{list(sizes)} of {dtype}")
    if target.size() != item.lengths:
        raise ValueError(f"{item.storage_index.fqn}: {list(item.lengths)} into a tensor of "
                         f"{list(target.size())}")


def _read_part(file: File, item: ReadItem, saved: tuple[torch.Size, torch.dtype, int],
               target: torch.Tensor) -> None:
    """Reads a whole tensor of this size and type at this offset, and copies a part of it."""
    sizes, dtype, at = saved
    whole = torch.empty(sizes, dtype=dtype, device=target.device)
    _synchronize(target.device)
    _fill(file, reads_of(file, [(at, whole)]))
    for dim, (first, n) in enumerate(zip(item.storage_offsets, item.lengths)):
        whole = whole.narrow(dim, first, n)
    target.copy_(whole)
    _synchronize(target.device)


def _fill(file: File, reads: Reads) -> None:
    if not all(read() for read in reads):
        raise OSError(errno.EIO, "the file is shorter than its metadata says", file.name)
