#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures how fast the ranks of a process group, one for each GPU, load a model from one mount.

All tensors, beside one rank that loads them alone, and slices of rows and of columns. Every byte is
verified. A rate is that of the file's bytes until all ranks have theirs. One GPU is given the slices
of a rank of two, and both replicas of the process that loads for several devices. Without a GPU
there are two ranks with host memory. Needs PyTorch; exit 77: it is missing.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time

import peers

PATIENCE = 300  # seconds until the other ranks come
ROWS = 4096  # of a tensor of peers.TENSOR bytes
WAYS = ("one rank loads all", "group, all tensors at every rank", "one process, all on every device",
        "slices of rows", "slices of columns")
AGAINST = {1: 0, 2: 0, 4: 3}
PARTS = 2  # of which one rank has a slice


def header(size):
    """Matrices of ROWS rows, of which the header fills a block."""
    tensors = {name: {"dtype": "BF16", "shape": [ROWS, peers.TENSOR // ROWS // 2],
                      "data_offsets": [at, at + peers.TENSOR]}
               for name, at in peers.tensor_names(size).items()}
    text = json.dumps(tensors).encode()
    text += b" " * ((-len(text) - 8) % peers.HEADER)
    return len(text).to_bytes(8, "little") + text


class Rank:
    """One process of the group, or the only one."""

    def __init__(self, args, rank, ranks, meeting):
        self.rank, self.ranks, self.path = rank, ranks, args.path
        self.parts = max(ranks, PARTS)
        self.names = peers.tensor_names(args.size << 20)
        self._meeting, self._devices = meeting, args.devices
        self.device = args.devices[rank]

    def load(self, way):
        """Returns the tensors of each device of this process."""
        from gpunvme.torch import load_file, load_on_devices
        if way in (0, 2) and self.rank != 0:
            return []
        if way == 0:
            return [load_file(self.path, self.device)]
        if way == 2:
            return load_on_devices(self.path, (self._devices * PARTS)[:self.parts])
        options = {"slices": {"*": way - 3}} if way >= 3 else {}
        if self.ranks == 1:
            return [load_file(self.path, self.device, ranks=self.parts, **options)]
        world = peers.torch.distributed.group.WORLD
        return [load_file(self.path, self.device, group=world, **options)]

    def verify(self, way, tensors):
        """Compares them with the contents, of which the rank may have a slice."""
        torch = peers.torch
        for name, at in self.names.items():
            for found in tensors:
                device = found[name].device
                whole = peers.pattern(at, peers.TENSOR, device).view(ROWS, -1)
                due = whole if way < 3 else torch.chunk(whole, self.parts, way - 3)[self.rank]
                if not torch.equal(found[name].view(torch.int64), due):
                    sys.exit(f"group_bench.py: {WAYS[way]}: WRONG BYTES of {name}")

    def seconds(self, way):
        """Returns the time until all ranks have their tensors, and verifies these."""
        self._meet()
        begun = time.monotonic()
        tensors = self.load(way)
        self._meet()
        took = time.monotonic() - begun
        self.verify(way, tensors)
        return took

    def _meet(self):
        if self.device != "cpu":
            peers.torch.cuda.synchronize(self.device)
        self._meeting.wait()


def run_rank(args, rank, ranks, meeting, results):
    """Sends the seconds of all ways. A process begins here, with its own torch."""
    peers.torch = peers.import_or_none("torch")
    distributed, cuda = peers.torch.distributed, args.devices[0] != "cpu"
    if cuda:
        peers.torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{args.path}.store",
                                   rank=rank, world_size=ranks)
    one = Rank(args, rank, ranks, meeting)
    times = {way: [one.seconds(way) for _ in range(args.repeats + 1)][1:]
             for way in range(len(WAYS)) if way != 1 or ranks > 1}
    if rank == 0:
        results.put(times)
    distributed.destroy_process_group()


def measure(args):
    """Returns the seconds of each way, without those of a first one."""
    spawn, ranks = multiprocessing.get_context("spawn"), len(args.devices)
    meeting, results = spawn.Barrier(ranks, timeout=PATIENCE), spawn.Queue()
    processes = [spawn.Process(target=run_rank, args=(args, rank, ranks, meeting, results))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("group_bench.py: a rank has failed")
    return results.get(timeout=PATIENCE)


def rows_of(times, nbytes, ranks):
    rows = {}
    for way, seconds in times.items():
        read = nbytes // PARTS if way >= 3 and ranks == 1 else nbytes
        rows[way] = peers.row_of(WAYS[way], "GB/s", [read / took / 1e9 for took in seconds],
                                 rows[AGAINST[way]] if way in AGAINST else None)
    return list(rows.values())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-s", dest="size", type=int, default=4096, help="MiB, a multiple of 64")
    parser.add_argument("-r", dest="repeats", type=int, default=5)
    parser.add_argument("-l", dest="library", help="libgpunvme.so (environment: GPUNVME_LIBRARY)")
    parser.add_argument("-o", dest="output", choices=["json"])
    parser.add_argument("directory", help="where the file is made")
    args = parser.parse_args()
    if args.size < 64 or args.size % 64 or args.repeats < 1:
        parser.error("-s: a multiple of 64; -r: 1 or more")
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the file is removed
    peers.torch = torch = peers.import_or_none("torch")
    if not torch:
        return 77
    if args.library:
        os.environ["GPUNVME_LIBRARY"] = args.library
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python"))
    gpus = torch.cuda.device_count()
    args.devices = [f"cuda:{i}" for i in range(gpus)] or ["cpu", "cpu"]
    with tempfile.TemporaryDirectory(prefix="gpunvme-group-", dir=args.directory) as top:
        args.path = os.path.join(top, "model.safetensors")
        peers.write_contents(args.path, args.size << 20, header(args.size << 20))
        rows = rows_of(measure(args), args.size << 20, len(args.devices))
    device = "cuda" if gpus else "cpu"
    found = dict(peers.report(args, rows, device, {"torch": torch}), program="group_bench.py")
    found["parameters"]["ranks"] = len(args.devices)
    peers.print_report(found, args.output == "json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
