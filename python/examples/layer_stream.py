#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs a transformer whose weights each forward pass streams from a file into GPU memory.

    layer_stream.py FILE [--layers N] [--hidden N] [--tokens N]

Makes FILE (safetensors, random weights) where it is not there, runs the forward pass with weights
that are resident and with weights that are streamed through a ring of three layers, and compares
the results, which must be equal to the bit, and the times: of computing alone, of reading alone,
and of both at once.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional

from gpunvme.torch import LayerStream, load_file

HEAD = 128
Weights = dict[str, torch.Tensor]


def make_file(path: str, layers: int, hidden: int, device: str) -> None:
    from safetensors.torch import save_file
    generator = torch.Generator(device).manual_seed(1)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shapes = {"qkv": (3 * hidden, hidden), "out": (hidden, hidden), "up": (4 * hidden, hidden),
              "down": (hidden, 4 * hidden)}
    weights = {}
    for layer in range(layers):
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=generator, device=device) / shape[1] ** 0.5
            weights[f"layers.{layer}.{name}.weight"] = weight.to(dtype).cpu()
    save_file(weights, path)


def block(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """A layer has attention and a perceptron, both with a residual connection."""
    by_name = {name.split(".")[-2]: weight for name, weight in weights.items()}
    tokens, hidden = x.shape
    normed = functional.layer_norm(x, (hidden,))
    q, k, v = (normed @ by_name["qkv"].T).view(tokens, 3, hidden // HEAD, HEAD).permute(1, 2, 0, 3)
    attended = functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    x = x + attended[0].transpose(0, 1).reshape(tokens, hidden) @ by_name["out"].T
    normed = functional.layer_norm(x, (hidden,))
    return x + functional.gelu(normed @ by_name["up"].T) @ by_name["down"].T


def resident_layers(path: str, device: str) -> list[Weights]:
    weights = load_file(path, device=device)
    layers = sorted({int(name.split(".")[1]) for name in weights})
    return [{name: weight for name, weight in weights.items() if name.startswith(f"layers.{layer}.")}
            for layer in layers]


def timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.monotonic()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - begun, result


def forward(x: torch.Tensor, layers: Iterable[Weights]) -> torch.Tensor:
    for weights in layers:
        x = block(x, weights)
    return x


def streamed(x: torch.Tensor, path: str, device: str, passes: int,
             direct: bool | None) -> tuple[float, torch.Tensor]:
    """Seconds of a pass, without the first one, and the last result."""
    with LayerStream(path, device, loop=True, direct=direct) as stream:
        count = len(stream.layers)

        def one() -> torch.Tensor:
            return forward(x, itertools.islice(stream, count))

        timed(one, device)
        took, results = timed(lambda: [one() for _ in range(passes)], device)
        return took / passes, results[-1]


def read_alone(path: str, device: str, passes: int,
               direct: bool | None) -> tuple[float, int]:
    with LayerStream(path, device, loop=True, direct=direct) as stream:
        count = len(stream.layers)

        def some(passes: int) -> None:
            for _ in range(passes * count):
                next(stream)

        some(1)
        return timed(lambda: some(passes), device)[0] / passes, stream.nbytes


def measure(path: str, tokens: int, device: str, passes: int = 3,
            direct: bool | None = None) -> tuple[float, float, float, int]:
    """Seconds of a pass: computing alone, reading alone, and streamed; the file's bytes."""
    layers = resident_layers(path, device)
    x = torch.randn(tokens, layers[0]["layers.0.out.weight"].shape[0], device=device,
                    dtype=layers[0]["layers.0.out.weight"].dtype)
    with torch.inference_mode():
        timed(lambda: forward(x, layers), device)
        computing, expected = timed(lambda: [forward(x, layers) for _ in range(passes)], device)
        expected = expected[-1]
        del layers
        reading, nbytes = read_alone(path, device, passes, direct)
        both, result = streamed(x, path, device, passes, direct)
    if not torch.equal(result, expected):
        sys.exit("layer_stream.py: the streamed result is WRONG")
    return computing / passes, reading, both, nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=2048, help=f"a multiple of {HEAD}")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--direct", action=argparse.BooleanOptionalAction,
                        help="by queues that the mount lends; by default where it does")
    parser.add_argument("file")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.hidden % HEAD or min(args.layers, args.hidden, args.tokens) < 1:
        parser.error(f"--hidden is a multiple of {HEAD}; all are 1 or more")
    if not os.path.exists(args.file):
        make_file(args.file, args.layers, args.hidden, device)
    computing, reading, both, nbytes = measure(args.file, args.tokens, device,
                                               direct=args.direct)
    print(f"computing alone {computing * 1e3:9.2f} ms")
    print(f"reading alone   {reading * 1e3:9.2f} ms, {nbytes / reading / 1e9:.2f} GB/s")
    print(f"streamed        {both * 1e3:9.2f} ms, {both / max(computing, reading):.3f} of the longer")


if __name__ == "__main__":
    main()
