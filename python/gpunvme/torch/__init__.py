# SPDX-License-Identifier: BSD-2-Clause
"""Acts like safetensors.torch and safetensors.safe_open, but reads by gpunvme.

    from gpunvme.torch import load_file, safe_open
    weights = load_file("/mnt/weights/model.safetensors", device="cuda:0")

LayerStream has the weights of models that are larger than the GPU, IndexedDataset records by number,
Table rows of tensors by numbers in GPU memory.
"""

import collections
import contextlib
import errno
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from .._file import File
from .._group import load_group
from .._install import install
from .._native import process, refuse_after_fork
from .._records import Catalogue
from .._safetensors import (Entry, Progress, SafeOpen, SafetensorError, Slices, load, read_header,
                            save, stream)
from .._torch_group import ProcessGroup
from .._torch_group import load_on_devices as load_each
from .._torch_table import Prefetched, Table
from .._torch_types import TORCH_NAMES, torch_dtype, torch_shape
from .._torch_write import writes_of

__all__ = ["IndexedDataset", "LayerStream", "Prefetched", "SafetensorError", "Table", "install",
           "iter_tensors", "load_file", "load_on_devices", "safe_open", "save_file"]

_DTYPES = {torchs: name for name, torchs in TORCH_NAMES.items()}


def _event(device: Any) -> Any:
    """Returns an event behind the work so far of the current stream."""
    cuda: Any = torch.cuda  # whose classes have no types
    event = cuda.Event()
    event.record(cuda.current_stream(device))
    return event


def _empty(entry: Entry, device: Any) -> torch.Tensor:
    try:
        return torch.empty(torch_shape(entry), dtype=torch_dtype(entry), device=device)
    except (RuntimeError, TypeError) as error:
        if entry.nbytes:
            raise
        raise SafetensorError(f"{entry.name}: {error}") from None


def _empty_now(entry: Entry, device: Any) -> torch.Tensor:
    tensor = _empty(entry, device)
    _synchronize(device)
    return tensor


def _synchronize(device: Any) -> None:
    """Memory that torch hands out may still be in use by work of its streams."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


_SEGMENT = 2 << 20  # the grain of the allocator's memory, for tensors of more than a MiB
_APART = ("max_split_size_mb", "expandable_segments", "backend")  # segments are not shared


def _shares_segments() -> bool:
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + \
        os.environ.get("PYTORCH_ALLOC_CONF", "")
    return not any(name in settings for name in _APART)


def _reserve(entries: list[Entry], device: Any) -> None:
    """Waits for the device, and has torch's allocator take one segment for the tensors.

    An allocation of CUDA is registered at the mount as a whole, and while one is registered no
    transfer runs: one for each tensor would take as long as reading. The segment goes back to CUDA
    by torch.cuda.empty_cache() when no tensor is left in it.
    """
    _synchronize(device)
    if torch.device(device).type != "cuda" or not _shares_segments():
        return
    need = sum(-(-e.nbytes // 512) * 512 for e in entries if e.nbytes > 1 << 20)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    need = -(-need // _SEGMENT) * _SEGMENT
    if unused < need <= torch.cuda.mem_get_info(device)[0]:
        torch.empty(need, dtype=torch.uint8, device=device)


def load_file(filename: Any, device: Any = "cpu", *, rank: int = 0, ranks: int = 1,
              group: "torch.distributed.ProcessGroup | None" = None, slices: Slices | None = None,
              progress: bool | Progress = False, threads: int = 8) -> dict[str, torch.Tensor]:
    """Returns the tensors by name: of a file, a folder, an index of shards, or a list of these.

    Each tensor owns its memory, and bytes are read straight into it: memory beyond it is the
    bounce pipeline's, where a tensor does not take the GPU path. On a GPU the tensors come from
    one segment of torch's allocator where its cache has no room for them. progress: True for a line
    with GB/s, or a function of bytes done, bytes in all, and seconds.

    rank, ranks: only this rank's tensors, of about the same size for all. With slices it has all
    tensors, but only its slice of some: a dimension for each pattern of names, of which the first
    that matches counts ({"*.q_proj.weight": 0, "*.o_proj.weight": 1}). A tensor is cut as by
    torch.chunk(), and later ranks may have less of it, or nothing.

    group: all ranks of a process group of torch.distributed call this. Each reads its share of the
    bytes and gets the rest from the others (or its slices, which it reads alone), so every byte
    is read once. If a rank fails, all of them raise an error: its own, or RuntimeError with it.
    If a rank dies, RuntimeError names it within a second where GPUs of one host copy from each
    other; elsewhere the group raises an error, at the latest after its time-out.
    """
    if group is not None and (rank, ranks) != (0, 1):
        raise ValueError("rank and ranks are those of the group")
    peers = None if group is None else ProcessGroup(group, device)
    empty: Callable[[Entry], torch.Tensor] = functools.partial(_empty, device=device)
    reserve = functools.partial(_reserve, device=device)
    if peers is None or peers.size == 1:
        return load(filename, empty, rank=rank, ranks=ranks, slices=slices, progress=progress,
                    threads=threads, reserve=reserve)
    with _current(device), contextlib.closing(peers):
        return load_group(filename, peers, empty, slices=slices or {}, progress=progress,
                          threads=threads, reserve=reserve)


def _current(device: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes this the current device, whose memory NCCL uses to exchange objects."""
    kind: Any = torch.cuda.device  # which has no types
    if torch.device(device).type == "cuda":
        return kind(device)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def load_on_devices(filename: Any, devices: Sequence[Any], *, slices: Slices | None = None,
                    progress: bool | Progress = False,
                    threads: int = 8) -> list[dict[str, torch.Tensor]]:
    """Loads the tensors of files by name for each of the devices, by one process.

    Each device reads its share of the bytes, and the others copy them from its memory. slices: as
    for load_file(); each device has its slice of these tensors. Other arguments as there.
    """
    if not devices:
        raise ValueError("load_on_devices: no device is named")
    return load_each(filename, list(devices), _empty, reserve=_reserve, slices=slices or {},
                     progress=progress, threads=threads)


def iter_tensors(filename: Any, device: Any = "cpu", *, keep: Callable[[str], bool] | None = None,
                 ahead: int = 8) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors of files as load_file() takes them, in the order of their bytes.

    Up to `ahead` tensors are read while the caller uses one. keep: a function of the name, False for
    tensors that are not read.
    """
    return stream(filename, lambda entry: _empty_now(entry, device), keep, ahead)


def _check_apart(tensors: dict[str, torch.Tensor]) -> None:
    """Raises ValueError for tensors that share memory: in a file they would not."""
    ranges = sorted((str(tensor.device), tensor.data_ptr(), tensor.nbytes, name)
                    for name, tensor in tensors.items() if tensor.nbytes)
    for one, other in itertools.pairwise(ranges):
        if one[0] == other[0] and one[1] + one[2] > other[1]:
            raise ValueError(f"{one[3]} and {other[3]} share memory: save one of them, or a copy")


def _entry_of(name: str, tensor: torch.Tensor) -> Entry:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(f"{name}: save a contiguous, dense tensor: call contiguous() or to_dense()")
    dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise SafetensorError(f"{name}: safetensors has no {tensor.dtype}")
    shape = tuple(tensor.shape)
    return Entry(name, dtype, (*shape[:-1], 2 * shape[-1]) if dtype == "F4" else shape, 0,
                 tensor.nbytes)


def _writes(file: File, placed: list[tuple[Any, int]]) -> Iterator[Callable[[], int]]:
    (header, at), *tensors = placed
    first = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    return writes_of(file, [(first, at), *tensors], file.size())


def save_file(tensors: dict[str, torch.Tensor], filename: Any,
              metadata: dict[str, str] | None = None) -> None:
    """Acts like safetensors.torch.save_file(), from the memory of the GPU or the host.

    The file is written under another name, synced, and renamed: after a crash there is the old file
    or the new one. Work of all streams on the tensors' devices is waited for first.
    """
    entries = [_entry_of(name, tensor) for name, tensor in tensors.items()]
    _check_apart(tensors)
    for device in {tensor.device for tensor in tensors.values()}:
        _synchronize(device)
    save(filename, tensors, entries, metadata, jobs=_writes)


class safe_open(SafeOpen):  # pylint: disable=invalid-name
    """Acts like safetensors.safe_open(filename, framework="pt", device=...)."""

    def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", *,
                 backend: str = "mmap") -> None:
        super().__init__(filename, ("pt", "torch", "pytorch"), framework, device, backend,
                         functools.partial(_empty_now, device=device))


# --- Layers ----------------------------------------------------------------------------------------

ALIGN = 4096
_AHEAD = 64  # layers that are placed at a time

def _first_number(name: str) -> int | None:
    """Returns the layer of a tensor's name: model.layers.12.mlp.weight is of layer 12."""
    found = re.search(r"(?:^|[._])(\d+)(?:[._]|$)", name)
    return int(found.group(1)) if found else None


class _Layer:
    """What one step reads, and where its tensors are behind the step's begin."""

    def __init__(self, entries: list[tuple[File, Entry]]) -> None:
        self.ranges: list[tuple[File, int, int]] = []
        self.places: list[tuple[Entry, int]] = []
        self.nbytes = 0
        for file, entry in sorted(entries, key=lambda e: (str(e[0].name), e[1].begin)):
            if entry.nbytes:
                self._add(file, entry)
            else:
                self.places.append((entry, 0))

    def _add(self, file: File, entry: Entry) -> None:
        """Ranges begin at multiples of ALIGN in the file, too; neighbours are read together."""
        end = entry.begin + entry.nbytes
        last = self.ranges[-1] if self.ranges else None
        if last and last[0] is file and entry.begin <= last[1] + last[2] + ALIGN:
            self.nbytes -= -(-last[2] // ALIGN) * ALIGN
            self.ranges[-1] = (file, last[1], max(last[2], end - last[1]))
        else:
            first = entry.begin // ALIGN * ALIGN
            self.ranges.append((file, first, end - first))
        begin, size = self.ranges[-1][1:]
        self.places.append((entry, self.nbytes + entry.begin - begin))
        self.nbytes += -(-size // ALIGN) * ALIGN

    def tensors(self, ring: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
        """Views of the ring; a copy where the file's alignment does not suit the type."""
        found = {}
        for entry, at in self.places:
            part, dtype = ring[start + at:start + at + entry.nbytes], torch_dtype(entry)
            if (start + at) % dtype.itemsize:
                part = part.clone()
            found[entry.name] = part.view(dtype).view(torch_shape(entry))
        return found


class _Placed:
    """A layer that has a place in the ring, with the reads that fill it."""

    def __init__(self, layer: _Layer, start: int) -> None:
        self.layer, self.start = layer, start
        self.reads: list[Future[None]] = []

    def overlaps(self, start: int, nbytes: int) -> bool:
        return start < self.start + self.layer.nbytes and self.start < start + nbytes


class _Ring:
    """Threads read layers ahead, in the order of their turns, into a ring of memory.

    Work of streams may still use a layer that was given back. A read into its memory waits for all
    events that were recorded before and that the streams have not passed.
    """

    def __init__(self, layers: Iterator[_Layer], memory: torch.Tensor, readers: int) -> None:
        self._layers, self._memory = layers, memory
        self._next = next(layers, None)
        self._placed: collections.deque[_Placed] = collections.deque()
        self._events: list[Any] = []
        self._pool = ThreadPoolExecutor(readers, "gpunvme-layers")
        self._place_all()

    def _room(self, nbytes: int) -> int | None:
        newest = self._placed[-1] if self._placed else None
        for start in (newest.start + newest.layer.nbytes if newest else 0, 0):
            if start + nbytes <= self._memory.numel() and \
                    not any(placed.overlaps(start, nbytes) for placed in self._placed):
                return start
        return None

    def _place_all(self) -> None:
        """Starts to read the layers that have room, at most _AHEAD."""
        while self._next and len(self._placed) < _AHEAD:
            start = self._room(self._next.nbytes)
            if start is None:
                return
            placed, at = _Placed(self._next, start), start
            self._events = [event for event in self._events if not event.query()]
            for part in placed.layer.ranges:
                placed.reads.append(self._pool.submit(self._read, part, at, self._events))
                at += -(-part[2] // ALIGN) * ALIGN
            self._placed.append(placed)
            self._next = next(self._layers, None)

    def _read(self, part: tuple[File, int, int], at: int, events: list[Any]) -> None:
        file, offset, size = part
        for event in events:
            event.synchronize()
        missing = size - file.read(self._memory, size, offset, at)
        if missing:
            raise OSError(errno.EIO, f"the file ends {missing} bytes early", file.name)

    def give_back(self, event: Any) -> None:
        """Frees the place of the oldest layer once the event has passed. None means at once."""
        self._placed.popleft()
        if event is not None:
            self._events = [*self._events, event]
        self._place_all()

    def take(self) -> dict[str, torch.Tensor] | None:
        """Waits for the oldest layer and returns its tensors. Returns None after the last one."""
        if not self._placed:
            return None
        placed = self._placed[0]
        wait(placed.reads)
        for read in placed.reads:
            read.result()
        return placed.layer.tensors(self._memory, placed.start)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class LayerStream:
    """Yields tensors of safetensors files by layers, read ahead through a ring of GPU memory.

        with LayerStream("/mnt/model.safetensors", device="cuda") as layers:
            for weights in layers:            # {name: tensor}, good until the next turn
                x = block(x, weights)

    filename: one, or a list. layer_of: the layer (an int) of a tensor's name, None: not streamed; by
    default the first number in the name. ring: bytes of memory; by default of `depth` times the
    largest layer. loop: after the last layer comes the first one again, as for the next token.
    direct: the files are direct ones, read by kernels of this process: they share the GPU with
    computing, where kernels of the mount's daemon take turns with it. By default where the mounts
    lend queues for all files; the attribute of this name tells.

    Work that uses a layer belongs to the stream that is current when the loop comes to the next
    one; layers are not read over before it has ended.
    """

    def __init__(self, filename: Any, device: Any = "cuda", *,
                 layer_of: Callable[[str], int | None] = _first_number, ring: int | None = None,
                 depth: int = 3, loop: bool = False, readers: int = 2,
                 direct: bool | None = None) -> None:
        names = [filename] if isinstance(filename, str | os.PathLike) else list(filename)
        self._files: list[File] = []
        self._ring: _Ring | None = None
        self._generation, self._given = process.generation, False
        self._turn = threading.RLock()  # protects the ring; a child of fork() does not take it
        by_default = direct is None and torch.device(device).type == "cuda"
        try:
            self._prepare(names, by_default or bool(direct), layer_of, ring, depth, device)
        except OSError:  # the mount lends no queues, or does not reach the ring
            if not by_default:
                raise
            self._prepare(names, False, layer_of, ring, depth, device)
        turns = itertools.cycle(self._layers) if loop else iter(self._layers)
        self._ring = _Ring(turns, self.ring, readers)

    def _prepare(self, names: list[Any], direct: bool, layer_of: Callable[[str], int | None],
                 ring: int | None, depth: int, device: Any) -> None:
        """Opens the files and makes the ring, and checks that they can be read into it."""
        self.direct = direct
        try:
            self._files.extend(File(name, direct=direct) for name in names)
            self.layers, self._layers = self._plan(layer_of)
            largest = max(layer.nbytes for layer in self._layers)
            self.ring = torch.empty(ring or depth * largest, dtype=torch.uint8, device=device)
            if largest > self.ring.numel():
                raise ValueError(f"a layer of {largest} bytes is larger than the ring")
            _synchronize(device)
            for file in self._files:
                file.read(self.ring, min(1, self.ring.numel()))
        except BaseException:
            self._close_files()
            raise

    def _close_files(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()

    def _plan(self, layer_of: Callable[[str], int | None]) -> tuple[list[int], list[_Layer]]:
        found: dict[int, list[tuple[File, Entry]]] = {}
        for file in self._files:
            for entry in read_header(file)[0]:
                layer = layer_of(entry.name)
                if layer is not None:
                    found.setdefault(layer, []).append((file, entry))
        if not found:
            raise SafetensorError(f"{self._files[0].name}: no tensor belongs to a layer")
        layers = sorted(found)
        return layers, [_Layer(found[layer]) for layer in layers]

    @property
    def nbytes(self) -> int:
        """Is the number of bytes of one turn through all layers."""
        return sum(layer.nbytes for layer in self._layers)

    def __iter__(self) -> "LayerStream":
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        """Waits for the next layer. OSError means that it cannot be read; the next call goes on."""
        if self._generation != process.generation:
            refuse_after_fork("a stream of layers")
        with self._turn:
            if self._ring is None:
                raise ValueError("the stream is closed")
            given, self._given = self._given, False
            if given:
                self._ring.give_back(self._passed())
            self._given = True
            weights = self._ring.take()
            if weights is None:
                self._given = False
                raise StopIteration
            return weights

    def _passed(self) -> Any:
        """Returns an event behind the work so far of the current stream, or None without a GPU."""
        return _event(self.ring.device) if self.ring.is_cuda else None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a stream of layers is in the middle of reads: it is not pickled")

    def close(self) -> None:
        """Waits for reads; tensors that it gave are not valid any more."""
        if self._generation == process.generation:  # a child of fork() has no threads
            with self._turn:
                ring, self._ring = self._ring, None
                if ring is not None:
                    ring.close()
        self._close_files()

    def __enter__(self) -> "LayerStream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# --- Records ---------------------------------------------------------------------------------------

class IndexedDataset:
    """Records of one kind of a catalogue as tensors, straight into GPU memory.

        data = IndexedDataset("/mnt/data/catalogue.json", "image", shape=(3, 64, 64), device="cuda")
        for index, images in data.batches(256, shuffle=True, seed=epoch):
            ...

    A record is a tensor of this dtype and shape (by default of one dimension). data[i] is one,
    data[[3, 1, 2]] or data[index tensor] many, read in one call. Also a dataset for
    torch.utils.data.DataLoader, which asks for batches by __getitems__(): workers have the files
    opened again, and need device="cpu" where they come by fork.
    """

    def __init__(self, catalogue: Any, kind: str, *, dtype: torch.dtype = torch.uint8,
                 shape: tuple[int, ...] | None = None, device: Any = "cuda") -> None:
        self._owned = not isinstance(catalogue, Catalogue)
        self._catalogue = Catalogue(catalogue) if self._owned else catalogue
        self._kind = kind
        self.records = self._catalogue[kind]
        self.dtype, self.device = dtype, torch.device(device)
        self.shape = shape if shape is not None else (self.records.size // dtype.itemsize,)
        if torch.Size(self.shape).numel() * dtype.itemsize != self.records.size:
            raise ValueError(f"{kind}: records of {self.records.size} bytes are no {dtype} of "
                             f"{list(self.shape)}")

    def __len__(self) -> int:
        return len(self.records)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(IndexedDataset, dtype=self.dtype, shape=self.shape,
                                 device=self.device)
        return make, (self._catalogue.path, self._kind)

    def _empty(self, n: int) -> tuple[torch.Tensor, Any]:
        """Returns memory for n records, and the event after which earlier work has left it."""
        out = torch.empty((n, *self.shape), dtype=self.dtype, device=self.device)
        return out, _event(out.device) if out.is_cuda else None

    def _gather_after(self, index: Any, out: torch.Tensor, event: Any) -> torch.Tensor:
        if event is not None:
            event.synchronize()
        return self.gather(index, out)

    def gather(self, index: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the records of these numbers. out: memory for them, not in use."""
        if out is None:
            return self._gather_after(index, *self._empty(len(index)))
        if isinstance(index, torch.Tensor) and index.is_cuda:
            torch.cuda.current_stream(index.device).synchronize()
        self.records.gather(index, out)
        return out

    def __getitem__(self, index: Any) -> torch.Tensor:
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        if hasattr(index, "__len__") and getattr(index, "ndim", None) != 0:
            return self.gather(self._from_the_begin(index))
        return self.gather(self._from_the_begin([index]))[0]

    def _from_the_begin(self, index: Any) -> torch.Tensor:
        found, n = torch.as_tensor(index), len(self)
        if found.dtype == torch.bool:  # gather() refuses it
            return found
        return torch.where((found < 0) & (found >= -n), found + n, found)

    def __getitems__(self, index: list[int]) -> list[torch.Tensor]:
        return list(self.gather(index).unbind(0))

    def batches(self, batch_size: int, *, shuffle: bool = False, seed: int = 0,
                drop_last: bool = False) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(numbers, records) of all, each once; the next batch is read while this one is used."""
        if batch_size < 1:
            raise ValueError(f"batches of {batch_size}")
        generator = torch.Generator().manual_seed(seed)
        order = (torch.randperm(len(self), generator=generator) if shuffle
                 else torch.arange(len(self)))
        parts = [part for part in torch.split(order, batch_size)
                 if not drop_last or len(part) == batch_size]
        with ThreadPoolExecutor(1, "gpunvme-batches") as pool:
            # Memory is made here: it belongs to the stream that uses it.
            ahead = [pool.submit(self._gather_after, part, *self._empty(len(part)))
                     for part in parts[:2]]
            for i, part in enumerate(parts):
                yield part, ahead.pop(0).result()
                if i + 2 < len(parts):
                    ahead.append(pool.submit(self._gather_after, parts[i + 2],
                                             *self._empty(len(parts[i + 2]))))

    def close(self) -> None:
        """Returns the catalogue, if it was opened here."""
        if self._owned:
            self._catalogue.close()

    def __enter__(self) -> "IndexedDataset":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
