#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Prints the number of source files that an operation of a mount enters, measured by callgrind.

The daemon, and for READ the library, run under callgrind with a simulated drive and the CPU
executor; the files of the drive are not counted. Each operation runs TIMES times; a file counts if
its functions were called as often, which leaves out what other threads do meanwhile. A function
that the compiler inlines counts for its caller.
"""
import argparse
import collections
import ctypes
import glob
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

TREE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = 4096
TIMES = 20


class Options(ctypes.Structure):
    """struct gpunvme_options"""
    _fields_ = [("path", ctypes.c_uint32), ("threads", ctypes.c_uint32),
                ("chunk", ctypes.c_size_t), ("crossover", ctypes.c_uint64),
                ("lease_queues", ctypes.c_uint32), ("lease_depth", ctypes.c_uint32),
                ("flags", ctypes.c_uint32)]


def in_tree(name):
    """Returns a source file's path below the tree, or None. A compiler cache keeps other roots."""
    parts = os.path.normpath(name).split(os.sep)
    for i in range(1, len(parts)):
        path = os.path.join(*parts[i:])
        if path.endswith(".c") and os.path.exists(os.path.join(TREE, path)):
            return path
    return None


def calls_by_file(profile):
    """Returns how often the functions of each file were called."""
    files, home, calls = {}, {}, collections.Counter()
    with open(profile) as lines:
        for line in lines:
            match = re.match(r"(c?f[lien])=\((\d+)\)(?: (.*))?|calls=(\d+)", line)
            if not match:
                continue
            kind, number, name, count = match.groups()
            if count:
                calls[called] += int(count)
            elif kind == "cfn":
                called = number
            elif kind == "fn":
                home[number] = current
            else:
                # A file is named once as "(3) name", and then as "(3)".
                files.setdefault(number, name)
                if kind == "fl":
                    current = number
    sums = collections.Counter()
    for function, count in calls.items():
        if function in home:
            sums[in_tree(files[home[function]])] += count
    return sums


def entered(folder, times):
    """Returns the files in the profiles of a folder, which are removed."""
    sums = collections.Counter()
    for profile in glob.glob(os.path.join(folder, "callgrind.out.*")):
        sums += calls_by_file(profile)
        os.unlink(profile)
    return sorted(name for name, count in sums.items()
                  if name and count >= times and not name.startswith("sim/"))


class Profiled:
    """Runs a process under callgrind."""

    def __init__(self, folder, command):
        self.folder = folder
        self.process = subprocess.Popen(
            ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={folder}/callgrind.out.%p",
             *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def control(self, option):
        """Controls the process and those that it has forked."""
        pid = str(self.process.pid)
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
            pids = [pid, *children.read().split()]
        for pid in pids:
            subprocess.run(["callgrind_control", option, pid], check=True,
                           stdout=subprocess.DEVNULL)


class Mount:
    """Makes a mount whose daemon runs under callgrind."""

    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.point = os.path.join(folder, "mnt")
        self.image = os.path.join(folder, "image")
        os.mkdir(self.point)
        with open(self.image, "wb") as image:
            image.truncate(256 << 20)
        subprocess.run([f"{build}/mkfs/mkfs.gpunvme", "-q", self.image], check=True)
        self.daemon = None

    def start(self):
        self.daemon = Profiled(
            self.folder, [f"{self.build}/fusefs/daemon/gpunvmefs", "-f", self.image, self.point,
                          "-o", "executor=cpu,sandbox=none,sim=threads:1"])
        while not os.path.ismount(self.point):
            if self.daemon.process.poll() is not None:
                sys.exit("files_entered: the daemon ended")
            time.sleep(0.1)

    def measure(self, operation, *others):
        for process in (self.daemon, *others):
            process.control("-z")
        operation()
        for process in (self.daemon, *others):
            process.control("-d")
        return entered(self.folder, TIMES)

    def end(self):
        subprocess.run(["umount", self.point], check=True)
        self.daemon.process.wait(60)

    def kill(self):
        """Ends the daemon at once, which leaves a journal to be recovered."""
        if self.daemon and self.daemon.process.poll() is None:
            self.daemon.process.kill()
            self.end()
        entered(self.folder, 1)


def client(build, path):
    """Reads by READ, TIMES times whenever a line arrives on standard input."""
    lib = ctypes.CDLL(f"{build}/client/libgpunvme.so")
    handle, file, memory = (ctypes.c_void_p() for _ in range(3))
    fd = os.open(path, os.O_RDONLY)
    # Without a choice of the path the library makes short reads by read(2).
    assert lib.gpunvme_open(ctypes.byref(Options(path=1)), ctypes.byref(handle)) == 0
    assert lib.gpunvme_file_open(handle, fd, 0, ctypes.byref(file)) == 0
    assert lib.gpunvme_alloc(file, ctypes.c_size_t(1 << 20), ctypes.byref(memory)) == 0
    while True:
        for _ in range(TIMES):
            assert lib.gpunvme_read(file, memory, ctypes.c_size_t(PAGE), ctypes.c_int64(0),
                                    None) == PAGE
        print("read", flush=True)
        if not sys.stdin.readline():
            return


def measure_read_ioctl(mount, path):
    reader = Profiled(mount.folder, [sys.executable, __file__, mount.build, "--client", path])
    if not reader.process.stdout.readline():
        sys.exit("files_entered: the reader ended")

    def read():
        reader.process.stdin.write("\n")
        reader.process.stdin.flush()
        reader.process.stdout.readline()

    found = mount.measure(read, reader)
    reader.process.communicate()
    entered(mount.folder, 1)
    return found


def read_direct(fd):
    with mmap.mmap(-1, PAGE) as memory:
        for i in range(TIMES):
            assert os.preadv(fd, [memory], i * PAGE) == PAGE


def append_synced(fd):
    for _ in range(TIMES):
        os.write(fd, b"x" * PAGE)
        os.fsync(fd)


def report(name, files, verbose):
    print(f"{name}: {len(files)} files", flush=True)
    if verbose:
        print("".join(f"  {file}\n" for file in files), end="", flush=True)


def run(mount, verbose):
    mount.start()
    path = os.path.join(mount.point, "file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    append_synced(fd)
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    report("READ of 4 KiB", measure_read_ioctl(mount, path), verbose)
    report("read(2) of 4 KiB, O_DIRECT",
           mount.measure(lambda: read_direct(direct)), verbose)
    report("write(2) of 4 KiB at the end of a file, fsync(2)",
           mount.measure(lambda: append_synced(fd)), verbose)
    os.close(direct)
    os.close(fd)
    mount.kill()
    mount.start()
    mount.daemon.control("-d")
    report("mount with recovery", entered(mount.folder, 1), verbose)
    mount.end()
    report("unmount", entered(mount.folder, 1), verbose)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="a build folder, such as build/test")
    parser.add_argument("-v", action="store_true", help="name the files")
    parser.add_argument("--client", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    if args.client:
        return client(build, args.client)
    folder = tempfile.mkdtemp(prefix="files-entered.")
    mount = Mount(build, folder)
    try:
        run(mount, args.v)
    finally:
        mount.kill()
        shutil.rmtree(folder)


main()
