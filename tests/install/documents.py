#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Prints a shell script of the commands in README.md and docs/quickstart.md, as they stand there.

documents.py TOP

Commands are the lines that are indented by four spaces. A command that cannot run in a root without
drives, GPU and systemd is named in NOT_RUN, with the reason. All others run, one after the other.
"""

import os
import sys

NOT_RUN = {
    "bash scripts/test.sh": "scripts/test.sh has a run of its own",
    "dpkg-buildpackage": "packages have a root of their own",
    "0000:c1:00.0": "there is no drive",
    "systemctl": "there is no systemd",
    "nvcc": "there is no CUDA",
    "-i 10": "the command does not end",
}
# What a command needs that its reader has: a model, a program, a folder.
PREPARED = {
    "cp model.safetensors": "head -c 5000001 /dev/urandom >model.safetensors",
    "gpunvme check --cufile": "mkdir -p /path/of/a && cp model.safetensors /path/of/a/file",
    "gpunvme-run python train.py": "echo 'import gpunvme; print(gpunvme.__version__)' >train.py",
    "gpunvme cache /mnt/fast/kv --limit":
        "gpunvmefs /dev/shm/disk.img /mnt/fast && mkdir /mnt/fast/kv",
    "gcc app.c": "cp examples/read.c app.c",
    "gpunvme stats -w": "mkdir -p /var/lib/node_exporter/textfile",
}
# Commands that report by their status what is missing on this machine.
REPORTING = ("gpunvme check",)
# set -e would not notice a failure on the left of &&.
CHECK = "[ $? = 0 ] || exit 1"


def commands(path):
    """Yields the commands of a document. A comment that goes on in another line is not one."""
    with open(path, encoding="utf-8") as file:
        fenced = False
        for line in file:
            fenced ^= line.startswith("```")
            text = line.strip()
            if line.startswith("    ") and not fenced and text and not text.startswith("#"):
                yield text


def main():
    top = sys.argv[1]
    for name in "README.md", "docs/quickstart.md":
        for command in commands(os.path.join(top, name)):
            reason = next((NOT_RUN[part] for part in NOT_RUN if part in command), None)
            if reason:
                print(f"printf '%s\\n' {quoted('not run: ' + command + ': ' + reason)}")
                continue
            for begin, prepare in PREPARED.items():
                if command.startswith(begin):
                    print(f"{prepare}\n{CHECK}")
            print(f"printf '%s\\n' {quoted('$ ' + command)}")
            print(command)
            if not command.startswith(REPORTING):
                print(CHECK)
    print("umount /mnt/fast")


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    main()
