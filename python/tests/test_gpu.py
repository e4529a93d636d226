# SPDX-License-Identifier: BSD-2-Clause
"""Memory of torch and cupy on a GPU, on a mount and on tmpfs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gpunvme

SIZE = 8 << 20


@pytest.fixture(name="torch")
def fixture_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    return torch


@pytest.fixture(name="cupy")
def fixture_cupy():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"cupy has no CUDA device: {error}")
    return cupy


def expected_path(path):
    """What a large transfer of GPU memory takes."""
    with gpunvme.open(path) as f:
        return "gpu" if f.on_mount else "bounce"


def test_torch_reads_and_writes(torch, path, content):
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.open(path, "r+") as f:
        assert f.read(tensor) == SIZE
        assert f.path_taken == expected_path(path), f.why
        assert np.array_equal(tensor.cpu().numpy(), content)
        assert f.read(tensor[4096:], 100, 7) == 100
        assert np.array_equal(tensor[4096:4196].cpu().numpy(), content[7:107])
        flipped = 255 - tensor
        torch.cuda.synchronize()
        assert f.write(flipped) == SIZE
        back = torch.empty_like(tensor)
        assert f.read(back) == SIZE
        assert torch.equal(back, flipped)


def test_reads_to_interior_pointers_of_the_caching_allocator(torch, path, content):
    tensors = [torch.zeros(n, dtype=torch.uint8, device="cuda") for n in (1 << 20, 300, 4096, 77)]
    torch.cuda.synchronize()
    with gpunvme.open(path) as f:
        for i, tensor in enumerate(tensors):
            assert f.read(tensor, file_offset=i * 1001) == tensor.numel()
        for i, tensor in enumerate(tensors):
            assert np.array_equal(tensor.cpu().numpy(),
                                  content[i * 1001:i * 1001 + tensor.numel()])


def test_torch_reads_many_by_an_index_tensor(torch, path, content):
    rows = torch.randperm(SIZE // 4096)[:1000]
    records = torch.zeros((1000, 4096), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.open(path) as f:
        assert f.readv(records, rows.cuda() * 4096, 4096) == [4096] * 1000
        assert f.path_taken == expected_path(path), f.why
    expected = content.reshape(-1, 4096)[rows.numpy()]
    assert np.array_equal(records.cpu().numpy(), expected)


def test_reads_in_streams_of_torch(torch, path, content):
    stream = torch.cuda.Stream()
    tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.open(path) as f, torch.cuda.stream(stream):
        futures = []
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        for i in range(8):
            futures.append(f.read_async(tensor, file_offset=i << 20, stream=stream))
            total += tensor.sum()
        assert [future.get(timeout=30) for future in futures] == [1 << 20] * 8
    stream.synchronize()
    assert total.item() == content.sum(dtype=np.int64)


def test_cupy_reads_writes_and_streams(cupy, path, content):
    array = cupy.zeros(SIZE, dtype=cupy.uint8)
    stream = cupy.cuda.Stream()
    cupy.cuda.runtime.deviceSynchronize()
    with gpunvme.open(path, "r+") as f:
        assert f.read(array) == SIZE
        assert np.array_equal(array.get(), content)
        assert f.read_async(array, 5000, 100, stream=stream).get(timeout=30) == 5000
        stream.synchronize()
        assert np.array_equal(array[:5000].get(), content[100:5100])
        assert f.write(array, 5000, 0) == 5000
        with pytest.raises(BufferError):
            f.read(array[::2])
    with open(path, "rb") as file:
        assert file.read(5000) == content[100:5100].tobytes()


def test_takes_dlpack_of_the_gpu(torch, path, content):
    class Tensor:
        """DLPack, and nothing else."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self):
            return self.tensor.__dlpack__()

    tensor = torch.zeros(10000, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with gpunvme.open(path) as f:
        assert f.read(Tensor(tensor), file_offset=3) == 10000
    assert np.array_equal(tensor.cpu().numpy(), content[3:10003])


def test_tensors_come_from_one_segment(torch, folder):
    """One registration at the mount, however many tensors; each has a storage of its own."""
    from gpunvme.torch import load_file
    header = {f"t{i}": {"dtype": "U8", "shape": [4 << 20], "data_offsets": [i << 22, (i + 1) << 22]}
              for i in range(16)}
    text = json.dumps(header).encode()
    name = os.path.join(folder, "segment.safetensors")
    with open(name, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + bytes(range(64)) * (1 << 20))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()["segment.large_pool.current"]
    tensors = load_file(name, device="cuda")
    os.unlink(name)
    assert torch.cuda.memory_stats()["segment.large_pool.current"] == before + 1
    assert {t.untyped_storage().nbytes() for t in tensors.values()} == {4 << 20}
    assert bytes(tensors["t9"][:64].cpu().numpy()) == bytes(range(64))


def test_loads_safetensors_to_the_gpu(torch, folder):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    from gpunvme.torch import load_file, safe_open
    names = [os.path.join(folder, f"gpu-{i}.safetensors") for i in range(2)]
    weights = [{f"{i}.{j}": torch.randn(1000 + j, 700, dtype=torch.bfloat16) for j in range(6)}
               for i in range(2)]
    for name, tensors in zip(names, weights, strict=True):
        safetensors.save_file(tensors, name)
    loaded = load_file(names, device="cuda")
    expected = weights[0] | weights[1]
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].is_cuda and torch.equal(loaded[name].cpu(), tensor), name
        assert loaded[name].untyped_storage().nbytes() == tensor.nbytes
    with safe_open(names[1], framework="pt", device="cuda") as f:
        assert torch.equal(f.get_slice("1.3")[10:20].cpu(), weights[1]["1.3"][10:20])
    for name in names:
        os.unlink(name)


EXPANDABLE = """
import os, sys
import numpy as np, torch
import gpunvme
content = np.fromfile(sys.argv[1], dtype=np.uint8)
tensors = [torch.zeros(content.size // 2, dtype=torch.uint8, device="cuda") for _ in range(2)]
torch.cuda.synchronize()
with gpunvme.open(sys.argv[1], "r+") as f:
    for i, tensor in enumerate(tensors):
        assert f.read(tensor, file_offset=i * tensor.numel()) == tensor.numel()
        assert np.array_equal(tensor.cpu().numpy(), np.split(content, 2)[i])
    assert f.read(tensors[0][4096:], 100, 7) == 100
    assert np.array_equal(tensors[0][4096:4196].cpu().numpy(), content[7:107])
    assert f.write(tensors[1], 5000, 3) == 5000
with open(sys.argv[1], "rb") as file:
    assert file.read(5003)[3:] == np.split(content, 2)[1][:5000].tobytes()
"""


def test_reads_into_expandable_segments(torch, path):
    """Memory of the virtual memory API, in a process whose allocator uses that."""
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    subprocess.run([sys.executable, "-c", EXPANDABLE, path], env=environment, check=True, timeout=120)
