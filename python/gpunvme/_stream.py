# SPDX-License-Identifier: BSD-2-Clause
"""Plans of file ranges that are read ahead through a ring of memory."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from . import _native
from ._file import File
from ._memory import memory_of, stream_of
from ._native import check, library, process

ALIGN = 4096
Range = tuple[File, int, int]  # file, offset, bytes


def _close(stream: int, generation: int) -> None:
    if generation == process.generation:
        library.gpunvme_stream_close(stream)


class Steps:
    """The steps of a plan, each a list of ranges, in their order through a ring.

    The ranges of a step come one behind the other, each at a multiple of 4096. The ring is a buffer
    as for File.read(); it should have room for two steps or more. direct: kernels of this process
    read, on queues that the mount lends; the ring is GPU memory, or of File.alloc_host().
    """

    def __init__(self, plan: Sequence[Sequence[Range]], ring: Any, *, loop: bool = False,
                 readers: int = 0, direct: bool = False) -> None:
        self._memory = memory_of(ring, True)
        flat = [item for step in plan for item in step]
        ranges = (_native.Range * len(flat))(
            *(_native.Range(file._handle(), offset, size) for file, offset, size in flat))
        steps, at = (_native.Step * len(plan))(), 0
        for step, items in zip(steps, plan, strict=True):
            step.ranges = ctypes.cast(ctypes.byref(ranges, at * ctypes.sizeof(_native.Range)),
                                      ctypes.POINTER(_native.Range))
            step.n = len(items)
            at += len(items)
        out, options = ctypes.c_void_p(), _native.StreamOptions(readers, int(loop), int(direct))
        check(library.gpunvme_stream_open(process.handle(), steps, len(plan), self._memory.address,
                                          self._memory.nbytes, ctypes.byref(options),
                                          ctypes.byref(out)))
        self._files = {id(file): file for file, _, _ in flat}  # open as long as this
        self._stream = out.value
        self._end = weakref.finalize(self, _close, self._stream, process.generation)

    def next(self, stream: Any = None) -> int | None:
        """Where the next step is in the ring, once it has been read; None at the end.

        Work put into the stream after this may use it. The memory is given back when the stream has
        come to the following next().
        """
        if not self._end.alive:
            raise ValueError("the steps are closed")
        address = ctypes.c_void_p()
        n = check(library.gpunvme_stream_next(self._stream, stream_of(stream),
                                              ctypes.byref(address)))
        return (address.value or 0) - self._memory.address if n else None

    def close(self) -> None:
        """Waits for reads and for the streams."""
        self._end()
