# SPDX-License-Identifier: BSD-2-Clause
"""Files of safetensors, right ones and wrong ones in every way that the format can be broken."""

import json
import math
import struct

from gpunvme._safetensors import BITS

VALUES = (0, 1, -1, 2**63, 2**64 - 1, 2**64, 1.5, "x", "12", None, True, [], {}, [1], {"a": 1},
          "\U0001f600", "F4")
# Changes of the text that no change of values makes.
TEXTS = (('"shape"', '"dtype": "U8", "shape"'), ('{"dtype"', '{"z": 1, "z": 2, "dtype"'),
         ("[0,", "[-0,"), ("[1", "[1e0"), ('"t0"', '"\\ud800"'), ('"t0"', '"\\ud83d\\ude00"'),
         ('"t0"', '"t1"'), (": [", ": 01["), ("0", "NaN"), ('{"dtype"', '{"z": 1e400, "dtype"'),
         ('{"dtype"', '{"z": -0, "y": "\\ud800", "dtype"'), ("{", "\ufeff{"),
         ("}", '}, "q": 1e400}'),
         ("}", '}, "__metadata__": {"q": "r"}}'), ("}", "} "), ("}", "}\x0b"), ("}", "}\0"),
         ('"a": "b"', '"a": 1, "a": "b"'), ('"', '\\"'), (",", ",,"), ("[", "["))


def tensors(rng):
    """Descriptions of a file that is right, and the bytes of its data."""
    described, at = {}, 0
    for i in range(rng.randint(0, 4)):
        dtype = rng.choice([*BITS, "U8", "F32", "F4"])
        shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 3))]
        if BITS[dtype] < 8 and rng.random() < 0.8:
            shape.append(8)
        end = at + math.prod(shape) * BITS[dtype] // 8
        described[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    if rng.random() < 0.4:
        described["__metadata__"] = rng.choice([{"a": "b"}, {}, None, {"a": 1}, [], "x"])
    return described, at


def deep(rng):
    value = 1
    for _ in range(rng.randint(120, 130)):
        value = [value] if rng.random() < 0.5 else {"z": value}
    return value


def change(rng, described):
    """One thing of it."""
    names = [name for name in described if name != "__metadata__"]
    if not names:
        return
    name = rng.choice(names)
    tensor = described[name]
    way = rng.randrange(8)
    if way < 3:
        tensor[rng.choice(["dtype", "shape", "data_offsets", "extra"])] = rng.choice(VALUES)
    elif way == 3:
        tensor["data_offsets"][rng.randint(0, 1)] = rng.choice(VALUES)
    elif way == 4:
        tensor.pop(rng.choice(list(tensor)))
    elif way == 5:
        described[name] = rng.choice([rng.choice(VALUES), list(tensor.values()),
                                      [*tensor.values(), 1]])
    elif way == 6:
        tensor["dtype"] = {tensor["dtype"]: rng.choice([None, {}, 1])}
    else:
        tensor["deep"] = deep(rng)


def file_of(rng):
    """The bytes of a file."""
    described, size = tensors(rng)
    if rng.random() < 0.5:
        change(rng, described)
    text = json.dumps(described, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        old, new = rng.choice(TEXTS)
        text = new.join(text.rsplit(old, 1) if old == "}" else text.split(old, 1))
    if text and rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", chr(rng.randrange(1, 300))]) + text[at + 1:]
    raw = text.encode("utf-16" if rng.random() < 0.02 else "utf-8", "surrogatepass")
    length = len(raw) + (rng.choice([1, -1, 2**62, 100_000_001]) if rng.random() < 0.03 else 0)
    data = bytes(max(size + (rng.choice([1, -1, 3]) if rng.random() < 0.1 else 0), 0))
    whole = struct.pack("<Q", max(length, 0)) + raw + data
    return whole[:rng.randint(0, 9)] if rng.random() < 0.02 else whole
