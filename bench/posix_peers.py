#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What do ordinary programs get from a mount, beside other file systems?

posix_bench over gpunvmefs without and with writeback_cache, fuse2fs, ntfs-3g, passthrough_ll (an
example of libfuse: -p PROGRAM) and ext4 on a loop device, each in an image of its own in memory, in
turn for each round. Peers that are not installed are left out. passthrough_ll is measured twice: with
default_permissions the kernel checks permissions, as it does for gpunvmefs, and asks for attributes
of directories to do so. Prints the medians, and for mounts with a daemon its processor time. Needs
root. Programs of this project are taken from PATH.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing

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
        time.sleep(0.005)


def gpunvmefs(options):
    """Without the GPU path, for which a GPU would pin the whole image."""
    def command(image, where):
        return ["gpunvmefs", image, where, "-f", "-o", "gpu=off" + options]
    return command


def fuse2fs(image, where):
    return ["fuse2fs", image, where, "-f", "-o", "fakeroot,rw"]


def ntfs_3g(image, where):
    return ["ntfs-3g", "-o", "no_detach", image, where]


def passthrough(program, options=""):
    def command(image, where):
        source = image + ".d"
        os.makedirs(source, exist_ok=True)
        return [program, "-f", "-o", f"source={source}", "-o", "cache=auto" + options, where]
    return command


def ext4(image, where):
    run("mount", "-o", "loop", image, where)


class Peer(typing.NamedTuple):
    """A file system."""
    name: str
    program: str  # that must be installed
    mkfs: list    # command, without the image
    command: typing.Callable  # (image, folder): the daemon's, or None where the call mounts


MKFS_EXT4 = ["mkfs.ext4", "-q", "-F"]


def peers_of(passthrough_program, own_options=("",)):
    """The installed ones. passthrough_ll is a peer with and without the kernel's checks."""
    known = [Peer("gpunvmefs" + options, "gpunvmefs", ["mkfs.gpunvme", "-q"], gpunvmefs(options))
             for options in own_options]
    known += [Peer("fuse2fs", "fuse2fs", MKFS_EXT4, fuse2fs),
              Peer("ntfs-3g", "ntfs-3g", ["mkfs.ntfs", "-q", "-F", "-Q"], ntfs_3g)]
    if passthrough_program:
        known += [Peer("passthrough_ll" + options, passthrough_program, ["true"],
                       passthrough(passthrough_program, options))
                  for options in ("", ",default_permissions")]
    known.append(Peer("ext4 on loop", "mkfs.ext4", MKFS_EXT4, ext4))
    for peer in known:
        if not shutil.which(peer.program):
            warn(f"{peer.name}: {peer.program} is not installed")
    return [peer for peer in known if shutil.which(peer.program)]


def format_image(folder, peer, size):
    """A sparse one; its path."""
    image = os.path.join(folder, "image")
    with open(image, "wb") as file:
        file.truncate(size)
    run(*peer.mkfs, image)
    return image


class Mount:
    """Of an image, at a folder beside it. Use it by `with`."""

    def __init__(self, peer, image):
        self.peer, self.image, self.where = peer, image, image + ".mnt"
        self.daemon = None

    def __enter__(self):
        os.makedirs(self.where, exist_ok=True)
        command = self.peer.command(self.image, self.where)
        self.daemon = command and subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: os.path.ismount(self.where), f"{self.where}: not mounted")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if os.path.ismount(self.where):
            subprocess.run(["umount", self.where], check=False)
        if self.daemon:
            try:
                self.daemon.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
                subprocess.run(["umount", "-l", self.where], check=False)


def processor_seconds(daemon):
    with open(f"/proc/{daemon.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(peer, args):
    """The rows of one round: {(name, unit): value}, and the daemon's processor time."""
    with tempfile.TemporaryDirectory(prefix="gpunvme-posix-", dir=args.folder) as folder:
        image = format_image(folder, peer, (3 * args.size + 1024) * MIB)
        with Mount(peer, image) as mount:
            before = processor_seconds(mount.daemon) if mount.daemon else 0
            text = subprocess.run(["posix_bench", "-o", "json", "-r", "1", "-s", str(args.size),
                                   mount.where], check=True, capture_output=True, text=True).stdout
            used = processor_seconds(mount.daemon) - before if mount.daemon else 0
    rows = {(row["name"], row["unit"]): row["median"] for row in json.loads(text)["results"]}
    rows[("processor time of the daemon", "s")] = used
    return rows


def print_table(results):
    names = [name for name, rounds in results.items() if rounds]
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
    peers = peers_of(args.passthrough, ("", ",writeback_cache"))
    results = {peer.name: [] for peer in peers}
    for _ in range(args.rounds):
        for peer in peers:
            try:
                results[peer.name].append(measure(peer, args))
            except (subprocess.CalledProcessError, TimeoutError) as error:
                warn(f"{peer.name}: {error}: {getattr(error, 'stderr', '') or ''}")
    if not any(results.values()):
        return 1
    print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
