#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that every source file names its licence in its first lines.

usage: check_licence.py ROOT | --self-test
"""

import os
import subprocess

import tree

LICENCE = "SPDX-License-Identifier: BSD-2-Clause"
SUFFIXES = tree.SOURCE_SUFFIXES + (".py", ".sh", ".cmake")
FIRST_LINES = 3


def names_licence(root, name):
    lines = tree.read(root, name).split("\n")[:FIRST_LINES]
    return any(LICENCE in line for line in lines)


def files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else tree.walk(root)
    return sorted(name for name in names if os.path.isfile(os.path.join(root, name)) and
                  (name.endswith(SUFFIXES) or os.path.basename(name) == "CMakeLists.txt"))


def check(root):
    return [f"{name}:1: no line '{LICENCE}'" for name in files(root)
            if not names_licence(root, name)]


def self_test():
    cases = {
        "a.c": (f"/* {LICENCE} */\nint a;\n", False),
        "b.sh": (f"#!/bin/bash\n# {LICENCE}\n", False),
        "c.h": ("#pragma once\n", True),
        "late.py": ("\n" * FIRST_LINES + f"# {LICENCE}\n", True),
        "text.md": ("no source\n", False),
    }
    return tree.self_test(check, cases)


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "licences")
