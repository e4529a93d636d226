# SPDX-License-Identifier: BSD-2-Clause
"""Compares the store of Zarr 3 with zarr's own store for folders."""

import asyncio
import os
import tempfile

import numpy
import pytest

import gpunvme

zarr = pytest.importorskip("zarr", minversion="3.1", reason="zarr 3.1 is not installed")


@pytest.fixture(name="path")
def fixture_path(folder):
    return os.path.join(tempfile.mkdtemp(dir=folder), "array")


@pytest.fixture(name="lists")
def fixture_lists(monkeypatch):
    """Records the lists of reads that files get."""
    given, readv = [], gpunvme.File.readv

    def counted(file, *arguments):
        given.append(arguments)
        return readv(file, *arguments)

    monkeypatch.setattr(gpunvme.File, "readv", counted)
    return given


@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_reads_arrays(path, shards, lists):
    from gpunvme.zarr import Store
    source = numpy.random.default_rng(0).integers(0, 1000, (128, 128), dtype="int32")
    zarr.create_array(zarr.storage.LocalStore(path), data=source, chunks=(16, 16), shards=shards)
    array = zarr.open_array(Store(path), mode="r")
    assert numpy.array_equal(array[:], source)
    assert numpy.array_equal(array[5:70, 30:33], source[5:70, 30:33])
    assert lists


def test_long_ranges_are_several_reads(path, lists, monkeypatch):
    from gpunvme.zarr import Store
    monkeypatch.setattr("gpunvme.zarr._LONGEST", 1000)
    source = numpy.random.default_rng(0).integers(0, 1000, (64, 64), dtype="int32")
    zarr.create_array(zarr.storage.LocalStore(path), data=source, chunks=(64, 64), compressors=None)
    assert numpy.array_equal(zarr.open_array(Store(path), mode="r")[:], source)
    assert [1000] * 16 + [384] in [list(sizes) for _, _, sizes in lists]


def test_ranges_of_a_value_are_one_call(path, lists):
    from gpunvme.zarr import Store
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import default_buffer_prototype
    os.makedirs(path)
    content = os.urandom(100_000)
    with open(os.path.join(path, "c"), "wb") as file:
        file.write(content)
    asked = [("c", RangeByteRequest(10, 50)), ("none", None), ("c", OffsetByteRequest(99_000)),
             ("c", SuffixByteRequest(7)), ("c", None), ("c", RangeByteRequest(99_990, 200_000)),
             ("c", SuffixByteRequest(200_000)), ("c", RangeByteRequest(0, 0))]

    def values(kind, ranges):
        found = asyncio.run(kind(path).get_partial_values(default_buffer_prototype(), ranges))
        return [None if value is None else value.to_bytes() for value in found]

    ours = values(Store, asked)
    assert len(lists) == 1
    assert ours.pop(1) is None and asked.pop(1)[0] == "none"
    assert ours == values(zarr.storage.LocalStore, asked)


def test_writes_and_is_made_again(path):
    from gpunvme.zarr import Store
    zarr.create_array(Store(path), data=numpy.arange(100), chunks=(10,))
    assert numpy.array_equal(zarr.open_array(Store(path).with_read_only(True))[:], numpy.arange(100))
    with pytest.raises(ValueError):
        zarr.open_array(Store(path, read_only=True), mode="r+")[0] = 1
