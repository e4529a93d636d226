#!/usr/bin/env python3
"""How fast does a file reach GPU memory by the Python libraries that people use today?

KvikIO with 1, 4 and 16 threads, and safetensors, where they are importable; in turn with a pinned
copy of the same size. Every byte is verified on the GPU, over zeros. Needs PyTorch. Without a GPU
the same in host memory, where the library can. Exit 77: nothing to measure here.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time

SEED = 0x7065657273
CHUNK = 16 << 20
MASK = (1 << 64) - 1


def import_or_none(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"peers.py: {name}: not importable", file=sys.stderr)
        return None


torch = import_or_none("torch")


def signed(x):
    """The 64-bit pattern as PyTorch wants it."""
    x &= MASK
    return x - (1 << 64) if x >> 63 else x


def shifted(x, bits):
    """A logical shift to the right: PyTorch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def pattern(offset, length, device):
    """Bytes [offset, offset + length) of the contents: pattern_word() of pattern.h."""
    index = torch.arange(offset // 8, (offset + length) // 8, dtype=torch.int64, device=device)
    x = index * signed(0x9e3779b97f4a7c15) + SEED
    x = (x ^ shifted(x, 30)) * signed(0xbf58476d1ce4e5b9)
    x = (x ^ shifted(x, 27)) * signed(0x94d049bb133111eb)
    return x ^ shifted(x, 31)


def verify(tensor, who):
    words = tensor.view(torch.int64)
    for at in range(0, tensor.numel(), CHUNK):
        part = words[at // 8:(at + CHUNK) // 8]
        if not torch.equal(part, pattern(at, CHUNK, tensor.device)):
            sys.exit(f"peers.py: {who}: WRONG BYTES at {at}")


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


class PlainCopy:
    name = "plain copy"

    def __init__(self, files, size, device):
        self.source = torch.zeros(size, dtype=torch.uint8, pin_memory=device == "cuda")
        self.target = torch.empty(size, dtype=torch.uint8, device=device)

    def read(self):
        self.target.copy_(self.source)
        return None


class KvikIO:
    def __init__(self, files, size, device, threads, library):
        self.name = f"KvikIO, {threads} thread{'s' if threads > 1 else ''}"
        self.threads, self.library, self.path = threads, library, files["plain"]
        self.target = torch.zeros(size, dtype=torch.uint8, device=device)
        # kvikio takes host memory as an object with the buffer protocol.
        self.memory = self.target if device == "cuda" else self.target.numpy()

    def read(self):
        self.library.defaults.set({"num_threads": self.threads, "task_size": CHUNK,
                                   "bounce_buffer_size": CHUNK})
        self.target.zero_()
        with self.library.CuFile(self.path, "r") as f:
            if f.read(self.memory) != self.target.numel():
                sys.exit(f"peers.py: {self.name}: short read")
        return self.target


class SafeTensors:
    name = "safetensors load_file"

    def __init__(self, files, size, device, library):
        self.path, self.device = files["safetensors"], device
        self.load = importlib.import_module("safetensors.torch").load_file

    def read(self):
        return self.load(self.path, device=self.device)["data"]


def write_files(folder, size, with_safetensors):
    files = {"plain": os.path.join(folder, "plain")}
    header = json.dumps({"data": {"dtype": "U8", "shape": [size],
                                  "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    heads = {"plain": b""}
    if with_safetensors:
        files["safetensors"] = os.path.join(folder, "file.safetensors")
        heads["safetensors"] = len(header).to_bytes(8, "little") + header
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for kind, path in files.items():
        with open(path, "wb") as f:
            f.write(heads[kind])
            for at in range(0, size, CHUNK):
                f.write(memoryview(pattern(at, CHUNK, device).cpu().numpy()))
    return files


def find_ways(files, size, device, kvikio, safetensors):
    ways = [PlainCopy(files, size, device)]
    if kvikio:
        ways += [KvikIO(files, size, device, threads, kvikio) for threads in (1, 4, 16)]
    if safetensors:
        ways.append(SafeTensors(files, size, device, safetensors))
    return ways


def run_once(way, size, device):
    synchronize(device)
    start = time.monotonic()
    result = way.read()
    synchronize(device)
    rate = size / (time.monotonic() - start) / 1e9
    if result is not None:
        verify(result, way.name)
    return rate


def percentile(values, p):
    return sorted(values)[int(p * (len(values) - 1) + 0.5)]


def row_of(way, rates, base):
    row = {"name": way.name, "unit": "GB/s", "median": statistics.median_low(rates),
           "p5": percentile(rates, 0.05), "p95": percentile(rates, 0.95),
           "p99": percentile(rates, 0.99), "samples": len(rates)}
    if base:
        row.update(against=base["name"], ratio=row["median"] / base["median"])
    return row


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(": ", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else "unknown"


def report(args, ways, rates, device, libraries):
    rows = []
    for way in ways:
        rows.append(row_of(way, rates[way.name], rows[0] if rows else None))
    parameters = {"bytes": args.size << 20, "seed": SEED}
    parameters.update({module.__name__: module.__version__ for module in libraries if module})
    return {"schema_version": 1, "program": "peers.py",
            "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(),
                        "gpu": torch.cuda.get_device_name() if device == "cuda" else None},
            "parameters": parameters, "results": rows}


def print_report(found, as_json):
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for row in found["results"]:
        ratio = f"  {row['ratio']:.3f} of {row['against']}" if "ratio" in row else ""
        print(f"{row['name']:<44} {row['median']:10.3f} GB/s [{row['p5']:.3f}, {row['p95']:.3f}, "
              f"{row['p99']:.3f}]{ratio}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-s", dest="size", type=int, default=4096, help="MiB, a multiple of 16")
    parser.add_argument("-r", dest="repeats", type=int, default=5)
    parser.add_argument("-o", dest="output", choices=["json"])
    parser.add_argument("directory", help="where the files are made")
    args = parser.parse_args()
    if args.size < 16 or args.size % 16 or args.repeats < 1:
        parser.error("-s: a multiple of 16; -r: 1 or more")
    return args


def main():
    args = arguments()
    kvikio, safetensors = import_or_none("kvikio"), import_or_none("safetensors")
    if not torch or not (kvikio or safetensors):
        print("peers.py: neither KvikIO nor safetensors with PyTorch here", file=sys.stderr)
        return 77
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = args.size << 20
    with tempfile.TemporaryDirectory(prefix="gpunvme-peers-", dir=args.directory) as folder:
        files = write_files(folder, size, safetensors)
        ways = find_ways(files, size, device, kvikio, safetensors)
        rates = {way.name: [] for way in ways}
        for turn in range(args.repeats + 1):
            for way in ways:
                rate = run_once(way, size, device)
                if turn > 0:  # the first warms up
                    rates[way.name].append(rate)
    print_report(report(args, ways, rates, device, (torch, kvikio, safetensors)),
                 args.output == "json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
