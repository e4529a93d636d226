# SPDX-License-Identifier: BSD-2-Clause
"""The GPUs of a mount."""

import errno
import os

import numpy as np
import pytest

import gpunvme

SIZE = 1 << 20


def test_a_gpu_has_its_counters(mount):
    name = os.path.join(mount, "gpus")
    np.zeros(SIZE, dtype=np.uint8).tofile(name)
    os.sync()
    with gpunvme.open(name) as f:
        out = f.alloc_host(SIZE)
        before = gpunvme.gpus(mount)
        assert f.read(out) == SIZE and f.path_taken == "gpu"
    after = gpunvme.gpus(name)
    assert sum(g.read_bytes for g in after) == sum(g.read_bytes for g in before) + SIZE
    assert after[0].state == "open" and after[0].queues > 0 and after[0].tier <= 2
    assert after[0].name and len(after[0].uuid) == 36
    assert after[0].numa_node is None or after[0].numa_node >= 0
    assert after[0].distance == "unknown"  # the drive is simulated


def test_other_file_systems_have_none(tmpfs):
    with pytest.raises(OSError) as caught:
        gpunvme.gpus(tmpfs)
    assert caught.value.errno == errno.ENOTTY
