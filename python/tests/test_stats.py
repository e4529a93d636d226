# SPDX-License-Identifier: BSD-2-Clause
"""Counters of the process, by path."""

import os

import numpy as np

import gpunvme

SIZE = 1 << 20


def change(before, key):
    """Calls and bytes since then, and the sum of the histogram."""
    now, old = gpunvme.stats()[key], before.get(key)
    assert sum(now.buckets) == now.calls and now.seconds > 0
    return (now.calls - old.calls, now.bytes - old.bytes) if old else (now.calls, now.bytes)


def make(folder):
    name = os.path.join(folder, "stats")
    np.zeros(SIZE, dtype=np.uint8).tofile(name)
    os.sync()
    return name


def test_counts_what_bounces(tmpfs):
    name, buf = make(tmpfs), bytearray(SIZE)
    with gpunvme.open(name, "r+") as f:
        before = gpunvme.stats()
        f.read(buf)
        f.read(buf, 100, 5)
        f.read(buf, 100, SIZE)  # nothing is there
        f.write(buf, 4096)
    assert change(before, ("read", "bounce")) == (2, SIZE + 100)
    assert change(before, ("write", "bounce")) == (1, 4096)


def test_counts_calls_of_the_mount(mount):
    name = make(mount)
    with gpunvme.open(name) as f:
        out = f.alloc_host(SIZE)
        before = gpunvme.stats()
        assert f.read(out) == SIZE and f.path_taken == "gpu"
        assert f.readv(out, [0, 8192, SIZE - 100], 4096) == [4096, 4096, 100]
    assert change(before, ("read", "gpu")) == (1, SIZE)
    assert change(before, ("readv", "gpu")) == (1, 8292)


def test_counts_the_direct_path(mount):
    with gpunvme.open(make(mount), direct=True) as f:
        out, before = f.alloc_host(SIZE), gpunvme.stats()
        assert f.read(out, 4096, 0) == 4096 and f.read(out, SIZE, 0) == SIZE
    assert change(before, ("read", "direct")) == (2, SIZE + 4096)
    text = gpunvme.metrics()
    calls = gpunvme.stats()["read", "direct"].calls
    assert f'gpunvme_process_call_seconds_count{{op="read",path="direct"}} {calls}' in text
    assert f'{{op="read",path="direct",le="+Inf"}} {calls}' in text
    assert 'le="2e-06"' in text
