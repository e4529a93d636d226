#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What do ordinary programs get from a mount, beside other file systems?

posix_bench over gpunvmefs, fuse2fs, ntfs-3g, passthrough_ll (an example of libfuse: -p PROGRAM) and
ext4 on a loop device, each in an image of its own in memory, in turn for each round. Peers that are
not installed are left out. Prints the medians, and for mounts with a daemon its processor time.
Needs root. Programs of this project are taken from PATH.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
WAIT_S = 30  # for a mount, and for the end of a daemon


def warn(message):
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr, flush=True)


def exit_on_sigterm():
    """By an exception: mounts are undone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)


def gpunvmefs(image, where):
    """Without the GPU path, for which a GPU would pin the whole image."""
    run("mkfs.gpunvme", "-q", image)
    return ["gpunvmefs", image, where, "-f", "-o", "gpu=off"]


def fuse2fs(image, where):
    run("mkfs.ext4", "-q", "-F", image)
    return ["fuse2fs", image, where, "-f", "-o", "fakeroot,rw"]


def ntfs_3g(image, where):
    run("mkfs.ntfs", "-q", "-F", "-Q", image)
    return ["ntfs-3g", "-o", "no_detach", image, where]


def passthrough(program):
    def command(image, where):
        source = image + ".d"
        os.mkdir(source)
        return [program, "-f", "-o", f"source={source}", "-o", "cache=auto", where]
    return command


def ext4(image, where):
    run("mkfs.ext4", "-q", "-F", image)
    run("mount", "-o", "loop", image, where)


def peers_of(passthrough_program):
    """(name, function that formats and returns the daemon's command) of the installed ones."""
    known = [("gpunvmefs", gpunvmefs, "gpunvmefs"), ("fuse2fs", fuse2fs, "fuse2fs"),
             ("ntfs-3g", ntfs_3g, "ntfs-3g"), ("ext4 on loop", ext4, "mkfs.ext4")]
    if passthrough_program:
        known.insert(3, ("passthrough_ll", passthrough(passthrough_program), passthrough_program))
    found = [(name, make) for name, make, program in known if shutil.which(program)]
    for name, _, program in known:
        if not shutil.which(program):
            warn(f"{name}: {program} is not installed")
    return found


@contextlib.contextmanager
def mounted(folder, make, size):
    """A fresh mount; yields its folder and the daemon's process, or None."""
    image, where = os.path.join(folder, "image"), os.path.join(folder, "mnt")
    os.mkdir(where)
    with open(image, "wb") as file:
        file.truncate(size)
    command = make(image, where)
    daemon = command and subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: os.path.ismount(where), f"{where}: not mounted")
        yield where, daemon
    finally:
        subprocess.run(["umount", where], check=False)
        if daemon:
            try:
                daemon.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
                subprocess.run(["umount", "-l", where], check=False)


def processor_seconds(daemon):
    with open(f"/proc/{daemon.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(make, args):
    """The rows of one round: {(name, unit): value}, and the daemon's processor time."""
    with tempfile.TemporaryDirectory(prefix="gpunvme-posix-", dir=args.folder) as folder:
        with mounted(folder, make, (3 * args.size + 1024) * MIB) as (where, daemon):
            before = processor_seconds(daemon) if daemon else 0
            text = subprocess.run(["posix_bench", "-o", "json", "-r", "1", "-s", str(args.size),
                                   where], check=True, capture_output=True, text=True).stdout
            used = processor_seconds(daemon) - before if daemon else 0
    rows = {(row["name"], row["unit"]): row["median"] for row in json.loads(text)["results"]}
    rows[("processor time of the daemon", "s")] = used
    return rows


def print_table(peers, results):
    names = [name for name, _ in peers if results[name]]
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for key in results[names[0]][0]:
        values = [statistics.median(round[key] for round in results[name]) for name in names]
        print(f"| {key[0]}, {key[1]} | " + " | ".join(f"{value:.3g}" for value in values) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-s", dest="size", type=int, default=256, help="MiB of the file")
    parser.add_argument("-r", dest="rounds", type=int, default=3)
    parser.add_argument("-p", dest="passthrough", help="passthrough_ll of libfuse's examples")
    parser.add_argument("-d", dest="folder", default="/dev/shm", help="of the images")
    args = parser.parse_args()
    if os.geteuid() != 0:
        warn("only root mounts all of them")
        return 77
    exit_on_sigterm()
    peers = peers_of(args.passthrough)
    results = {name: [] for name, _ in peers}
    for _ in range(args.rounds):
        for name, make in peers:
            try:
                results[name].append(measure(make, args))
            except (subprocess.CalledProcessError, TimeoutError) as error:
                warn(f"{name}: {error}: {getattr(error, 'stderr', '') or ''}")
    if not any(results.values()):
        return 1
    print_table(peers, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
