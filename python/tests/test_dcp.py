# SPDX-License-Identifier: BSD-2-Clause
"""Compares checkpoints of torch.distributed.checkpoint with torch's own."""

import dataclasses
import gc
import os
import pickle
import tempfile

import pytest

import gpunvme


@pytest.fixture(name="dcp")
def fixture_dcp(torch):
    assert torch.distributed.is_available(), "this torch has no distributed package"
    import torch.distributed.checkpoint as dcp
    return dcp


@pytest.fixture(name="path")
def fixture_path(folder):
    return os.path.join(tempfile.mkdtemp(dir=folder), "step")


def a_state(torch, device, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Linear(500, 3)).to(device)
    return {"model": model.state_dict(), "step": 17, "words": ["a", "b"], "scalar": torch.tensor(2.5),
            "half": torch.randn(1000, 7, device=device).to(torch.bfloat16), "empty": torch.empty(0, 4),
            "turned": torch.randn(64, 32, device=device).T, "truth": torch.tensor([True, False])}


def flat(state):
    return {**{f"model.{name}": t for name, t in state["model"].items()},
            **{name: value for name, value in state.items() if name != "model"}}


def assert_equal(torch, found, expected):
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


def moved():
    return sum(call.bytes for call in gpunvme.stats().values())


def test_saves_and_loads(torch, dcp, path, device):
    from gpunvme.torch.dcp import Reader, Writer
    saved, before = a_state(torch, device), moved()
    dcp.save(saved, storage_writer=Writer(path))
    written = moved() - before
    found = a_state(torch, device, seed=1)
    dcp.load(found, storage_reader=Reader(path))
    assert_equal(torch, found, saved)
    tensors = sum(t.nbytes for t in flat(saved).values() if isinstance(t, torch.Tensor))
    assert written >= tensors and moved() - before - written >= tensors


def test_staged_copies_do_not_change(torch, dcp, path, device):
    from gpunvme.torch.dcp import Reader, Writer
    writer, saved = Writer(path), a_state(torch, device)
    staged = writer.stage(saved)
    for value in flat(saved).values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    dcp.save(staged, storage_writer=writer)
    found = a_state(torch, device, seed=1)
    dcp.load(found, storage_reader=Reader(path))
    assert_equal(torch, found, a_state(torch, device))


def test_saves_asynchronously(torch, dcp, path, device, tmp_path):
    from gpunvme.torch.dcp import Reader, Writer
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0,
                                         world_size=1)
    try:
        saved = a_state(torch, device)
        saving = dcp.async_save(saved, storage_writer=Writer(path))
        for value in flat(saved).values():
            if isinstance(value, torch.Tensor):
                value.zero_()
        saving.result()
        found = a_state(torch, device, seed=1)
        dcp.load(found, storage_reader=Reader(path))
        assert_equal(torch, found, a_state(torch, device))
    finally:
        torch.distributed.destroy_process_group()


def test_reads_checkpoints_of_torch(torch, dcp, path, device):
    from gpunvme.torch.dcp import Reader
    saved = a_state(torch, device)
    dcp.save(saved, checkpoint_id=path)
    found = a_state(torch, device, seed=1)
    dcp.load(found, storage_reader=Reader(path))
    assert_equal(torch, found, saved)


def test_torch_refuses_these_checkpoints(torch, dcp, tmpfs):
    from gpunvme.torch.dcp import Writer
    dcp.save(a_state(torch, "cpu"), storage_writer=Writer(os.path.join(tmpfs, "ours")))
    with pytest.raises(dcp.api.CheckpointException, match="gpunvme.raw"):
        dcp.load(a_state(torch, "cpu"), checkpoint_id=os.path.join(tmpfs, "ours"))


@pytest.mark.parametrize("part", [(0, 2, 5), (1, 1, 2)])
def test_reads_parts_of_tensors(torch, dcp, path, part):
    """A plan of another sharding asks for parts of what was saved."""
    from gpunvme.torch.dcp import Reader, Writer
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    source = torch.arange(32.0).view(8, 4)
    dcp.save({"a": source}, storage_writer=Writer(path))
    dim, first, n = part

    class Part(DefaultLoadPlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            item = plan.items[0]
            lengths, offsets = list(item.lengths), [0, 0]
            lengths[dim], offsets[dim] = n, first
            plan.items[0] = dataclasses.replace(item, lengths=torch.Size(lengths),
                                                storage_offsets=torch.Size(offsets),
                                                dest_offsets=torch.Size([0, 0]))
            return plan

        def resolve_tensor(self, read_item):
            return target

    target = torch.zeros([n if i == dim else length for i, length in enumerate(source.shape)])
    dcp.load({"a": torch.zeros(8, 4)}, storage_reader=Reader(path), planner=Part())
    assert torch.equal(target, source.narrow(dim, first, n))


def test_refuses_broken_checkpoints(torch, dcp, tmpfs):
    from gpunvme.torch.dcp import Reader, Writer
    path = os.path.join(tmpfs, "step")
    dcp.save({"a": torch.arange(5000)}, storage_writer=Writer(path))
    data = os.path.join(path, "__0_0.distcp")
    os.truncate(data, 4096)
    with pytest.raises(dcp.api.CheckpointException, match="shorter than its metadata"):
        dcp.load({"a": torch.zeros(5000, dtype=torch.int64)}, storage_reader=Reader(path))
    with open(os.path.join(path, ".metadata"), "rb") as file:
        metadata = pickle.load(file)
    next(iter(metadata.storage_data.values())).length = 8
    with open(os.path.join(path, ".metadata"), "wb") as file:
        pickle.dump(metadata, file)
    with pytest.raises(dcp.api.CheckpointException, match="8 bytes for"):
        dcp.load({"a": torch.zeros(5000, dtype=torch.int64)}, storage_reader=Reader(path))


def test_metadata_are_read_without_collections(torch, dcp, tmpfs, monkeypatch):
    from gpunvme.torch.dcp import Reader, Writer
    path, enabled = os.path.join(tmpfs, "step"), []
    plain = dcp.FileSystemReader.read_metadata

    def noted(self, *args, **kwargs):
        enabled.append(gc.isenabled())
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(dcp.FileSystemReader, "read_metadata", noted)
    dcp.save({"a": torch.ones(100)}, storage_writer=Writer(path))
    dcp.load({"a": torch.zeros(100)}, storage_reader=Reader(path))
    assert enabled and not any(enabled) and gc.isenabled()
    os.unlink(os.path.join(path, ".metadata"))
    with pytest.raises(dcp.api.CheckpointException, match="No such file"):
        dcp.load({"a": torch.zeros(100)}, storage_reader=Reader(path))
    assert not any(enabled) and gc.isenabled()
