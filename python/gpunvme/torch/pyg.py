# SPDX-License-Identifier: BSD-2-Clause
"""Features of graphs for PyTorch Geometric, gathered from files by number.

    from gpunvme.torch.pyg import FeatureStore
    from torch_geometric.loader import NeighborLoader

    features = FeatureStore({("paper", "x"): ("/mnt/papers.safetensors", "x")}, device="cuda")
    loader = NeighborLoader((features, graph), input_nodes="paper", num_neighbors=[15, 10])
"""
# mypy: allow-subclassing-any

import errno
import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.data import FeatureStore as _FeatureStore
from torch_geometric.data import TensorAttr

from .._native import process
from . import Table

__all__ = ["FeatureStore"]


def _absolute(paths: Any) -> list[str]:
    """Returns paths that mean the same in another process."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.path.abspath(path) for path in several]


def _ids(index: Any, n: int, device: torch.device) -> torch.Tensor:
    """Returns the numbers of the rows that an index of PyG selects of n."""
    if index is None or isinstance(index, slice):
        found = range(n)[index or slice(None)]
        return torch.arange(found.start, found.start + len(found) * found.step, found.step,
                            device=device)
    ids = torch.as_tensor(index, device=device)
    if ids.dtype == torch.bool:
        if ids.shape != (n,):
            raise IndexError(f"a mask of {list(ids.shape)} for {n} rows")
        return ids.nonzero().view(-1)
    return torch.where((ids < 0) & (ids >= -n), ids + n, ids)


class FeatureStore(_FeatureStore):
    """Serves features of nodes and edges from rows of tensors in files, on `device`.

    tensors: names files and tensors, as Table takes them, for each group and attribute. The group
    of a graph with one type of nodes is None. max_rows: of one gather; longer indexes take several.
    cache_bytes, insertion: of each tensor, as of Table.
    Features are read-only. Workers by fork (with device="cpu") and spawn open the tables again.
    """

    def __init__(self, tensors: Mapping[tuple[Any, str], tuple[Any, str | Sequence[str]]],
                 device: Any = "cpu", *, max_rows: int = 65536, cache_bytes: int = 0,
                 insertion: str = "all") -> None:
        super().__init__()
        self._tensors = {key: (_absolute(paths), names) for key, (paths, names) in tensors.items()}
        self._device = device
        self._options: dict[str, Any] = {"max_rows": max_rows, "cache_bytes": cache_bytes,
                                         "insertion": insertion}
        self._open()

    def _open(self) -> None:
        self._tables: dict[tuple[Any, str], Table] = {}
        self._generation = process.generation
        self._lock = threading.Lock()  # the status of a table is that of its last gather
        try:
            for key, (paths, names) in self._tensors.items():
                self._tables[key] = Table(paths, names, device=self._device, **self._options)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> Any:
        return functools.partial(FeatureStore, **self._options), (self._tensors, self._device)

    def table(self, group_name: Any, attr_name: str) -> Table:
        """Returns the table of a feature. Raises KeyError if there is none."""
        if self._generation != process.generation:
            self._open()
        return self._tables[group_name, attr_name]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        table = self.table(attr.group_name, attr.attr_name)
        ids = _ids(attr.index, len(table), table.device)
        rows = torch.empty((ids.numel(), *table.row_shape), dtype=table.dtype, device=table.device)
        parts = zip(torch.split(ids.reshape(-1), table.max_rows),
                    torch.split(rows, table.max_rows))
        with self._lock:
            for part, out in parts:
                table.gather(part, out)
                table.check()
        return rows.view((*ids.shape, *table.row_shape))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        table = self.table(attr.group_name, attr.attr_name)
        if attr.index is None:  # the numbers of all rows may take much memory
            return (len(table), *table.row_shape)
        return (_ids(attr.index, len(table), torch.device("cpu")).numel(), *table.row_shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Returns the groups and attributes of all features."""
        return [TensorAttr(group, name) for group, name in self._tensors]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise OSError(errno.EROFS, f"{attr.attr_name}: features are read-only, "
                      "write their file with gpunvme.torch.save_file()")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self._put_tensor(None, attr)

    def close(self) -> None:
        """Waits for gathers and closes the tables."""
        if self._generation == process.generation:
            for table in self._tables.values():
                table.close()

    def __enter__(self) -> "FeatureStore":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
