# SPDX-License-Identifier: BSD-2-Clause
"""Acts like safetensors.numpy, but reads by gpunvme."""

from typing import Any

import numpy

from ._safetensors import Entry, Progress, SafeOpen, SafetensorError, Slices, load, save

__all__ = ["SafetensorError", "load_file", "safe_open", "save_file"]

_NAMES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
          "F16": "float16", "I32": "int32", "U32": "uint32", "F32": "float32", "F64": "float64",
          "I64": "int64", "U64": "uint64", "C64": "complex64"}


_DTYPES = {numpys: name for name, numpys in _NAMES.items()}


def _empty(entry: Entry) -> Any:
    if entry.dtype not in _NAMES:
        raise SafetensorError(f"{entry.name}: numpy has no {entry.dtype}")
    try:
        return numpy.empty(entry.shape, dtype=_NAMES[entry.dtype])
    except ValueError as error:
        raise SafetensorError(f"{entry.name}: {error}") from None


def load_file(filename: Any, *, rank: int = 0, ranks: int = 1, slices: Slices | None = None,
              progress: bool | Progress = False, threads: int = 8) -> dict[str, Any]:
    """Returns the arrays of files by name; arguments as of gpunvme.torch.load_file()."""
    return load(filename, _empty, rank=rank, ranks=ranks, slices=slices, progress=progress,
                threads=threads)


def save_file(tensor_dict: dict[str, Any], filename: Any,
              metadata: dict[str, str] | None = None) -> None:
    """Acts like safetensors.numpy.save_file(). The file is synced and appears as a whole."""
    arrays = {name: numpy.asarray(array, order="C") for name, array in tensor_dict.items()}
    entries = []
    for name, array in arrays.items():
        if str(array.dtype) not in _DTYPES:
            raise SafetensorError(f"{name}: safetensors has no {array.dtype.str}")
        entries.append(Entry(name, _DTYPES[str(array.dtype)], array.shape, 0, array.nbytes))
    save(filename, arrays, entries, metadata)


class safe_open(SafeOpen):  # pylint: disable=invalid-name
    """Acts like safetensors.safe_open(filename, framework="numpy")."""

    def __init__(self, filename: Any, framework: str = "numpy", device: Any = "cpu", *,
                 backend: str = "mmap") -> None:
        super().__init__(filename, ("np", "numpy"), framework, device, backend, _empty)
