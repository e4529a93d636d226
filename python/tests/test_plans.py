# SPDX-License-Identifier: BSD-2-Clause
"""Records by kind, and layers through a ring: by numpy, and by torch where it is installed."""

import array
import functools
import json
import multiprocessing
import os

import numpy as np
import pytest

import gpunvme
from test_safetensors import save

SIZE = 5_000_000


@pytest.fixture(name="catalogue")
def fixture_catalogue(path):
    name = path + ".json"
    file = os.path.basename(path)
    gpunvme.write_catalogue(name, {
        "image": {"file": file, "offset": 4096, "size": 3072, "count": 1000},
        "label": {"file": file, "offset": 3, "size": 8, "count": 500}})
    yield name
    os.unlink(name)


def test_reads_records(catalogue, content):
    images = content[4096:4096 + 3072 * 1000].reshape(1000, 3072)
    out = np.zeros((64, 3072), dtype=np.uint8)
    with gpunvme.Catalogue(catalogue) as kinds:
        assert list(kinds) == ["image", "label"] and len(kinds["image"]) == 1000
        kinds["image"].read(936, 64, out)
        assert np.array_equal(out, images[936:])
        index = np.random.default_rng(1).integers(0, 1000, 64)
        for same in (index, index.tolist(), index.astype(np.int32), array.array("q", index)):
            out[:] = 0
            kinds["image"].gather(same, out)
            assert np.array_equal(out, images[index])
        for wrong in ([1000], [-1], [0, 5000]):
            with pytest.raises(IndexError):
                kinds["image"].gather(wrong, out)
        with pytest.raises(IndexError):
            kinds["image"].read(937, 64, out)
        with pytest.raises(ValueError):
            kinds["image"].gather(range(65), out)
        with pytest.raises(KeyError):
            kinds["sound"]  # pylint: disable=pointless-statement


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"version": 2, "kinds": {}}', '{"version": 1, "kinds": {"a": 1}}',
    '{"version": 1, "kinds": {"a": {"file": "f", "offset": 0, "size": 0, "count": 1}}}',
    '{"version": 1, "kinds": {"a": {"file": "f", "offset": 0, "size": 1, "count": 1e3}}}',
    '{"version": 1, "kinds": {"a": {"file": "f", "offset": 50, "size": 51, "count": 1}}}'])
def test_refuses_wrong_catalogues(tmpfs, text):
    with open(os.path.join(tmpfs, "f"), "wb") as file:
        file.write(b"x" * 100)
    name = os.path.join(tmpfs, "catalogue.json")
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    with pytest.raises(ValueError, match="catalogue.json"):
        gpunvme.Catalogue(name)


# --- torch -----------------------------------------------------------------------------------------

def layers_of(n):
    rng = np.random.default_rng(n)
    found = {"head.weight": rng.standard_normal((10, 10)).astype(np.float32)}
    for i in range(n):
        found[f"model.layers.{i}.up.weight"] = rng.standard_normal((50 + i, 70)).astype(np.float32)
        found[f"model.layers.{i}.down.weight"] = rng.standard_normal((70, 33)).astype(np.float16)
        found[f"model.layers.{i}.none"] = np.zeros((0, 2), dtype=np.float32)
    return found


@pytest.mark.parametrize("loop", [False, True])
def test_streams_layers(torch, folder, device, loop):
    from gpunvme.torch import LayerStream, SafetensorError
    names = [os.path.join(folder, f"layers-{i}.safetensors") for i in range(2)]
    arrays = layers_of(12)
    save(names[0], {k: v for k, v in arrays.items() if "up" in k or "head" in k})
    save(names[1], {k: v for k, v in arrays.items() if "down" in k or "none" in k})
    with LayerStream(names, device, loop=loop, depth=2) as layers:
        assert layers.layers == list(range(12))
        assert layers.ring.numel() < layers.nbytes
        sums = []
        for turn in range(36 if loop else 12):
            weights = next(layers)
            assert set(weights) == {k for k in arrays if f"layers.{turn % 12}." in k}
            sums += [(k, w.double().sum(), w.shape) for k, w in weights.items()]
        assert loop or next(layers, None) is None
        for name, total, shape in sums:
            assert shape == arrays[name].shape
            assert total.item() == pytest.approx(arrays[name].astype(np.float64).sum()), name
    with pytest.raises(ValueError, match="closed"):
        next(layers)
    with pytest.raises(SafetensorError, match="no tensor belongs to a layer"):
        LayerStream(names, device, layer_of=lambda name: None)
    with pytest.raises(ValueError, match="larger than the ring"):
        LayerStream(names, device, ring=4096)
    for name in names:
        os.unlink(name)


def test_reads_an_indexed_dataset(torch, catalogue, content, device):
    from gpunvme.torch import IndexedDataset
    images = torch.from_numpy(content[4096:4096 + 3072 * 1000].reshape(1000, 3, 32, 32))
    with IndexedDataset(catalogue, "image", shape=(3, 32, 32), device=device) as data:
        assert len(data) == 1000
        assert torch.equal(data[5].cpu(), images[5]) and torch.equal(data[-1].cpu(), images[-1])
        assert torch.equal(data[[7, 3, 3]].cpu(), images[[7, 3, 3]])
        assert torch.equal(data[10:20:2].cpu(), images[10:20:2])
        index = torch.randperm(1000, device=device)[:100]
        assert torch.equal(data[index].cpu(), images[index.cpu()])
        seen = []
        for index, batch in data.batches(64, shuffle=True, seed=3):
            assert torch.equal(batch.cpu(), images[index])
            seen += index.tolist()
        assert sorted(seen) == list(range(1000)) and seen != sorted(seen)
        assert sum(1 for _ in data.batches(64, drop_last=True)) == 15
        assert torch.equal(data[[-1, 5]].cpu(), images[[-1, 5]])
        for wrong in (1000, -1001, [-1001]):
            with pytest.raises(IndexError, match=str(wrong).strip("[]")):
                data[wrong]  # pylint: disable=pointless-statement
        for mask in (True, [True, False], torch.ones(1000, dtype=torch.bool)):
            with pytest.raises(TypeError, match="mask"):
                data[mask]  # pylint: disable=pointless-statement
        loader = torch.utils.data.DataLoader(data, batch_size=10, collate_fn=lambda batch: batch)
        assert torch.equal(torch.stack(next(iter(loader))).cpu(), images[:10])
    with IndexedDataset(catalogue, "label", dtype=torch.int64, device=device) as labels:
        assert labels[3].shape == (1,)
    with pytest.raises(ValueError, match="are no"):
        IndexedDataset(catalogue, "image", shape=(3, 32, 31), device=device)


@pytest.mark.parametrize("workers, start", [(0, None), (2, "fork"), (2, "spawn")])
def test_serves_loaders_of_datasets(torch, catalogue, content, workers, start):
    """With the loader's own collate function."""
    from gpunvme.torch import IndexedDataset
    images = torch.from_numpy(content[4096:4096 + 3072 * 1000].reshape(1000, 3, 32, 32))
    with IndexedDataset(catalogue, "image", shape=(3, 32, 32), device="cpu") as data:
        assert torch.equal(data[3], images[3])  # the parent has read before its children do
        loader = torch.utils.data.DataLoader(data, batch_size=100, num_workers=workers,
                                             multiprocessing_context=start)
        assert torch.equal(torch.cat(list(loader)), images)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_reads_records_in_workers(catalogue, content, start):
    images = content[4096:4096 + 3072 * 1000].reshape(1000, 3072)
    with gpunvme.Catalogue(catalogue) as kinds:
        with multiprocessing.get_context(start).Pool(2) as pool:
            parts = pool.map_async(functools.partial(gathered, kinds["image"]),
                                   [range(i, 1000, 4) for i in range(4)]).get(60)
    for i, part in enumerate(parts):
        assert part == images[i::4].tobytes()


def gathered(records, index):
    out = bytearray(len(index) * records.size)
    records.gather(index, out)
    return bytes(out)


def test_masks_are_no_numbers(catalogue):
    out = bytearray(3072 * 1000)
    with gpunvme.Catalogue(catalogue) as kinds:
        for mask in (np.ones(1000, dtype=bool), [True] * 1000):
            with pytest.raises(TypeError, match="mask"):
                kinds["image"].gather(mask, out)
    assert not any(out)


def test_written_catalogues_are_json(catalogue):
    with open(catalogue, encoding="utf-8") as file:
        assert json.load(file)["kinds"]["label"]["size"] == 8
