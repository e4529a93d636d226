# SPDX-License-Identifier: BSD-2-Clause
"""safetensors for torch: as safetensors.torch and safetensors.safe_open, read by gpunvme.

    from gpunvme.torch import load_file, safe_open
    weights = load_file("/mnt/weights/model.safetensors", device="cuda:0")
"""

from typing import Any

import torch

from ._safetensors import Entry, Progress, SafeOpen, SafetensorError, load

__all__ = ["SafetensorError", "load_file", "safe_open"]

_NAMES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
          "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
          "F64": "float64", "I64": "int64", "U64": "uint64", "C64": "complex64",
          "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


def _empty(entry: Entry, device: Any) -> torch.Tensor:
    dtype = getattr(torch, _NAMES[entry.dtype], None)
    if dtype is None:
        raise SafetensorError(f"{entry.name}: this torch has no {_NAMES[entry.dtype]}")
    return torch.empty(entry.shape, dtype=dtype, device=device)


def _synchronize(device: Any) -> None:
    """Memory that torch hands out may still be in use by work of its streams."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def load_file(filename: Any, device: Any = "cpu", *, rank: int = 0, ranks: int = 1,
              progress: bool | Progress = False, threads: int = 8) -> dict[str, torch.Tensor]:
    """The tensors of a file, or of several (a list), by name.

    Each tensor owns its memory, and bytes are read straight into it: what is used beyond it is the
    bounce pipeline's, where a tensor does not take the GPU path. rank, ranks: only this rank's
    part, of about the same size for all. progress: True for a line with GB/s, or a function of
    bytes done, bytes in all, and seconds.
    """
    _synchronize(device)
    return load(filename, lambda entry: _empty(entry, device), rank=rank, ranks=ranks, progress=progress, threads=threads)


class safe_open(SafeOpen):  # pylint: disable=invalid-name
    """As safetensors.safe_open(filename, framework="pt", device=...)."""

    def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch"):
            raise SafetensorError(f"framework {framework}: gpunvme.torch has torch alone")

        def empty(entry: Entry) -> torch.Tensor:
            tensor = _empty(entry, device)
            _synchronize(device)
            return tensor

        super().__init__(filename, empty)
