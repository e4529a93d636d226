# SPDX-License-Identifier: BSD-2-Clause
"""Files of safetensors that gpunvme writes."""

import inspect
import os

import numpy as np
import pytest

import gpunvme.numpy


def arrays():
    rng = np.random.default_rng(1)
    return {"b": rng.standard_normal((300, 70)).astype(np.float32), "a.none": np.zeros((0, 4)),
            "one": np.array(7.5), "a": rng.integers(0, 255, 70_001, dtype=np.uint8),
            "\u00e4\"": rng.integers(0, 2, 33).astype(bool), "half": np.ones(3, dtype=np.float16),
            "turned": np.arange(20).reshape(4, 5).T}


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_files_are_those_of_safetensors(folder):
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    theirs, ours = (os.path.join(folder, name) for name in ("theirs", "ours"))
    written = {name: np.ascontiguousarray(array) for name, array in arrays().items()}
    written["one"] = arrays()["one"]  # which ascontiguousarray() gives a dimension
    for given, metadata in ((written, None), (written, {"format": "np"}), ({}, None)):
        safetensors.save_file(given, theirs, metadata)
        gpunvme.numpy.save_file(given, ours, metadata)
        assert content(ours) == content(theirs)
    for module in (safetensors, gpunvme.numpy):
        assert list(inspect.signature(module.save_file).parameters) == [
            "tensor_dict", "filename", "metadata"]
    for path in (ours, theirs):
        os.unlink(path)


def test_numpy(folder):
    path = os.path.join(folder, "written.safetensors")
    gpunvme.numpy.save_file(arrays(), path)
    found = gpunvme.numpy.load_file(path)
    assert found.keys() == arrays().keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays().items())
    os.unlink(path)


def test_a_failure_leaves_the_old_file(folder, monkeypatch):
    path = os.path.join(folder, "kept.safetensors")
    gpunvme.numpy.save_file({"a": np.arange(10)}, path)
    os.chmod(path, 0o640)
    before = content(path)

    def fails(*_):
        raise OSError(28, "no space")
    with monkeypatch.context() as patched:
        patched.setattr(gpunvme.File, "write", fails)
        with pytest.raises(OSError, match="no space"):
            gpunvme.numpy.save_file({"a": np.ones(10)}, path)
    for wrong in ({"a": np.array(["text"])}, {"a": np.array([object()])}):
        with pytest.raises(gpunvme.numpy.SafetensorError, match="a: "):
            gpunvme.numpy.save_file(wrong, path)
    with pytest.raises(gpunvme.numpy.SafetensorError, match="metadata"):
        gpunvme.numpy.save_file({"a": np.ones(1)}, path, {"a": 1})
    with pytest.raises(FileNotFoundError):
        gpunvme.numpy.save_file({"a": np.ones(1)}, os.path.join(folder, "none", "file"))
    assert content(path) == before
    assert [name for name in os.listdir(folder) if "kept" in name] == ["kept.safetensors"]
    gpunvme.numpy.save_file({"a": np.ones(10)}, path)
    assert content(path) != before and os.stat(path).st_mode & 0o777 == 0o640
    os.unlink(path)


def test_new_files_have_the_modes_of_the_process(folder):
    mask = os.umask(0o027)
    try:
        path = os.path.join(folder, "new.safetensors")
        gpunvme.numpy.save_file({"a": np.ones(10)}, path)
    finally:
        os.umask(mask)
    assert os.stat(path).st_mode & 0o777 == 0o640
    os.unlink(path)


def test_torch(torch, folder, device):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    from gpunvme.torch import save_file
    theirs, ours = (os.path.join(folder, name) for name in ("theirs", "ours"))
    given = {f"{dtype}.{i}": torch.arange(64, dtype=torch.uint8).view(getattr(torch, dtype))
             for dtype in ("float64", "bfloat16", "int64", "uint16", "float8_e4m3fn", "bool",
                           "float8_e5m2", "complex64") for i in range(2)}
    if hasattr(torch, "float4_e2m1fn_x2"):
        given["F4"] = torch.arange(64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(8, 8)
    given["weight"] = torch.nn.Parameter(torch.randn(1000, 300))
    given = {name: tensor.to(device) for name, tensor in given.items()}
    safetensors.save_file(given, theirs, {"format": "pt"})
    save_file(given, ours, {"format": "pt"})
    assert content(ours) == content(theirs)
    for path in (ours, theirs):
        os.unlink(path)


def test_refuses_what_torch_cannot_save(torch, tmpfs):
    from gpunvme.torch import SafetensorError, save_file
    path, whole = os.path.join(tmpfs, "file"), torch.ones(8, 8)
    for wrong, text in (({"a": whole, "b": whole[2:]}, "share memory"),
                        ({"a": whole.T[:, 1:]}, "contiguous"), ({"a": whole.to_sparse()}, "dense")):
        with pytest.raises(ValueError, match=text):
            save_file(wrong, path)
    with pytest.raises(SafetensorError, match="complex128"):
        save_file({"a": whole.to(torch.complex128)}, path)
    save_file({"a": whole[:4], "b": whole[4:]}, path)  # parts that are apart
    assert os.listdir(tmpfs) == ["file"]


class Writes:
    """Keeps where a file is written, and how many bytes."""

    def __init__(self, file, monkeypatch):
        self.calls, write = [], file.write

        def kept(memory, size, file_offset):
            self.calls.append((file_offset, size))
            return write(memory, size, file_offset)
        monkeypatch.setattr(file, "write", kept)


def write(torch, path, given, places, monkeypatch):
    """Returns the content of the file, and the calls that wrote it."""
    from gpunvme._torch_write import writes_of
    with gpunvme.open(path, "w+") as file:
        writes = Writes(file, monkeypatch)
        jobs = writes_of(file, zip(given, places, strict=True), places[-1] + given[-1].nbytes)
        assert sum(job() for job in jobs) == sum(tensor.nbytes for tensor in given)
    found, end = content(path), 0
    for tensor, at in zip(given, places, strict=True):
        plain = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)
        assert found[at:at + tensor.nbytes] == plain.numpy().tobytes()
        assert not any(found[end:at])
        end = at + tensor.nbytes
    assert len(found) == end
    return writes.calls


def test_small_tensors_are_written_together(torch, tmpfs, monkeypatch):
    """Runs of small tensors are one write, with zeros between them; long tensors are alone."""
    long, views = torch.randn(1 << 17), torch.randn(4, 4).t()
    given = [torch.tensor(7), torch.arange(5, dtype=torch.int16), long, torch.randn(3), views,
             torch.tensor([True])]
    places = [0, 4096, 8192, 1 << 20, (1 << 20) + 4096, 3 << 20]
    calls = write(torch, os.path.join(tmpfs, "runs"), given, places, monkeypatch)
    assert calls == [(0, 4106), (8192, long.nbytes), (1 << 20, 4160), (3 << 20, 1)]


def test_tensors_of_a_gpu_are_written_in_aligned_pieces(torch, tmpfs, monkeypatch):
    """Whatever their sizes and strides, all pieces but the first begin at multiples of one size."""
    monkeypatch.setattr("gpunvme._torch_write._STAGED", ("cpu",))
    monkeypatch.setattr("gpunvme._torch_write._PIECES", (8192,))
    given = [torch.arange(9, dtype=torch.uint8), torch.randn(700, 11).t(), torch.tensor(True),
             torch.randn(5, 5, dtype=torch.complex64).conj(), torch.randn(4096), torch.ones(1)]
    places, at = [], 8
    for tensor in given:
        places.append(at)
        at += -(-tensor.nbytes // 8) * 8
    path = os.path.join(tmpfs, "pieces")
    calls = write(torch, path, given, places, monkeypatch)
    assert [begin for begin, _ in calls] == [8, *range(8192, at, 8192)]
    assert [size for _, size in calls[1:-1]] == [8192] * (len(calls) - 2)


def test_tensors_are_taken_when_their_piece_is_due(torch, tmpfs, monkeypatch):
    """Then those of a planner are written while it has later ones. Two pieces may be unwritten."""
    from gpunvme._torch_write import writes_of
    monkeypatch.setattr("gpunvme._torch_write._STAGED", ("cpu",))
    monkeypatch.setattr("gpunvme._torch_write._PIECES", (8192,))
    taken = []

    def placed():
        for i in range(5):
            taken.append(i)
            yield torch.full((8192,), i, dtype=torch.uint8), 8192 * i
    path = os.path.join(tmpfs, "lazy")
    with gpunvme.open(path, "w+") as file:
        writes = writes_of(file, placed(), 5 * 8192)
        pending = [next(writes), next(writes)]
        assert taken == [0, 1, 2]
        for write in pending:
            write()
        assert sum(write() for write in writes) == 3 * 8192
    assert content(path) == b"".join(bytes([i]) * 8192 for i in range(5))


def test_pieces_are_short_where_memory_is(torch, tmpfs, monkeypatch):
    """Without memory of the device for any piece, memory of the host is used, once for all runs."""
    from gpunvme import _torch_write
    monkeypatch.setattr(_torch_write, "_STAGED", ("cpu",))
    monkeypatch.setattr(_torch_write, "_PIECES", (8192, 4096))
    places, given = [0, 12288, 1 << 20], [torch.randn(n) for n in (3072, 2048, 1024)]
    path, make, tries = os.path.join(tmpfs, "short"), _torch_write._Staging.__init__, []

    def refuses(most):
        def made(self, device, size, end):
            tries.append(device.type)
            if len(tries) <= most:
                raise torch.OutOfMemoryError("none")
            make(self, device, size, end)
        tries.clear()
        monkeypatch.setattr(_torch_write._Staging, "__init__", made)
    for most, sizes in ((0, [8192, 8192, 4096, 4096]), (1, [4096] * 6),
                        (2, [8192, 8192, 4096, 4096])):
        refuses(most)
        calls = write(torch, path, given, places, monkeypatch)
        assert [size for _, size in calls] == sizes and len(tries) == most + 1
    refuses(3)
    with pytest.raises(torch.OutOfMemoryError):
        write(torch, path, given, places, monkeypatch)
