# SPDX-License-Identifier: BSD-2-Clause
"""Reads files straight into GPU memory.

    import gpunvme
    with gpunvme.open("/mnt/weights/model.bin") as f:
        n = f.read(tensor, file_offset=4096)     # torch, cupy, numba, jax, numpy, bytearray
        print(f.path_taken, f.why)
"""

from typing import Any

from ._file import File, IOFuture, IOFutureStream, deregister, register
from ._gpus import Gpu, gpus
from ._kvikio import CuFile, defaults, memory_deregister, memory_register
from ._native import configure
from ._records import Catalogue, Records, write_catalogue
from ._stats import CallStats, metrics, stats

__version__ = "0.1.0"
__all__ = ["CallStats", "Catalogue", "CuFile", "File", "Gpu", "IOFuture", "IOFutureStream",
           "Records", "configure", "defaults", "deregister", "gpus", "memory_deregister",
           "memory_register", "metrics", "open", "register", "stats", "write_catalogue"]


def open(file: Any, mode: str = "r", *, direct: bool = False) -> File:
    """Opens a path ("r", "r+", "w", "w+") or a descriptor; direct: by leased queues."""
    return File(file, mode, direct=direct)
