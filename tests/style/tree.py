# SPDX-License-Identifier: BSD-2-Clause
"""The files of the tree, and their text as the style checks need it."""

import os
import re
import subprocess
import sys
import tempfile

SOURCE_SUFFIXES = (".c", ".h", ".cc", ".cu", ".cuh")


def files(root):
    """All files, relative to root: those that git knows or would add, else all on disk."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "-co", "--exclude-standard"],
        capture_output=True, text=True, check=False)
    top = subprocess.run(["git", "-C", root, "rev-parse", "--show-prefix"],
                         capture_output=True, text=True, check=False)
    if listed.returncode == 0 and top.stdout.strip() == "":
        names = listed.stdout.splitlines()
    else:
        names = walk(root)
    return sorted(name for name in names if os.path.isfile(os.path.join(root, name)))


def source_files(root):
    """C, C++ and CUDA files among them."""
    return [name for name in files(root) if name.endswith(SOURCE_SUFFIXES)]


def walk(root):
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if not s.startswith(("build", "."))]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return found


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def write(root, texts):
    """Makes files. texts: name -> text."""
    for name, text in texts.items():
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
            file.write(text)


def self_test(check, cases):
    """Does check(root) find the expected problems in files of its own?
    cases: name -> (text, whether it is broken). Returns problems."""
    with tempfile.TemporaryDirectory() as root:
        write(root, {name: text for name, (text, _) in cases.items()})
        found = {problem.split(":")[0] for problem in check(root)}
    expected = {name for name, (_, broken) in cases.items() if broken}
    return [f"self-test: {name}: expected {'a' if name in expected else 'no'} violation"
            for name in sorted(found ^ expected)]


def main(doc, check, self_test, subject):
    """The command line of a check: the root of the tree, or --self-test."""
    if len(sys.argv) != 2:
        sys.exit(doc)
    report(self_test() if sys.argv[1] == "--self-test" else check(sys.argv[1]), subject)


def report(problems, subject):
    """Prints the problems, or that there are none, and ends the program."""
    print("\n".join(problems) if problems else f"{subject}: in order")
    sys.exit(1 if problems else 0)


TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
RAW_STRING = re.compile(r'R"([^\s()\\]{0,16})\(.*?\)\1"', re.DOTALL)


def without_comments(text):
    """Comments become blank and literals "", with the line breaks kept."""
    def blank(match):
        token = match.group(0)
        keep = "\n" * token.count("\n")
        return keep if token.startswith(("//", "/*")) else '""' + keep
    return TOKEN.sub(blank, RAW_STRING.sub(blank, text))


def without_directives(text):
    """Preprocessor lines become blank, and of #if ... #else only the first branch stays, so that
    braces balance. Expects text without comments."""
    out = []
    depth_off = []  # per open #if: are we past its first branch?
    continued = False
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(\w+)", line)
        if continued or directive:
            if directive and not continued:
                track_condition(directive.group(1), depth_off)
            continued = line.endswith("\\")
            out.append("")
        else:
            out.append("" if any(depth_off) else line)
    return "\n".join(out)


def track_condition(word, depth_off):
    if word in ("if", "ifdef", "ifndef"):
        depth_off.append(False)
    elif word in ("else", "elif") and depth_off:
        depth_off[-1] = True
    elif word == "endif" and depth_off:
        depth_off.pop()
