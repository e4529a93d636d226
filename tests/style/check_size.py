#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks the size of files and functions, and prints how long functions are by folder.

usage: check_size.py ROOT | --self-test

A file has at most 1,000 lines and a function at most 70 lines of code. A longer function that only
dispatches says so: the comment before it, or its first lines, hold the words "only dispatches".
"""

import re
import sys

import tree

FILE_LINES = 1000
FUNCTION_LINES = 70
LINE_WIDTH = 100
EXEMPTION = "only dispatches"
# A brace after these opens no function, but functions can be inside it.
TRANSPARENT = re.compile(r'(extern\s*""|\bnamespace\b[\w\s:]*|\b(?:class|struct)\b[^;(){}=]*)$')
FUNCTION_HEAD = re.compile(r"([~\w:]+)\s*(?:\([^{};]*\))\s*(?:const|override|noexcept|\s)*$")


def functions(text):
    """Yields (name, first line, last line) of every function body of the text; lines from 1."""
    plain = tree.without_directives(tree.without_comments(text))
    depth, head_start, begin, line, name = 0, 0, 0, 1, None
    for position, char in enumerate(plain):
        if char == "\n":
            line += 1
        elif char == "{":
            head = plain[head_start:position]
            if name is None and TRANSPARENT.search(head.rstrip()):
                head_start = position + 1
                continue
            match = FUNCTION_HEAD.search(head.rstrip()) if name is None and depth == 0 else None
            if match:
                name = match.group(1)
                begin = line - head.lstrip().count("\n")
            depth += 1
        elif char == "}":
            depth = max(depth - 1, 0)
            if depth == 0:
                if name is not None:
                    yield name, begin, line
                name, head_start = None, position + 1
        elif char == ";" and depth == 0:
            head_start = position + 1


def code_lines(text):
    return [bool(line.strip()) for line in tree.without_comments(text).split("\n")]


def measure(root, name):
    """Problems of one file, and the code lines of each of its functions."""
    text = tree.read(root, name)
    lines = text.split("\n")
    problems = []
    if len(lines) - 1 > FILE_LINES:
        problems.append(f"{name}:1: {len(lines) - 1} lines, more than {FILE_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_WIDTH:
            problems.append(f"{name}:{number}: {len(line)} columns, more than {LINE_WIDTH}")
    is_code = code_lines(text)
    lengths = []
    for function, first, last in functions(text):
        length = sum(is_code[first - 1:last])
        lengths.append(length)
        said = "\n".join(lines[max(first - 10, 0):first + 3])
        if length > FUNCTION_LINES and EXEMPTION not in said:
            problems.append(f"{name}:{first}: {function}: {length} lines of code, "
                            f"more than {FUNCTION_LINES}")
    return problems, lengths


def check(root):
    problems, by_folder = [], {}
    for name in tree.source_files(root):
        found, lengths = measure(root, name)
        problems += found
        by_folder.setdefault(name.split("/")[0], []).extend(lengths)
    return problems, by_folder


def report(by_folder):
    for folder, lengths in sorted(by_folder.items()):
        if lengths:
            lengths.sort()
            p95 = lengths[min(len(lengths) - 1, len(lengths) * 95 // 100)]
            print(f"{folder:10} {len(lengths):5} functions: median {lengths[len(lengths) // 2]}, "
                  f"95 % {p95}, longest {lengths[-1]}")


def self_test():
    body = "    x = 1; // }\n" * 71
    cases = {
        "a/short.c": ("int f(void)\n{\n    return 1;\n}\n", False),
        "a/long.c": (f"static int\nf(struct s *p)\n{{\n{body}}}\n", True),
        "a/edge.c": ("int f(void)\n{\n" + "    x = '}';\n" * 67 + "}\n", False),
        "a/comments.c": ("int f(void)\n{\n" + "    /* why */\n" * 90 + "}\n", False),
        "a/says.c": (f"/* A table: it only dispatches. */\nint f(void)\n{{\n{body}}}\n", False),
        "a/cpp.cc": ('extern "C" {\nnamespace {\nTEST(A, B)\n{\n' + body + "}\n}\n}\n", True),
        "a/table.c": ("static const int t[] = {\n" + "    1,\n" * 90 + "};\n", False),
        "a/both.c": ("int f(void)\n{\n#ifdef A\n    if (a) {\n#else\n    if (b) {\n#endif\n    }\n}\n"
                     "int g(void)\n{\n" + body + "}\n", True),
        "a/file.h": ("#define A 1\n" * 1001, True),
        "a/wide.h": ("/* " + "x" * 100 + " */\n", True),
    }
    return tree.self_test(lambda root: check(root)[0], cases)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        problems = self_test()
    else:
        problems, by_folder = check(sys.argv[1])
        report(by_folder)
    print("\n".join(problems) if problems else "sizes: in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
