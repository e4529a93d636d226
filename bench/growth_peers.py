#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How do file systems carry many files, many extents and large devices?

growth_bench over a mount of gpunvmefs, of fuse2fs and of ext4 on a loop device, one after another,
each in a sparse image of its own in memory. Peers that are not installed are left out; one that
exceeds the limit of time has the rows that it reached. Prints a table for each measurement, or with -o
json one report in which each peer is a series. Needs root.
Programs of this project are taken from PATH.

Other options are given to growth_bench: -n FILES -p FILES_OF_A_DIRECTORY -e EXTENTS -j JOBS.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import posix_peers

GRACE_S = 120  # of growth_bench, for a call that is not interrupted


def own_mib(daemon):
    """Of the daemon, without the image that a simulated drive maps. Kernels' own: unknown."""
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as status:
        kib = next(line.split()[1] for line in status if line.startswith("RssAnon:"))
    return int(kib) / 1024


def single(name, unit, value):
    return {"name": name, "unit": unit, "median": value, "p5": value, "p95": value, "p99": value,
            "samples": 1}


def rows_of_growth(peer, mount, args, rest):
    """growth_bench's, each a point of the peer's series, and its report."""
    done = subprocess.run(["growth_bench", "-o", "json", "-t", str(args.limit), *rest, mount.where],
                          check=True, stdout=subprocess.PIPE, text=True,
                          timeout=args.limit + GRACE_S)
    report = json.loads(done.stdout)
    for row in report["results"]:
        row.update(name=f"{peer.name}, {row['name']}", series=peer.name,
                   sweep=f"{row['series']}, {row['sweep']}")
    return report


def used_by(peer, daemon):
    if not daemon:
        return []
    return [single(f"{peer.name}, processor time of the daemon", "s",
                   posix_peers.processor_seconds(daemon)),
            single(f"{peer.name}, memory of the daemon", "MiB", own_mib(daemon))]


def spent_by_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def umounted(peer, mount):
    """Ends the mount: seconds of umount(8), and until the daemon has ended; processor time."""
    daemon_before = posix_peers.processor_seconds(mount.daemon) if mount.daemon else 0
    before, begin = spent_by_children(), time.monotonic()
    posix_peers.run("umount", mount.where)
    rows = [("umount", time.monotonic() - begin),
            ("processor time of umount", spent_by_children() - before)]
    if mount.daemon:
        before = spent_by_children()
        mount.daemon.wait(posix_peers.WAIT_S)
        rows += [("umount and the end of the daemon", time.monotonic() - begin),
                 ("processor time of the daemon at its end",
                  spent_by_children() - before - daemon_before)]
    return [single(f"{peer.name}, {name}", "s", value) for name, value in rows]


def measure(peer, args, rest):
    """The report of growth_bench; its rows are of the peer, with those of the mount itself."""
    with tempfile.TemporaryDirectory(prefix="gpunvme-growth-", dir=args.folder) as folder:
        begin = time.monotonic()
        image = posix_peers.format_image(folder, peer, args.size << 30)
        with posix_peers.Mount(peer, image) as mount:
            ready = time.monotonic() - begin
            report = rows_of_growth(peer, mount, args, rest)
            rows = [single(f"{peer.name}, mkfs and mount", "s", ready)]
            rows += used_by(peer, mount.daemon) + umounted(peer, mount)
    report["results"] += rows
    return report


def print_tables(results):
    sweeps = {}
    for row in results:
        key = row.get("sweep") or row["name"].split(", ", 1)[1]
        column = sweeps.setdefault((key, row["unit"]), {}).setdefault(row.get("x", ""), {})
        column[row["name"].split(", ", 1)[0]] = row["median"]
    names = list(dict.fromkeys(row["name"].split(", ", 1)[0] for row in results))
    print("| | x | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 2) + "|")
    for (key, unit), points in sweeps.items():
        for x, values in points.items():
            cells = [f"{values[name]:.3g}" if name in values else "" for name in names]
            print(f"| {key}, {unit} | {int(x):,} | " if x else f"| {key}, {unit} | | ", end="")
            print(" | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-s", dest="size", type=int, default=16, help="GiB of a sparse image")
    parser.add_argument("-t", dest="limit", type=float, default=300,
                        help="seconds of growth_bench for one peer")
    parser.add_argument("-P", dest="passthrough", help="passthrough_ll of libfuse's examples")
    parser.add_argument("-x", dest="omitted", action="append", default=["ntfs-3g"],
                        help="a peer that is left out")
    parser.add_argument("-d", dest="folder", default="/dev/shm", help="of the images")
    parser.add_argument("-o", dest="form", choices=["json"])
    args, rest = parser.parse_known_args()
    if os.geteuid() != 0:
        posix_peers.warn("only root mounts all of them")
        return 77
    posix_peers.exit_on_sigterm()
    merged, missing = None, {"gpunvmefs"} - set(args.omitted)
    for peer in posix_peers.peers_of(args.passthrough):
        if peer.name in args.omitted:
            continue
        try:
            report = measure(peer, args, rest)
        except (subprocess.SubprocessError, TimeoutError) as error:
            posix_peers.warn(f"{peer.name}: {error}")
            continue
        missing.discard(peer.name)
        if merged:
            merged["results"] += report["results"]
        else:
            merged = dict(report, program="growth_peers.py")
            merged["parameters"]["image_bytes"] = args.size << 30
    if not merged or missing:
        return 1
    if args.form:
        print(json.dumps(merged, indent=2))
    else:
        print_tables(merged["results"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
