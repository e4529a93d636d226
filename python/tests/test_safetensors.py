# SPDX-License-Identifier: BSD-2-Clause
"""Tensors of safetensors files, by numpy and by torch."""

import inspect
import json
import os
import random
import resource
import struct

import numpy as np
import pytest

import gpunvme.numpy
import headers
from gpunvme import _memory, _safetensors


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


def chunks(array, dim, ranks):
    """Cuts an array as torch.chunk() cuts a tensor, with empty slices at the end."""
    length = -(-array.shape[dim] // ranks)
    return np.split(array, [min(i * length, array.shape[dim]) for i in range(1, ranks)], dim)


@pytest.mark.parametrize("ranks", [1, 2, 3, 80])
def test_ranks_have_slices(files, monkeypatch, ranks):
    """Of rows, columns, and a dimension in between; the others are whole."""
    slices = {"1.weight": 0, "*.weight": 1, "*.bias": -1, "*.ids": 1, "2.none": 0, "none*": 0}
    for name, small in (("PIECES", 7), ("LONG_PIECE", 100)):
        monkeypatch.setattr(_safetensors, name, small)
    expected = tensors(1) | tensors(2)
    for rank in {0, 1, ranks // 2, ranks - 1} & set(range(ranks)):
        mine = dict(expected)
        for name, dim in (("1.weight", 0), ("2.weight", 1), ("1.bias", 0), ("2.bias", 0),
                          ("1.ids", 1), ("2.ids", 1)):
            mine[name] = chunks(expected[name], dim, ranks)[rank]
        assert same(gpunvme.numpy.load_file(files, rank=rank, ranks=ranks, slices=slices), mine)


class Part:
    """Gives the bytes of a DeviceArray from a place on as an array of CUDA."""

    def __init__(self, array, place, nbytes):
        self.array, self.place, self.nbytes = array, place, nbytes

    @property
    def __cuda_array_interface__(self):
        whole = self.array.__cuda_array_interface__
        return whole | {"shape": (self.nbytes,), "data": (whole["data"][0] + self.place, False)}


def test_one_call_reads_into_one_allocation(cuda, files, monkeypatch):
    """Bytes between the parts stay as they were."""
    arrays, lists = [cuda.array(350_000), cuda.array(4096)], []
    expected = tensors(1)
    read_pieces = gpunvme.File.read_pieces
    monkeypatch.setattr(gpunvme.File, "read_pieces", lambda self, memory, pieces: (
        lists.append(pieces.n), read_pieces(self, memory, pieces)))
    for array in arrays:
        array.put(b"?" * array.nbytes)
    with gpunvme.open(files[0]) as file:
        entries = _safetensors.read_header(file)[0]
        wanted = [(entry, Part(arrays[1], 100, entry.nbytes) if entry.name == "1.bias" else
                   Part(arrays[0], 7 + 50_000 * (5 - i), entry.nbytes))
                  for i, entry in enumerate(reversed(entries))]
        reads = _safetensors.reads_of(file, [(entry.begin, part) for entry, part in wanted])
        assert all(read() for read in reads)
    assert lists == [4]
    for array in arrays:
        content = bytearray(b"?" * array.nbytes)
        for entry, part in wanted:
            if part.array is array:
                content[part.place:part.place + part.nbytes] = expected[entry.name].tobytes()
        assert array.get() == content
    memory = _memory.memory_of(Part(arrays[0], 1000, 3000), True)
    assert _memory.allocation_of(memory)
    assert not _memory.allocation_of(memory._replace(nbytes=1 << 40))
    assert not _memory.allocation_of(_memory.memory_of(bytearray(10), True))
    for array in arrays:
        array.free()


def test_short_tensors_are_read_together(files, monkeypatch):
    """Long ones are read alone, and files apart. The result has the order of the files."""
    monkeypatch.setattr(_safetensors, "LONG_PIECE", 500)
    batches, reads_of = [], _safetensors.reads_of

    def watch(file, wanted):
        wanted = list(wanted)
        batches.append((file.name, [array.nbytes for _, array in wanted]))
        return reads_of(file, wanted)

    monkeypatch.setattr(_safetensors, "reads_of", watch)
    found = gpunvme.numpy.load_file(files)
    assert same(found, tensors(1) | tensors(2)) and list(found) == list(tensors(1) | tensors(2))
    lengths = [[300 * 70 * 4], [140, 480], [8, 0, 33]]
    assert sorted(batches) == sorted((name, n) for name in files for n in lengths)


def bytes_read():
    return sum(call.bytes for (kind, _), call in gpunvme.stats().items() if kind != "write")


@pytest.mark.parametrize("dim, part", [(0, 2), (1, 2), (None, 1)])
def test_other_slices_are_not_read(files, dim, part):
    """The first pattern that matches counts."""
    before, whole = bytes_read(), {name: array.nbytes for name, array in tensors(1).items()}
    gpunvme.numpy.load_file(files[0], rank=1, ranks=2, slices={"*.weight": dim, "1.weight": 1})
    weight = whole.pop("1.weight")
    assert bytes_read() - before == sum(whole.values()) + weight // part


@pytest.mark.parametrize("name, dim, error", [
    ("1.one", 0, "has no dimension 0"), ("1.weight", 2, "has no dimension 2"),
    ("1.weight", -3, "has no dimension -3")])
def test_refuses_wrong_slices(files, name, dim, error):
    with pytest.raises(ValueError, match=f"{name}: .*{error}"):
        gpunvme.numpy.load_file(files, ranks=2, slices={name: dim})


def test_slices_of_half_bytes_are_whole_bytes():
    entry = _safetensors.Entry("a", "F4", (4, 6), 100, 12)
    half = _safetensors.slice_of(entry, {"a": 0}, 1, 2)
    assert half[2:] == ((2, 6), 106, 6, 1, 12)
    with pytest.raises(ValueError, match="are no whole bytes"):
        _safetensors.slice_of(entry, {"a": 1}, 1, 2)
    assert _safetensors.slice_of(entry, {"a": 1}, 1, 3)[2:] == ((4, 2), 101, 4, 4, 3)


def test_reports_its_progress(files, capsys):
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
    header_of(b'{"a": {"dtype": "U8", "shape": ["1"], "data_offsets": [0, 1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}') + b"12",
    header_of(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}') + b"12",
    header_of(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, '
              b'"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}') + b"1",
    header_of(b"[" * 100_000), header_of(b'{"__metadata__": {"a": 1}}'),
    header_of(b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, -1]}}') + b"1",
    header_of(b'{"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}') + b"1"])
def test_refuses_wrong_files(tmp_path, content):
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="wrong.safetensors"):
        gpunvme.numpy.load_file(path)


def verdict(call, *arguments):
    try:
        tensors, metadata = call(*arguments)
    except (ValueError, KeyError):
        return None
    return sorted(tensors), metadata


@pytest.mark.parametrize("seed", range(4))
def test_our_parser_judges_as_the_reference_does(tmp_path, seed):
    if _safetensors.reference is None:
        pytest.skip("safetensors is not installed")
    rng, accepted = random.Random(seed), 0
    for i in range(1000):
        path = tmp_path / str(i)
        path.write_bytes(headers.file_of(rng))
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            expected = verdict(_safetensors._by_reference, file.fileno())
            ours = verdict(_safetensors._by_ourselves, file.fileno(), size)
        assert ours == expected, path.read_bytes()
        accepted += ours is not None
        path.unlink()
    assert 200 < accepted < 800


def test_our_parser_takes_each_type(tmp_path):
    described, at = {}, 0
    for dtype, bits in _safetensors.BITS.items():
        described[dtype] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [at, at + bits]}
        at += bits
    path = tmp_path / "types.safetensors"
    path.write_bytes(header_of(json.dumps(described).encode()) + bytes(at))
    with open(path, "rb") as file:
        found, _ = _safetensors._by_ourselves(file.fileno(), path.stat().st_size)
    assert found == [(dtype, dtype, [2, 4]) for dtype in _safetensors.BITS]


def test_many_names_of_one_range_take_no_memory(tmp_path):
    """2,000 tensors of the same MiB would be 2 GiB."""
    path = tmp_path / "one.safetensors"
    path.write_bytes(header_of(json.dumps({
        f"t{i}": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}
        for i in range(2000)}).encode()) + bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(gpunvme.numpy.SafetensorError):
        gpunvme.numpy.load_file(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_safe_open_has_what_safetensors_has(module):
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
    ours = pytest.importorskip(f"gpunvme.{module}", reason=f"{module} is not installed")

    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    def parameters(function):
        return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]

    assert public(ours.safe_open) == public(safetensors.safe_open)
    assert parameters(ours.safe_open) == parameters(safetensors.safe_open)
    for name in public(safetensors.safe_open) | {"__enter__", "__exit__"}:
        theirs = parameters(getattr(safetensors.safe_open, name))
        assert [p[0] for p in parameters(getattr(ours.safe_open, name))] == [p[0] for p in theirs]
    assert issubclass(ours.SafetensorError, safetensors.SafetensorError)


def test_safe_open_behaves_as_safetensors_does(files):
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
    error = safetensors.SafetensorError
    for kind in (gpunvme.numpy.safe_open, safetensors.safe_open):
        with kind(files[0], "np", "cpu", backend="pread") as f:
            assert same(f.get_tensors(), tensors(1)) and list(f.get_tensors()) == f.offset_keys()
            with pytest.raises(error, match="does not contain"):
                f.get_tensor("none")
        for call in (f.keys, f.metadata, lambda: f.get_tensor("1.one")):  # noqa: B023
            with pytest.raises(error):
                call()
        with pytest.raises(error):
            kind(files[0], "strange")
        with pytest.raises(error):
            kind(files[0], "np", backend="strange")


def index_of(folder, weights):
    path = os.path.join(folder, "model.safetensors.index.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"weight_map": weights}, file)
    return path


def test_loads_indexes_and_folders(tmp_path):
    both = tensors(1) | tensors(2)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names, 1):
        save(tmp_path / name, tensors(i))
    assert same(gpunvme.numpy.load_file(tmp_path), both)
    weights = {name: names[int(name[0]) - 1] for name in both}
    save(tmp_path / "stale.safetensors", tensors(3))  # which the index does not name
    with pytest.raises(gpunvme.numpy.SafetensorError, match="3 files"):
        gpunvme.numpy.load_file(tmp_path)
    index = index_of(tmp_path, weights)
    for given in (tmp_path, index):
        assert same(gpunvme.numpy.load_file(given), both)
    index_of(tmp_path, weights | {"gone": names[0]})
    with pytest.raises(gpunvme.numpy.SafetensorError, match="gone: in the index"):
        gpunvme.numpy.load_file(index)
    for wrong in ({"a": "../a.safetensors"}, {"a": 5}, []):
        index_of(tmp_path, wrong)
        with pytest.raises(gpunvme.numpy.SafetensorError, match="not an index"):
            gpunvme.numpy.load_file(index)
    index_of(tmp_path, weights)
    os.unlink(tmp_path / names[1])
    with pytest.raises(FileNotFoundError):
        gpunvme.numpy.load_file(tmp_path)
    os.unlink(index)
    os.unlink(tmp_path / "stale.safetensors")
    with pytest.raises(gpunvme.numpy.SafetensorError, match="1 files"):
        gpunvme.numpy.load_file(tmp_path)


@pytest.mark.parametrize("padding", [0, 64 << 10, 300_000])
def test_reads_headers_of_any_length(tmp_path, padding):
    path = tmp_path / "long.safetensors"
    header = {"t": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"abc")
    assert bytes(gpunvme.numpy.load_file(path)["t"]) == b"abc"
    path.write_bytes(struct.pack("<Q", len(text)) + text[:-1])
    with pytest.raises(ValueError, match="long.safetensors"):
        gpunvme.numpy.load_file(path)


@pytest.mark.parametrize("ahead", [1, 8])
def test_reads_tensors_one_after_the_other(files, ahead):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from gpunvme.torch import iter_tensors
    expected = tensors(1) | tensors(2)
    found = list(iter_tensors(files, ahead=ahead, keep=lambda name: not name.endswith("ids")))
    assert [name for name, _ in found] == [name for name in expected if not name.endswith("ids")]
    assert all(torch.equal(tensor, torch.from_numpy(expected[name])) for name, tensor in found)
    one = iter_tensors(files, ahead=ahead)
    assert next(one)[0] == "1.weight"
    one.close()  # waits for reads that are under way
    with pytest.raises(FileNotFoundError):
        next(iter_tensors("/none"))


def test_refuses_a_name_in_two_files(files):
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
