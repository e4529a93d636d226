#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that every header compiles alone, twice in a row, as C and, where the tests include it,
as C++.

usage: check_headers.py ROOT WORK CC CXX [COMPILER-FLAG...] | --self-test CC CXX

WORK is a folder for the objects. ccache is used where it is installed.

A header that its includer parameterises says so by an error, '#error "define NAME (VALUE ...': it is
compiled with that value. A header that is a template for several inclusions says "included once for
each" in its comment, and is included once. One of device code alone says '#error "NAME is for CUDA';
nvcc compiles it where it is used.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

import tree

# Headers of CUDA device code need nvcc and are compiled where they are used.
CHECKED_SUFFIX = ".h"
TEMPLATE = "included once for each"
CXX = re.compile(r"^#include <\w+>|^class \w", re.MULTILINE)
FOR_CUDA = re.compile(r'#error "\S+ is for CUDA')
CCACHE = ["ccache"] if shutil.which("ccache") else []
PARAMETER = re.compile(r'#error "define (\w+) \((\w+)')


def probe(work, name, text, suffix):
    """A file with the text, not written again when it has it: its path is part of ccache's key."""
    path = os.path.join(work, name + suffix)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.isfile(path) or tree.read(work, name + suffix) != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return path


def compile_alone(root, work, name, command):
    times = 1 if TEMPLATE in tree.read(root, name) else 2
    suffix = ".cc" if "++" in os.path.basename(command[0]) else ".c"
    path = probe(work, name, f'#include "{name}"\n' * times, suffix)
    run = subprocess.run(
        CCACHE + command + ["-I", root, "-I", os.path.join(root, "include"), "-D_GNU_SOURCE",
                            "-D_FILE_OFFSET_BITS=64", "-c", path, "-o", path + ".o"],
        capture_output=True, text=True, check=False)
    if run.returncode == 0 or FOR_CUDA.search(run.stderr):
        return []
    parameter = PARAMETER.search(run.stderr)
    if parameter and f"-D{parameter.group(1)}={parameter.group(2)}" not in command:
        return compile_alone(root, work, name,
                             command + [f"-D{parameter.group(1)}={parameter.group(2)}"])
    return [f"{name}: does not compile alone with {' '.join(command[:2])}:\n{run.stderr}"]


def languages(root, name, cc, cxx, flags):
    """The compiler commands a header must satisfy."""
    text = tree.read(root, name)
    as_c = [cc, "-std=c11", *flags]
    as_cxx = [cxx, "-std=c++17", *flags]
    if name.startswith(("tests/", "integrations/")) and (CXX.search(text) or "gtest/" in text):
        return [as_cxx]
    is_both = "__cplusplus" in text or "__BEGIN_DECLS" in text
    return [as_c, as_cxx] if is_both else [as_c]


def check(root, work, cc, cxx, flags):
    headers = [name for name in tree.source_files(root) if name.endswith(CHECKED_SUFFIX)]
    jobs = [(root, work, name, command) for name in headers
            for command in languages(root, name, cc, cxx, flags)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda job: compile_alone(*job), jobs)
        return [problem for problems in results for problem in problems]


def self_test(cc, cxx):
    cases = {
        "a/whole.h": ("#pragma once\n#include <stdint.h>\nuint8_t a(void);\n", False),
        "a/leans.h": ("#pragma once\nuint8_t b(void);\n", True),
        "a/unguarded.h": ("struct s { int a; };\n", True),
        "a/lanes.h": ('#pragma once\n#ifndef N\n#error "define N (1 or 32)"\n#endif\nint n[N];\n',
                      False),
        "a/template.h": ("/* included once for each kind */\nint twice(void) { return 2; }\n", False),
        "a/device.h": ('#pragma once\n#error "device.h is for CUDA C++"\n', False),
        "tests/cxx.h": ("#pragma once\n#include <string>\nstd::string s();\n", False),
        "integrations/cxx.h": ("#pragma once\n#include <string>\nstd::string s();\n", False),
        "a/not_cxx.h": ("#pragma once\n/* __cplusplus */\nint new(void);\n", True),
    }
    return tree.self_test(
        lambda root: check(root, os.path.join(root, "build"), cc, cxx, []), cases)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    first, *rest = sys.argv[1:]
    problems = self_test(*rest) if first == "--self-test" else check(
        os.path.abspath(first), os.path.abspath(rest[0]), rest[1], rest[2], rest[3:])
    print("\n".join(problems) if problems else "headers: in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
