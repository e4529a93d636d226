# SPDX-License-Identifier: BSD-2-Clause
"""The direct path: files and plans read on queues that the mount lends."""

import gc
import os

import numpy as np
import pytest

import gpunvme

SIZE = 3_000_001


@pytest.fixture(name="content")
def fixture_content():
    return np.random.default_rng(11).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture(name="path")
def fixture_path(mount, content):
    name = os.path.join(mount, "direct")
    content.tofile(name)
    os.sync()
    yield name
    os.unlink(name)


def test_reads_into_its_own_memory(path, content):
    with gpunvme.DirectFile(path) as f:
        out = f.alloc(1 << 20)
        assert f.size() == SIZE
        for size, at, place in ((4096, 8192, 0), (1, 7, 5), (100_000, 12345, 77), (1 << 20, 0, 0)):
            assert f.read(out, size, at, place) == size
            assert bytes(out[place:place + size]) == content[at:at + size].tobytes()
        assert f.read(out, 100, SIZE - 10) == 10
        assert f.read(out, 100, SIZE) == 0
        with pytest.raises(ValueError):
            f.read(out, 10, 0, 1 << 20)
        with pytest.raises(OSError):
            f.read(bytearray(4096), 4096)
    with pytest.raises(ValueError):
        f.size()


def test_many_are_opened_one_after_another(path, content):
    for i in range(20):  # queues that are not given back would run out
        with gpunvme.DirectFile(path) as f:
            out = f.alloc(4096)
            assert f.read(out, 4096, i * 4096) == 4096
            assert bytes(out) == content[i * 4096:(i + 1) * 4096].tobytes()
            del out
        gc.collect()


def test_other_files_are_refused(tmpfs):
    name = os.path.join(tmpfs, "file")
    with open(name, "wb") as file:
        file.write(b"x" * 100)
    with pytest.raises(OSError, match="not on a gpunvmefs mount"):
        gpunvme.DirectFile(name)


def test_steps(path, content):
    with gpunvme.open(path) as f:
        ring = f.alloc_host(1 << 20)
        plan = [[(f, i * 60_003, 70_000 + i), (f, 17 * i, 4096)] for i in range(30)]
        steps = gpunvme.Steps(plan, ring, readers=3, direct=True)
        for step in plan:
            at = steps.next()
            for _, offset, size in step:
                assert bytes(ring[at:at + size]) == content[offset:offset + size].tobytes()
                at += -(-size // 4096) * 4096
        assert steps.next() is None
        steps.close()
        with pytest.raises(OSError, match="not in memory that the mount reaches"):
            gpunvme.Steps(plan, np.zeros(1 << 20, dtype=np.uint8), direct=True)


def test_steps_of_other_files(tmpfs):
    name = os.path.join(tmpfs, "file")
    with open(name, "wb") as file:
        file.write(b"x" * 10000)
    with gpunvme.open(name) as f, pytest.raises(OSError, match="files of one mount"):
        gpunvme.Steps([[(f, 0, 100)]], np.zeros(8192, dtype=np.uint8), direct=True)


def test_torch_on_the_gpu(path, content):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    out = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.DirectFile(path, out) as f:
        assert f.read(out, 4096, 8192) == 4096
        assert f.read(out[65536:], 100_000, 777) == 100_000
    assert np.array_equal(out[:4096].cpu().numpy(), content[8192:12288])
    assert np.array_equal(out[65536:165536].cpu().numpy(), content[777:100777])
