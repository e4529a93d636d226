#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that documents name files, functions and manual pages that exist.

usage: check_docs.py ROOT | --self-test

A document is a Markdown file. Its relative links resolve, paths in backticks that begin with a
folder of the tree exist, and functions in backticks occur in a source file: in docs/notes, which
also names functions of libraries that are not used, those with a prefix of the tree. The same holds
for paths and functions in drawings (mermaid), in whose texts a semicolon would end the statement.
In a sequence a function that a message names occurs in the files of its receiver.
Every function of the public headers is in the NAME section of a page of section 3, and every such
name is a function of theirs or the page itself.
"""

import os
import re
import tempfile

import tree

HEADERS = "include/gpunvme/"
MAN = "docs/man"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*/?")
FUNCTION = re.compile(r"((?:lay|nvme|bd|vfio|pci|sim|serve|gq|gd|gpunvme|ffs|lease|leases|transfer)"
                      r"_\w+)\(\)?")
CALL = re.compile(r"(\w+_\w+)\(\)")
NOTES = "docs/notes/"
PARTICIPANT = re.compile(r"participant (\w+) as ([^\n]+)")
MESSAGE = re.compile(r"\w+\s*-{1,2}>>\s*(\w+)\s*:([^\n]*)")
DECLARED = re.compile(r"\b(gpunvme_\w+)\(")
CODE = re.compile(r"^```(\w*)\n.*?^```", re.DOTALL | re.MULTILINE)
DRAWN_PATH = re.compile(r"(?<![\w/.<])[\w-]+(?:/[\w+-]+)*(?:/|\.cu?\b|\.h\b)")


def documents(root):
    return [name for name in tree.files(root) if name.endswith(".md")]


def missing_links(root, name, text):
    folder = os.path.dirname(name)
    for match in LINK.finditer(text):
        target = match.group(1)
        if "://" not in target and not os.path.exists(os.path.join(root, folder, target)):
            yield match.start(), f"link to {target}, which does not exist"


def named(text):
    """Positions and texts of what stands in backticks, and of paths and functions in drawings."""
    found = []

    def take_block(block):
        if block.group(1) == "mermaid":
            for pattern in (DRAWN_PATH, FUNCTION, CALL):
                found.extend((block.start() + match.start(), match.group(0))
                             for match in pattern.finditer(block.group(0)))
        return re.sub(r"[^\n]", " ", block.group(0))

    prose = CODE.sub(take_block, text)
    return found + [(match.start(), match.group(1)) for match in QUOTED.finditer(prose)]


def missing_path(root, name, folders):
    return (PATH.fullmatch(name) and "/" in name and name.split("/")[0] in folders
            and not os.path.exists(os.path.join(root, name)))


def missing_names(root, document, text, folders, words):
    for at, name in set(named(text)):
        function = FUNCTION.fullmatch(name)
        if not function and not document.startswith(NOTES):
            function = CALL.fullmatch(name)
        if missing_path(root, name, folders):
            yield at, f"{name} does not exist"
        elif function and function.group(1) not in words:
            yield at, f"{function.group(1)}() is in no source file"


def ended_statements(text):
    """Semicolons in drawings."""
    for block in CODE.finditer(text):
        if block.group(1) == "mermaid":
            for match in re.finditer(";", block.group(0)):
                yield block.start() + match.start(), "';' ends a statement of the drawing"


def sources_below(root, path):
    return [name for name in tree.source_files(root) if name == path or name.startswith(path + "/")]


def misplaced_calls(root, text):
    """Functions that a message of a sequence names, and that its receiver does not have."""
    for block in CODE.finditer(text):
        if block.group(1) != "mermaid":
            continue
        words = {}
        for alias, label in PARTICIPANT.findall(block.group(0)):
            names = [name for path in re.split(r"<br/>|\s", label)
                     for name in sources_below(root, path)]
            words[alias] = {word for name in names
                            for word in re.findall(r"\w+", tree.read(root, name))}
        for message in MESSAGE.finditer(block.group(0)):
            for name in CALL.findall(message.group(2)):
                if words.get(message.group(1)) and name not in words[message.group(1)]:
                    yield (block.start() + message.start(),
                           f"{name}() is in no file of {message.group(1)}")


def check_documents(root):
    words = set()
    for name in tree.source_files(root):
        words |= set(re.findall(r"\w+", tree.read(root, name)))
    folders = {name.split("/")[0] for name in tree.files(root) if "/" in name}
    problems = []
    for name in documents(root):
        text = tree.read(root, name)
        found = [*missing_links(root, name, text), *missing_names(root, name, text, folders, words),
                 *ended_statements(text), *misplaced_calls(root, text)]
        problems += [f"{name}:{text.count(chr(10), 0, at) + 1}: {what}"
                     for at, what in sorted(found)]
    return problems


def named_in_pages(root):
    """Names in the NAME sections of section 3, each with its page."""
    names = {}
    for name in tree.files(root):
        if name.startswith(MAN + "/") and name.endswith(".3.scd"):
            section = re.search(r"^# NAME\n+([^\n]*?) - ", tree.read(root, name), re.MULTILINE)
            for word in re.findall(r"\w+", section.group(1)) if section else []:
                names[word] = name
    return names


def check_pages(root):
    declared = set()
    for name in tree.source_files(root):
        if not name.startswith(HEADERS):
            continue
        declared |= set(DECLARED.findall(tree.without_comments(tree.read(root, name))))
    named = named_in_pages(root)
    pages = {os.path.basename(page).split(".")[0] for page in named.values()}
    return ([f"{MAN}: {name}() has no page" for name in sorted(declared - named.keys())]
            + [f"{named[name]}: {name}() is not in the public headers"
               for name in sorted(named.keys() - declared - pages)])


def check(root):
    return check_documents(root) + check_pages(root)


def self_test():
    cases = {
        "layout/a.c": "int lay_open(void);\n",
        "layout/d.c": "int lay_read(void);\n",
        HEADERS + "gpunvme.h": "int gpunvme_one(void);\nint gpunvme_two(void);\n",
        HEADERS + "gpunvme_device.h": "/* gpunvme_three() */\n",
        MAN + "/gpunvme.3.scd": "gpunvme(3)\n\n# NAME\n\ngpunvme, gpunvme_one, gpunvme_four - x\n",
        "good.md": "[a](layout/a.c) `layout/a.c` `layout/` `lay_open()` `/dev/shm` `close()`\n"
                   "```\n`layout/b.c`\n```\n",
        "docs/link.md": "[a](layout/a.c)\n",
        "docs/path.md": "`layout/b.c`\n",
        "docs/function.md": "`lay_close()` `op_close()`\n",
        "docs/notes/tried.md": "`foreign_call()`\n",
        "docs/drawing.md": "```mermaid\nA[layout/a.c]\n"
                           "B[x<br/>layout/c.c] -- lay_end() --> A\nA->>B: one; two\n```\n",
        "docs/sequence.md": "```mermaid\nparticipant A as layout/a.c\nparticipant L as layout\n"
                            "L->>A: lay_open()\nL->>A: lay_read()\nA->>L: lay_read()\n```\n",
    }
    with tempfile.TemporaryDirectory() as root:
        tree.write(root, cases)
        found = check(root)
    expected = [
        "docs/drawing.md:3: layout/c.c does not exist",
        "docs/drawing.md:3: lay_end() is in no source file",
        "docs/drawing.md:4: ';' ends a statement of the drawing",
        "docs/function.md:1: lay_close() is in no source file",
        "docs/function.md:1: op_close() is in no source file",
        "docs/link.md:1: link to layout/a.c, which does not exist",
        "docs/path.md:1: layout/b.c does not exist",
        "docs/sequence.md:5: lay_read() is in no file of A",
        f"{MAN}: gpunvme_two() has no page",
        f"{MAN}/gpunvme.3.scd: gpunvme_four() is not in the public headers",
    ]
    return [f"self-test: expected and found differ in: {line}"
            for line in sorted(set(found) ^ set(expected))]


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "documents")
