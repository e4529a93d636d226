# SPDX-License-Identifier: BSD-2-Clause
"""Ranks that load files together: as threads with numpy, and as processes of gloo with torch."""

import contextlib
import datetime
import itertools
import multiprocessing
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpunvme.numpy
from gpunvme import _group, _safetensors
from test_safetensors import bytes_read, chunks, same, save, tensors

PATIENCE = 240
SLICES = {"*.weight": 1, "*.ids": 0}
REFUSING = {"all": (), "not all": (1,)}  # ranks that do not map the others' buffers


class Threads:
    """Ranks that are threads of this process, with arrays of numpy (Peers)."""

    kind = "numpy"

    def __init__(self, meeting, values, rank):
        self.rank, self.size = rank, meeting.parties
        self._meeting, self._values = meeting, values
        self.calls = 0

    def exchange(self, value):
        self.calls += 1
        self._values[self.rank] = value
        self._meeting.wait()
        found = list(self._values)
        self._meeting.wait()
        return found

    def flat(self, tensor):
        return tensor.reshape(-1).view(np.uint8)

    def can_show(self, array):
        return False

    def offer(self, arrays):
        assert not arrays

    def join(self, offers):
        pass

    def share(self):
        return False

    def rows(self, nbytes):
        return np.full((self.size + 1, nbytes), 0xee, dtype=np.uint8)

    def gather(self, rows, failed):
        found = self.exchange((rows[-1].copy(), failed))
        rows[:-1] = [row for row, _ in found]
        return any(failed for _, failed in found)

    def copy(self, to, source, place=0):
        to[:] = source[place:place + to.size]

    def end_copies(self):
        pass

    def finish(self, failed=False):
        return any(self.exchange(failed))


class Sharing(Threads):
    """Copies from the long arrays of the others."""

    def can_show(self, array):
        return array.size > 1000

    def offer(self, arrays):
        return arrays

    def join(self, offers):
        self.offers = offers

    def share(self):
        return True

    def shown(self, rank, name):
        return self.offers[rank][name]

    def meet(self, failed):
        return any(self.exchange(failed))


class Refusing(Sharing):
    """Offers its arrays, but cannot map those of the others."""

    def share(self):
        return False


@pytest.fixture(name="peers_of", params=[Threads, Sharing, Refusing])
def fixture_peers_of(request):
    return request.param


def in_threads(size, load, peers_of=Threads):
    """Returns what load(peers) returns at each rank, or its error."""
    meeting, values = threading.Barrier(size, timeout=PATIENCE), [None] * size

    def run(rank):
        try:
            return load(peers_of(meeting, values, rank))
        except Exception as error:  # pylint: disable=broad-exception-caught  # it is the result
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def load_group(paths, peers, **options):
    empty = options.pop("empty", gpunvme.numpy._empty)
    return _group.load_group(paths, peers, empty, slices=options.pop("slices", {}), **options)


@pytest.fixture(name="files")
def fixture_files(folder):
    paths = [os.path.join(folder, f"group-{i}.safetensors") for i in (1, 2)]
    for i, path in enumerate(paths, 1):
        save(path, tensors(i))
    yield paths
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@pytest.fixture(name="small", autouse=True)
def fixture_small(monkeypatch):
    """Makes chunks short, so that small files have many, and reads some parts alone."""
    for name, value in (("MIN_CHUNK", 1), ("CHUNK", 1 << 15), ("_READ", 9000)):
        monkeypatch.setattr(_group, name, value)
    monkeypatch.setattr(_safetensors, "LONG_PIECE", 3000)


def mine(rank, ranks):
    expected = tensors(1) | tensors(2)
    for name, array in expected.items():
        dim = next((dim for end, dim in SLICES.items() if name.endswith(end[1:])), None)
        if dim is not None:
            expected[name] = chunks(array, dim, ranks)[rank]
    return expected


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_has_all(files, peers_of, size):
    before = bytes_read()
    found = in_threads(size, lambda peers: load_group(files, peers), peers_of)
    total = sum(array.nbytes for array in (tensors(1) | tensors(2)).values())
    assert bytes_read() - before == total  # each byte is read once
    for arrays in found:
        assert same(arrays, tensors(1) | tensors(2))
        assert list(arrays) == list(gpunvme.numpy.load_file(files))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_has_its_slices(files, peers_of, size):
    told = []
    found = in_threads(size, lambda peers: load_group(files, peers, slices=SLICES, progress=(
        lambda *numbers: told.append(numbers)) if peers.rank == 1 else False), peers_of)
    for rank, arrays in enumerate(found):
        assert same(arrays, mine(rank, size))
    total = sum(array.nbytes for array in found[1].values())
    assert told[-1][:2] == (total, total) and all(t[1] == total for t in told)


@pytest.mark.parametrize("arrays", [{}, {"a": np.zeros((0, 3))}, {"a": np.arange(6).reshape(2, 3)}])
def test_nothing_is_left_to_exchange(files, arrays):
    """All tensors are slices, or there is none; some slices are empty."""
    save(files[0], arrays)
    found = in_threads(3, lambda peers: load_group(files[0], peers, slices={"*": 1}))
    for rank, mine_of in enumerate(found):
        assert same(mine_of, {name: chunks(array, 1, 3)[rank] for name, array in arrays.items()})


def test_layouts_are_complete():
    """Whatever tensors there are, chunks of all ranks have each of their bytes once."""
    rng = random.Random(3)
    for _ in range(12):
        entries, ends, files = [], [16, 16], ["a", "b"]
        for i in range(rng.randint(0, 30)):
            file = rng.randint(0, 1)
            n = rng.choice([0, 1, rng.randint(1, 20_000)])
            ends[file] += rng.choice([0, 0, rng.randint(0, 20_000)])  # others are slices
            entries.append((files[file], _safetensors.Entry(f"{i}", "U8", (n,), ends[file], n)))
            ends[file] += n
        entries.sort(key=lambda found: (found[0], found[1].begin))
        layout, size = _group.Layout(entries), rng.randint(1, 9)
        shares = _group.Shares(layout, size)
        copied = {entry.name: bytearray(entry.nbytes) for _, entry in entries}
        for rank in range(size):
            for turn in range(shares.rounds):
                begin, end = shares.part(rank, turn)
                assert end - begin <= shares.chunk
                places = range(0)
                for file, entry, at, place, n in layout.parts(begin, end):
                    assert (file, entry) in entries
                    assert (entry.begin + at - place) % _group.ALIGN == 0  # as chunks are
                    assert places.stop <= place and place + n <= end - begin
                    places = range(place, place + n)
                    for i in range(at, at + n):
                        copied[entry.name][i] += 1
        assert all(set(counts) <= {1} for counts in copied.values())


def errors_of(results):
    assert all(isinstance(found, Exception) for found in results), results
    return results


def test_all_ranks_fail_with_one_that_has_no_file(files):
    first, other = errors_of(in_threads(
        2, lambda peers: load_group(files if peers.rank else "/none.safetensors", peers)))
    assert isinstance(first, FileNotFoundError)
    assert isinstance(other, RuntimeError) and "rank 0 of 2: FileNotFoundError" in str(other)


@pytest.mark.parametrize("slices", [{}, SLICES])
@pytest.mark.parametrize("read", [0, 3])
def test_all_ranks_fail_with_one_whose_read_fails(files, peers_of, monkeypatch, slices, read):
    """At its first read, or after some."""
    calls, guard, really = [], threading.Lock(), gpunvme.File.transfer

    def transfer(self, *arguments):
        with guard:
            calls.append(1)
            if len(calls) == read + 1:
                raise OSError(5, "media error", self.name)
        return really(self, *arguments)

    monkeypatch.setattr(gpunvme.File, "transfer", transfer)
    found = errors_of(in_threads(3, lambda peers: load_group(files, peers, slices=slices), peers_of))
    own = [error for error in found if isinstance(error, OSError)]
    assert len(own) == 1 and "media error" in str(own[0])
    assert all("media error" in str(error) for error in found)


def test_all_ranks_fail_with_one_that_has_no_memory(files):
    def empty(entry):
        raise MemoryError(f"{entry.nbytes} bytes")

    first, other = errors_of(in_threads(2, lambda peers: load_group(
        files, peers, **({"empty": empty} if peers.rank == 0 else {}))))
    assert isinstance(first, MemoryError) and "rank 0 of 2: MemoryError" in str(other)


@pytest.mark.parametrize("peers_of, step", [
    (Threads, "rows"), (Threads, "copy"), (Threads, "end_copies"), (Refusing, "share"),
    (Sharing, "shown"), (Sharing, "copy")])
def test_all_ranks_fail_with_one_whose_step_fails(files, monkeypatch, peers_of, step):
    really = getattr(peers_of, step)

    def fail_or_step(self, *arguments):
        if self.rank == 1:
            raise RuntimeError(f"{step}: no memory")
        return really(self, *arguments)

    monkeypatch.setattr(peers_of, step, fail_or_step)
    other, own = errors_of(in_threads(2, lambda peers: load_group(files, peers), peers_of))
    assert str(own) == f"{step}: no memory"
    assert str(other) == f"rank 1 of 2: RuntimeError: {own}"


@pytest.mark.parametrize("last", [False, True])
def test_all_ranks_fail_with_one_whose_progress_does(files, peers_of, last):
    def progress(done, total, _):
        if done == total or not last:
            raise KeyError("my own")

    first, other = errors_of(in_threads(2, lambda peers: load_group(
        files, peers, progress=progress if peers.rank == 0 else False), peers_of))
    assert isinstance(first, KeyError) and "rank 0 of 2: KeyError: 'my own'" in str(other)


def test_ranks_with_other_files_fail(files):
    for one in ([files[1], files[0]], files[:1]):
        for error in errors_of(in_threads(
                2, lambda peers, one=one: load_group(one if peers.rank else files, peers))):
            assert isinstance(error, ValueError) and "rank 1 has" in str(error)
    orders = [{"*.weight": 0, "*.w*": 1}, {"*.w*": 1, "*.weight": 0}]  # the first pattern counts
    for plans in ([{"*.weight": 0}, {"*.weight": 1}], orders):
        for error in errors_of(in_threads(
                2, lambda peers, plans=plans: load_group(files, peers, slices=plans[peers.rank]))):
            assert isinstance(error, ValueError) and "other slices" in str(error)


def test_ranks_with_versions_of_a_file_fail(files):
    """One rank opens the file before it is replaced by another one with the same header."""
    path, meeting = files[0], threading.Barrier(2, timeout=PATIENCE)
    os.rename(files[1], path + ".new")
    save(path + ".new", {name: np.zeros_like(array) for name, array in
                         tensors(1).items()})

    class Late(Threads):
        def exchange(self, value):
            if self.rank == 0 and not self.calls:
                os.rename(path + ".new", path)
                meeting.wait()
            return super().exchange(value)

    def load(peers):
        peers.__class__ = Late
        if peers.rank == 1:
            meeting.wait()
        return load_group(path, peers)

    for error in errors_of(in_threads(2, load)):
        assert isinstance(error, OSError) and "replaced" in str(error)


def test_files_that_change_fail(files):
    """A file that is written to after the ranks have opened it."""
    class Writer(Threads):
        def gather(self, rows, failed):
            if self.rank == 0 and self.calls == 3:
                with open(files[1], "r+b") as file:
                    file.seek(-8, os.SEEK_END)
                    file.write(bytes(8))
                os.utime(files[1], (1, 1))
            return super().gather(rows, failed)

    def load(peers):
        peers.__class__ = Writer
        return load_group(files, peers)

    for error in errors_of(in_threads(2, load)):
        assert "changed while it was read" in str(error)


# --- torch -----------------------------------------------------------------------------------------

def same_tensors(found, expected):
    return list(found) == list(expected) and same(
        {name: tensor.cpu().numpy() for name, tensor in found.items()}, expected)


def share_files(torch, store, refuses):
    """Has the ranks copy from tensors in shared files, unless this one refuses to map them."""
    import gpunvme.torch
    from gpunvme import _torch_group, _torch_types
    made, numbers, really = {}, itertools.count(), gpunvme.torch._empty

    def mapped(path, nbytes):
        return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)

    def empty(entry, device):
        if not entry.nbytes:
            return really(entry, device)
        path = f"{store}.{os.getpid()}.{next(numbers)}"
        found = mapped(path, entry.nbytes)
        made[found.data_ptr()] = path, entry.nbytes
        tensor = found.view(_torch_types.torch_dtype(entry))
        return tensor.view(_torch_types.torch_shape(entry))

    class Mapped:
        def __init__(self, handle):
            if refuses:
                raise RuntimeError("out of reach")
            self._bytes = mapped(*handle)

        def at(self, place):
            return self._bytes[place:]

        def close(self):
            pass

    gpunvme.torch._empty = empty
    _torch_group.SHARED, _torch_group.SHORT = ("cpu",), 1000
    _torch_group._allocation_of = lambda found: (found.data_ptr(), 0)
    _torch_group._export = made.__getitem__
    _torch_group._Mapped = Mapped


def run_rank_of_failing(rank, size, store, path, failing, ended):
    """One process of a group whose rank 1 fails while the ranks prepare to share memory."""
    import torch
    from gpunvme import _torch_group
    from gpunvme.torch import load_file
    share_files(torch, store, False)
    if rank == 1:
        def fail(*_):
            raise MemoryError("no memory here")

        setattr(getattr(_torch_group, failing), "__init__", fail)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                                         world_size=size,
                                         timeout=datetime.timedelta(seconds=PATIENCE))
    with pytest.raises(MemoryError if rank == 1 else RuntimeError, match="no memory here"):
        load_file(path, "cpu", group=torch.distributed.group.WORLD)
    ended.wait(PATIENCE)  # the group loses what it still sends when a rank ends
    os._exit(0)


def run_rank_beside_ending(rank, size, store, path):
    """One process of a group whose rank 1 ends while the ranks prepare to share memory."""
    import torch
    from gpunvme import _torch_group
    from gpunvme.torch import load_file
    share_files(torch, store, False)
    if rank == 1:
        _torch_group._Mapped.__init__ = lambda *_: os._exit(0)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                                         world_size=size)
    with pytest.raises(RuntimeError, match=f"^rank 1 of {size} has ended$"):
        load_file(path, "cpu", group=torch.distributed.group.WORLD)
    os._exit(0)


def run_rank(rank, size, backend, shares, store, paths):
    """One process of a group. The last rank dies at the end, before it loads."""
    import torch
    from gpunvme.torch import load_file
    distributed, gathers = torch.distributed, []
    if shares:
        share_files(torch, store, rank in REFUSING[shares])
        really = distributed.all_gather_into_tensor
        distributed.all_gather_into_tensor = lambda *a, **b: gathers.append(1) or really(*a, **b)
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size,
                                   timeout=datetime.timedelta(seconds=PATIENCE))
    world = distributed.group.WORLD
    _group.MIN_CHUNK, _group.CHUNK, _safetensors.LONG_PIECE = 1, 1 << 15, 3000
    assert same_tensors(load_file(paths, device, group=world), tensors(1) | tensors(2))
    assert same_tensors(load_file(paths, device, group=world, slices=SLICES), mine(rank, size))
    assert not shares or (len(gathers) > 2) == bool(REFUSING[shares])  # one for short tensors
    with pytest.raises(FileNotFoundError if rank == 0 else RuntimeError, match="none.safetensors"):
        load_file(paths if rank else "/none.safetensors", device, group=world)
    with pytest.raises(ValueError, match="those of the group"):
        load_file(paths, device, rank=rank, ranks=size, group=world)
    alone = [distributed.new_group([one]) for one in range(size)]
    assert same_tensors(load_file(paths, device, group=alone[rank]), tensors(1) | tensors(2))
    with pytest.raises(TypeError, match="no process group"):
        load_file(paths, device, group=alone[rank - 1])
    if backend == "nccl":  # which ends the process when a rank is missing
        distributed.destroy_process_group()
        return
    if rank == size - 1:
        os._exit(0)
    with pytest.raises(RuntimeError):
        load_file(paths, device, group=world)
    os._exit(0)


def in_processes(run, size, *arguments):
    """Runs the ranks of a group as processes, none of which may fail."""
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=run, args=(rank, size, *arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(PATIENCE)
        process.kill()
        process.join()
    assert [process.exitcode for process in ranks] == [0] * size


@pytest.mark.parametrize("size, backend, where, shares", [
    (2, "gloo", "mount", ""), (4, "gloo", "tmpfs", ""), (2, "nccl", "mount", ""),
    (3, "gloo", "mount", "all"), (3, "gloo", "tmpfs", "not all")])
def test_loads_in_process_groups(torch, request, tmp_path, size, backend, where, shares):
    if backend == "nccl" and torch.cuda.device_count() < size:
        pytest.skip(f"torch has no {size} CUDA devices")
    paths = [os.path.join(request.getfixturevalue(where), f"process-{i}.safetensors") for i in (1, 2)]
    for i, path in enumerate(paths, 1):
        save(path, tensors(i))
    in_processes(run_rank, size, backend, shares, tmp_path / "store", paths)
    for path in paths:
        os.unlink(path)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("failing", ["_Board", "_Mapped"])
def test_all_ranks_fail_with_one_that_cannot_share(tmp_path, failing):
    """Those that wait at a board for another rank wait longer than PATIENCE."""
    path = str(tmp_path / "file.safetensors")
    save(path, tensors(1))
    ended = multiprocessing.get_context("spawn").Barrier(2)
    in_processes(run_rank_of_failing, 2, tmp_path / "store", path, failing, ended)


@pytest.mark.usefixtures("torch")
def test_ranks_notice_one_that_ends(tmp_path):
    """The ranks would wait longer than PATIENCE for it otherwise."""
    path = str(tmp_path / "file.safetensors")
    save(path, tensors(1))
    in_processes(run_rank_beside_ending, 3, tmp_path / "store", path)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_loads_on_devices(torch, device, files, monkeypatch, size):
    from gpunvme import _torch_group
    from gpunvme.torch import load_on_devices
    monkeypatch.setattr(_torch_group, "_SHORTEST", 3000)
    devices = [f"cuda:{i % torch.cuda.device_count()}" if device == "cuda" else "cpu"
               for i in range(size)]
    before, told = bytes_read(), []
    for tensors_of in load_on_devices(files, devices):
        assert same_tensors(tensors_of, tensors(1) | tensors(2))
    total = sum(array.nbytes for array in (tensors(1) | tensors(2)).values())
    assert bytes_read() - before == total  # each byte is read once
    found = load_on_devices(files, devices, slices=SLICES,
                            progress=lambda *numbers: told.append(numbers))
    for rank, tensors_of in enumerate(found):
        assert same_tensors(tensors_of, mine(rank, size))
    assert told[-1][0] == told[-1][1]
    with pytest.raises(ValueError, match="no dimension 7"):
        load_on_devices(files, devices, slices={"*": 7})
    with pytest.raises(ValueError, match="no device"):
        load_on_devices(files, [])
    monkeypatch.setattr(gpunvme.File, "transfer", lambda *_: 0)
    with pytest.raises(ValueError, match="has become shorter"):
        load_on_devices(files, devices)
