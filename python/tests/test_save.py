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


def test_what_torch_cannot_save(torch, tmpfs):
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


def test_small_tensors_are_written_together(torch, tmpfs):
    """Runs of small tensors are one write, with zeros between them; long tensors are alone."""
    from gpunvme._torch_write import runs_of, write_run
    long, views = torch.randn(1 << 17), torch.randn(4, 4).t()
    given = [torch.tensor(7), torch.arange(5, dtype=torch.int16), long, torch.randn(3), views,
             torch.tensor([True])]
    places = [0, 4096, 8192, 1 << 20, (1 << 20) + 4096, 3 << 20]
    runs = runs_of(zip(given, places, strict=True))
    assert [len(run) for run in runs] == [2, 1, 1, 1, 1]
    path = os.path.join(tmpfs, "runs")
    with gpunvme.open(path, "w+") as file:
        written = sum(write_run(file, [(tensor.contiguous(), at) for tensor, at in run])
                      for run in runs)
    assert written == sum(tensor.nbytes for tensor in given)
    with open(path, "rb") as file:
        content = file.read()
    for tensor, at in zip(given, places, strict=True):
        assert content[at:at + tensor.nbytes] == tensor.contiguous().numpy().tobytes()
    assert not any(content[8:4096]) and not any(content[4096 + 10:8192])
