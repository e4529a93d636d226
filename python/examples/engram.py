#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs a small language model whose n-gram table stays in its checkpoint.

    engram.py FOLDER [--rows N] [--tokens N] [--device DEVICE] [--cache MIB]

Makes a checkpoint of two shards (safetensors, random weights) in FOLDER where there is none.
Generates tokens by the model with the whole table in memory, and again with rows that are gathered
from the files, and compares them; they must be equal. The layer hashes the last two and three
tokens to rows of the table, as the Engram layers of current models do. --cache keeps rows of
frequent n-grams in memory of the device.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from gpunvme.torch import Table, load_file, save_file

VOCABULARY, HIDDEN, WIDTH, HEADS = 512, 128, 64, 4
INDEX = "model.safetensors.index.json"
TABLES = ["engram.table.0", "engram.table.1"]
Lookup = Callable[[torch.Tensor], torch.Tensor]


def make_checkpoint(folder: str, rows: int) -> None:
    torch.manual_seed(1)
    tensors = {"embed": torch.randn(VOCABULARY, HIDDEN),
               "mix": torch.randn(HIDDEN, 2 * HEADS * WIDTH) / (2 * HEADS * WIDTH) ** 0.5,
               "recur": torch.randn(HIDDEN, HIDDEN) / HIDDEN ** 0.5,
               TABLES[0]: torch.randn(rows // 2, WIDTH, dtype=torch.bfloat16)}
    more = {TABLES[1]: torch.randn(rows - rows // 2, WIDTH, dtype=torch.bfloat16)}
    names = {}
    for number, shard in enumerate((tensors, more), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(shard, os.path.join(folder, name))
        names.update(dict.fromkeys(shard, name))
    with open(os.path.join(folder, INDEX), "w", encoding="utf-8") as f:
        json.dump({"weight_map": names}, f)


class Model(nn.Module):
    """Is a model with a recurrent state that reads rows of a table by hashes of the last tokens."""

    embed: torch.Tensor
    mix: torch.Tensor
    recur: torch.Tensor
    factors: torch.Tensor

    def __init__(self, weights: dict[str, torch.Tensor], rows: int, lookup: Lookup) -> None:
        super().__init__()
        for name in ("embed", "mix", "recur"):
            self.register_buffer(name, weights[name])
        self.register_buffer("factors", 2654435761 + 40503 * torch.arange(
            HEADS, device=weights["embed"].device))
        self.rows, self.lookup = rows, lookup

    def ids(self, last: torch.Tensor) -> torch.Tensor:
        """Returns the rows for n-grams of two and three tokens, one for each head."""
        two = last[:, 1] * VOCABULARY + last[:, 2]
        three = last[:, 0] * VOCABULARY ** 2 + two + 1
        return (torch.stack([two, three], 1)[..., None] * self.factors) % self.rows

    def forward(self, last: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.lookup(self.ids(last)).float().flatten(1)
        state = torch.tanh(self.embed[last[:, 2]] + state @ self.recur + found @ self.mix.T)
        return (state @ self.embed.T).argmax(-1), state


@torch.no_grad()
def generate(model: Model, tokens: int, device: str) -> torch.Tensor:
    """Returns the tokens of eight sequences that begin differently."""
    step = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    last = torch.arange(24, device=device).view(8, 3)
    state = torch.zeros(8, HIDDEN, device=device)
    found = []
    for _ in range(tokens):
        token, state = step(last, state)
        found.append(token)
        last = torch.cat([last[:, 1:], token[:, None]], 1)
    return torch.stack(found, 1).cpu()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=int, default=0)
    given = parser.parse_args()
    if not os.path.exists(os.path.join(given.folder, INDEX)):
        make_checkpoint(given.folder, given.rows)
    weights = load_file(os.path.join(given.folder, INDEX), device=given.device)
    whole = torch.cat([weights.pop(name) for name in TABLES])
    in_memory = generate(Model(weights, len(whole), lambda ids: whole[ids]), given.tokens,
                         given.device)
    with Table(os.path.join(given.folder, INDEX), TABLES, device=given.device,
               max_rows=8 * 2 * HEADS, cache_bytes=given.cache << 20) as table:
        print("table:", table.why or "direct path")
        begun = time.monotonic()
        tokens = generate(Model(weights, len(table), table.gather), given.tokens, given.device)
        seconds = time.monotonic() - begun
        print(f"{given.tokens} tokens of 8 sequences in {seconds:.2f} s: {table.stats()}")
    if not torch.equal(tokens, in_memory):
        print("engram.py: the tokens differ from those of the model in memory", file=sys.stderr)
        return 1
    print("tokens are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
