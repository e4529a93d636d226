#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures checkpoints of a model's size, and one WRITE and one READ of as many bytes.

    checkpoint.py FOLDER [--megabytes N] [--rounds N]

Saves the state of a transformer into FOLDER by gpunvme.torch.dcp and by torch's own writer, and loads
both, which must be equal to the bit. Everything is synced. Prints the best of the rounds.
"""

import argparse
import os
import shutil
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import gpunvme
from gpunvme.torch.dcp import Reader, Writer

HIDDEN = 1024
State = dict[str, torch.Tensor]


def make_state(nbytes: int, device: str) -> State:
    """Returns weights, and for each two moments of an optimizer."""
    state: State = {}
    layer = 0
    while sum(t.nbytes for t in state.values()) < nbytes:
        for name, shape in ("qkv", (3 * HIDDEN, HIDDEN)), ("out", (HIDDEN, HIDDEN)), ("norm", (HIDDEN,)):
            for kind in "weight", "exp_avg", "exp_avg_sq":
                state[f"layers.{layer}.{name}.{kind}"] = torch.randn(shape, device=device)
        layer += 1
    return state


def write_one(path: str, memory: torch.Tensor) -> None:
    with gpunvme.open(path, "w") as file:
        os.posix_fallocate(file.fileno(), 0, memory.nbytes)
        file.write(memory)
        os.fsync(file.fileno())


def read_one(path: str, memory: torch.Tensor) -> None:
    with gpunvme.open(path) as file:
        file.read(memory)


def timed(what: Callable[..., Any], *args: Any, **keywords: Any) -> float:
    begun = time.monotonic()
    what(*args, **keywords)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - begun


def one_round(folder: str, state: State, memory: torch.Tensor) -> dict[str, float]:
    ours, theirs, plain = (os.path.join(folder, name) for name in ("ours", "theirs", "plain"))
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    seconds = {
        "WRITE": timed(write_one, plain, memory),
        "save": timed(save, state, storage_writer=Writer(ours)),
        "save of torch": timed(save, state, checkpoint_id=theirs),
        "READ": timed(read_one, plain, memory),
        "load": timed(load, found, storage_reader=Reader(ours)),
    }
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    seconds["load of torch"] = timed(load, found, checkpoint_id=theirs)
    for path in ours, theirs:
        shutil.rmtree(path)
    os.unlink(plain)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    state = make_state(given.megabytes * 10 ** 6, "cuda" if torch.cuda.is_available() else "cpu")
    nbytes = sum(t.nbytes for t in state.values())
    memory = torch.cat([t.view(torch.uint8).flatten() for t in state.values()])
    rounds = [one_round(given.folder, state, memory) for _ in range(given.rounds)]
    for name in rounds[0]:
        print(f"{name:14} {nbytes / min(r[name] for r in rounds) / 1e9:6.2f} GB/s")


if __name__ == "__main__":
    main()
