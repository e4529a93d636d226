#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that the global functions and variables of a source have the prefix of its folder in the
glossary's table, or begin with a part of the name of their file.

usage: check_prefixes.py ROOT BUILD NM | --self-test CC NM
"""

import os
import re
import subprocess
import sys
import tempfile

import check_circles
import tree

GLOSSARY = "docs/glossary.md"
ROW = re.compile(r"^\| (`\w+_`(?:, `\w+_`)*) \| [^|]* \| ([^|]*) \|$", re.MULTILINE)
# Names that an interface from outside gives (cuFile, NVTX, NIXL), and images that CMake embeds.
FOREIGN = re.compile(r"main$|cuFile|nixl_plugin_|\w*[nN]vtx|\w+_(?:fatbin|image)$|_|\w*\.")


def prefixes(root):
    """For each folder or file of the table its prefixes."""
    found = {}
    for names, places in ROW.findall(tree.read(root, GLOSSARY)):
        for place in re.findall(r"`([\w/.]+)`", places):
            found.setdefault(place.rstrip("/"), []).extend(re.findall(r"`(\w+)`", names))
    return found


def allowed(source, table):
    """Prefixes of the folders that the source is in, and those that its name gives."""
    found = [prefix for folder, names in table.items()
             if source.startswith(folder + "/") for prefix in names]
    words = os.path.basename(source).rsplit(".", 1)[0].split("_")
    for first in range(len(words)):
        for last in range(first + 1, len(words) + 1):
            found.append("_".join(words[first:last]))
    return found


def begins(name, prefix):
    """The singular of a file's name, or its plural, will do."""
    stem = prefix.rstrip("_")
    return any(name == form or name.startswith(form + "_")
               for form in {stem, stem + "s", stem.removesuffix("s")})


def check(root, build, nm):
    table = prefixes(root)
    problems = []
    sources = check_circles.objects(root, build)
    symbols = check_circles.symbols(nm, sources.values()) if sources else {}
    for source, path in sorted(sources.items()):
        if source.endswith(".cu"):
            continue  # names of C++
        names = allowed(source, table)
        problems += [f"{source}: {name} has no prefix of its folder or file"
                     for name in sorted(symbols[path][0])
                     if not FOREIGN.match(name) and
                     not any(begins(name, prefix) for prefix in names)]
    return problems


def self_test(cc, nm):
    with tempfile.TemporaryDirectory() as root:
        build = os.path.join(root, "build", "disk", "CMakeFiles", "x.dir")
        os.makedirs(build)
        tree.write(root, {GLOSSARY: "| `dk_` | disk | `disk/` |\n",
                          "disk/open_files.c": "int dk_one, file_two, files, open_files_three;\n"
                                               "static int four;\nint five, openness;\n"})
        subprocess.run([cc, "-c", os.path.join(root, "disk/open_files.c"), "-o",
                        os.path.join(build, "open_files.c.o")], check=True)
        found = check(root, os.path.join(root, "build"), nm)
    expected = [f"disk/open_files.c: {name} has no prefix of its folder or file"
                for name in ("five", "openness")]
    return [] if found == expected else [f"self-test: found {found}, expected {expected}"]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    problems = self_test(*sys.argv[2:]) if sys.argv[1] == "--self-test" else check(*sys.argv[1:])
    print("\n".join(problems) if problems else "prefixes: in order")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
