#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A table of the figures of apps.py, and how they compare: apps_report.py FILE (JSON, one a line)."""

import json
import sys

OURS, POSIX = "KvikIO over gpunvme", "KvikIO over POSIX"


def best(rows, *parts):
    """The largest figure in GB/s or M/s whose name begins so and has the other parts in it."""
    found = [row["value"] for row in rows if row["name"].startswith(parts[0])
             and all(part in row["name"] for part in parts[1:]) and row["unit"] != "us"]
    return max(found, default=None)


def comparisons(rows):
    """What is compared, and the ratio."""
    for label, parts in (("best setting", "threads ("), ("1 thread", ", 1 threads"),
                         ("random 4 KiB", "random 4 KiB")):
        for where in ("mount", "tmpfs"):
            yield (f"KvikIO, {label}: over gpunvme on the mount, to POSIX on {where}",
                   ratio(best(rows, f"{OURS} on mount", parts),
                         best(rows, f"{POSIX} on {where}", parts)))
    plain = best(rows, "pinned copy")
    for name in ("gpunvme load_file on mount", "InstantTensor", "safetensors load_file"):
        for turn in ("later", "first"):
            yield f"{name}, {turn}, to a pinned copy", ratio(best(rows, name, turn), plain)
    yield ("records of 4 KiB, one gather, to readv", ratio(
        best(rows, "records of 4 KiB on mount, one gather"),
        best(rows, "gpunvme readv of")))


def ratio(value, base):
    return value / base if value and base else None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.startswith("{")]
    for row in rows:
        print(f"{row['name']:<72} {row['value']:9.3f} {row['unit']}")
    print()
    for what, found in comparisons(rows):
        if found is not None:
            print(f"{what:<72} {found:9.3f}")


if __name__ == "__main__":
    main()
