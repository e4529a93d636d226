# SPDX-License-Identifier: BSD-2-Clause
"""Reads experts of a mixture that do not fit into GPU memory from files into slots.

    from gpunvme.torch.experts import ExpertBank

    bank = ExpertBank("/mnt/model.safetensors.index.json",
                      [[f"layers.{i}.experts.{{}}.up", f"layers.{i}.experts.{{}}.down"]
                       for i in range(32)], slots=256, device="cuda")
    up, down = bank.parts                      # [slots, *shape of one expert]
    for layer in range(32):
        chosen = route(layer, x)               # numbers of experts
        slots = bank.fetch(layer, chosen)      # int32, of the shape of chosen
        bank.prefetch(layer + 1, route(layer + 1, x))
        x = mix(x, up, down, slots)
"""

import ctypes
import errno
import heapq
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from .._file import File, deregister, register
from .._native import process, refuse_after_fork
from .._records import Catalogue
from .._safetensors import Entry
from .._table import Part, tensors_of
from .._torch_types import torch_dtype, torch_shape
from . import _event, _synchronize

__all__ = ["ExpertBank"]

_PAGE = 4096
_STREAMS = 3  # of direct reads. One long read fills eight leased queues
_AGING = 16  # turns through all slots after which the numbers of uses are halved


class _Plan(NamedTuple):
    """Where each part of each expert is."""

    parts: list[Entry]  # of one expert
    places: list[list[tuple[Any, int]]]  # of each part: path and offset, by layer and expert
    layers: int
    experts: int


# --- Plans -----------------------------------------------------------------------------------------


def _experts_of(found: dict[str, Part], name: str) -> list[Part]:
    """Returns one part for each expert: tensors whose names count, or rows of one tensor."""
    if "{}" in name:
        parts: list[Part] = []
        while (part := found.get(name.replace("{}", str(len(parts))))) is not None:
            parts.append(part)
        if not parts:
            raise KeyError(f"no tensor {name.replace('{}', '0')}")
        return parts
    if name not in found:
        raise KeyError(f"no tensor {name}")
    path, entry = found[name]
    if not entry.shape or not entry.nbytes or entry.nbytes % entry.shape[0]:
        raise ValueError(f"{name}: shape {list(entry.shape)} of {entry.dtype} has no experts")
    n, nbytes = entry.shape[0], entry.nbytes // entry.shape[0]
    return [Part(path, Entry(f"{name}[{i}]", entry.dtype, entry.shape[1:],
                             entry.begin + i * nbytes, nbytes)) for i in range(n)]


def _plan_tensors(paths: Any, layers: Sequence[str | Sequence[str]]) -> _Plan:
    found = {part.entry.name: part
             for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
             for part in tensors_of(path)}
    named = [[names] if isinstance(names, str) else list(names) for names in layers]
    experts = [[_experts_of(found, name) for name in names] for names in named]
    if not experts or not experts[0]:
        raise ValueError("no names of tensors")
    first = experts[0]
    for parts in experts:
        if [len(part) for part in parts] != [len(first[0])] * len(first):
            raise ValueError(f"{parts[0][0].entry.name}: {[len(part) for part in parts]} experts, "
                             f"where the first layer has {[len(part) for part in first]}")
        for part, other in zip(parts, first, strict=True):
            _check_same(part, other[0].entry)
    return _Plan([part[0].entry for part in first],
                 [[(expert.path, expert.entry.begin) for parts in experts for expert in parts[i]]
                  for i in range(len(first))], len(experts), len(first[0]))


def _check_same(experts: list[Part], first: Entry) -> None:
    for _, entry in experts:
        if (entry.dtype, entry.shape) != (first.dtype, first.shape):
            raise ValueError(f"{entry.name}: {list(entry.shape)} {entry.dtype}, where {first.name} "
                             f"has {list(first.shape)} {first.dtype}")
        if not entry.nbytes:
            raise ValueError(f"{entry.name}: no bytes")


def _plan_records(catalogue: Catalogue, kinds: Sequence[Any]) -> _Plan:
    found = [catalogue[kind] for kind in kinds]
    if len({(records.size, records.count) for records in found}) != 1:
        raise ValueError(f"{list(kinds)}: no kinds, or their records differ in size or number")
    size, count = found[0].size, found[0].count
    return _Plan([Entry(str(kinds[0]), "U8", (size,), 0, size)],
                 [[(records.file.name, records.offset + i * size)
                   for records in found for i in range(count)]], len(found), count)


# --- Reads -----------------------------------------------------------------------------------------


class _Read:
    """Represents a read in a stream, and has the methods of a future."""

    def __init__(self, name: Any, nbytes: int, word: int) -> None:
        self._name, self._nbytes, self._word = name, nbytes, word
        self.result = ctypes.c_int64.from_address(word)
        self.event: Any = None  # behind the read; None: it has ended

    def done(self) -> bool:
        if self.event is not None and self.event.query():
            self.event = None
        return self.event is None

    def exception(self) -> OSError | None:
        """Waits for the read, and returns its error."""
        if self.event is not None:
            self.event.synchronize()
            self.event = None
        moved = self.result.value
        if moved < 0:
            return OSError(-moved, os.strerror(-moved), self._name)
        return None if moved == self._nbytes else _short(self._name)


def _short(name: Any) -> OSError:
    return OSError(errno.EIO, "the file ends within an expert", name)


class _Direct:
    """Reads direct files into memory by kernels in several streams. No thread waits for them.

    close() comes before the memory is freed and the files are closed.
    """

    def __init__(self, memory: torch.Tensor, words: int) -> None:
        cuda: Any = torch.cuda if memory.device.type == "cuda" else None
        self._memory, self._generation, self._turn = memory, process.generation, 0
        self._words = torch.empty(words, dtype=torch.int64, pin_memory=cuda is not None)
        self._streams: list[Any] = \
            [cuda.Stream(memory.device) for _ in range(_STREAMS)] if cuda else [None]
        if cuda:
            register(memory)

    def read(self, place: tuple[File, int, int, int], word: int, event: Any) -> _Read:
        """Begins a read after the work before the event. The word is not in use."""
        file, offset, at, size = place
        read = _Read(file.name, size, self._words.data_ptr() + 8 * word)
        stream = self._streams[self._turn % len(self._streams)]
        self._turn += 1
        if event is not None:
            stream.wait_event(event)
        try:
            file.read_direct((self._memory.data_ptr() + at, size), offset, read.result, stream)
        except OSError as error:
            read.result.value = -(error.errno or errno.EIO)
        else:
            read.event = stream.record_event() if stream else None
        return read

    def close(self) -> None:
        """Waits for all reads, except in a child of fork()."""
        if self._generation == process.generation and self._streams[0]:
            for stream in self._streams:
                stream.synchronize()
            deregister(self._memory)


# --- Slots -----------------------------------------------------------------------------------------


class _Slot:
    """Holds memory of one expert. Its fields are protected by the lock of the bank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.key = -1  # layer * experts + expert; -1: none
        self.last = 0  # turn of its last use
        self.is_current = False  # its expert was fetched by the last fetch()
        self.ahead_of: int | None = None  # its expert is expected by the fetch() of this layer
        self.event: Any = None  # behind the work that uses the slot
        self.loads: list[Any] = []  # each is a Future or a _Read

    def is_held(self) -> bool:
        return self.is_current or self.ahead_of is not None

    def has_failed(self) -> bool:
        return any(load.done() and load.exception() is not None for load in self.loads)


class ExpertBank:
    """Keeps experts of several layers in `slots` slots of memory of the device.

    paths: files of safetensors or GGUF, folders, indexes of shards, or a list of these; layers: the
    names of each layer's tensors, where {} stands for the number of an expert, or of tensors whose
    first dimension counts the experts. Or paths is a Catalogue, and layers are kinds of records, one
    for each expert. All layers have as many experts, of the same types and shapes.

    policy: of the experts that are not in use, "lfu" replaces those that were fetched least often,
    "lru" those whose last fetch is longest ago. direct: as of LayerStream. readers: reads at a time
    without the direct path, which needs no threads.

    The slots of a fetch() are valid until the next one, for work of the current stream. Threads take
    turns. A bank does not survive fork().
    """

    def __init__(self, paths: Any, layers: Sequence[Any], *, slots: int, device: Any = "cuda",
                 policy: str = "lfu", readers: int | None = None,
                 direct: bool | None = None) -> None:
        if policy not in ("lfu", "lru"):
            raise ValueError(f"policy={policy!r}: lfu or lru")
        if slots < 1:
            raise ValueError(f"slots={slots}")
        self._plan = _plan_records(paths, layers) if isinstance(paths, Catalogue) else \
            _plan_tensors(paths, layers)
        self.layers, self.experts = self._plan.layers, self._plan.experts
        self.device, self.policy = torch.empty(0, device=device).device, policy
        self._files: dict[Any, File] = {}
        self._reads: _Direct | None = None
        by_default = direct is None and self.device.type == "cuda"
        try:
            self._open(slots, by_default or bool(direct))
        except OSError:  # the mount lends no queues, or does not reach the slots
            if not by_default:
                raise
            self._open(slots, False)
        self._slots = [_Slot(i) for i in range(slots)]
        self._slot_of: dict[int, _Slot] = {}
        self._uses = [0] * (self.layers * self.experts)
        self._turn = self._touches = 0
        self._sums = dict.fromkeys(("fetches", "hits", "misses", "late", "prefetches"), 0)
        self._lock = threading.Lock()  # protects the slots
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(readers or 8, "gpunvme-experts")
        self._generation = process.generation

    def _open(self, slots: int, direct: bool) -> None:
        """Opens the files, and checks that they can be read into the slots."""
        self.direct = direct
        try:
            for path in dict.fromkeys(path for places in self._plan.places for path, _ in places):
                self._files[path] = File(path, direct=direct)
            self._allocate(slots)
            for file in self._files.values():
                file.read(self._memory, 1)
            if direct:
                self._reads = _Direct(self._memory, slots * len(self.parts))
                self._end = weakref.finalize(self, self._reads.close)
        except BaseException:
            self._close_files()
            raise

    def _allocate(self, slots: int) -> None:
        """Allocates the slots: one part of all of them after the other."""
        lengths = [-(-slots * entry.nbytes // _PAGE) * _PAGE for entry in self._plan.parts]
        *self._begins, nbytes = accumulate(lengths, initial=0)
        if self.direct and self.device.type == "cpu":
            shared = next(iter(self._files.values())).alloc_host(nbytes)
            self._memory = torch.frombuffer(shared, dtype=torch.uint8)
        else:
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self.parts = [self._memory[begin:begin + slots * entry.nbytes].view(torch_dtype(entry))
                      .view(slots, *torch_shape(entry))
                      for begin, entry in zip(self._begins, self._plan.parts, strict=True)]
        _synchronize(self.device)

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def nbytes(self) -> int:
        """Is the number of bytes of one expert."""
        return sum(entry.nbytes for entry in self._plan.parts)

    def stats(self) -> dict[str, int]:
        """Returns sums: fetches, the hits and misses among their experts, late and prefetches.

        An expert is late if its read by prefetch() had not ended at the fetch(). prefetches counts
        reads that prefetch() has begun.
        """
        with self._lock:
            return dict(self._sums)

    # --- Reads ---------------------------------------------------------------------------------

    def _place(self, part: int, key: int, slot: _Slot) -> tuple[File, int, int, int]:
        """Returns file, offset, place in the memory, and size of a part of an expert."""
        path, offset = self._plan.places[part][key]
        size = self._plan.parts[part].nbytes
        return self._files[path], offset, self._begins[part] + slot.number * size, size

    def _read(self, place: tuple[File, int, int, int], before: list[Future[None]],
              event: Any) -> None:
        """Reads a part of an expert after earlier reads of the slot and the work that uses it."""
        wait(before)
        if event is not None:
            event.synchronize()
        file, offset, at, size = place
        if file.read(self._memory, size, offset, at) != size:
            raise _short(file.name)

    def _load(self, slot: _Slot, key: int, pool: ThreadPoolExecutor) -> None:
        self._slot_of.pop(slot.key, None)
        before, event = slot.loads, slot.event
        slot.key, slot.event, slot.last = key, None, self._turn
        self._slot_of[key] = slot
        places = [self._place(part, key, slot) for part in range(len(self.parts))]
        if self._reads:
            for load in before:
                load.exception()
            slot.loads = [self._reads.read(place, slot.number * len(places) + part, event)
                          for part, place in enumerate(places)]
        else:
            slot.loads = [pool.submit(self._read, place, before, event) for place in places]

    def _forget(self, slot: _Slot) -> None:
        """Empties a slot whose reads have failed."""
        self._slot_of.pop(slot.key, None)
        slot.key, slot.is_current, slot.ahead_of = -1, False, None

    def _value(self, slot: _Slot) -> tuple[int, int]:
        """Returns the order in which experts are replaced: empty slots come first."""
        if slot.key < 0:
            return -1, 0
        return self._uses[slot.key] if self.policy == "lfu" else 0, slot.last

    def _victims(self, n: int) -> list[_Slot]:
        """Returns up to n slots that are not held, in the order in which they are replaced."""
        free = [slot for slot in self._slots if not slot.is_held()]
        return heapq.nsmallest(n, free, key=self._value)

    # --- Turns ---------------------------------------------------------------------------------

    def _keys(self, layer: int, experts: Any) -> list[int]:
        """Returns the keys of experts, in their order. Waits for a tensor of a GPU."""
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer} of {self.layers}")
        numbers = torch.as_tensor(experts)
        if numbers.numel() and (numbers.dtype.is_floating_point or numbers.dtype == torch.bool):
            raise TypeError(f"experts of {numbers.dtype}")
        found: list[int] = numbers.flatten().tolist()
        for number in found:
            if not 0 <= number < self.experts:
                raise IndexError(f"expert {number} of {self.experts}")
        return [layer * self.experts + number for number in found]

    def _check_open(self) -> ThreadPoolExecutor:
        if self._generation != process.generation:
            refuse_after_fork("a bank of experts")
        if self._pool is None:
            raise ValueError("the bank is closed")
        return self._pool

    def _end_use(self) -> None:
        """Ends the use of the last fetch()'s slots. Reads into them wait for the work so far."""
        event = _event(self.device) if self.device.type == "cuda" else None
        for slot in self._slots:
            if slot.is_current:
                slot.is_current, slot.event = False, event

    def _touch(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._uses[key] += 1
            self._touches += 1
        if self._touches >= _AGING * len(self._slots):
            self._touches, self._uses = 0, [uses // 2 for uses in self._uses]

    def _hold(self, keys: Iterable[int]) -> list[int]:
        """Holds the experts that are there, and returns the others."""
        missing = []
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is not None and slot.has_failed():
                self._forget(slot)
                slot = None
            if slot is None:
                missing.append(key)
                continue
            late = not all(load.done() for load in slot.loads)
            self._sums["late" if late else "hits"] += 1
            slot.is_current, slot.last = True, self._turn
        return missing

    def _take(self, keys: list[int], pool: ThreadPoolExecutor) -> None:
        """Begins to read experts. Expected ones are replaced if there are no other slots."""
        slots = self._victims(len(keys))
        if len(slots) < len(keys):
            for slot in self._slots:
                slot.ahead_of = None
            slots = self._victims(len(keys))
        for slot, key in zip(slots, keys, strict=True):
            self._load(slot, key, pool)
            slot.is_current = True

    def _settle(self, slots: Sequence[_Slot]) -> None:
        """Waits for the reads of slots, and raises the first error after all have ended."""
        errors = [load.exception() for slot in slots for load in slot.loads]
        for slot in slots:
            if slot.has_failed():
                self._forget(slot)
        for error in errors:
            if error is not None:
                raise error

    def fetch(self, layer: int, experts: Any) -> torch.Tensor:
        """Returns the slots of these experts of a layer, in an int32 tensor of the same shape.

        Reads those that are in no slot, and returns when all are there. Raises OSError if one of
        them cannot be read; the others are kept. ValueError: more experts than slots.
        """
        keys = self._keys(layer, experts)
        due = list(dict.fromkeys(keys))
        if len(due) > len(self._slots):
            raise ValueError(f"{len(due)} experts at a time, more than {len(self._slots)} slots")
        with self._lock:
            pool = self._check_open()
            self._end_use()
            self._turn += 1
            self._touch(due)
            self._sums["fetches"] += 1
            missing = self._hold(due)
            self._sums["misses"] += len(missing)
            for slot in self._slots:
                if slot.ahead_of == layer:
                    slot.ahead_of = None
            self._take(missing, pool)
            slots = [self._slot_of[key] for key in due]
            self._settle(slots)
            numbers = [self._slot_of[key].number for key in keys]
        return torch.tensor(numbers, dtype=torch.int32, device=self.device).view(
            torch.as_tensor(experts).shape)

    def prefetch(self, layer: int, experts: Any) -> int:
        """Begins to read experts that the next layers are expected to fetch.

        Returns the number of reads. The experts of the last fetch() are not replaced, and those
        that are read here are held until the fetch() of their layer. Others are left out if no slot
        is free.
        """
        keys = list(dict.fromkeys(self._keys(layer, experts)))
        with self._lock:
            pool = self._check_open()
            missing = [key for key in keys if key not in self._slot_of]
            for key in keys:
                if key in self._slot_of:
                    self._slot_of[key].ahead_of = layer
            slots = self._victims(len(missing))
            for slot, key in zip(slots, missing, strict=False):
                self._load(slot, key, pool)
                slot.ahead_of = layer
            self._sums["prefetches"] += len(slots)
        return len(slots)

    def close(self) -> None:
        """Waits for reads, and closes the files. The parts remain."""
        if self._generation == process.generation:  # a child of fork() has no threads
            with self._lock:
                pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown()
            if self._reads:
                self._end()
        self._close_files()

    def __enter__(self) -> "ExpertBank":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a bank of experts cannot be pickled: make one in each process")
