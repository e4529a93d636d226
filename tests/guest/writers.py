#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""writers.py write DIR ROUND | check DIR LOG...: what tests/crash does to a mount, in a guest.

`write` keeps threads writing, renaming and removing until the power goes, and prints a line for
each thing that has been made durable; `check` reads these lines and looks whether it all is there.
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "crash"))
from kill_daemon import Round, check  # noqa: E402


class Announced(dict):
    """Prints what enters it, in one write."""

    def __setitem__(self, name, size):
        super().__setitem__(name, size)
        os.write(1, f"{name} {-1 if size is None else size}\n".encode())


def write(mountpoint, number):
    this = Round(mountpoint, number, Announced())
    for thread in this.start():
        thread.join()
    sys.exit("\n".join(this.errors) or None)


def kept(logs):
    """What the logs promise. The last line may be cut off, and promises nothing then."""
    promised = {}
    for log in logs:
        with open(log, encoding="utf-8", errors="replace") as file:
            for line in file.read().split("\n")[:-1]:
                name, size = line.split(" ")
                promised[name] = None if size == "-1" else int(size)
    return promised


def main():
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3])
    promised = kept(sys.argv[3:])
    wrong = check(sys.argv[2], promised)
    print(f"{len(promised)} names, {len(wrong)} wrong")
    sys.exit("\n".join(wrong[:20]) or None)


if __name__ == "__main__":
    main()
