# SPDX-License-Identifier: BSD-2-Clause
"""Compares features in files with those in memory, also in the loaders of PyTorch Geometric."""

import os
import pickle

import pytest

NODES = 1000


@pytest.fixture(name="pyg")
def fixture_pyg(torch):  # pylint: disable=unused-argument
    return pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")


@pytest.fixture(name="given")
def fixture_given(torch):
    torch.manual_seed(11)
    return {"x": torch.randn(NODES, 33), "y": torch.arange(NODES)}


@pytest.fixture(name="path")
def fixture_path(torch, folder, given):  # pylint: disable=unused-argument
    from gpunvme.torch import save_file
    path = os.path.join(folder, "nodes.safetensors")
    save_file(given, path)
    yield path
    os.unlink(path)


def store_of(path, group, device="cpu", **options):
    from gpunvme.torch.pyg import FeatureStore
    return FeatureStore({(group, name): (path, name) for name in "xy"}, device, **options)


def test_takes_indexes_of_pyg(torch, pyg, given, path, device):  # pylint: disable=unused-argument
    """All indexes of PyG select what they select of a tensor, also more rows than of a gather."""
    mask = torch.rand(NODES) < 0.3
    with store_of(path, "paper", device, max_rows=64) as store:
        for name, tensor in given.items():
            for index in (None, 7, -1, slice(None), slice(3, 400, 7), slice(9, 3), slice(-5, None),
                          torch.tensor([5, 5, -NODES, 999]), torch.arange(6).view(2, 3),
                          torch.randint(0, NODES, (700,), dtype=torch.int32), mask,
                          torch.arange(0)):
                expected = tensor if index is None else tensor[index]
                found = store["paper", name, index]
                assert found.device.type == device
                assert torch.equal(found.cpu(), expected), (name, index)
            assert store.get_tensor_size("paper", name) == tensor.shape
        early = torch.arange(2 * 64)  # of two gathers, the first one fails
        early[5] = NODES
        for index in (torch.tensor([3, NODES]), torch.tensor([-NODES - 1]), mask[1:], early):
            with pytest.raises((IndexError, OSError)):
                store.get_tensor("paper", "x", index)


def test_a_cache_has_features_of_frequent_nodes(torch, pyg, given, path):  # pylint: disable=unused-argument
    with store_of(path, None, cache_bytes=4 << 20) as store:
        nodes = torch.randint(0, NODES, (200,))
        for _ in range(2):
            assert torch.equal(store[None, "x", nodes], given["x"][nodes])
        table = store.table(None, "x")
        assert table.stats()["hits"] == (0 if table.why else 200)
        make, arguments = store.__reduce__()
        with make(*arguments) as other:
            assert torch.equal(other[None, "x", nodes], given["x"][nodes])


def test_refuses_writes(torch, pyg, given, path):  # pylint: disable=unused-argument
    with store_of(path, None) as store:
        with pytest.raises(OSError, match="read-only"):
            store[None, "x", None] = given["x"]
        with pytest.raises(OSError, match="read-only"):
            del store[None, "x"]
        with pytest.raises(KeyError):
            store.get_tensor(None, "z", None)
    with pytest.raises(KeyError, match="no tensor x of"):
        from gpunvme.torch.pyg import FeatureStore
        FeatureStore({(None, "x"): (path, "x of another file")})


def sampler_of(torch):
    """A sampler whose subgraphs have the seeds and the node behind each. It needs no pyg-lib."""
    sampler = pytest.importorskip("torch_geometric.sampler")

    class Sampler(sampler.BaseSampler):
        def sample_from_nodes(self, index, **_):
            n = len(index.node)
            node = torch.cat([index.node, (index.node + 1) % NODES])
            return sampler.SamplerOutput(node, torch.arange(n) + n, torch.arange(n), None,
                                         metadata=(index.input_id, index.time))

        def sample_from_edges(self, index, neg_sampling=None):
            raise NotImplementedError

    return Sampler()


@pytest.mark.parametrize("workers", [0, "fork", "pickle"])
def test_feeds_loaders(torch, pyg, given, path, device, workers):  # pylint: disable=unused-argument
    """Mini-batches have the features of their nodes, in the process and in workers."""
    if workers and device == "cuda":
        pytest.skip("workers have no GPU")
    from torch_geometric.loader import NodeLoader
    from torch_geometric.testing import MyGraphStore
    store = store_of(path, None, device)
    if workers == "pickle":
        store = pickle.loads(pickle.dumps(store))
    seen = 0
    loader = NodeLoader((store, MyGraphStore()), sampler_of(torch), torch.arange(0, NODES, 3),
                        batch_size=50, num_workers=2 if workers == "fork" else 0)
    for batch in loader:
        assert torch.equal(batch.x.cpu(), given["x"][batch.n_id])
        assert torch.equal(batch.y.cpu(), batch.n_id)
        seen += batch.edge_index.shape[1]
    assert seen == -(-NODES // 3)
    store.close()
