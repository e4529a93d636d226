#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs a small mixture of experts, most of which stay in their file.

    experts.py FOLDER [--layers N] [--experts N] [--hidden N] [--slots N] [--steps N]
               [--device DEVICE] [--policy lfu|lru]

Makes a checkpoint (safetensors, random weights) in FOLDER where there is none. Runs the model with
all experts in memory, and again with a bank of fewer slots than there are experts, and compares the
results, which must be equal to the bit. While a layer computes, the router of the next one is applied
to its input, and the experts that it chooses are read.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from gpunvme.torch import load_file, save_file
from gpunvme.torch.experts import ExpertBank

TOP, TOKENS = 2, 4
NAME = "experts-{}-{}-{}.safetensors"
# Returns up and down projections of all slots, and the slots of the chosen experts.
Lookup = Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def make_checkpoint(path: str, layers: int, experts: int, hidden: int) -> None:
    torch.manual_seed(1)
    tensors = {}
    for layer in range(layers):
        tensors[f"layers.{layer}.router"] = torch.randn(experts, hidden) / hidden ** 0.5
        for expert in range(experts):
            for name, shape in (("up", (2 * hidden, hidden)), ("down", (hidden, 2 * hidden))):
                tensors[f"layers.{layer}.experts.{expert}.{name}"] = \
                    (torch.randn(shape) / shape[1] ** 0.5).bfloat16()
    save_file(tensors, path)


def choose(x: torch.Tensor, router: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights and numbers of the experts of each token."""
    found = (x @ router.T).topk(TOP, -1)
    return found.values.softmax(-1), found.indices


def mix(x: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor,
        slots: torch.Tensor) -> torch.Tensor:
    inner = functional.gelu(torch.einsum("tkih,th->tki", up[slots].float(), x))
    each = torch.einsum("tkhi,tki->tkh", down[slots].float(), inner)
    return x + (each * weights[..., None]).sum(1)


def run(routers: list[torch.Tensor], lookup: Lookup, ahead: Callable[[int, torch.Tensor], object],
        steps: int, device: str) -> torch.Tensor:
    """Returns the states of all tokens after each step."""
    x = torch.linspace(-1, 1, TOKENS * routers[0].shape[1], device=device).view(TOKENS, -1)
    found = []
    for _ in range(steps):
        for layer, router in enumerate(routers):
            x = functional.layer_norm(x, x.shape[-1:])
            weights, experts = choose(x, router)
            up, down, slots = lookup(layer, experts)
            following = (layer + 1) % len(routers)
            ahead(following, choose(x, routers[following])[1])
            x = mix(x, weights, up, down, slots)
        found.append(x)
    return torch.stack(found).cpu()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--policy", default="lfu", choices=["lfu", "lru"])
    given = parser.parse_args()
    path = os.path.join(given.folder, NAME.format(given.layers, given.experts, given.hidden))
    if not os.path.exists(path):
        make_checkpoint(path, given.layers, given.experts, given.hidden)
    tensors = load_file(path, device=given.device)
    routers = [tensors[f"layers.{i}.router"] for i in range(given.layers)]
    both = [[torch.stack([tensors[f"layers.{i}.experts.{k}.{name}"] for k in range(given.experts)])
             for name in ("up", "down")] for i in range(given.layers)]
    in_memory = run(routers, lambda layer, experts: (both[layer][0], both[layer][1], experts),
                    lambda layer, experts: None, given.steps, given.device)
    names = [[f"layers.{i}.experts.{{}}.up", f"layers.{i}.experts.{{}}.down"]
             for i in range(given.layers)]
    with ExpertBank(path, names, slots=given.slots, device=given.device,
                    policy=given.policy) as bank:
        up, down = bank.parts
        begun = time.monotonic()
        found = run(routers, lambda layer, experts: (up, down, bank.fetch(layer, experts).long()),
                    bank.prefetch, given.steps, given.device)
        seconds = time.monotonic() - begun
        print(f"{given.slots} slots for {bank.layers * bank.experts} experts of {bank.nbytes} bytes, "
              f"{'direct path' if bank.direct else 'reads by the mount'}: {seconds:.2f} s")
        print(json.dumps(bank.stats()))
    if not torch.equal(found, in_memory):
        print("experts.py: the results differ from those of the model in memory", file=sys.stderr)
        return 1
    print("results are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
