#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""killed_owners.py DEVICE MOUNTPOINT OPTIONS BAR FILE HOW ROUNDS VICTIM...

Kills an application that reads FILE into the BAR of another device, the daemon, or both in this
order, and becomes the next owner of the memory: as soon as it is free (HOW is "locked"), or at once
("unlocked"). One process does this ROUNDS times, because starting Python takes longer than a round.
Prints how many rounds have left another owner's data.
"""
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time

import peer_memory

MNT_DETACH, PR_SET_PDEATHSIG = 2, 1
WAIT_S = 300  # the clock of an emulated processor may be twice as fast
SPREAD_S = 0.1
TRIES = 20
LIBC = ctypes.CDLL(None, use_errno=True)


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not after {WAIT_S} s")
        time.sleep(0.005)


class Daemon:
    """The daemon of a mount, which is started again after it was killed."""

    def __init__(self, device, mountpoint, options):
        self.mountpoint = mountpoint
        self.command = ["gpunvmefs", "-f", device, mountpoint, "-o", f"deadline=1000,{options}"]
        self.process = None

    def start(self):
        if self.process and self.process.poll() is None:
            return
        with open("/tmp/daemon.log", "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait_for(lambda: os.path.ismount(self.mountpoint) or self.process.poll() is not None,
                 "the mount")
        if self.process.poll() is not None:
            sys.exit("the daemon has ended")

    @staticmethod
    def has_guard():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8") as name:
                if name.read() == "vfio-guard\n":
                    return True
        return False

    def has_drive(self):
        folder = f"/proc/{self.process.pid}/fd"
        return any(os.readlink(os.path.join(folder, fd)).startswith("/dev/vfio/")
                   for fd in os.listdir(folder))

    def detach(self):
        """Removes the mount of a killed daemon."""
        self.process.wait()
        LIBC.umount2(self.mountpoint.encode(), MNT_DETACH)

    def end(self):
        if self.process.poll() is None:
            subprocess.run(["umount", self.mountpoint], check=True)
            self.process.wait(WAIT_S)

    def fail(self):
        """Shows the log, and leaves no daemon and no mount to the next test."""
        with open("/tmp/daemon.log", encoding="utf-8") as log:
            print(log.read())
        self.process.kill()
        self.detach()


def run_owner(bar, path, said):
    """Is the application until it is killed, its daemon or this program ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(said, 1)
    try:
        peer_memory.own(bar, path)
    except SystemExit as end:
        if end.code != "READ: ECONNABORTED":
            print(end, file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def start_owner(bar, path):
    """Starts the application in a process of its own, and waits until it reads."""
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_owner(bar, path, said)
    os.close(said)
    with os.fdopen(ready) as lines:
        if lines.readline() != "reading\n":
            sys.exit("the application has not begun to read")
    time.sleep(random.random() * SPREAD_S)
    return pid


def has_ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def start_reading(bar, path):
    """Returns an application whose READ has not exceeded its deadline on a busy machine."""
    for _ in range(TRIES):
        owner = start_owner(bar, path)
        if not has_ended(owner):
            return owner
        os.waitpid(owner, 0)
    sys.exit(f"no READ succeeds in {TRIES} tries")


def one_round(daemon, bar, path, how, victims):
    daemon.start()
    owner = start_reading(bar, path)
    assert daemon.has_drive() and daemon.has_guard()
    pids = {"application": owner, "daemon": daemon.process.pid}
    wrong = peer_memory.foreign_pages(bar, how == "locked", [pids[victim] for victim in victims])
    if "application" not in victims:
        os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    if "daemon" in victims:
        daemon.detach()
    return wrong


def main(device, mountpoint, options, bar, path, how, rounds, *victims):
    daemon = Daemon(device, mountpoint, options)
    bad, start, ended = 0, time.monotonic(), False
    try:
        for number in range(int(rounds)):
            bad += one_round(daemon, bar, path, how, victims) > 0
            if number % 10 == 9:
                print(f"{number + 1} rounds after {time.monotonic() - start:.0f} s, bad {bad}",
                      flush=True)
        daemon.end()
        ended = True
    finally:
        if not ended:
            daemon.fail()
    print(f"bad {bad}")


if __name__ == "__main__":
    main(*sys.argv[1:])
