#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How fast does a file reach GPU memory by the Python libraries that people use today?

KvikIO, InstantTensor, fastsafetensors, Run:ai model streamer and safetensors, where they are
importable, in turn with a pinned copy of the same size; with -l the READ ioctl of a mount in the
same run, and the direct path where the mount lends it. Every byte is verified on the GPU, over
zeros. apps.py measures one 4 KiB read after another. Needs PyTorch. A library that fails, or takes
too long, is reported on stderr and left out. Ends with 77 if there is nothing to measure here.
"""

import argparse
import contextlib
import ctypes
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SEED = 0x7065657273
CHUNK = 16 << 20
TENSOR = 64 << 20  # bytes of a tensor in the file
HEADER = 4096  # bytes in front of the first one
SMALL = 4096
MASK = (1 << 64) - 1
MIB = 1 << 20
BEST_SETTINGS = 3  # of KvikIO's

torch = None  # import_libraries()


def warn(message):
    print(f"peers.py: {message}", file=sys.stderr, flush=True)


def import_or_none(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # pylint: disable=broad-except  # libraries fail in their own ways
        warn(f"{name}: not importable: {error}")
        return None


def use_wheels(folder, target):
    """Unpacks the wheels of a folder that fit, and puts them in front of the installed ones."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".whl"):
            continue
        place = os.path.join(target, name)  # pip puts nothing into folders that are there
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index",
                               "--no-deps", "--no-compile", "--disable-pip-version-check",
                               "--target", place, os.path.join(folder, name)],
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            sys.path.insert(0, place)
        else:
            warn(f"{name}: {done.stderr.strip().rsplit(chr(10), 1)[-1]}")


# --- The contents -------------------------------------------------------------------------------

def signed(x):
    """The 64-bit pattern as PyTorch wants it."""
    x &= MASK
    return x - (1 << 64) if x >> 63 else x


def shifted(x, bits):
    """A logical shift to the right: PyTorch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def pattern_words(index):
    """The 8-byte words of the contents with these indices: pattern_word() of pattern.h."""
    x = index * signed(0x9e3779b97f4a7c15) + SEED
    x = (x ^ shifted(x, 30)) * signed(0xbf58476d1ce4e5b9)
    x = (x ^ shifted(x, 27)) * signed(0x94d049bb133111eb)
    return x ^ shifted(x, 31)


def pattern(offset, length, device):
    """Bytes [offset, offset + length) of the contents."""
    return pattern_words(torch.arange(offset // 8, (offset + length) // 8, dtype=torch.int64,
                                      device=device))


def check(tensor, offset, who):
    """The bytes of a tensor against those that begin at the offset."""
    words = tensor.view(torch.int64)
    for at in range(0, tensor.numel(), CHUNK):
        part = words[at // 8:(at + CHUNK) // 8]
        if not torch.equal(part, pattern(offset + at, part.numel() * 8, tensor.device)):
            sys.exit(f"peers.py: {who}: WRONG BYTES at {offset + at}")


def tensor_names(size):
    return {f"t{at // TENSOR:05}": at for at in range(0, size, TENSOR)}


def write_contents(path, size, header):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(path, "wb") as f:
        f.write(header)
        for at in range(0, size, CHUNK):
            f.write(memoryview(pattern(at, CHUNK, device).cpu().numpy()))


def safetensors_header(size):
    tensors = {name: {"dtype": "U8", "shape": [min(TENSOR, size - at)],
                      "data_offsets": [at, min(at + TENSOR, size)]}
               for name, at in tensor_names(size).items()}
    text = json.dumps(tensors).encode()
    text += b" " * ((-len(text) - 8) % HEADER)
    return len(text).to_bytes(8, "little") + text


# --- Ways ---------------------------------------------------------------------------------------

class Job:
    """The files to be read: a safetensors file, and one of the same contents on a mount, if any."""

    def __init__(self, path, size, device):
        self.path, self.size, self.device, self.mount = path, size, device, None
        with open(path, "rb") as f:
            self.start = 8 + int.from_bytes(f.read(8), "little")
        self.target = torch.zeros(size, dtype=torch.uint8, device=device)


class Way:
    """One way: read() is timed; verify() compares its result."""

    def __init__(self, name, job):
        self.name, self.job = name, job
        self.spent = 0.0  # seconds, in all turns

    def prepare(self):
        self.job.target.zero_()

    def verify(self, _):
        check(self.job.target, 0, self.name)


class PlainCopy(Way):
    def __init__(self, job):
        super().__init__("plain copy", job)
        self.source = torch.zeros(job.size, dtype=torch.uint8, pin_memory=job.device == "cuda")

    def read(self):
        self.job.target.copy_(self.source)

    def verify(self, _):
        pass


class Read(Way):
    def __init__(self, job):
        super().__init__("READ ioctl, 1 thread", job)

    def read(self):
        if self.job.mount.read(self.job.target) != self.job.size:
            raise OSError("short read")


class Direct(Way):
    """Reads in the default stream, and waits for its end."""

    def __init__(self, job, file):
        super().__init__("direct path, 1 thread", job)
        self.file, self.pinned = file, torch.zeros(1, dtype=torch.int64, pin_memory=True)

    def read(self):
        result = ctypes.c_int64.from_address(self.pinned.data_ptr())
        self.file.read_direct((self.job.target.data_ptr(), self.job.size), 0, result, None)
        synchronize(self.job.device)
        if result.value != self.job.size:
            raise OSError(f"{result.value} instead of {self.job.size} bytes")


class KvikIO(Way):
    def __init__(self, job, library, threads, buffer):
        super().__init__(f"KvikIO, {threads} thread{'s' * (threads > 1)}, "
                         f"{buffer // MIB} MiB buffers", job)
        self.library, self.threads, self.buffer = library, threads, buffer
        # kvikio takes host memory as an object with the buffer protocol.
        self.memory = job.target if job.device == "cuda" else job.target.numpy()
        self.file = None

    def prepare(self):
        """With a first read: other settings cost it new threads and pinned buffers."""
        self.file = self.file or self.library.CuFile(self.job.path, "r")
        self.library.defaults.set({"num_threads": self.threads, "task_size": self.buffer,
                                   "bounce_buffer_size": self.buffer})
        self.read()
        super().prepare()

    def read(self):
        if self.file.read(self.memory, file_offset=self.job.start) != self.job.size:
            raise OSError("short read")


class Tensors(Way):
    """Loaders of safetensors files: read() returns {name: tensor}."""

    def __init__(self, name, job, load):
        super().__init__(name, job)
        self.load = load

    def prepare(self):
        pass

    def read(self):
        return self.load(self.job.path, self.job.device)

    def verify(self, result):
        wanted = tensor_names(self.job.size)
        if set(result) != set(wanted):
            sys.exit(f"peers.py: {self.name}: tensors are missing")
        for name, at in wanted.items():
            check(result[name], at, self.name)


def load_instanttensor(library, backend):
    def load(path, _):
        with library.safe_open(path, framework="pt", device=0, backend=backend) as f:
            return dict(f.tensors())
    return load


def load_fastsafetensors(library):
    def load(path, device):
        with library.fastsafe_open([path], framework="pt", device=f"{device}:0", nogds=True) as f:
            return {name: f.get_tensor(name) for name in f.keys()}
    return load


def load_runai(library):
    def load(path, device):
        with library.SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}
    return load


def find_ways(job, libraries):
    ways = [PlainCopy(job)]
    if job.mount:
        ways.append(Read(job))
    if kvikio := libraries["kvikio"]:
        ways += [KvikIO(job, kvikio, threads, buffer) for buffer in (MIB, 4 * MIB, 16 * MIB)
                 for threads in (1, 4, 8, 16)]
    if (library := libraries["instanttensor"]) and job.device == "cuda":
        ways += [Tensors(f"InstantTensor, {backend.name}", job,
                         load_instanttensor(library, backend))
                 for backend in (library.Backend.MMAP, library.Backend.URING_BUFFERED)]
    if (library := libraries["fastsafetensors"]) and job.device == "cuda":
        ways.append(Tensors("fastsafetensors, 16 threads", job, load_fastsafetensors(library)))
    if library := libraries["runai_model_streamer"]:
        ways.append(Tensors("Run:ai streamer, 16 threads", job, load_runai(library)))
    if libraries["safetensors"] and (library := import_or_none("safetensors.torch")):
        ways.append(Tensors("safetensors load_file", job,
                            lambda path, device: library.load_file(path, device=device)))
    return ways


def chosen(ways, only):
    ours = (PlainCopy, Read)
    return [way for way in ways
            if not only or isinstance(way, ours) or way.name.startswith(only)]


# --- Measuring ----------------------------------------------------------------------------------

def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_once(way):
    """GB/s, and seconds of CPU for a GB."""
    job = way.job
    way.prepare()
    synchronize(job.device)
    cpu, start = cpu_seconds(), time.monotonic()
    result = way.read()
    synchronize(job.device)
    took, cpu = time.monotonic() - start, cpu_seconds() - cpu
    way.verify(result)
    return job.size * 1e-9 / took, cpu / (job.size * 1e-9)


@contextlib.contextmanager
def limited(way, seconds):
    """For all turns of a way together. Ends it when the library comes back to Python."""
    def expire(*_):
        raise TimeoutError(f"more than {seconds} s")

    started = time.monotonic()
    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds - way.spent, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        way.spent += time.monotonic() - started


def run_all(ways, turns, limit):
    """{name: [(GB/s, CPU s/GB)]}, without ways that fail."""
    found = {way.name: [] for way in ways}
    for way in ways * turns:
        if way.name not in found:
            continue
        try:
            with limited(way, limit):
                found[way.name].append(run_once(way))
        except Exception as error:  # pylint: disable=broad-except
            warn(f"{way.name}: left out: {type(error).__name__}: {error}")
            del found[way.name]
    return found


def run_warm(ways, repeats, limit):
    """As run_all(), after a first turn."""
    found = run_all(ways, repeats + 1, limit)
    return {name: samples[1:] for name, samples in found.items()}


def run_best(ways, repeats, limit):
    """As run_warm(). Of KvikIO's many settings those take turns that did best in a trial."""
    settings = [way for way in ways if isinstance(way, KvikIO)]
    trial = run_all(settings, 1, limit)
    best = sorted(trial, key=trial.get, reverse=True)[:BEST_SETTINGS]
    found = run_warm([way for way in ways if way not in settings or way.name in best],
                     repeats, limit)
    found.update({name: samples for name, samples in trial.items() if name not in best})
    return found


def time_calls(call, places):
    """Microseconds of each call(i, place)."""
    times = []
    for i, place in enumerate(places):
        start = time.perf_counter()
        call(i, place)
        times.append((time.perf_counter() - start) * 1e6)
    return times


# --- Reporting ----------------------------------------------------------------------------------

def percentile(values, p):
    return sorted(values)[int(p * (len(values) - 1) + 0.5)]


def row_of(name, unit, values, base=None):
    row = {"name": name, "unit": unit, "median": statistics.median_low(values),
           "p5": percentile(values, 0.05), "p95": percentile(values, 0.95),
           "p99": percentile(values, 0.99), "samples": len(values)}
    if base:
        row.update(against=base["name"], ratio=row["median"] / base["median"])
    return row


def rows_of(samples):
    rows = []
    for name, values in samples.items():
        rows.append(row_of(name, "GB/s", [rate for rate, _ in values], rows[0] if rows else None))
    by_name = {row["name"]: row for row in rows}
    for ours in ("READ ioctl, 1 thread", "direct path, 1 thread"):
        for kind in ("KvikIO", "InstantTensor"):
            peers = [row for name, row in by_name.items() if name.startswith(kind)]
            if ours in samples and peers:
                best = max(peers, key=lambda row: row["median"])
                rows.append(row_of(f"{ours}, beside the best of {kind}", "GB/s",
                                   [rate for rate, _ in samples[ours]], best))
    for name, values in samples.items():
        rows.append(row_of(f"{name}: CPU of the application", "s/GB", [cpu for _, cpu in values]))
    return rows


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(": ", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else "unknown"


def version(name, module):
    """A distribution need not be called as its module is."""
    found = getattr(module, "__version__", None)
    try:
        return found or importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def report(args, rows, device, libraries):
    parameters = {"bytes": args.size << 20, "seed": SEED}
    parameters.update({name: version(name, module)
                       for name, module in libraries.items() if module})
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
        print(f"{row['name']:<56} {row['median']:10.3f} {row['unit']} [{row['p5']:.3f}, "
              f"{row['p95']:.3f}, {row['p99']:.3f}]{ratio}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-s", dest="size", type=int, default=4096, help="MiB, a multiple of 16")
    parser.add_argument("-r", dest="repeats", type=int, default=5)
    parser.add_argument("-t", dest="limit", type=float, default=30,
                        help="seconds that one way may take for all its large reads")
    parser.add_argument("-l", dest="library", help="libgpunvme.so: the directory is on a mount")
    parser.add_argument("-f", dest="files", help="where the libraries' file is made instead")
    parser.add_argument("-w", dest="wheels", default=os.environ.get("PEERS_WHEELS"),
                        help="a folder of wheels to use (environment: PEERS_WHEELS)")
    parser.add_argument("--only", help="of the libraries, those whose name begins so")
    parser.add_argument("-o", dest="output", choices=["json"])
    parser.add_argument("directory", help="where files are made")
    args = parser.parse_args()
    if args.size < 16 or args.size % 16 or args.repeats < 1:
        parser.error("-s: a multiple of 16; -r: 1 or more")
    if args.wheels and not os.path.isdir(args.wheels):
        parser.error(f"-w: {args.wheels}: not a folder")
    return args


def open_mount(args, target):
    """Registers the target. Returns the package, and the path of a file that it has made."""
    os.environ["GPUNVME_LIBRARY"] = args.library
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python"))
    gpunvme = importlib.import_module("gpunvme")
    gpunvme.configure(path="gpu")
    gpunvme.register(target)
    path = os.path.join(args.directory, f"peers.{os.getpid()}")
    write_contents(path, target.numel(), b"")
    return gpunvme, path


def measure_direct(args, job, samples, gpunvme, path):
    try:
        with gpunvme.open(path, direct=True) as file:
            samples.update(run_warm([Direct(job, file)], args.repeats, args.limit))
    except OSError as error:
        warn(f"direct path: {error}")


def measure(args, folder, device, libraries):
    size = args.size << 20
    path = os.path.join(folder, "file.safetensors")
    write_contents(path, size, safetensors_header(size))
    job = Job(path, size, device)
    if not args.library or device != "cuda":
        return rows_of(run_best(chosen(find_ways(job, libraries), args.only), args.repeats,
                                args.limit))
    gpunvme, path = open_mount(args, job.target)
    try:
        with gpunvme.open(path) as job.mount:
            samples = run_best(chosen(find_ways(job, libraries), args.only), args.repeats,
                               args.limit)
        measure_direct(args, job, samples, gpunvme, path)
    finally:
        os.unlink(path)
    return rows_of(samples)


def import_libraries():
    global torch  # pylint: disable=global-statement
    os.environ.setdefault("RUNAI_STREAMER_CONCURRENCY", "16")
    torch = import_or_none("torch")
    found = {name: import_or_none(name)
             for name in ("kvikio", "instanttensor", "fastsafetensors", "runai_model_streamer",
                          "safetensors")}
    if found["kvikio"] and not import_or_none("kvikio.defaults"):
        found["kvikio"] = None
    return found


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that files are removed
    with tempfile.TemporaryDirectory(prefix="gpunvme-wheels-") as wheels, \
            tempfile.TemporaryDirectory(prefix="gpunvme-peers-",
                                        dir=args.files or args.directory) as folder:
        if args.wheels:
            use_wheels(args.wheels, wheels)
        libraries = import_libraries()
        if not torch or not any(libraries.values()):
            warn("PyTorch or all of the libraries are missing here")
            return 77
        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows = measure(args, folder, device, libraries)
        print_report(report(args, rows, device, dict(libraries, torch=torch)),
                     args.output == "json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
