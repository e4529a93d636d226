# SPDX-License-Identifier: BSD-2-Clause
"""Maps types of safetensors to those of torch."""

import torch

from ._safetensors import Entry, SafetensorError

TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "F64": "float64",
    "I64": "int64", "U64": "uint64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2"}


def torch_dtype(entry: Entry) -> torch.dtype:
    dtype: torch.dtype | None = getattr(torch, TORCH_NAMES.get(entry.dtype, ""), None)
    if dtype is None:
        raise SafetensorError(f"{entry.name}: this torch has no {entry.dtype}")
    return dtype


def torch_shape(entry: Entry) -> tuple[int, ...]:
    """Returns the shape in elements of torch, whose F4 type holds pairs."""
    if entry.dtype != "F4":
        return entry.shape
    if not entry.shape or entry.shape[-1] % 2:
        raise SafetensorError(f"{entry.name}: F4 of shape {list(entry.shape)} is no row of pairs")
    return *entry.shape[:-1], entry.shape[-1] // 2
