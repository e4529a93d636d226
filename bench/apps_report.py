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


def least(rows, name):
    return min((row["value"] for row in rows if row["name"].startswith(name)), default=None)


def comparisons(rows):
    """(what, ratio, goal): above the goal is good."""
    for label, parts, goal in (("best setting", "threads (", 1.05), ("1 thread", ", 1 threads", 5),
                               ("random 4 KiB", "random 4 KiB", 10)):
        for where in ("mount", "tmpfs"):
            yield (f"KvikIO, {label}: over gpunvme on the mount, to POSIX on {where}",
                   ratio(best(rows, f"{OURS} on mount", parts),
                         best(rows, f"{POSIX} on {where}", parts)), goal)
    plain = best(rows, "pinned copy")
    for name, goal in (("gpunvme load_file on mount", 0.95), ("InstantTensor", None),
                       ("safetensors load_file", None)):
        yield f"{name}, later, to a pinned copy", ratio(best(rows, name, "later"), plain), goal
        yield f"{name}, first, to a pinned copy", ratio(best(rows, name, "first"), plain), None
    yield ("records of 4 KiB, one gather, to readv", ratio(
        best(rows, "records of 4 KiB on mount, one gather"),
        best(rows, "gpunvme readv of")), 0.9)
    for row in rows:
        if "longer of both to streamed" in row["name"]:
            yield row["name"], row["value"], 0.952
    for name in ("gpunvme read", "direct read"):
        took = least(rows, f"{name} of 4 KiB on mount, median")
        yield f"13 us to a 4 KiB {name} from Python", ratio(13.0, took), 1


def ratio(value, base):
    return value / base if value and base else None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.startswith("{")]
    for row in rows:
        print(f"{row['name']:<72} {row['value']:9.3f} {row['unit']}")
    print()
    for what, found, goal in comparisons(rows):
        if found is not None:
            wanted = f" (goal {goal}: {'reached' if found >= goal else 'missed'})" if goal else ""
            print(f"{what:<72} {found:9.3f}{wanted}")


if __name__ == "__main__":
    main()
