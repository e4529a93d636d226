#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that every C and CUDA source opens with a comment on its purpose, and that no comment
of one line has its end on the next one.

usage: check_comments.py ROOT | --self-test
"""

import re

import tree

OPENS = re.compile(r"\s*/\*\s*\S")


def check_file(root, name):
    lines = tree.read(root, name).split("\n")
    problems = []
    if name.endswith((".c", ".cu")) and not lines[1].startswith(("/*", "//")):
        problems.append(f"{name}:2: no comment that says what the file is")
    for i, line in enumerate(lines[:-1]):
        if OPENS.match(line) and "*/" not in line and lines[i + 1].strip() == "*/":
            problems.append(f"{name}:{i + 2}: the end of a comment of one line, alone")
    return problems


def check(root):
    return [problem for name in tree.source_files(root) for problem in check_file(root, name)]


def self_test():
    head = "/* licence */\n"
    cases = {
        "good.c": (head + "/* What it is. */\nint a;\n", False),
        "long.c": (head + "/*\n * What it is.\n */\nint a;\n", False),
        "silent.c": (head + "#include <stdio.h>\n", True),
        "silent.h": (head + "#pragma once\n", False),
        "orphan.h": (head + "/* Of one line.\n */\nint a;\n", True),
    }
    return tree.self_test(check, cases)


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "comments")
