#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks the binary interface of libcufile.so.

usage: check_abi.py exports LIBRARY HEADER
       check_abi.py nvidia LIBRARY HEADER CC

exports: the library exports the functions that HEADER declares, and nothing else.
nvidia: NVIDIA's library exports all of them, and its further exports are INTERNAL; sizes,
offsets and numbers that HEADER states hold for NVIDIA's cufile.h. Needs the wheel nvidia-cufile,
installed or unpacked below $GPUNVME_NVIDIA_CUFILE; ends with 77 where there is none, or one of a
version before CUFILE_VERSION of HEADER.
"""

import glob
import os
import re
import subprocess
import sys
import sysconfig
import tempfile

FUNCTION = re.compile(r"\b(cuFile\w+)\(")
SIZE = re.compile(r"static_assert\(sizeof\((\w+)\) == (\d+)")
OFFSET = re.compile(r"static_assert\(offsetof\((\w+), ([\w.]+)\) == (\d+)")
VERSION = re.compile(r"define CUFILE_VERSION (\d+)")
NUMBER = re.compile(r"^\s*(CU_?FILE_\w+) = (0x[0-9a-f]+|\d+)", re.MULTILINE)
# Exports of NVIDIA's that no header and no manual declares, so that no program calls them: its
# kernels, their launchers, and parts of the object storage client.
INTERNAL = {
    "cuFileCopyGpu", "cuFileCopyGpuPosixIORetry", "cuFileCopyGpuWrap",
    "cuFileCopyGpuWrapPosixIORetry", "cuFileGpuWaitValue32", "cuFileInlineGpu",
    "cuFileObjectDriverOpen", "cuFileObjectDriverOpenForDiagnostics", "cuFileObjectInitialize",
    "cuFileSparseGpu", "cuFileStreamHandleInline", "cuFileStreamHandleSparse",
    "cuFileStreamWaitValue32"}
# An assertion about a member that has another name there.
RENAMED = {("CUfileIOParams_t", "batch"): "u"}


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return {line.split()[2] for line in lines if line.split()[1] == "T"}


def declared(header):
    with open(header, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.DOTALL)
    return set(FUNCTION.findall(text)), text


def version_of(top):
    """The wheel's version, in the form of CUFILE_VERSION."""
    for path in glob.glob(f"{top}/**/nvidia_cufile-*.dist-info", recursive=True):
        major, minor = re.search(r"cufile-(\d+)\.(\d+)", path).groups()
        return 1000 * int(major) + 10 * int(minor)
    return None


def find_nvidia(least):
    """The library and the header of NVIDIA's wheel, or the reason why there are none."""
    why = "no wheel nvidia-cufile here, see GPUNVME_NVIDIA_CUFILE"
    for top in (os.environ.get("GPUNVME_NVIDIA_CUFILE"), sysconfig.get_path("purelib")):
        libraries = glob.glob(f"{top}/**/libcufile.so.0", recursive=True) if top else []
        headers = glob.glob(f"{top}/**/cufile.h", recursive=True) if top else []
        if not libraries or not headers:
            continue
        version = version_of(top)
        if version is None or version >= least:
            return libraries[0], headers[0], None
        why = f"the wheel nvidia-cufile has version {version}, the interface is that of {least}"
    return None, None, why


def assertions(text):
    for name, size in SIZE.findall(text):
        yield f"sizeof({name}) == {size}"
    for name, member, offset in OFFSET.findall(text):
        yield f"offsetof({name}, {RENAMED.get((name, member), member)}) == {offset}"
    for name, value in NUMBER.findall(text):
        yield f"{name} == {value}"


def check_layout(text, header, compiler):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "cuda.h"), "w", encoding="utf-8") as file:
            file.write("typedef int CUresult;\ntypedef void *CUstream;\n")
        lines = ["#include <assert.h>", "#include <stddef.h>", "#include <stdint.h>",
                 "#include <time.h>", f'#include "{header}"']
        lines += [f'static_assert({a}, "{a}");' for a in assertions(text)]
        source = os.path.join(folder, "layout.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        result = subprocess.run([compiler, "-std=gnu11", "-fsyntax-only", f"-I{folder}", source],
                                capture_output=True, text=True, check=False)
    return [] if result.returncode == 0 else [result.stderr]


def check_exports(library, header):
    names, _ = declared(header)
    ours = exported(library)
    return ([f"{name}: declared, not exported" for name in sorted(names - ours)] +
            [f"{name}: exported, not declared" for name in sorted(ours - names)])


def check_nvidia(library, header, compiler):
    ours, (_, text) = exported(library), declared(header)
    their_library, their_header, why = find_nvidia(int(VERSION.search(text)[1]))
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    theirs = exported(their_library)
    public = declared(their_header)[0] & theirs
    unknown = {name for name in theirs if name.startswith("cuFile")} - ours - INTERNAL
    return ([f"{name}: not in NVIDIA's library" for name in sorted(ours - theirs)] +
            [f"{name}: only in NVIDIA's library" for name in sorted(public - ours)] +
            [f"{name}: in NVIDIA's library, not INTERNAL" for name in sorted(unknown - public)] +
            check_layout(text, their_header, compiler))


def main():
    kinds = {"exports": (check_exports, 4), "nvidia": (check_nvidia, 5)}
    check, count = kinds.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    if len(sys.argv) != count:
        sys.exit(__doc__)
    problems = check(*sys.argv[2:])
    print("\n".join(problems) if problems else f"{sys.argv[1]}: the interface agrees")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
