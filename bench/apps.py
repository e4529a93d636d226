#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What applications get: one case a process, as libraries are preloaded or not (scripts/gpu-apps.sh).

    apps.py CASE [--label WORDS] FILE...

FILE is the safetensors file that `apps.py make` writes (its contents are those of peers.py). Prints
a line of JSON for each figure. Every byte is verified; a wrong one ends the case. Needs PyTorch;
without a GPU memory is the host's. Exit 77: a library of the case is missing.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import time
import warnings

import peers
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MIB, SMALL = peers.MIB, peers.SMALL
RANDOM_READS = 20_000
LATENCY_READS = 2_000
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python/examples")


def tell(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def need(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"apps.py: {name}: {error}", file=sys.stderr)
        sys.exit(77)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Target:
    """The file's contents are read to here."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            self.start = 8 + int.from_bytes(f.read(8), "little")
        self.size = os.path.getsize(path) - self.start
        self.bytes = torch.zeros(self.size, dtype=torch.uint8, device=DEVICE)
        # KvikIO takes host memory as an object with the buffer protocol.
        self.memory = self.bytes if DEVICE == "cuda" else self.bytes.numpy()

    def clear(self):
        self.bytes.zero_()
        synchronize()

    def check(self, who):
        synchronize()
        peers.check(self.bytes, 0, who)

    def places(self, count):
        numbers = random.Random(peers.SEED)
        return [numbers.randrange(self.size // SMALL) * SMALL for _ in range(count)]

    def slices(self, count):
        return [self.memory[i * SMALL:(i + 1) * SMALL] for i in range(count)]

    def check_places(self, places, who):
        """Pieces of SMALL bytes, one after the other, against those at the places."""
        synchronize()
        words = torch.tensor(places, device=DEVICE)[:, None] // 8 + \
            torch.arange(SMALL // 8, device=DEVICE)
        found = self.bytes[:len(places) * SMALL].view(torch.int64).view(len(places), -1)
        if not torch.equal(found, peers.pattern_words(words)):
            sys.exit(f"apps.py: {who}: WRONG BYTES")


def seconds_of(call):
    synchronize()
    begun = time.monotonic()
    result = call()
    synchronize()
    return time.monotonic() - begun, result


def rate(target, read, who, repeats=2):
    """GB/s of the fastest read, after a first one; the bytes of each are verified."""
    best = float("inf")
    for _ in range(repeats + 1):
        target.clear()
        took, _ = seconds_of(read)
        target.check(who)
        best = min(best, took)
    return target.size / best / 1e9


def latencies(target, read, who, count=LATENCY_READS):
    """Microseconds of one read after the other: read(i, place)."""
    places = target.places(count)
    for i in range(min(count, 64)):
        read(i, places[i])
    target.clear()
    times = peers.time_calls(read, places)
    target.check_places(places, who)
    tell(f"{who}, median", statistics.median(times), "us")
    tell(f"{who}, p99", peers.percentile(times, 0.99), "us")


def case_make(args):
    size = args.mib << 20
    for path in args.files:
        begun = time.monotonic()
        peers.write_contents(path, size, peers.safetensors_header(size))
        os.sync()
        tell(f"write(2) of {path}", size / (time.monotonic() - begun) / 1e9, "GB/s")


# --- cuFile programs: over ours where they are started by gpunvme-run ------------------------------

def kvikio_random(kvikio, target, file, label):
    count = min(RANDOM_READS, target.size // SMALL)
    places, slices = target.places(count), target.slices(count)
    kvikio.defaults.set({"num_threads": 16, "task_size": MIB, "bounce_buffer_size": MIB})

    def read():
        futures = [file.pread(piece, SMALL, target.start + at)
                   for piece, at in zip(slices, places, strict=True)]
        return sum(future.get() for future in futures)

    read()
    target.clear()
    took, total = seconds_of(read)
    if total != count * SMALL:
        raise OSError("short reads")
    target.check_places(places, f"{label}, random")
    tell(f"{label}, random 4 KiB, 16 threads", count / took / 1e6, "M/s")


def case_kvikio(args):
    kvikio = need("kvikio")
    need("kvikio.defaults")
    if os.environ.get("KVIKIO_COMPAT_MODE") == "OFF" and not need("kvikio.cufile_driver").get(
            "is_gds_available"):
        sys.exit("apps.py: KvikIO: is_gds_available is false")
    for path in args.files:
        target, label = Target(path), f"{args.label} on {args.where[path]}"
        kvikio.defaults.set({"gds_threshold": 0})
        with kvikio.CuFile(path, "r") as file:
            for threads in (1, 4, 16):
                found = {}
                for task in (4 * MIB, 16 * MIB, 64 * MIB):
                    kvikio.defaults.set({"num_threads": threads, "task_size": task,
                                         "bounce_buffer_size": min(task, 16 * MIB)})
                    found[rate(target, lambda: file.read(target.memory, file_offset=target.start),
                               label, 1)] = task // MIB
                best = max(found)
                tell(f"{label}, {threads} threads (tasks of {found[best]} MiB)", best, "GB/s")
            kvikio_random(kvikio, target, file, label)
            slices = target.slices(LATENCY_READS)
            latencies(target, lambda i, at: file.read(slices[i], file_offset=target.start + at),
                      f"{label}, read of 4 KiB")


def case_dali(args):
    """Reads arrays by readers.numpy of DALI, whose backend for GPUs (--backend GDS) uses cuFile."""
    pipelines, fn, numpy = need("nvidia.dali.pipeline"), need("nvidia.dali.fn"), need("numpy")
    size, batch = 32 * MIB, 4
    count = max(min(args.mib, 1024) * MIB // size // batch, 2) * batch
    for path in args.files:
        folder, label = f"{path}.npy", f"DALI readers.numpy {args.backend} on {args.where[path]}"
        os.mkdir(folder)
        names = [os.path.join(folder, f"{i:03}.npy") for i in range(count)]
        for i, name in enumerate(names):
            numpy.save(name, peers.pattern(i * size, size, "cpu").numpy())
        pipeline = dali_pipeline(pipelines, fn, names, batch, args.backend)
        for first in range(0, count, batch):
            (arrays,) = pipeline.run()
            for i in range(batch):
                found = torch.from_dlpack(arrays[i]).view(torch.uint8)
                synchronize()
                peers.check(found, (first + i) * size, label)
        epochs = 3
        took, _ = seconds_of(lambda p=pipeline: [p.run() for _ in range(epochs * count // batch)])
        tell(f"{label}, {count} arrays of 32 MiB", epochs * count * size / took / 1e9, "GB/s")
        shutil.rmtree(folder)


def dali_pipeline(pipelines, fn, names, batch, backend):
    device = "gpu" if backend == "GDS" else "cpu"
    on_gpu = DEVICE == "cuda"
    pipeline = pipelines.Pipeline(batch_size=batch, num_threads=8, device_id=0 if on_gpu else None)
    with pipeline:
        arrays = fn.readers.numpy(device=device, files=names)
        pipeline.set_outputs(arrays.gpu() if on_gpu else arrays)
    pipeline.build()
    return pipeline


def case_cudf(args):
    """Writes and reads a table of parquet by pylibcudf, which uses KvikIO. A pool comes last."""
    plc, rmm = need("pylibcudf"), need("rmm")
    parquet = plc.io.parquet
    size, columns = min(args.mib, 1024) * MIB, 8
    length = size // columns
    for path in args.files:
        name, label = f"{path}.parquet", f"{args.label} on {args.where[path]}"
        table = plc.Table([plc.Column.from_cuda_array_interface(
            peers.pattern(i * length, length, DEVICE)) for i in range(columns)])
        written = parquet.ParquetWriterOptions.builder(plc.io.SinkInfo([name]), table).compression(
            plc.io.types.CompressionType.NONE).dictionary_policy(
            plc.io.types.DictionaryPolicy.NEVER).build()
        took = min(seconds_of(lambda w=written: parquet.write_parquet(w))[0] for _ in range(2))
        tell(f"{label}, write_parquet", size / took / 1e9, "GB/s")
        for memory in "memory of CUDA", "a pool":
            if memory == "a pool":
                rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(
                    rmm.mr.CudaMemoryResource(), initial_pool_size=4 * size))
            best = min(cudf_read(plc, name, length, label) for _ in range(3))
            tell(f"{label}, read_parquet into {memory}", size / best / 1e9, "GB/s")
        os.unlink(name)


def cudf_read(plc, name, length, who):
    """Returns the seconds of a read, whose columns it verifies."""
    options = plc.io.parquet.ParquetReaderOptions.builder(plc.io.SourceInfo([name])).build()
    took, found = seconds_of(lambda: plc.io.parquet.read_parquet(options))
    for i, column in enumerate(found.columns):
        whole = torch.as_tensor(column.data(), device=DEVICE)[:length]
        if column.size() * 8 != length or whole.numel() != length:
            sys.exit(f"apps.py: {who}: {column.size()} rows in {whole.numel()} bytes")
        peers.check(whole, i * length, who)
    return took


def case_torch_gds(args):
    gds = need("torch.cuda.gds")
    for path in args.files:
        label, size = f"torch.cuda.gds on {args.where[path]}", min(args.mib, 1024) << 20
        source = torch.cat([peers.pattern(at, peers.CHUNK, DEVICE)
                            for at in range(0, size, peers.CHUNK)]).view(torch.uint8)
        back = torch.zeros_like(source)
        synchronize()
        name = f"{path}.gds"
        file = gds.GdsFile(name, os.O_CREAT | os.O_RDWR)
        for what, tensor, move in (("save_storage", source, file.save_storage),
                                   ("load_storage", back, file.load_storage)):
            best = min(seconds_of(lambda m=move, t=tensor: m(t.untyped_storage(), 0))[0]
                       for _ in range(3))
            tell(f"{label}, {what}", size / best / 1e9, "GB/s")
        peers.check(back, 0, label)
        del file
        with open(name, "rb") as f:
            stored = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).to(DEVICE)
        peers.check(stored, 0, f"{label}: the file")
        os.unlink(name)


def tensors_rate(path, load, who, repeats=2):
    """GB/s of the first load and of the fastest later one."""
    target = Target(path)
    target.bytes = target.memory = None  # the loaders have memory of their own
    rates = []
    for _ in range(repeats + 1):
        took, found = seconds_of(lambda: load(path, DEVICE))
        peers.Tensors(who, target, load).verify(found)
        del found
        rates.append(target.size / took / 1e9)
    tell(f"{who}, first", rates[0], "GB/s")
    tell(f"{who}, later", max(rates[1:]), "GB/s")


def case_instanttensor(args):
    library = need("instanttensor")
    for path in args.files:
        load = peers.load_instanttensor(library, library.Backend[args.backend])
        tensors_rate(path, load, f"InstantTensor {args.backend} on {args.where[path]}")


def case_fastsafetensors(args):
    library = need("fastsafetensors")
    gds = args.backend == "GDS"

    def load(path, device):
        with library.fastsafe_open([path], framework="pt", device=f"{device}:0",
                                   nogds=not gds) as f:
            return {name: f.get_tensor(name).clone() for name in f.keys()}

    for path in args.files:
        tensors_rate(path, load, f"fastsafetensors {args.backend} on {args.where[path]}")


def nixl_transfer(agent, operation, memory, files):
    handle = agent.initialize_xfer(operation, memory, files, agent.name)
    begun = time.monotonic()
    state = agent.transfer(handle)
    while state not in ("DONE", "ERR") and time.monotonic() - begun < 20:
        state = agent.check_xfer_state(handle)
    took = time.monotonic() - begun
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise OSError(f"{operation}: ended as {state}")
    return took


def case_nixl(args):
    """Memory of the GPU to a file and back, by a plug-in of NIXL."""
    api = need("nixl._api")
    size, block = min(args.mib, 512) << 20, 4 * MIB
    agent = api.nixl_agent("apps", api.nixl_agent_config(backends=[]))
    agent.create_backend(args.backend)
    source = peers.pattern(0, size, DEVICE).view(torch.uint8)
    back = torch.zeros_like(source)
    synchronize()
    kind = "VRAM" if DEVICE == "cuda" else "DRAM"
    for tensor in (source, back):
        agent.register_memory([(tensor.data_ptr(), size, 0, "")], kind)
    for path in args.files:
        label = f"NIXL {args.backend} {kind} on {args.where[path]}"
        fd = os.open(f"{path}.nixl", os.O_CREAT | os.O_RDWR, 0o600)
        agent.register_memory([(0, size, fd, "")], "FILE")
        on_file = agent.get_xfer_descs([(at, block, fd) for at in range(0, size, block)], "FILE")
        for operation, tensor in (("WRITE", source), ("READ", back)):
            cut = [(tensor.data_ptr() + at, block, 0) for at in range(0, size, block)]
            took = nixl_transfer(agent, operation, agent.get_xfer_descs(cut, kind), on_file)
            tell(f"{label}, {operation}", size / took / 1e9, "GB/s")
        synchronize()
        peers.check(back, 0, label)
        back.zero_()
        synchronize()
        os.close(fd)
        os.unlink(f"{path}.nixl")


# --- The Python package ----------------------------------------------------------------------------

def case_load(args):
    from gpunvme.torch import load_file
    safetensors = need("safetensors.torch")
    target = Target(args.files[0])
    source = torch.zeros(target.size, dtype=torch.uint8, pin_memory=DEVICE == "cuda")
    target.bytes.copy_(source)
    tell("pinned copy", target.size / 1e9 / min(
        seconds_of(lambda: target.bytes.copy_(source))[0] for _ in range(3)), "GB/s")
    del source, target
    for path in args.files:
        tensors_rate(path, lambda path, device: load_file(path, device=device),
                     f"gpunvme load_file on {args.where[path]}", 3)
    tensors_rate(args.files[-1], lambda path, device: safetensors.load_file(path, device=device),
                 f"safetensors load_file on {args.where[args.files[-1]]}", 1)


def direct_latency(path, target):
    """Where the mount lends queues."""
    import gpunvme
    slices = target.slices(LATENCY_READS)
    try:
        with gpunvme.open(path, direct=True) as file:
            file.read(slices[0], SMALL, target.start)
            latencies(target, lambda i, at: file.read(slices[i], SMALL, target.start + at),
                      "direct read of 4 KiB on mount")
    except OSError as error:
        print(f"apps.py: direct path: {error}", file=sys.stderr)


def case_latency(args):
    import gpunvme
    for path in args.files:
        target, where = Target(path), args.where[path]
        slices = target.slices(LATENCY_READS)
        with gpunvme.open(path) as file:
            latencies(target, lambda i, at: file.read(slices[i], SMALL, target.start + at),
                      f"gpunvme read of 4 KiB on {where}")
            print(f"apps.py: {where}: {file.path_taken} {file.why}", file=sys.stderr)
            count = min(1 << 18, target.size // SMALL)
            places = target.places(count)
            offsets = torch.tensor(places) + target.start
            file.readv(target.bytes, offsets, SMALL)
            target.clear()
            took, _ = seconds_of(lambda: file.readv(target.bytes, offsets, SMALL))
            target.check_places(places, f"gpunvme readv on {where}")
            if where == "mount":
                direct_latency(path, target)
            tell(f"gpunvme readv of {count} times 4 KiB on {where}", count / took / 1e6, "M/s")


def case_layers(args):
    """A transformer whose weights are streamed by the path of --backend; --mib: of them."""
    import gpunvme
    if args.backend == "BOUNCE":
        gpunvme.configure(path="bounce", threads=16)
    sys.path.insert(0, EXAMPLES)
    example = need("layer_stream")
    need("safetensors.torch")
    for path in args.files:
        name = f"{path}.layers"
        hidden = 2048 if DEVICE == "cuda" else 256
        layers = max(min(args.mib, 2048) * MIB // (12 * hidden * hidden * 2), 4)
        example.make_file(name, layers, hidden, DEVICE)
        for tokens in (4096, 16384) if DEVICE == "cuda" else (16,):
            layers_figures(example, name, tokens,
                           f"layers on {args.where[path]}, {args.backend}, {tokens} tokens",
                           args.backend == "DIRECT")
        os.unlink(name)


def layers_figures(example, name, tokens, label, direct):
    computing, reading, both, nbytes = example.measure(name, tokens, DEVICE, direct=direct)
    tell(f"{label}, computing alone", computing * 1e3, "ms")
    tell(f"{label}, reading alone", reading * 1e3, "ms")
    tell(f"{label}, reading alone, rate", nbytes / reading / 1e9, "GB/s")
    tell(f"{label}, streamed", both * 1e3, "ms")
    tell(f"{label}, longer of both to streamed", max(computing, reading) / both, "")


# Types of safetensors whose names differ from those of torch, and torch's.
TYPES = {"F4": "float4_e2m1fn_x2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
         "F8_E8M0": "float8_e8m0fnu", "F8_E4M3": "float8_e4m3fn", "BF16": "bfloat16"}


def case_types(args):
    """Tensors of small types, as safetensors loads them."""
    safetensors = need("safetensors.torch")
    from gpunvme.torch import load_file, save_file
    given = {name: torch.randint(0, 256, (4096, 64), dtype=torch.uint8).view(getattr(torch, dtype))
             for name, dtype in TYPES.items() if hasattr(torch, dtype)}
    for path in args.files:
        name = f"{path}.types"
        save_file({key: tensor.to(DEVICE) for key, tensor in given.items()}, name)
        found, expected = load_file(name, device=DEVICE), safetensors.load_file(name)
        for key, tensor in given.items():
            if found[key].dtype != expected[key].dtype or not (
                    tensor.view(torch.uint8).equal(found[key].cpu().view(torch.uint8))):
                sys.exit(f"apps.py: {key} on {args.where[path]}: not what safetensors loads")
        tell(f"types on {args.where[path]}: {' '.join(found)}", len(found), "types")
        os.unlink(name)


def model_of(transformers, folder, mib):
    """Saves a model as several shards, and returns its tensors."""
    hidden = 1024 if DEVICE == "cuda" else 512
    layers = max(mib * MIB // (32 * hidden * hidden), 2)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, vocab_size=1024)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=f"{max(mib // 4, 1)}MB")
    return model.state_dict()


def case_transformers(args):
    """from_pretrained of several shards by safetensors, and by gpunvme.torch.install()."""
    transformers = need("transformers")
    import gpunvme
    import gpunvme.torch
    for path in args.files:
        where, folder = args.where[path], f"{path}.model"
        expected = model_of(transformers, folder, min(args.mib, 1024))
        total = sum(tensor.nbytes for tensor in expected.values())
        shards = sum(name.endswith(".safetensors") for name in os.listdir(folder))

        def load(folder=folder):
            return transformers.LlamaForCausalLM.from_pretrained(
                folder, dtype=torch.bfloat16, device_map=DEVICE).state_dict()

        load()
        for who in "safetensors", "gpunvme":
            if who == "gpunvme":
                gpunvme.torch.install(DEVICE)
            before = sum(call.bytes for call in gpunvme.stats().values())
            took, found = seconds_of(load)
            moved = sum(call.bytes for call in gpunvme.stats().values()) - before
            if moved < (total if who == "gpunvme" else 0) or not all(
                    tensor.equal(found[name].cpu()) for name, tensor in expected.items()):
                sys.exit(f"apps.py: transformers by {who} on {where}: {moved} bytes were read, "
                         "or tensors differ")
            tell(f"transformers {transformers.__version__} by {who} on {where}, {shards} shards",
                 total / took / 1e9, "GB/s")
        shutil.rmtree(folder)
    tell("transformers: bytes by the path gpu", sum(
        call.bytes for (_, way), call in gpunvme.stats().items() if way == "gpu") / MIB, "MiB")


def case_save(args):
    """Checkpoints and save_file, beside one WRITE of as many bytes; all are synced."""
    from gpunvme.torch import load_file, save_file
    sys.path.insert(0, EXAMPLES)
    example = need("checkpoint")
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    state = example.make_state(min(args.mib, 1024) * MIB, DEVICE)
    nbytes = sum(tensor.nbytes for tensor in state.values())
    memory = torch.cat([tensor.view(torch.uint8).flatten() for tensor in state.values()])
    for path in args.files:
        where, folder, rounds = args.where[path], f"{path}.saved", []
        os.mkdir(folder)
        name = os.path.join(folder, "file")
        for _ in range(4):
            rounds.append(example.one_round(folder, state, memory))
            rounds[-1]["save_file"] = example.timed(save_file, state, name)
            found = load_file(name, device=DEVICE)
            if not all(torch.equal(found[key], tensor) for key, tensor in state.items()):
                sys.exit(f"apps.py: save_file on {where}: WRONG BYTES")
            del found
            os.unlink(name)
        best = {key: min(seconds[key] for seconds in rounds) for key in rounds[0]}
        for key, seconds in best.items():
            tell(f"checkpoint on {where}, {key}", nbytes / seconds / 1e9, "GB/s")
        for key in "save", "save_file":
            tell(f"checkpoint on {where}, {key} to WRITE", best["WRITE"] / best[key], "")
        tell(f"checkpoint on {where}, load to READ", best["READ"] / best["load"], "")
        shutil.rmtree(folder)


def readv_of_the_same(path, target, index):
    import gpunvme
    with gpunvme.open(path) as file:
        offsets = index * SMALL + target.start
        file.readv(target.bytes, offsets, SMALL)
        target.clear()
        took = min(seconds_of(lambda: file.readv(target.bytes, offsets, SMALL))[0]
                   for _ in range(3))
        target.check_places((index * SMALL).tolist(), "readv of the same")
    tell(f"readv of the same {len(index)} records", len(index) / took / 1e6, "M/s")


def case_dataset(args):
    """Records of 4 KiB in random order, beside readv of the same."""
    import gpunvme
    from gpunvme.torch import IndexedDataset
    for path in args.files:
        target, where = Target(path), args.where[path]
        count, batch = target.size // SMALL, min(65536, target.size // SMALL)
        name = f"{path}.json"
        gpunvme.write_catalogue(name, {"record": {"file": os.path.basename(path),
                                                  "offset": target.start, "size": SMALL,
                                                  "count": count}})
        with IndexedDataset(name, "record", device=DEVICE) as data:
            index = torch.randperm(count)[:batch]
            out = target.bytes[:batch * SMALL].view(batch, SMALL)
            data.gather(index, out)
            target.clear()
            took = min(seconds_of(lambda: data.gather(index, out))[0] for _ in range(3))
            target.check_places((index * SMALL).tolist(), f"gather on {where}")
            tell(f"records of 4 KiB on {where}, one gather of {batch}", batch / took / 1e6, "M/s")
            readv_of_the_same(path, target, index)
            took, last = seconds_of(lambda: [n.numel() for n, _ in data.batches(
                16384, shuffle=True)])
            tell(f"records of 4 KiB on {where}, batches of 16384", sum(last) / took / 1e6, "M/s")
            for n, records in itertools.islice(data.batches(16384, shuffle=True, seed=1), 2):
                target.bytes[:records.numel()] = records.view(-1)
                target.check_places((n * SMALL).tolist(), f"batches on {where}")
        os.unlink(name)


CASES = {name[5:].replace("_", "-"): function for name, function in list(globals().items())
         if name.startswith("case_")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--label", default="KvikIO", help="what figures of KvikIO are called")
    parser.add_argument("--backend", default="MMAP",
                        help="of InstantTensor, NIXL; GDS or POSIX; GPU, DIRECT or BOUNCE")
    parser.add_argument("--mib", type=int, default=4096, help="size of the file")
    parser.add_argument("files", nargs="+", metavar="WHERE=FILE", help="WHERE: mount, tmpfs")
    args = parser.parse_args()
    pairs = [name.split("=", 1) for name in args.files]
    if any(len(pair) != 2 for pair in pairs) or args.mib % 64:
        parser.error("files are WHERE=FILE; --mib is a multiple of 64")
    args.where = {path: where for where, path in pairs}
    args.files = [path for _, path in pairs]
    return args


def main():
    args = arguments()
    peers.torch = torch
    CASES[args.case](args)


if __name__ == "__main__":
    main()
