# SPDX-License-Identifier: BSD-2-Clause
"""The direct path: files read on queues that the mount lends."""

import os

import numpy as np
import pytest

import gpunvme

SIZE = 3_000_001


@pytest.fixture(name="path")
def fixture_path(mount, content):
    name = os.path.join(mount, "direct")
    content.tofile(name)
    os.sync()
    yield name
    os.unlink(name)


def test_reads_into_memory_of_the_mount(path, content):
    with gpunvme.open(path, direct=True) as f:
        out = f.alloc_host(1 << 20)
        assert f.size() == SIZE
        for size, at, place in ((4096, 8192, 0), (1, 7, 5), (100_000, 12345, 77), (1 << 20, 0, 0)):
            assert f.read(out, size, at, place) == size
            assert bytes(out[place:place + size]) == content[at:at + size].tobytes()
            assert f.path_taken == "direct" and not f.why
        assert f.read(out, 100, SIZE - 10) == 10
        assert f.read(out, 100, SIZE) == 0
        assert f.pread(out, 4096, 5).get() == 4096
        assert bytes(out[:4096]) == content[5:4101].tobytes()
        with pytest.raises(ValueError):
            f.read(out, 10, 0, 1 << 20)
    with pytest.raises(ValueError):
        f.size()


def test_what_leases_do_not_serve_takes_the_mount(path, content):
    with gpunvme.open(path, "r+", direct=True) as f:
        out = f.alloc_host(8192)
        assert f.readv(out, [4096, 0], 4096) == [4096, 4096]
        assert f.path_taken == "gpu"
        assert bytes(out[:4096]) == content[4096:8192].tobytes()
        assert f.write(b"fresh", file_offset=0) == 5
        assert f.read(out, 5) == 5 and bytes(out[:5]) == b"fresh"


@pytest.mark.parametrize("memory", [bytearray(4096), np.zeros(4096, dtype=np.uint8)],
                         ids=["bytearray", "numpy"])
def test_memory_out_of_reach_is_refused(path, memory):
    with gpunvme.open(path, direct=True) as f, pytest.raises(OSError, match="alloc_host"):
        f.read(memory)
    assert not any(memory)


def test_many_are_open_at_once(path, content):
    files = [gpunvme.open(path, direct=True) for _ in range(60)]  # with queues of the mount, shared
    out = files[0].alloc_host(4096)
    for i, f in enumerate(files):
        assert f.read(out, 4096, i * 4096) == 4096
        assert bytes(out) == content[i * 4096:(i + 1) * 4096].tobytes()
        f.close()


def test_other_files_are_refused(tmpfs):
    name = os.path.join(tmpfs, "file")
    with open(name, "wb") as file:
        file.write(b"x" * 100)
    with pytest.raises(OSError, match="not on a gpunvmefs mount"):
        gpunvme.open(name, direct=True)


def test_reads_into_torch_on_the_gpu(path, content):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    out = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.open(path, direct=True) as f:
        assert f.read(out, 4096, 8192) == 4096
        assert f.read(out[65536:], 100_000, 777) == 100_000
    assert np.array_equal(out[:4096].cpu().numpy(), content[8192:12288])
    assert np.array_equal(out[65536:165536].cpu().numpy(), content[777:100777])
