# SPDX-License-Identifier: BSD-2-Clause
"""Tensors of safetensors files, by numpy and by torch."""

import json
import os
import struct

import numpy as np
import pytest

import gpunvme.numpy


def tensors(seed=1):
    rng = np.random.default_rng(seed)
    return {f"{seed}.weight": rng.standard_normal((300, 70)).astype(np.float32),
            f"{seed}.bias": rng.standard_normal(70).astype(np.float16),
            f"{seed}.ids": rng.integers(0, 1 << 40, (3, 4, 5)), f"{seed}.one": np.array(7.5),
            f"{seed}.none": np.zeros((0, 4), dtype=np.uint8),
            f"{seed}.flags": rng.integers(0, 2, 33).astype(bool)}


NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "float64": "F64", "uint8": "U8",
         "bool": "BOOL"}


def save(path, arrays, metadata=None):
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and np.array_equal(found[name], expected[name])
        for name in expected)


@pytest.fixture(name="files")
def fixture_files(folder):
    paths = [os.path.join(folder, f"{i}.safetensors") for i in (1, 2)]
    for i, path in enumerate(paths, 1):
        save(path, tensors(i), {"format": "np", "file": str(i)})
    yield paths
    for path in paths:
        os.unlink(path)


def test_loads_files(files):
    assert same(gpunvme.numpy.load_file(files[0]), tensors(1))
    assert same(gpunvme.numpy.load_file(files, threads=2), tensors(1) | tensors(2))


def test_arrays_own_their_memory(files):
    loaded = gpunvme.numpy.load_file(files[0])
    assert all(array.base is None for array in loaded.values())


def test_ranks_share_the_tensors(files):
    parts = [gpunvme.numpy.load_file(files, rank=rank, ranks=3) for rank in range(3)]
    names = [name for part in parts for name in part]
    assert sorted(names) == sorted(tensors(1) | tensors(2))
    assert same({k: v for part in parts for k, v in part.items()}, tensors(1) | tensors(2))
    assert sum("weight" in name for name in parts[0]) == 1
    with pytest.raises(ValueError):
        gpunvme.numpy.load_file(files, rank=3, ranks=3)


def test_tells_its_progress(files, capsys):
    told = []
    gpunvme.numpy.load_file(files, progress=lambda *numbers: told.append(numbers))
    total = sum(a.nbytes for i in (1, 2) for a in tensors(i).values())
    assert [t[1] for t in told] == [total] * 12
    assert told[-1][0] == total
    gpunvme.numpy.load_file(files, progress=True)
    assert "GB/s" in capsys.readouterr().err


def test_opens_as_safetensors_does(files):
    expected = tensors(1)
    with gpunvme.numpy.safe_open(files[0], framework="np") as f:
        assert f.keys() == sorted(expected)
        assert set(f.offset_keys()) == set(expected)
        assert f.metadata() == {"format": "np", "file": "1"}
        assert same({name: f.get_tensor(name) for name in f.keys()}, expected)
        weight, part = expected["1.weight"], f.get_slice("1.weight")
        assert part.get_shape() == [300, 70] and part.get_dtype() == "F32"
        for index in (slice(10, 20), slice(None), (slice(-5, None), slice(3, 9)), 7,
                      slice(0, 100, 3), (slice(None), 4), slice(20, 10)):
            assert np.array_equal(part[index], weight[index]), index
        with pytest.raises(ValueError):
            f.get_tensor("none")
    with pytest.raises(ValueError):
        gpunvme.numpy.safe_open(files[0], framework="pt")


def test_agrees_with_safetensors(files):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    for path in files:
        assert same(gpunvme.numpy.load_file(path), safetensors.load_file(path))


def header_of(text):
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("content", [
    b"", b"1234567", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 50) + b"{}",
    header_of(b"{"), header_of(b"[1]"), header_of(b'{"a": 1}'), header_of(b'{"a": {}}'),
    header_of(b'{"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}') + b"1"])
def test_files_that_are_wrong(tmp_path, content):
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="wrong.safetensors"):
        gpunvme.numpy.load_file(path)


@pytest.mark.parametrize("padding", [0, 64 << 10, 300_000])
def test_headers_of_any_length(tmp_path, padding):
    path = tmp_path / "long.safetensors"
    header = {"t": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"abc")
    assert bytes(gpunvme.numpy.load_file(path)["t"]) == b"abc"
    path.write_bytes(struct.pack("<Q", len(text)) + text[:-1])
    with pytest.raises(ValueError, match="long.safetensors"):
        gpunvme.numpy.load_file(path)


def test_a_name_in_two_files(files):
    with pytest.raises(ValueError, match="in two files"):
        gpunvme.numpy.load_file([files[0], files[0]])


def test_torch(files):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from gpunvme.torch import load_file, safe_open
    expected = tensors(1)
    loaded = load_file(files[0])
    assert loaded.keys() == expected.keys()
    for name, array in expected.items():
        assert torch.equal(loaded[name], torch.from_numpy(array)), name
        assert loaded[name].untyped_storage().nbytes() == array.nbytes
    with safe_open(files[0], framework="pt", device="cpu") as f:
        assert torch.equal(f.get_slice("1.weight")[5:9], torch.from_numpy(expected["1.weight"][5:9]))
    flat = torch.empty(10, dtype=torch.bfloat16)
    with gpunvme.open(files[0]) as f:
        assert f.read(flat) == 20
        assert f.readv(flat, torch.tensor([0, 8]), 8) == [8, 8]
