# SPDX-License-Identifier: BSD-2-Clause
"""Compares experts in the slots of a bank with those of the files."""

import json
import os
import random
import runpy
import sys
import threading
from types import SimpleNamespace

import pytest

import gpunvme

LAYERS, EXPERTS, SHAPE = 3, 10, (24, 33)


@pytest.fixture(name="weights")
def fixture_weights(torch):
    torch.manual_seed(5)
    return torch.randn(2, LAYERS, EXPERTS, *SHAPE)


@pytest.fixture(name="path")
def fixture_path(torch, folder, weights):  # pylint: disable=unused-argument
    from gpunvme.torch import save_file
    name = os.path.join(folder, "experts.safetensors")
    save_file({f"{layer}.{expert}.{part}": weights[i, layer, expert].clone()
               for i, part in enumerate(("up", "down"))
               for layer in range(LAYERS) for expert in range(EXPERTS)}
              | {f"{layer}.stacked": weights[0, layer].clone() for layer in range(LAYERS)}, name)
    yield name
    os.unlink(name)


NAMES = [[f"{layer}.{{}}.up", f"{layer}.{{}}.down"] for layer in range(LAYERS)]


def expect(torch, bank, weights, layer, experts):
    slots = bank.fetch(layer, experts)
    wanted = torch.as_tensor(experts)
    assert slots.dtype == torch.int32 and slots.shape == wanted.shape
    for i, part in enumerate(bank.parts):
        assert torch.equal(part[slots.long()].cpu(), weights[i, layer][wanted.cpu()])
    return slots


@pytest.mark.parametrize("policy", ["lfu", "lru"])
def test_slots_have_the_experts_of_the_files(torch, path, weights, device, policy):
    from gpunvme.torch.experts import ExpertBank
    rng = random.Random(3)
    with ExpertBank(path, NAMES, slots=7, device=device, policy=policy) as bank:
        assert (bank.layers, bank.experts) == (LAYERS, EXPERTS)
        assert bank.nbytes == 2 * 4 * SHAPE[0] * SHAPE[1]
        for _ in range(60):
            layer = rng.randrange(LAYERS)
            if rng.random() < 0.5:
                bank.prefetch(layer, rng.sample(range(EXPERTS), 3))
            experts = torch.tensor([[rng.randrange(EXPERTS) for _ in range(3)] for _ in range(2)],
                                   device=device)
            expect(torch, bank, weights, layer, experts)
        stats = bank.stats()
    late = stats.pop("late")  # depends on time
    assert stats["fetches"] == 60 and min(stats.values()) > 0 and late >= 0
    with pytest.raises(ValueError, match="closed"):
        bank.fetch(0, [1])


def test_reads_that_have_not_ended_are_late(torch, path, weights, monkeypatch):
    from gpunvme.torch import experts
    held = threading.Event()
    monkeypatch.setattr(experts.File, "read", lambda self, *given, read=experts.File.read:
                        (held.wait(60), read(self, *given))[1])
    held.set()
    with experts.ExpertBank(path, NAMES, slots=4, device="cpu") as bank:
        held.clear()
        assert bank.prefetch(0, [1, 2]) == 2
        threading.Timer(0.2, held.set).start()
        expect(torch, bank, weights, 0, [1, 2, 3])
        assert (bank.stats()["late"], bank.stats()["misses"]) == (2, 1)


def test_experts_that_are_there_are_not_read(torch, path, weights):
    from gpunvme.torch.experts import ExpertBank
    with ExpertBank(path, NAMES, slots=4, device="cpu") as bank:
        first = expect(torch, bank, weights, 1, [3, 5, 3])
        assert first[0] == first[2]
        assert torch.equal(expect(torch, bank, weights, 1, [3, 5, 3]), first)
        assert bank.stats() == {"fetches": 2, "hits": 2, "misses": 2, "late": 0, "prefetches": 0}


def test_policies_replace_different_experts(torch, path, weights):
    from gpunvme.torch.experts import ExpertBank
    for policy, kept in (("lfu", [1]), ("lru", [2])):
        with ExpertBank(path, NAMES, slots=3, device="cpu", policy=policy) as bank:
            for experts in ([1], [1], [2], [3]):
                expect(torch, bank, weights, 0, experts)
            expect(torch, bank, weights, 0, [4])  # over 2, or 1
            misses = bank.stats()["misses"]
            expect(torch, bank, weights, 0, kept)
            assert bank.stats()["misses"] == misses, policy


def test_many_uses_of_the_past_are_forgotten(torch, path, weights):
    from gpunvme.torch.experts import ExpertBank
    with ExpertBank(path, NAMES, slots=2, device="cpu") as bank:
        for _ in range(20):
            expect(torch, bank, weights, 0, [1])
        for _ in range(40):
            expect(torch, bank, weights, 0, [2])
            expect(torch, bank, weights, 0, [3])
        misses = bank.stats()["misses"]
        expect(torch, bank, weights, 0, [2, 3])
        assert bank.stats()["misses"] <= misses + 1
        expect(torch, bank, weights, 0, [2])
        expect(torch, bank, weights, 0, [3])
        assert bank.stats()["misses"] <= misses + 1, "1 is in no slot any more"


def test_prefetched_experts_are_held_for_their_layer(torch, path, weights):
    from gpunvme.torch.experts import ExpertBank
    with ExpertBank(path, NAMES, slots=4, device="cpu") as bank:
        slots = expect(torch, bank, weights, 0, [0, 1])
        assert bank.prefetch(1, [7, 8, 9]) == 2, "two slots have experts that are in use"
        for i, part in enumerate(bank.parts):
            assert torch.equal(part[slots.long()], weights[i, 0][:2])
        assert bank.prefetch(1, [7, 8]) == 0
        expect(torch, bank, weights, 0, [2, 3])
        before = bank.stats()["misses"]
        expect(torch, bank, weights, 1, [7, 8])
        assert bank.stats()["misses"] == before
        bank.prefetch(2, [1, 2])
        expect(torch, bank, weights, 0, [0, 1, 2, 3])  # over those that are expected
        expect(torch, bank, weights, 2, [1, 2])


def test_slots_are_read_over_after_the_work_that_uses_them(torch, path, weights, monkeypatch):
    """Each read of a slot waits for the event behind its last use. Without a GPU."""
    from gpunvme.torch import experts
    log = []
    event = SimpleNamespace(synchronize=lambda: log.append("synchronize"))
    with experts.ExpertBank(path, NAMES, slots=2, device="cpu") as bank:
        bank.fetch(0, [0, 1])
        bank.device = SimpleNamespace(type="cuda")
        monkeypatch.setattr(experts, "_event", lambda device: log.append("record") or event)
        monkeypatch.setattr(experts.File, "read",
                            lambda self, *given, read=experts.File.read: log.append("read")
                            or read(self, *given))
        with pytest.raises(TypeError):  # no tensor of this device
            bank.fetch(0, [2, 3])
        assert log[0] == "record" and log.count("read") == 4 and log.count("synchronize") == 4
        assert log.index("synchronize") < log.index("read")
        assert all(log[:i].count("read") <= log[:i].count("synchronize") for i in range(len(log)))


@pytest.fixture(name="bank")
def fixture_bank(torch, mount, weights):  # pylint: disable=unused-argument
    """Reads by the direct path."""
    from gpunvme.torch import experts, save_file
    name = os.path.join(mount, "direct.safetensors")
    save_file({f"{layer}.{expert}.{part}": weights[i, layer, expert].clone()
               for i, part in enumerate(("up", "down"))
               for layer in range(LAYERS) for expert in range(EXPERTS)}, name)
    os.sync()
    with experts.ExpertBank(name, NAMES, slots=7, device="cpu", direct=True) as bank:
        yield bank
    os.unlink(name)


def test_the_direct_path_reads_experts(torch, bank, weights, monkeypatch):
    from gpunvme.torch import experts
    monkeypatch.setattr(experts.File, "read", None)  # kernels read everything
    rng = random.Random(7)
    for _ in range(60):
        bank.prefetch(rng.randrange(LAYERS), rng.sample(range(EXPERTS), 3))
        expect(torch, bank, weights, rng.randrange(LAYERS), rng.sample(range(EXPERTS), 7))
    stats = bank.stats()
    assert stats["fetches"] == 60 and stats["hits"] > 0 and stats["misses"] > 0


@pytest.mark.parametrize("result, match", [(-5, "Input/output"), (3167, "ends within")])
def test_a_failed_direct_read_is_reported(torch, bank, weights, monkeypatch, result, match):
    """The other experts are kept."""
    from gpunvme.torch import experts
    number = iter(range(4))

    def read_direct(self, part, at, word, stream, read=experts.File.read_direct):
        read(self, part, at, word, stream)
        if next(number) == 3:  # the second part of the second expert
            word.value = result

    with monkeypatch.context() as patch:
        patch.setattr(experts.File, "read_direct", read_direct)
        with pytest.raises(OSError, match=match):
            bank.fetch(0, [1, 2])
    misses = bank.stats()["misses"]
    expect(torch, bank, weights, 0, [1])
    assert bank.stats()["misses"] == misses
    expect(torch, bank, weights, 0, [2])
    assert bank.stats()["misses"] == misses + 1
    monkeypatch.setattr(experts.File, "read_direct", lambda *_: os.stat("/nowhere"))
    with pytest.raises(OSError, match="No such file"):
        bank.fetch(2, [1])


def test_direct_reads_come_after_the_work_that_uses_their_slots(bank, monkeypatch):
    """Without a GPU."""
    from gpunvme.torch import experts
    log = []
    bank.fetch(0, range(7))
    monkeypatch.setattr(bank, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(experts, "_event", lambda device: "use")
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: log.append("end"))
    stream = SimpleNamespace(cuda_stream=0, wait_event=log.append, synchronize=lambda: None,
                             record_event=lambda: log.append("record") or event)
    monkeypatch.setattr(bank._reads, "_streams", [stream])
    monkeypatch.setattr(experts.File, "read_direct",
                        lambda self, *given, read=experts.File.read_direct: log.append("read")
                        or read(self, *given[:3], None))
    with pytest.raises(TypeError):  # no tensor of this device
        bank.fetch(1, [2, 3])
    assert log == ["use", "read", "record"] * 4 + ["end"] * 4
    monkeypatch.setattr(bank._reads, "_streams", [None])  # nothing was registered


def test_what_is_no_expert_is_refused(torch, path):
    from gpunvme.torch.experts import ExpertBank
    with ExpertBank(path, NAMES, slots=4, device="cpu") as bank:
        with pytest.raises(ValueError, match="5 experts at a time, more than 4 slots"):
            bank.fetch(0, range(5))
        for layer, expert in ((0, EXPERTS), (0, -1), (LAYERS, 0), (-1, 0)):
            with pytest.raises(IndexError):
                bank.fetch(layer, [expert])
        with pytest.raises(TypeError, match="float"):
            bank.fetch(0, torch.zeros(2))
        assert bank.fetch(0, []).shape == (0,)
        with pytest.raises(TypeError, match="pickled"):
            bank.__reduce__()
    for names, error in (([], ValueError), (["nothing"], KeyError), (["nothing.{}"], KeyError),
                         (["0.stacked", "0.{}.up"], None), (["0.{}.up", "0.9.up"], ValueError)):
        if error is None:
            ExpertBank(path, names, slots=1, device="cpu").close()
            continue
        with pytest.raises(error):
            ExpertBank(path, names, slots=1, device="cpu")
    for given in ({"slots": 0}, {"slots": 1, "policy": "random"}):
        with pytest.raises(ValueError, match="slots=0|policy="):
            ExpertBank(path, NAMES, device="cpu", **given)


def test_reads_experts_in_rows_of_one_tensor(torch, path, weights, device):
    from gpunvme.torch.experts import ExpertBank
    names = [f"{layer}.stacked" for layer in range(LAYERS)]
    with ExpertBank(path, names, slots=3, device=device) as bank:
        for layer in (0, 2, 1):
            expect(torch, bank, weights, layer, [9, 0, 4])


def test_reads_experts_of_a_catalogue(torch, folder):
    from gpunvme.torch.experts import ExpertBank
    path, size = os.path.join(folder, "experts.bin"), 5000
    content = os.urandom(100 + 2 * 6 * size)
    with open(path, "wb") as f:
        f.write(content)
    kinds = {name: {"file": "experts.bin", "offset": 100 + i * 6 * size, "size": size, "count": 6}
             for i, name in enumerate(("one", "two"))}
    gpunvme.write_catalogue(os.path.join(folder, "catalogue.json"), kinds)
    with gpunvme.Catalogue(os.path.join(folder, "catalogue.json")) as catalogue, \
            ExpertBank(catalogue, ["one", "two"], slots=3, device="cpu") as bank:
        for layer, expert in ((0, 5), (1, 0), (1, 5), (0, 5)):
            slot = bank.fetch(layer, [expert])[0]
            at = 100 + (layer * 6 + expert) * size
            assert bytes(bank.parts[0][slot].numpy()) == content[at:at + size]
        with pytest.raises(KeyError):
            ExpertBank(catalogue, ["three"], slots=3, device="cpu")
        kinds["two"]["count"] = 5
        gpunvme.write_catalogue(catalogue.path, kinds)
        with gpunvme.Catalogue(catalogue.path) as other, pytest.raises(ValueError, match="differ"):
            ExpertBank(other, ["one", "two"], slots=3, device="cpu")


def test_an_expert_that_cannot_be_read_is_reported(torch, tmpfs, weights):
    """No slot has wrong bytes afterwards, and the others are kept."""
    from gpunvme.torch import save_file
    from gpunvme.torch.experts import ExpertBank
    path = os.path.join(tmpfs, "experts.safetensors")
    save_file({"0.stacked": weights[0, 0]}, path)
    with open(path, "rb") as f:
        content = f.read()
    nbytes = weights[0, 0, 0].nbytes
    with ExpertBank(path, ["0.stacked"], slots=3, device="cpu") as bank:
        expect(torch, bank, weights, 0, [0])
        os.truncate(path, len(content) - nbytes - 1)
        bank.prefetch(0, [9])
        for experts in ([1, 9], [8]):
            with pytest.raises(OSError, match="ends within an expert"):
                bank.fetch(0, experts)
        misses = bank.stats()["misses"]
        expect(torch, bank, weights, 0, [0, 1])
        assert bank.stats()["misses"] == misses
        with open(path, "r+b") as f:
            f.write(content)
        expect(torch, bank, weights, 0, [8, 9])


def test_threads_take_turns(torch, path, weights):
    from gpunvme.torch.experts import ExpertBank
    wrong = []
    with ExpertBank(path, NAMES, slots=5, device="cpu") as bank:
        def work(seed):
            rng = random.Random(seed)
            try:
                for _ in range(40):
                    layer, experts = rng.randrange(LAYERS), rng.sample(range(EXPERTS), 4)
                    assert bank.fetch(layer, experts).shape == (4,)
                    bank.prefetch(rng.randrange(LAYERS), rng.sample(range(EXPERTS), 2))
            except Exception as error:  # pylint: disable=broad-except
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect(torch, bank, weights, 1, [1, 2, 3, 4])
    assert not wrong


def test_needs_the_process_that_made_it(torch, path):  # pylint: disable=unused-argument
    from gpunvme.torch.experts import ExpertBank
    with ExpertBank(path, NAMES, slots=4, device="cpu") as bank:
        child = os.fork()
        if child == 0:
            try:
                bank.fetch(0, [1])
                os._exit(1)
            except OSError as error:
                os._exit(0 if "fork" in str(error) else 2)
        assert os.waitpid(child, 0)[1] == 0
        bank.fetch(0, [1])


def test_the_example_of_a_mixture_runs(torch, mount, tmp_path, capsys, monkeypatch):
    """The results equal those of the model with all experts in memory."""
    example = os.path.join(os.path.dirname(__file__), "..", "examples", "experts.py")
    for folder in (mount, str(tmp_path)):
        monkeypatch.setattr(sys, "argv", ["experts.py", folder, "--device", "cpu", "--steps", "6"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(example, run_name="__main__")
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        assert "results are equal" in printed.out
        assert json.loads(printed.out.splitlines()[-2])["misses"] > 0
