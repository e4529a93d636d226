#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks the language of comments and documents: the subject of a sentence is the object named in
code, not a pronoun.

usage: check_words.py ROOT | --self-test

Counted are pronoun subjects and "what ..." clauses (COUNTED), per 1,000 words of a
folder's comments, of the comments of all scripts (Python, shell, CMake; also strings of
documentation), and of all documents (Markdown, manual pages) together. Names that the
glossary has replaced do not come back, in code neither.
"""

import collections
import re
import tempfile

import tree

COUNTED = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody|others|he|him|his"
                     r"|what (?:is|it|was|they))\b", re.IGNORECASE)
REPLACED = {
    "ringer": "doorbell proxy",
    "copier": "copy kernel",
    "mover": "DMA engine",
    "feeder": "prefetch warp",
    "harvest": "poll",
    "sicken": "mark_failed",
    "owed": "pending",
}
OLD_NAME = re.compile(r"(?<![a-z])(" + "|".join(REPLACED) + r")(?![a-z])")
WORD = re.compile(r"[A-Za-z']+")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Comments, and strings of documentation: behind the licence, or a line that ends in a colon.
SCRIPT_COMMENT = re.compile(r'^[ \t]*#(?!!)[^\n]*|[ \t]# [^\n]*|'
                            r'(?:(?<=:\n)|(?<=-Clause\n))[ \t]*r?"""(?:[^"]|"(?!""))*"""',
                            re.MULTILINE)
SCRIPTS = "scripts"
SCRIPT_SUFFIXES = (".py", ".sh", ".cmake", "CMakeLists.txt")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

# Most per 1,000 words. The longest folder that matches a file decides.
LIMIT = 0.2
DOCUMENTS = "documents"
LIMITS = {
    "bench": LIMIT,
    "blockdev": LIMIT,
    "blockdev/nvme": LIMIT,
    "blockdev/pci": LIMIT,
    "blockdev/vfio": LIMIT,
    "blockdev/vfio_user": LIMIT,
    "client/cli": LIMIT,
    "client/device": LIMIT,
    "client/io": LIMIT,
    "client/lib": LIMIT,
    "cuda": LIMIT,
    "cuda/engine": LIMIT,
    "cuda/exec_cpu": LIMIT,
    "cuda/exec_cuda": LIMIT,
    "cuda/queue": LIMIT,
    "fusefs/core": LIMIT,
    "include": LIMIT,
    "layout": LIMIT,
    "mkfs": LIMIT,
    "support": LIMIT,
    "tests": LIMIT,
}
SAMPLE = 1000  # words: less text is measured as if it had so many


def folder_of(name):
    if name.endswith(SCRIPT_SUFFIXES):
        return SCRIPTS
    if not name.endswith(tree.SOURCE_SUFFIXES):
        return DOCUMENTS
    folders = [folder for folder in LIMITS if name.startswith(folder + "/")]
    return max(folders, key=len) if folders else name.split("/")[0]


def texts(root):
    """Each file's folder, name, and the text that counts, with its place in the file."""
    for name in tree.files(root):
        if name.endswith(tree.SOURCE_SUFFIXES + SCRIPT_SUFFIXES):
            comment = SCRIPT_COMMENT if name.endswith(SCRIPT_SUFFIXES) else COMMENT
            parts = [(m.start(), m.group(0)) for m in comment.finditer(tree.read(root, name))]
        elif name.endswith((".md", ".scd")):
            text = tree.read(root, name)
            parts = [(0, CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text))]
        else:
            continue
        yield folder_of(name), name, parts


def old_names(root):
    """Names that have been replaced; integrations have those of other projects."""
    for name in tree.files(root):
        if name.startswith("integrations/") or not name.endswith(tree.SOURCE_SUFFIXES):
            continue
        for number, line in enumerate(tree.read(root, name).splitlines(), 1):
            for match in OLD_NAME.finditer(line):
                yield (f"{name}:{number}: {match.group(0)}: the glossary's name is "
                       f"{REPLACED[match.group(0)]}")


def check(root):
    words = collections.Counter()
    found = collections.defaultdict(list)
    for folder, name, parts in texts(root):
        whole = tree.read(root, name)
        for at, text in parts:
            words[folder] += len(WORD.findall(text))
            found[folder] += [f"  {name}:{whole.count(chr(10), 0, at + m.start()) + 1}: "
                              f"{m.group(0)}" for m in COUNTED.finditer(text)]
    problems = list(old_names(root))
    for folder, hits in sorted(found.items()):
        rate = 1000 * len(hits) / max(words[folder], SAMPLE)
        if hits and rate > LIMITS.get(folder, LIMIT):
            problems += [f"{folder}: {rate:.2f} of 1,000 words are pronoun subjects or 'what is' "
                         f"clauses, more than {LIMITS.get(folder, LIMIT)}", *hits]
    return problems


def self_test():
    filler = "/* " + "word " * 4000 + "*/\n"
    cases = {
        "layout/good.c": "/* The lease word is polled. */\nint who;\n",
        "layout/old.c": "int gq_ringer, remover;\n",
        "blank/bad.c": "/* Nobody tells it. */ // what is left\n" + filler,
        "good.py": "x = (\n\"\"\"others\"\"\"\nWHO = 'nobody')  # a name\n",
        "bad.py": "def f():\n    \"\"\"Others\n    wait.\"\"\"\n",
        "bad.sh": "#!/bin/sh\n" + "# word\n" * 4000 + "run " "# somebody waits\n",
        "long/good.h": filler + "/* Others wait. */" + filler,
        "doc.md": "Whoever\n```\nwho\n```\n" + "word " * 4000 + "\nfor others\n",
    }
    with tempfile.TemporaryDirectory() as root:
        tree.write(root, cases)
        found = [line.split(": ")[0] for line in check(root)]
    expected = ["layout/old.c:1", "blank", "  blank/bad.c:1", "  blank/bad.c:1", "documents",
                "  doc.md:1", "  doc.md:6", "scripts", "  bad.py:2", "  bad.sh:4002"]
    return [] if found == expected else [f"self-test: found {found}, expected {expected}"]


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "words")
