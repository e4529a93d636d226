# SPDX-License-Identifier: BSD-2-Clause
"""Reads samples of tars and MDS shards that tarfile and the defining packages make."""

import io
import os
import struct
import tarfile
import tempfile

import pytest

import gpunvme
from gpunvme._samples import index_mds, index_tar


@pytest.fixture(name="place")
def fixture_place(folder):
    return tempfile.mkdtemp(dir=folder)


def add(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def make_tar(path, n=20, first=0):
    samples = {}
    with tarfile.open(path, "w") as tar:
        for i in range(first, first + n):
            samples[f"a/{i:04d}"] = {"jpg": os.urandom(100 + 77 * i), "cls": str(i).encode()}
            for field, content in samples[f"a/{i:04d}"].items():
                add(tar, f"a/{i:04d}.{field}", content)
    return samples


def contents(samples):
    return {sample.pop("__key__"): {field: bytes(tensor.cpu().numpy())
                                    for field, tensor in sample.items()} for sample in samples}


def test_reads_tars_by_number(torch, place, device, monkeypatch):
    from gpunvme.torch.samples import SampleDataset
    paths = [os.path.join(place, f"{i}.tar") for i in range(2)]
    expected = make_tar(paths[0]) | make_tar(paths[1], first=20)
    keys = list(expected)
    with SampleDataset(paths, device) as data:
        assert len(data) == 40 and contents([data[3]]) == {keys[3]: expected[keys[3]]}
        lists, readv = [], gpunvme.File.readv
        monkeypatch.setattr(gpunvme.File, "readv", lambda *given: lists.append(1) or readv(*given))
        found = contents(data.__getitems__([25, 3, 39, 0, 3]))
        assert found == {keys[i]: expected[keys[i]] for i in (25, 3, 39, 0)}
        assert len(lists) == 2
    with SampleDataset(paths[0], device, fields=["cls"]) as data:
        assert contents([data[7]]) == {keys[7]: {"cls": b"7"}}


@pytest.mark.parametrize("workers", ["none", "fork", "spawn"])
def test_serves_a_loader_of_samples(torch, place, workers):
    from gpunvme.torch.samples import SampleDataset
    path = os.path.join(place, "0.tar")
    expected = make_tar(path)
    with SampleDataset(path, "cpu") as data:
        loader = torch.utils.data.DataLoader(
            data, batch_size=8, shuffle=True, collate_fn=list, num_workers=0 if workers == "none" else 2,
            multiprocessing_context=None if workers == "none" else workers)
        assert contents(sample for batch in loader for sample in batch) == expected


def test_indexes_what_webdataset_yields(tmpfs):
    """Members have dots in folders and fields, and some are metadata or not files."""
    path = os.path.join(tmpfs, "0.tar")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "__meta__", b"no sample")
        folder = tarfile.TarInfo("d.x/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in "d.x/one.seg.png", "d.x/one.TXT", "d.x/two.txt", "n" * 150 + ".txt":
            add(tar, name, name.encode())
    found = index_tar(path)
    assert [(s.key, list(s.fields)) for s in found] == [
        ("d.x/one", ["seg.png", "txt"]), ("d.x/two", ["txt"]), ("n" * 150, ["txt"])]
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    theirs = list(wds.WebDataset(path, shardshuffle=False))
    with open(path, "rb") as file:
        for mine, sample in zip(found, theirs, strict=True):
            assert sample["__key__"] == mine.key
            for field, (offset, size) in mine.fields.items():
                file.seek(offset)
                assert file.read(size) == sample[field]


def make_mds(path, samples, names=("label", "text"), sizes=(8, None)):
    """Writes a shard in the format of MosaicML's streaming."""
    import json
    config = json.dumps({"column_names": list(names), "column_sizes": list(sizes),
                         "column_encodings": ["int", "str"], "format": "mds"}).encode()
    bodies = [struct.pack("<I", len(text)) + struct.pack("<q", label) + text for label, text in samples]
    offsets = [4 * (len(bodies) + 2) + len(config)]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(offsets) + 1}I", len(bodies), *offsets) + config
                   + b"".join(bodies))


def test_reads_mds_by_number(torch, place, device):
    from gpunvme.torch.samples import SampleDataset
    path = os.path.join(place, "shard.00000.mds")
    make_mds(path, [(i, b"x" * 1000 * i) for i in range(10)])
    with SampleDataset(path, device) as data:
        found = contents(data.__getitems__([4, 0]))
    assert found == {"4": {"label": struct.pack("<q", 4), "text": b"x" * 4000},
                     "0": {"label": struct.pack("<q", 0), "text": b""}}


def test_reads_mds_of_streaming(torch, tmpfs):
    writer = pytest.importorskip("streaming.base.format.mds.writer",
                                 reason="mosaicml-streaming is not installed")
    from gpunvme.torch.samples import SampleDataset
    columns = {"id": "int", "raw": "bytes", "text": "str"}
    with writer.MDSWriter(out=os.path.join(tmpfs, "out"), columns=columns) as out:
        for i in range(30):
            out.write({"id": i, "raw": bytes([i]) * i, "text": f"number {i}"})
    with SampleDataset(os.path.join(tmpfs, "out", "shard.00000.mds"), "cpu") as data:
        assert len(data) == 30
        for i, sample in enumerate(data.__getitems__(range(30))):
            assert int(sample["id"].view(torch.int64)) == i
            assert bytes(sample["raw"].numpy()) == bytes([i]) * i
            assert bytes(sample["text"].numpy()) == f"number {i}".encode()


@pytest.mark.parametrize("damage", [
    lambda b: b[:3], lambda b: b"\xff" * 8 + b[8:], lambda b: b[:20],
    lambda b: b[:4] + struct.pack("<I", 1 << 31) + b[8:], lambda b: b.replace(b"null", b"-100"),
    lambda b: b.replace(b"column_names", b"column_nemas"), lambda b: b[:-3000]])
def test_refuses_broken_mds(tmpfs, damage):
    path = os.path.join(tmpfs, "0.mds")
    make_mds(path, [(i, b"x" * 1000 * i) for i in range(4)])
    with open(path, "rb") as file:
        content = damage(file.read())
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(ValueError, match="0.mds"):
        index_mds(path)


@pytest.mark.parametrize("keep", [100, 700, 0])
def test_refuses_broken_tars(tmpfs, keep):
    path = os.path.join(tmpfs, "0.tar")
    make_tar(path, n=1, first=100)
    os.truncate(path, keep)
    with pytest.raises(ValueError, match="0.tar"):
        index_tar(path)
