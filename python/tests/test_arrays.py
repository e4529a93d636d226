# SPDX-License-Identifier: BSD-2-Clause
"""Arrays of libraries other than torch, cupy and numpy: in host memory, on a GPU where there is one."""

import numpy as np
import pytest

import gpunvme

SIZE = 100_000


@pytest.fixture(name="jax")
def fixture_jax():
    return pytest.importorskip("jax", reason="jax is not installed")


@pytest.fixture(name="numba")
def fixture_numba():
    return pytest.importorskip("numba", reason="numba is not installed")


def test_writes_arrays_of_jax(jax, path, content):
    array = jax.numpy.asarray(content[:8192].view(np.float32)[::-1])
    with gpunvme.open(path, "r+") as f:
        assert f.write(array, file_offset=77) == 8192
    with open(path, "rb") as file:
        assert file.read()[77:77 + 8192] == np.asarray(array).tobytes()


def test_arrays_of_jax_are_not_read_into(jax, path):
    """jax takes them for constant, and so does this package."""
    array = jax.numpy.zeros(4096, dtype=jax.numpy.uint8)
    with gpunvme.open(path) as f, pytest.raises(BufferError):
        f.read(array)
    assert not np.asarray(array).any()


def test_jax_takes_what_was_read(jax, path, content):
    """By DLPack, without a copy where the memory's alignment suits jax."""
    with gpunvme.open(path) as f:
        try:
            memory = np.frombuffer(f.alloc_host(65536), dtype=np.int32)
        except OSError:  # not on a mount
            memory = np.zeros(16384, dtype=np.int32)
        assert f.read(memory, file_offset=4096) == 65536
        array = jax.dlpack.from_dlpack(memory)
        expected = content[4096:4096 + 65536].view(np.int32)
        assert int(jax.jit(lambda a: (a ^ (a >> 3)).sum())(array)) == \
            int((expected ^ (expected >> 3)).sum(dtype=np.int32))


def test_kernels_of_numba_use_what_was_read(numba, path, content):
    @numba.njit
    def weigh(values):
        total = 0
        for i in range(len(values)):
            total += (i % 7) * values[i]
        return total

    memory = np.zeros(SIZE, dtype=np.uint8)
    with gpunvme.open(path) as f:
        assert f.read(memory) == SIZE
    assert weigh(memory) == int((np.arange(SIZE) % 7 * content.astype(np.int64)).sum())


def test_reads_into_device_arrays_of_numba(path, content):
    cuda = pytest.importorskip("numba.cuda", reason="numba, or its part for CUDA, is not installed")
    if not cuda.is_available():
        pytest.skip("numba has no CUDA device")
    memory = cuda.device_array(SIZE, dtype=np.uint8)
    with gpunvme.open(path) as f:
        assert f.read(memory) == SIZE
    assert np.array_equal(memory.copy_to_host(), content)


def test_reads_into_device_arrays_of_jax(jax, path, content):
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("jax has no GPU")
    array = jax.device_put(content[:8192][::-1].copy(), jax.devices("gpu")[0])
    array.block_until_ready()
    with gpunvme.open(path, "r+") as f:
        assert f.write(array) == 8192
    with open(path, "rb") as file:
        assert file.read()[:8192] == content[:8192][::-1].tobytes()
