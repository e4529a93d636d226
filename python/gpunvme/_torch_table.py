# SPDX-License-Identifier: BSD-2-Clause
"""Gathers rows of tensors in files by number, into tensors of torch."""

import errno
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from . import _native
from ._table import INSERTIONS, PAD, ZEROS, CacheOptions, RawTable, find
from ._torch_types import torch_dtype, torch_shape

_IDS = {torch.int32: 4, torch.int64: 8}
_numbers = itertools.count(1)
_tables: "weakref.WeakValueDictionary[int, Table]" = weakref.WeakValueDictionary()


class Prefetched:
    """Rows that Table.prefetch() is gathering."""

    def __init__(self, rows: torch.Tensor, event: Any = None,
                 future: "Future[Any] | None" = None) -> None:
        self._rows, self._event, self._future = rows, event, future

    def wait(self) -> torch.Tensor:
        """Returns the rows, which later work of the current stream may use."""
        if self._future is not None:
            self._future.result()
        if self._event is not None:
            stream: Any = torch.cuda.current_stream(self._rows.device)
            stream.wait_event(self._event)
            self._rows.record_stream(stream)
        return self._rows


class Table:
    """Gathers rows of one or several tensors of files, by numbers that may be in GPU memory.

        table = Table("/mnt/model.safetensors.index.json", "engram.table", device="cuda")
        rows = table.gather(ids)               # [*ids.shape, *table.row_shape]

    paths: files of safetensors or GGUF, folders, indexes of shards, or a list of these. names: a
    tensor, or several, whose rows follow each other. Rows of GGUF's types with blocks are bytes.
    max_rows: of one gather, which sizes its memory.
    device: where ids and rows are. On a GPU whose mount lends queues (-o direct=), a gather is
    kernels in the current stream, which a CUDA graph may capture. All other gathers are
    synchronous, and why says why. Bytes that several rows have in common are read once.

    cache_bytes: of lines of the files in memory of the device, which gathers of the direct path use
    for rows that are named again. insertion: "all" keeps all lines that were read, "second touch"
    those that were read before. Data that is rewritten in place is seen after drop_cache().

    padding: the id -1 is a row of zeros. zeros: any id that is no row's is. Other rows that are not
    read are zeros and raise OSError: at once if the gather is synchronous, otherwise by check().
    A table does not survive fork().
    """

    def __init__(self, paths: Any, names: str | Sequence[str], *, device: Any = "cpu",
                 max_rows: int = 65536, padding: bool = False, zeros: bool = False, unit: int = 0,
                 staging: int = 0, cache_bytes: int = 0, insertion: str = "all") -> None:
        if insertion not in INSERTIONS or cache_bytes < 0:
            raise ValueError(f"insertion={insertion!r}: one of {list(INSERTIONS)}"
                             if cache_bytes >= 0 else f"cache_bytes={cache_bytes}")
        parts = find(paths, names)
        first = parts[0].entry
        self.device = torch.empty(0, device=device).device  # with its index
        self.dtype, self.row_shape = torch_dtype(first), tuple(torch_shape(first)[1:])
        self.max_rows = max_rows
        self._flags = PAD * padding | ZEROS * zeros
        self._raw = RawTable(parts, max_rows, self.device.type == "cuda", unit, staging,
                             CacheOptions(cache_bytes, insertion))
        # This copy has ended here. Zeros of a GPU might follow a gather in another stream.
        self._status = torch.zeros(3, dtype=torch.int64, device="cpu").to(self.device)
        self._is_waited = self.device.type != "cuda" or bool(self._raw.why)
        self._event: Any = None  # behind the last gather
        self._lock = threading.Lock()  # orders gathers of threads in their streams
        self._side: Any = None  # a stream, or a thread, for prefetch()
        self._number = next(_numbers)
        _tables[self._number] = self

    def __len__(self) -> int:
        return self._raw.rows

    @property
    def why(self) -> str:
        """The reason why gathers do not take the direct path, or empty if they do."""
        return self._raw.why

    # --- Gathers -------------------------------------------------------------------------------

    def gather(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the rows with these int32 or int64 ids, in a new tensor or in `out`."""
        if out is None:
            rows: torch.Tensor = _gather_rows(ids, self._number, list(self.row_shape), self.dtype)
            return rows
        _gather_rows_out(ids, self._number, out)
        return out

    def prefetch(self, ids: torch.Tensor) -> Prefetched:
        """Starts a gather beside the work of the current stream, or of this thread.

        The ids must not change before wait() has returned.
        """
        rows = ids.new_empty((*ids.shape, *self.row_shape), dtype=self.dtype)
        if self.device.type != "cuda":
            if self._side is None:
                self._side = ThreadPoolExecutor(1, "gpunvme-table")
            return Prefetched(rows, future=self._side.submit(self.gather, ids, rows))
        cuda: Any = torch.cuda
        if self._side is None:
            self._side = cuda.Stream(self.device)
        self._side.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(self._side):
            for tensor in (ids, rows):  # also if the gather fails after some launches
                tensor.record_stream(self._side)
            self.gather(ids, rows)
            event = cuda.Event()
            event.record(self._side)
        return Prefetched(rows, event=event)

    def check(self) -> None:
        """Waits for the last gather, and raises OSError if some of its rows were not read."""
        if self._event is not None:  # its stream may be another one than the current
            self._event.synchronize()
        self._check_status(self._status)

    def _check_status(self, status: torch.Tensor) -> None:
        found = _native.TableStatus.from_buffer_copy(status.cpu().numpy().tobytes())
        if found.error:
            raise OSError(-found.error, f"{found.failed} rows of a gather, the first one row "
                          f"{found.first_id} of {len(self)}: {os.strerror(-found.error)}")

    def stats(self) -> dict[str, int]:
        """Returns sums over all finished gathers.

        These are gathers, rows, ranges read, failed rows, commands of READV, and hits, which are
        rows that a cache had.
        """
        return self._raw.stats()

    def drop_cache(self) -> None:
        """Waits for gathers, and has later ones read all rows from the files."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._raw.drop_cache()

    def _check(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        if ids.dtype not in _IDS:
            raise TypeError(f"ids of {ids.dtype}: use int32 or int64")
        for name, tensor in (("ids", ids), ("out", out)):
            if tensor.device != self.device:
                raise ValueError(f"{name} on {tensor.device}, where the table is for {self.device}")
        if out.dtype != self.dtype or tuple(out.shape) != (*ids.shape, *self.row_shape):
            raise ValueError(f"out of shape {list(out.shape)} {out.dtype} for rows of "
                             f"{list(self.row_shape)} {self.dtype}")
        if not out.is_contiguous():
            raise BufferError("out is not contiguous")

    def _run(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        ids = ids.contiguous()
        self._check(ids, out)
        status = self._status if not self._is_waited else torch.zeros(3, dtype=torch.int64, device="cpu")
        what = _native.Gather(ids.data_ptr(), _IDS[ids.dtype], self._flags, ids.numel(),
                              out.data_ptr(), 0, status.data_ptr())
        if self.device.type == "cuda":
            self._run_in_stream(what)
        else:
            self._raw.gather(what, None)
        if self._is_waited:
            self._status = status
            self._check_status(status)  # other threads may have gathered since

    def _run_in_stream(self, what: _native.Gather) -> None:
        """Orders gathers of one table in different streams by an event, except in a graph."""
        _native.process.check_cuda()
        cuda: Any = torch.cuda
        stream = cuda.current_stream(self.device)
        is_captured = cuda.is_current_stream_capturing()
        with self._lock, cuda.device(self.device):
            if self._event is not None and not is_captured:
                stream.wait_event(self._event)
            try:
                self._raw.gather(what, stream.cuda_stream)
            finally:
                if not is_captured:
                    self._event = self._event or cuda.Event()
                    self._event.record(stream)

    def close(self) -> None:
        """Waits for the gathers of the table and closes it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self._side is not None:
            self._side.shutdown()
        self._raw.close()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a table cannot be pickled: make one in each process")


# --- Operators -------------------------------------------------------------------------------------


def _table(number: int) -> Table:
    table = _tables.get(number)
    if table is None:
        raise OSError(errno.EBADF, "the table no longer exists")
    return table


@torch.library.custom_op("gpunvme::gather_rows", mutates_args=())
def _gather_rows(ids: torch.Tensor, table: int, row_shape: Sequence[int],
                 dtype: torch.dtype) -> torch.Tensor:
    out = ids.new_empty((*ids.shape, *row_shape), dtype=dtype)
    _table(table)._run(ids, out)
    return out


@_gather_rows.register_fake
def _(ids: torch.Tensor, table: int, row_shape: Sequence[int],
      dtype: torch.dtype) -> torch.Tensor:  # pylint: disable=unused-argument
    return ids.new_empty((*ids.shape, *row_shape), dtype=dtype)


@torch.library.custom_op("gpunvme::gather_rows_out", mutates_args=("out",))
def _gather_rows_out(ids: torch.Tensor, table: int, out: torch.Tensor) -> None:
    _table(table)._run(ids, out)
