# SPDX-License-Identifier: BSD-2-Clause
"""Finds the bytes of an object: torch, cupy, numba, jax, numpy, and the buffer protocol."""

import ctypes
import functools
import operator
import re
import sys
from typing import Any, NamedTuple

from ._native import process

_BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
_HOST_DEVICES = (1, 3)  # DLPack: CPU, pinned memory of CUDA
_CUDA_DEVICES = (2, 13)  # CUDA, managed memory


class Memory(NamedTuple):
    address: int
    nbytes: int
    keep: Any  # what holds the memory while it is used
    is_cuda: bool = False


class _Buffer(ctypes.Structure):
    """Py_buffer, as the stable ABI has it since 3.11 and CPython always."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


class _Export:
    """Holds a buffer until this object is gone; BufferError as the object raises it."""

    def __init__(self, obj: Any, writable: bool) -> None:
        self._held = None
        view = _Buffer()
        flags = 1 if writable else 0  # PyBUF_WRITABLE, PyBUF_SIMPLE: contiguous
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), ctypes.byref(view), flags)
        self._held = view
        self.address, self.nbytes = view.buf or 0, view.len

    def __del__(self) -> None:
        if self._held is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._held))


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _is_contiguous(shape: list[int], strides: list[int] | None) -> bool:
    """Row by row, strides in elements."""
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides or []), strict=False):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _of_torch(obj: Any) -> Memory | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(obj, torch.Tensor):
        _check_tensor(obj)
        return Memory(obj.data_ptr(), obj.nbytes, obj, obj.is_cuda)
    if isinstance(obj, torch.UntypedStorage):
        _check_device(obj.device.type)
        return Memory(obj.data_ptr(), obj.nbytes(), obj, obj.is_cuda)
    return None


def _check_device(kind: str) -> None:
    if kind == "cuda":
        process.check_cuda()
    elif kind != "cpu":
        raise BufferError(f"memory of {kind}, neither host nor CUDA")


def _check_tensor(tensor: Any) -> None:
    _check_device(tensor.device.type)
    if not tensor.is_contiguous():
        raise BufferError("the tensor is not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("a view that is conjugated or negated: take resolve_conj() or "
                          "resolve_neg() of it")


def _of_cuda_array(obj: Any, writable: bool) -> Memory:
    process.check_cuda()
    description = obj.__cuda_array_interface__
    address, readonly = description["data"]
    if readonly and writable:
        raise BufferError("the array is read-only")
    shape, itemsize = list(description["shape"]), int(description["typestr"][2:])
    strides = description.get("strides")
    if strides is not None and not _is_contiguous(shape, [s // itemsize for s in strides]):
        raise BufferError("the array is not contiguous")
    nbytes = itemsize
    for length in shape:
        nbytes *= length
    return Memory(address or 0, nbytes, obj, True)


def _of_dlpack(obj: Any) -> Memory:
    """The capsule is not consumed: it frees the tensor when it goes."""
    capsule = obj.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    if tensor.device_type not in _HOST_DEVICES + _CUDA_DEVICES:
        raise BufferError(f"memory of DLPack device {tensor.device_type}, neither host nor CUDA")
    if tensor.device_type in _CUDA_DEVICES:
        process.check_cuda()
    if tensor.bits * tensor.lanes % 8:
        raise BufferError(f"DLPack elements of {tensor.bits * tensor.lanes} bits: not whole bytes")
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    if strides is not None and not _is_contiguous(shape, strides):
        raise BufferError("the tensor is not contiguous")
    nbytes = tensor.bits * tensor.lanes // 8
    for length in shape:
        nbytes *= length
    return Memory((tensor.data or 0) + tensor.byte_offset, nbytes, (obj, capsule),
                  tensor.device_type in _CUDA_DEVICES)


def _has_objects(obj: Any) -> bool:
    """Returns true for an array of references to Python objects, which bytes would destroy."""
    dtype = getattr(obj, "dtype", None)
    if dtype is not None:
        return bool(getattr(dtype, "hasobject", False))
    form = memoryview(obj).format
    return "O" in form and "O" in re.sub(":[^:]*:", "", form)  # names of fields do not count


def memory_of(obj: Any, writable: bool) -> Memory:
    """Returns the contiguous memory of an object; TypeError or BufferError if it has none."""
    if isinstance(obj, Memory):
        return obj
    found = _of_torch(obj)
    if found is not None:
        return found
    if hasattr(obj, "__cuda_array_interface__"):
        return _of_cuda_array(obj, writable)
    try:
        export = _Export(obj, writable)
    except TypeError:
        if hasattr(obj, "__dlpack__"):
            return _of_dlpack(obj)
        raise TypeError(f"{type(obj).__name__}: no buffer, CUDA array or DLPack tensor") from None
    if _has_objects(obj):
        raise BufferError("an array of Python objects has no memory for bytes of a file")
    return Memory(export.address, export.nbytes, export)


def part_of(memory: Memory, size: int | None, offset: int) -> tuple[int, int]:
    """Address and length of a part; ValueError if it is not inside."""
    offset = operator.index(offset)
    size = memory.nbytes - offset if size is None else operator.index(size)
    if offset < 0 or size < 0 or offset + size > memory.nbytes:
        raise ValueError(f"{size} bytes at {offset} of a buffer of {memory.nbytes}")
    return memory.address + offset, size


@functools.cache
def _pointer_attribute() -> Any:
    """Returns a function that keeps the interpreter's lock, because the call is short."""
    function = ctypes.PyDLL("libcuda.so.1").cuPointerGetAttribute
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    return function


def allocation_of(memory: Memory) -> int:
    """Returns CUDA's number of the allocation that has all of the memory, or 0.

    Everything between two addresses of an allocation belongs to it.
    """
    if not memory.is_cuda or not memory.nbytes:
        return 0
    found, number = set(), ctypes.c_uint64()
    for address in memory.address, memory.address + memory.nbytes - 1:
        failed = _pointer_attribute()(ctypes.byref(number), _BUFFER_ID, address)
        found.add(0 if failed else number.value)
    return found.pop() if len(found) == 1 else 0


def stream_of(stream: Any) -> int | None:
    """Returns the handle of a stream (torch, cupy, numba, __cuda_stream__), or a number."""
    if stream is None or isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            value = getattr(stream, name)
            return int(getattr(value, "value", value) or 0)
    raise TypeError(f"{type(stream).__name__}: not a CUDA stream")
