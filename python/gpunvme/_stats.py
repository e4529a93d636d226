# SPDX-License-Identifier: BSD-2-Clause
"""Counts what this process moved by kind of call and path."""

import ctypes
from typing import NamedTuple

from . import _native

_OPS = ("read", "write", "readv")
_PATHS = ("gpu", "bounce", "mixed", "direct")


class CallStats(NamedTuple):
    """Counts the calls of one kind by one path."""

    calls: int
    bytes: int
    seconds: float
    buckets: tuple[int, ...]  # [0]: calls of less than 2 us; [i]: of 2^i to 2^(i + 1) us


def stats() -> dict[tuple[str, str], CallStats]:
    """Returns counters since the process began by ("read", "write" or "readv", path).

    Kinds without calls are left out. Paths are those of File.path_taken.
    """
    all_of = _native.Calls()
    _native.library.gpunvme_calls(ctypes.byref(all_of), ctypes.sizeof(all_of))
    found = {}
    for op, paths in zip(_OPS, all_of.by, strict=True):
        for path, one in zip(_PATHS, paths, strict=True):
            buckets = tuple(one.buckets)
            if any(buckets):
                found[op, path] = CallStats(sum(buckets), one.bytes, one.ns / 1e9, buckets)
    return found


def metrics() -> str:
    """Returns these as Prometheus' text: counters of bytes, and histograms of seconds."""
    lines = ["# TYPE gpunvme_process_bytes_total counter",
             "# TYPE gpunvme_process_call_seconds histogram"]
    for (op, path), one in stats().items():
        labels, below = f'op="{op}",path="{path}"', 0
        lines.append(f"gpunvme_process_bytes_total{{{labels}}} {one.bytes}")
        for i, calls in enumerate(one.buckets[:-1]):
            below += calls
            lines.append(f'gpunvme_process_call_seconds_bucket{{{labels},le="{2e-6 * 2 ** i:g}"}} '
                         f"{below}")
        lines.append(f'gpunvme_process_call_seconds_bucket{{{labels},le="+Inf"}} {one.calls}')
        lines.append(f"gpunvme_process_call_seconds_sum{{{labels}}} {one.seconds:.9f}")
        lines.append(f"gpunvme_process_call_seconds_count{{{labels}}} {one.calls}")
    return "\n".join(lines) + "\n"
