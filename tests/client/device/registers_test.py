#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Registers, stack and spilled words of kernels that read, as the compiler reports them: what
gpunvme_device.h promises, also with GPUNVME_DEVICE_SMALL.

usage: registers_test.py ROOT NVCC
"""

import os
import re
import subprocess
import sys
import tempfile

ARCHITECTURE = "sm_90"
SKIPPED = 77

# CUDA allocates so much for each thread before a kernel asks for it. A kernel that needs more makes
# its first launch wait for all kernels that run, as those that a read waits for.
MOST_STACK = 1024
# Bytes of a function's spilled words in kernels of 1,024 threads, with GPUNVME_DEVICE_SMALL.
MOST_SPILLED = 36
# Of kernels without __launch_bounds__: ordinary ones, of which blocks of 256 threads can be
# launched, and small ones, of which blocks of 512 can.
MOST_REGISTERS, MOST_REGISTERS_SMALL = 230, 128
# Ordinary functions spill in kernels of 1,024 threads: bytes of stack, measured with CUDA 13.0 and
# an eighth more.
SPILLING = {"full_block": 810, "full_block_lists": 657, "full_block_threads": 729,
            "full_block_tickets": 927, "full_block_warps": 612}

KERNEL = re.compile(r"Compiling entry function '(\w+)'")
SPILLED = re.compile(r"(\d+) bytes spill stores")
USED = re.compile(r"Used (\d+) registers")
STACK = re.compile(r"(\d+) bytes cumulative stack")


def parse(report):
    """Of the kernels of ptxas's report, by name: registers, bytes of stack, and the most bytes that
    one of its functions spills."""
    kernels, name, spilled = {}, "", {}
    for line in report.splitlines():
        if found := KERNEL.search(line):
            name = found.group(1)
        if found := SPILLED.search(line):
            spilled[name] = max(spilled.get(name, 0), int(found.group(1)))
        if found := USED.search(line):
            stack = STACK.search(line)
            kernels[name] = int(found.group(1)), int(stack.group(1)) if stack else 0
    return {name: (*kernels[name], spilled.get(name, 0)) for name in kernels}


def report_of(root, nvcc, work, small):
    run = subprocess.run(
        [nvcc, "-std=c++17", f"-arch={ARCHITECTURE}", "-I", root,
         "-I", os.path.join(root, "include"), *(["-DGPUNVME_DEVICE_SMALL"] if small else []),
         "-Xptxas", "-v", "-cubin", "-o", os.path.join(work, "registers.cubin"),
         os.path.join(os.path.dirname(os.path.abspath(__file__)), "registers.cu")],
        capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{nvcc}: registers.cu: does not compile for {ARCHITECTURE}:\n{run.stderr}")
    return run.stdout + run.stderr


def limits(name, small):
    """Registers, bytes of stack, bytes spilled by one function."""
    if small:
        return MOST_REGISTERS_SMALL, MOST_STACK, MOST_SPILLED
    return MOST_REGISTERS, min(MOST_STACK, SPILLING.get(name, MOST_STACK)), sys.maxsize


def faults_of(kernels, small):
    faults = 0
    for name, found in sorted(kernels.items()):
        most = limits(name, small)
        good = all(value <= limit for value, limit in zip(found, most))
        faults += not good
        print(f"{name}{', small' if small else ''}: {found[0]} registers, {found[1]} bytes of stack,"
              f" {found[2]} spilled by a function{'' if good else f': {most} at most'}")
    return faults


def main():
    root, nvcc = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        ordinary, small = (parse(report_of(root, nvcc, work, small)) for small in (False, True))
    if not any(stack for _, stack, _ in ordinary.values()):
        print(f"skipped: {nvcc} does not report the stack of kernels")
        return SKIPPED
    return 1 if faults_of(ordinary, False) + faults_of(small, True) else 0


if __name__ == "__main__":
    sys.exit(main())
