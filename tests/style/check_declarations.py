#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that a blank line follows the declarations that open a function.

usage: check_declarations.py ROOT [--fix] | --self-test
"""

import os
import re
import sys

import tree

STATEMENT = r"(?!(?:return|goto|if|for|while|switch|else|do|break|continue|case|default)\b)"
QUALIFIER = r"(?:static|const|volatile|unsigned|signed|long|struct|enum|union|_Atomic|extern)"
DECLARATION = re.compile(
    rf"    {STATEMENT}(?:{QUALIFIER}\s+)*\w+(?:\s+|\s*\*+\s*)(?:const\s+)?\(?\**\w+"
    rf"(?:\[[^\]]*\])*\)?\s*(?:=|;|,|\()")
MACRO = re.compile(r"    GQ_LANE_(?:VAR|PARAM)\(|    static_assert\(")
CALL = re.compile(r"    \w+\(")


def is_declaration(line):
    return bool(MACRO.match(line) or (DECLARATION.match(line) and not CALL.match(line)))


def end_of_statement(lines, at):
    """The line after the statement that begins on line `at`."""
    depth = 0
    while at < len(lines):
        depth += sum(lines[at].count(c) for c in "({[") - sum(lines[at].count(c) for c in ")}]")
        at += 1
        if depth <= 0 and lines[at - 1].rstrip().endswith(";"):
            break
    return at


def missing(text):
    """The numbers (from 0) of lines before which a blank line is missing."""
    lines = tree.without_directives(tree.without_comments(text)).split("\n")
    whole = text.split("\n")
    found = []
    for opening in (i for i, line in enumerate(lines) if line == "{"):
        at = opening + 1
        while at < len(lines) and is_declaration(lines[at]):
            at = end_of_statement(lines, at)
            # Comments between declarations belong to them.
            after = at
            while after < len(lines) and not lines[after].strip() and whole[after].strip():
                after += 1
            if after < len(lines) and is_declaration(lines[after]):
                at = after
        if opening + 1 < at < len(lines) and whole[at].strip() and lines[at] != "}":
            found.append(at)
    return found


def check(root):
    return [f"{name}:{line + 1}: a blank line is missing after the declarations"
            for name in files(root) for line in missing(tree.read(root, name))]


def files(root):
    return [name for name in tree.source_files(root) if not name.endswith(".cc")]


def fix(root):
    for name in files(root):
        text = tree.read(root, name)
        lines = text.split("\n")
        for at in reversed(missing(text)):
            lines.insert(at, "")
        if "\n".join(lines) != text:
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write("\n".join(lines))


def self_test():
    head = "int f(void)\n{\n"
    cases = {
        "good.c": (head + "    int a = 1;\n\n    return a;\n}\n", False),
        "bad.c": (head + "    int a = 1;\n    return a;\n}\n", True),
        "alone.c": (head + "    return 1;\n}\n", False),
        "call.c": (head + "    g(1);\n    return 1;\n}\n", False),
        "table.c": (head + "    struct s t = {\n        .a = 1,\n    };\n    return t.a;\n}\n", True),
        "comment.c": (head + "    int a;\n    /* why */\n    int b;\n\n    return a + b;\n}\n", False),
        "empty.c": (head + "    int unused;\n}\n", False),
    }
    return tree.self_test(check, cases)


def main():
    if len(sys.argv) == 3 and sys.argv[2] == "--fix":
        fix(sys.argv[1])
        tree.report(check(sys.argv[1]), "declarations")
    tree.main(__doc__, check, self_test, "declarations")


if __name__ == "__main__":
    main()
