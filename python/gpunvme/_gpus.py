# SPDX-License-Identifier: BSD-2-Clause
"""Lists the GPUs of a mount, as `gpunvme info` shows them."""

import ctypes
import os
import uuid
from typing import NamedTuple

from . import _native

_STATES = ("closed", "open", "lost")
_DISTANCES = ("unknown", "switch", "root complex", "far")


class Gpu(NamedTuple):
    """Describes a GPU that a mount serves. Counters are those since the mount."""

    uuid: str
    name: str
    state: str  # of its executor: "closed" (there was no buffer), "open" or "lost"
    tier: int
    lease_tier: int
    queues: int
    buffers: int
    numa_node: int | None
    distance: str  # lowest bridge to the drive: "switch", "root complex", "far" or "unknown"
    transfers: int
    commands: int
    read_bytes: int
    written_bytes: int
    staged_read_bytes: int
    staged_written_bytes: int
    errors: int
    timeouts: int


def _gpu(one: _native.Gpu) -> Gpu:
    counters = {name: getattr(one, name) for name in _native.GPU_COUNTERS}
    return Gpu(str(uuid.UUID(bytes=bytes(one.uuid))), one.name.decode(errors="replace"),
               _STATES[one.state], one.tier, one.lease_tier, one.queues, one.buffers,
               None if one.numa_node < 0 else one.numa_node, _DISTANCES[one.distance], **counters)


def gpus(path: str | os.PathLike[str]) -> list[Gpu]:
    """Returns the GPUs of the mount of this file or directory, in the order of its option gpus=.

    A mount without a GPU has its CPU executor in the list, or nothing. Raises OSError (ENOTTY) for
    another file system.
    """
    found = _native.Gpus()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _native.check(_native.library.gpunvme_gpus(fd, ctypes.byref(found)), os.fspath(path))
    finally:
        os.close(fd)
    return [_gpu(one) for one in found.gpus[:found.count]]
