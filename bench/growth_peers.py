#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How do file systems carry many files, many extents and large devices?

growth_bench over a mount of gpunvmefs, of ext4 on a loop device and of fuse2fs, one after another,
each in a sparse image of its own in memory. Peers that are not installed are left out; one that
exceeds the limit of time is ended and has no rows. Prints a table for each measurement, or with -o
json one report in which each peer is a series: scripts/bench-report.py draws it. Needs root.
Programs of this project are taken from PATH.

Other options are given to growth_bench: -n FILES -p FILES_OF_A_DIRECTORY -e EXTENTS -j JOBS.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import posix_peers

NAMES = ("gpunvmefs", "ext4 on loop", "fuse2fs")


def own_mib(daemon):
    """Of the daemon, without the image that a simulated drive maps. Kernels' own: unknown."""
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as status:
        kib = next(line.split()[1] for line in status if line.startswith("RssAnon:"))
    return int(kib) / 1024


def single(name, unit, value):
    return {"name": name, "unit": unit, "median": value, "p5": value, "p95": value, "p99": value,
            "samples": 1}


def measure(name, make, args, rest):
    """The report of growth_bench; its rows are of the peer, with those of the mount itself."""
    with tempfile.TemporaryDirectory(prefix="gpunvme-growth-", dir=args.folder) as folder:
        begin = time.monotonic()
        with posix_peers.mounted(folder, make, args.size << 30) as (where, daemon):
            ready = time.monotonic() - begin
            done = subprocess.run(["growth_bench", "-o", "json", *rest, where], check=True,
                                  stdout=subprocess.PIPE, text=True, timeout=args.limit)
            report = json.loads(done.stdout)
            used = [single(f"{name}, processor time of the daemon", "s",
                           posix_peers.processor_seconds(daemon)),
                    single(f"{name}, memory of the daemon at the end", "MiB",
                           own_mib(daemon))] if daemon else []
            begin = time.monotonic()
        end = time.monotonic() - begin
    for row in report["results"]:
        row.update(name=f"{name}, {row['name']}", series=name,
                   sweep=f"{row['series']}, {row['sweep']}")
    report["results"] += [single(f"{name}, mkfs and mount", "s", ready), *used,
                          single(f"{name}, umount", "s", end)]
    return report


def print_tables(results):
    sweeps = {}
    for row in results:
        key = row.get("sweep") or row["name"].split(", ", 1)[1]
        column = sweeps.setdefault((key, row["unit"]), {}).setdefault(row.get("x", ""), {})
        column[row["name"].split(", ", 1)[0]] = row["median"]
    print("| | x | " + " | ".join(NAMES) + " |")
    print("|---" * (len(NAMES) + 2) + "|")
    for (key, unit), points in sweeps.items():
        for x, values in points.items():
            cells = [f"{values[name]:.3g}" if name in values else "" for name in NAMES]
            print(f"| {key}, {unit} | {int(x):,} | " if x else f"| {key}, {unit} | | ", end="")
            print(" | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-s", dest="size", type=int, default=16, help="GiB of a sparse image")
    parser.add_argument("-t", dest="limit", type=float, default=300, help="seconds for one peer")
    parser.add_argument("-d", dest="folder", default="/dev/shm", help="of the images")
    parser.add_argument("-o", dest="form", choices=["json"])
    args, rest = parser.parse_known_args()
    if os.geteuid() != 0:
        posix_peers.warn("only root mounts all of them")
        return 77
    posix_peers.exit_on_sigterm()
    merged = None
    for name, make in [p for p in posix_peers.peers_of(None) if p[0] in NAMES]:
        try:
            report = measure(name, make, args, rest)
        except (subprocess.SubprocessError, TimeoutError) as error:
            posix_peers.warn(f"{name}: {error}")
            continue
        if merged:
            merged["results"] += report["results"]
        else:
            merged = dict(report, program="growth_peers.py")
            merged["parameters"]["image_bytes"] = args.size << 30
    if not merged or not merged["results"][0]["name"].startswith("gpunvmefs"):
        return 1
    if args.form:
        print(json.dumps(merged, indent=2))
    else:
        print_tables(merged["results"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
