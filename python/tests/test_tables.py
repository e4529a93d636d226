# SPDX-License-Identifier: BSD-2-Clause
"""Compares rows from tables of torch, of safetensors and GGUF files, with index_select()."""

import contextlib
import json
import os
import random
import runpy
import struct
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import gpunvme

ROWS, WIDTH = 3000, 65  # rows of 260 bytes


def write_gguf(path, tensors, alignment=32):
    """Writes tensors, each given by name, number of its type, shape of torch, and bytes."""
    head, data = b"", b""
    for name, kind, shape, raw in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += raw
    pairs = [(b"general.alignment", struct.pack("<II", 4, alignment)),
             (b"tokens", struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q1sQ1s", 1, b"a", 1, b"b")),
             (b"scores", struct.pack("<IIQ2f", 9, 6, 2, 1.0, 2.0))]
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, value in pairs:
        start += struct.pack("<Q", len(key)) + key + value
    start += head
    with open(path, "wb") as f:
        f.write(start + b"\0" * (-len(start) % alignment) + data)


@pytest.fixture(name="weights")
def fixture_weights(torch):
    torch.manual_seed(3)
    return torch.randn(ROWS, WIDTH)


@pytest.fixture(name="path")
def fixture_path(torch, folder, weights):  # pylint: disable=unused-argument
    from gpunvme.torch import save_file
    name = os.path.join(folder, "table.safetensors")
    save_file({"engram": weights, "other": torch.arange(7, dtype=torch.int8)}, name)
    yield name
    os.unlink(name)


def is_direct(torch, path, device):
    """Returns True if tables on this device read the file through leases of conftest's mount."""
    with gpunvme.open(path) as f:
        return f.on_mount and (device == "cuda" or not torch.cuda.is_available())


def test_gathers_as_index_select(torch, path, weights, device):
    from gpunvme.torch import Table
    weights = weights.to(device)
    with Table(path, "engram", device=device) as table:
        assert (table.why == "") == is_direct(torch, path, device), table.why
        assert len(table) == ROWS and table.row_shape == (WIDTH,) and table.dtype == torch.float32
        for dtype in (torch.int32, torch.int64):
            ids = torch.randint(0, ROWS, (3, 41), dtype=dtype, device=device)
            assert torch.equal(table.gather(ids), weights[ids])
        out = torch.empty(2, WIDTH, device=device)
        assert table.gather(ids[0, :2], out) is out
        assert torch.equal(out, weights[ids[0, :2]])
        assert table.gather(ids[:0]).shape == (0, 41, WIDTH)
        assert torch.equal(table.prefetch(ids).wait(), weights[ids])
        table.check()
        stats = table.stats()
    assert stats["gathers"] == 5 and stats["rows"] == 3 * 123 + 2 and stats["failed"] == 0
    with pytest.raises(ValueError, match="closed"):
        table.gather(ids)


def test_a_graph_captures_gathers(torch, path, weights, device):
    from gpunvme.torch import Table
    if not is_direct(torch, path, device) or device != "cuda":
        pytest.skip("no direct path of a GPU")
    ids = torch.zeros(500, dtype=torch.int64, device=device)
    with Table(path, "engram", device=device) as table:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = table.gather(ids)
        for _ in range(3):
            ids.random_(0, ROWS)
            graph.replay()
            assert torch.equal(rows.cpu(), weights[ids.cpu()])
        ids[7] = ROWS
        graph.replay()
        with pytest.raises(OSError, match="1 rows of a gather"):
            table.check()
        del graph


def test_check_waits_for_other_streams(torch, path, device):
    from gpunvme.torch import Table
    if not is_direct(torch, path, device) or device != "cuda":
        pytest.skip("no direct path of a GPU")
    ids = torch.zeros(2000, dtype=torch.int64, device=device)
    with Table(path, "engram", device=device) as table:
        for _ in range(20):
            table.gather(ids)
            table.check()
            table.prefetch(ids + ROWS)
            with pytest.raises(OSError, match="2000 rows of a gather"):
                table.check()


def test_threads_gather_in_turn(torch, path, monkeypatch):
    """Each gather waits for the event that the thread before has recorded. Without a GPU."""
    from gpunvme._native import process
    from gpunvme.torch import Table
    calls = []
    stream = SimpleNamespace(cuda_stream=0, wait_event=lambda event: calls.append("wait"))
    event = SimpleNamespace(record=lambda stream: calls.append("record"),
                            synchronize=lambda: calls.append("synchronize"))
    for name, value in (("current_stream", lambda device: stream), ("Event", lambda: event),
                        ("is_current_stream_capturing", lambda: False),
                        ("device", lambda device: contextlib.nullcontext())):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(type(process), "check_cuda", lambda _: None)
    with Table(path, "engram") as table:
        monkeypatch.setattr(table._raw, "gather", lambda *_: calls.append("gather") or time.sleep(0.02))
        threads = [threading.Thread(target=table._run_in_stream, args=(None,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        table.check()
    assert calls == ["gather", "record"] + 3 * ["wait", "gather", "record"] + ["synchronize"]


def test_a_range_is_read_once(torch, path):
    from gpunvme.torch import Table
    with Table(path, "engram") as table:
        table.gather(torch.full((16384,), 7))
        assert table.stats()["reads"] == 1


def test_a_cache_has_rows_that_repeat(torch, path, weights, device):
    from gpunvme.torch import Table
    weights = weights.to(device)
    ids = 24 * torch.randperm(123, device=device).view(3, 41)  # no two rows lie in one block
    for insertion, reads in (("all", 1), ("second touch", 2)):
        with Table(path, "engram", device=device, cache_bytes=4 << 20, insertion=insertion) as table:
            cached = is_direct(torch, path, device)
            for _ in range(4):
                assert torch.equal(table.gather(ids), weights[ids])
            table.check()
            stats = table.stats()
            assert stats["hits"] == (123 * (4 - reads) if cached else 0)
            once = stats["reads"] // (reads if cached else 4)
            table.drop_cache()
            assert torch.equal(table.gather(ids), weights[ids])
            table.check()
            assert table.stats()["hits"] == stats["hits"]
            assert table.stats()["reads"] == stats["reads"] + once


def test_a_cache_serves_shards(torch, folder, weights):
    from gpunvme.torch import Table, save_file
    names = [os.path.join(folder, f"c{i}.safetensors") for i in range(2)]
    for i, name in enumerate(names):
        save_file({f"part.{i}": weights[i * 1500:][:1500].clone()}, name)
    ids = torch.randint(0, ROWS, (500,))
    with Table(names, ["part.0", "part.1"], cache_bytes=8 << 20) as table:
        for _ in range(2):
            assert torch.equal(table.gather(ids), weights[ids])
        assert table.stats()["hits"] == (0 if table.why else 500)
    with Table(names, ["part.0", "part.1"], cache_bytes=1) as table:  # one line for each file
        for _ in range(2):
            assert torch.equal(table.gather(ids), weights[ids])
    with pytest.raises(ValueError, match="insertion='third touch'"):
        Table(names, "part.0", insertion="third touch")
    with pytest.raises(ValueError, match="cache_bytes=-1"):
        Table(names, "part.0", cache_bytes=-1)
    if is_direct(torch, names[0], "cpu"):
        with pytest.raises(OSError, match="too many"):
            Table(names, "part.0", cache_bytes=1 << 60)
    for name in names:
        os.unlink(name)


def test_refuses_ids_that_are_no_rows(torch, path, weights):
    from gpunvme.torch import Table
    ids = torch.tensor([1, -1, ROWS, 2])
    with Table(path, "engram") as table:
        with pytest.raises(OSError, match="2 rows of a gather, the first one row -1 of 3000"):
            table.gather(ids)
        table.gather(ids[::3])
        table.check()
    with Table(path, "engram", padding=True) as table:
        with pytest.raises(OSError, match=f"row {ROWS} of"):
            table.gather(ids)
        rows = table.gather(ids[:2])
    assert torch.equal(rows, torch.stack([weights[1], torch.zeros(WIDTH)]))
    with Table(path, "engram", zeros=True) as table:
        rows = table.gather(ids)
    assert torch.equal(rows[[0, 3]], weights[[1, 2]]) and not rows[1:3].any()


def test_what_is_no_gather_is_refused(torch, path):
    from gpunvme.torch import Table
    with Table(path, "engram", max_rows=10) as table:
        with pytest.raises(TypeError, match="int32 or int64"):
            table.gather(torch.zeros(2))
        with pytest.raises(OSError, match="11 rows"):
            table.gather(torch.zeros(11, dtype=torch.int64))
        for out in (torch.empty(2, WIDTH + 1), torch.empty(1, WIDTH),
                    torch.empty(2, WIDTH, dtype=torch.float64)):
            with pytest.raises(ValueError, match="out of shape"):
                table.gather(torch.tensor([1, 2]), out)
        with pytest.raises(BufferError):
            table.gather(torch.tensor([1, 2]), torch.empty(WIDTH, 2).T)
    with pytest.raises(KeyError, match="nothing"):
        Table(path, "nothing")
    with pytest.raises(ValueError, match="other: rows of"):
        Table(path, ["engram", "other"])


def test_shards_are_one_table(torch, folder, weights):
    from gpunvme.torch import Table, save_file
    names = [f"t-{i}-of-3.safetensors" for i in (1, 2, 3)]
    parts = list(weights.split([1000, 1500, 500]))
    for i, name in enumerate(names):
        save_file({f"part.{i}": parts[i]}, os.path.join(folder, name))
    index = os.path.join(folder, "t.safetensors.index.json")
    with open(index, "w", encoding="utf-8") as f:
        json.dump({"weight_map": {f"part.{i}": name for i, name in enumerate(names)}}, f)
    ids = torch.randint(0, ROWS, (500,))
    with Table(index, [f"part.{i}" for i in range(3)]) as table:
        assert torch.equal(table.gather(ids), weights[ids])
    with Table([os.path.join(folder, name) for name in names], ["part.2", "part.0"]) as table:
        assert torch.equal(table.gather(torch.tensor([0, 500])), torch.stack([parts[2][0], parts[0][0]]))
    for name in [*names, "t.safetensors.index.json"]:
        os.unlink(os.path.join(folder, name))


def test_gathers_rows_of_gguf(torch, folder, weights):
    from gpunvme.torch import Table
    path = os.path.join(folder, "t.gguf")
    blocks = torch.randint(0, 256, (100, 2 * 34), dtype=torch.uint8)  # Q8_0: 34 bytes of 32 elements
    half = weights.to(torch.bfloat16)
    write_gguf(path, [("odd", 24, (3,), b"abc"),
                      ("engram", 30, (ROWS, WIDTH), half.view(torch.uint8).numpy().tobytes()),
                      ("blocks", 8, (100, 64), blocks.numpy().tobytes())])
    ids = torch.randint(0, 100, (50,))
    with Table(path, "engram") as table:
        assert torch.equal(table.gather(ids), half[ids])
    with Table(path, "blocks") as table:
        assert torch.equal(table.gather(ids), blocks[ids])
    with open(path, "rb") as f:
        whole = f.read()
    for name, content in (("empty", b""), ("cut", whole[:60]), ("not GGUF", b"GGML" + whole[4:]),
                          ("version", whole[:4] + b"\x09" + whole[5:]),
                          ("many", whole[:8] + b"\xff" * 8 + whole[16:]),
                          ("shorter", whole[:-1])):
        with open(path, "wb") as f:
            f.write(content)
        with pytest.raises(ValueError, match=r"t\.gguf"):
            Table(path, "blocks")
            pytest.fail(name)
    os.unlink(path)


def test_refuses_headers_of_gguf_with_wrong_bytes(torch, tmpfs):  # pylint: disable=unused-argument
    """Every damaged header is refused or describes tensors inside the file."""
    from gpunvme._gguf import read_header
    path = os.path.join(tmpfs, "t.gguf")
    write_gguf(path, [("a", 0, (4, 8), bytes(128)), ("b", 1, (2, 2), bytes(8))])
    with open(path, "rb") as f:
        whole = f.read()
    rng = random.Random(1)
    for _ in range(500):
        wrong = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            wrong[rng.randrange(4, len(whole) - 136)] = rng.choice((0, 1, 0x7f, 0xff))
        with open(path, "wb") as f:
            f.write(wrong)
        with gpunvme.open(path) as file, contextlib.suppress(ValueError):
            assert all(0 < e.begin and e.begin + e.nbytes <= len(whole) for e in read_header(file))


def test_a_file_that_shrinks_fails_rows(torch, tmpfs, weights):
    from gpunvme.torch import Table, save_file
    path = os.path.join(tmpfs, "t.safetensors")
    save_file({"engram": weights}, path)
    with Table(path, "engram") as table:
        os.truncate(path, 100_000)
        assert torch.equal(table.gather(torch.tensor([3])), weights[3:4])
        with pytest.raises(OSError, match="1 rows of a gather, the first one row 2999"):
            table.gather(torch.tensor([3, 2999]))


def test_compiles_as_one_graph(torch, path, weights):
    from gpunvme.torch import Table
    with Table(path, "engram") as table:
        def layer(ids, scale):
            return (table.gather(ids % ROWS) * scale).sum(-1)

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
        for seed in range(3):
            torch.manual_seed(seed)
            ids = torch.randint(0, 1 << 40, (4, 8))
            assert torch.equal(compiled(ids, 2.0), (weights[ids % ROWS] * 2.0).sum(-1))
        torch.library.opcheck(torch.ops.gpunvme.gather_rows.default,
                              (ids % ROWS, table._number, [WIDTH], torch.float32))
        out = torch.empty(4, 8, WIDTH)
        torch.library.opcheck(torch.ops.gpunvme.gather_rows_out.default,
                              (ids % ROWS, table._number, out))


def test_needs_the_process_that_made_it(torch, path):
    from gpunvme.torch import Table
    with Table(path, "engram") as table:
        child = os.fork()
        if child == 0:
            try:
                table.gather(torch.tensor([1]))
                os._exit(1)
            except OSError as error:
                os._exit(0 if "fork" in str(error) else 2)
        assert os.waitpid(child, 0)[1] == 0
        table.gather(torch.tensor([1]))


def test_the_model_of_the_example_runs(torch, mount, tmp_path, capsys, monkeypatch):
    """The tokens equal those of the model with the table in memory."""
    example = os.path.join(os.path.dirname(__file__), "..", "examples", "engram.py")
    for folder, cache, path in ((mount, 0, "direct path"), (mount, 1, "direct path"),
                                (str(tmp_path), 1, "not on a gpunvmefs mount")):
        monkeypatch.setattr(sys, "argv", ["engram.py", folder, "--tokens", "24", "--rows", "20000",
                                          "--cache", str(cache)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(example, run_name="__main__")
        torch.compiler.reset()
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        assert "tokens are equal" in printed.out and path in printed.out
