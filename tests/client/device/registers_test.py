#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Registers and stack of kernels that read, as the compiler reports them: what gpunvme_device.h
promises.

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
# Without __launch_bounds__: blocks of 256 threads can be launched.
MOST_REGISTERS = 255

KERNEL = re.compile(r"Compiling entry function '(\w+)'")
USED = re.compile(r"Used (\d+) registers")
STACK = re.compile(r"(\d+) bytes cumulative stack")


def parse(report):
    """(registers, bytes of stack) of the kernels of ptxas's report, by name."""
    kernels, name = {}, ""
    for line in report.splitlines():
        if found := KERNEL.search(line):
            name = found.group(1)
        if found := USED.search(line):
            stack = STACK.search(line)
            kernels[name] = int(found.group(1)), int(stack.group(1)) if stack else 0
    return kernels


def report_of(root, nvcc, work):
    run = subprocess.run(
        [nvcc, "-std=c++17", f"-arch={ARCHITECTURE}", "-I", root,
         "-I", os.path.join(root, "include"), "-Xptxas", "-v", "-cubin",
         "-o", os.path.join(work, "registers.cubin"),
         os.path.join(os.path.dirname(os.path.abspath(__file__)), "registers.cu")],
        capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{nvcc}: registers.cu: does not compile for {ARCHITECTURE}:\n{run.stderr}")
    return run.stdout + run.stderr


def main():
    root, nvcc = sys.argv[1:]
    faults = 0
    with tempfile.TemporaryDirectory() as work:
        kernels = parse(report_of(root, nvcc, work))
    if not any(stack for _, stack in kernels.values()):
        print(f"skipped: {nvcc} does not report the stack of kernels")
        return SKIPPED
    for name, (registers, stack) in sorted(kernels.items()):
        good = registers <= MOST_REGISTERS and stack <= MOST_STACK
        faults += not good
        print(f"{name}: {registers} registers, {stack} bytes of stack"
              f"{'' if good else f': {MOST_REGISTERS} and {MOST_STACK} at most'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
