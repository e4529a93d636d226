#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that the calls between the files of a folder are one-way: no file calls a function of
another one that calls it back, over however many files. Likewise the calls between folders. Calls
are the symbols of built objects; a call through a pointer is none.

usage: check_circles.py ROOT BUILD NM | --self-test CC NM
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

UNCHECKED = ("tests/", "bench/", "examples/")
OBJECT = re.compile(r"(.*)/CMakeFiles/[^/]+\.dir/(.*)\.o$")


def source_of(build, path):
    """The source of an object in a build folder of CMake; None: not an object of the tree."""
    match = OBJECT.match(os.path.relpath(path, build))
    if not match or match.group(2).startswith("/"):
        return None
    return os.path.normpath(os.path.join(match.group(1), match.group(2).replace("__", "..")))


def objects(root, build):
    """One object for each source that has been built."""
    found = {}
    for folder, _, names in os.walk(build):
        for name in names:
            path = os.path.join(folder, name)
            source = source_of(build, path)
            if (source and not source.startswith(UNCHECKED) and
                    os.path.isfile(os.path.join(root, source))):
                found.setdefault(source, path)
    return found


def symbols(nm, paths):
    """For each object the global symbols that it defines, and those that it needs."""
    found = {path: (set(), set()) for path in paths}
    text = subprocess.run([nm, "-P", "-A", *paths], capture_output=True, text=True,
                          check=True).stdout
    for line in text.splitlines():
        path, symbol = line.split(": ", 1)
        name, kind = symbol.split()[:2]
        if kind == "U":
            found[path][1].add(name)
        elif kind in "TDBRVW":
            found[path][0].add(name)
    return found


def calls(nm, sources):
    """For each source those that it calls. Programs may define a name twice: that of the source's
    folder is meant, or the only one."""
    of_object = symbols(nm, sources.values()) if sources else {}
    known = {source: of_object[path] for source, path in sources.items()}
    homes = collections.defaultdict(set)
    for source, (defined, _) in known.items():
        for name in defined:
            homes[name].add(source)
    graph = {}
    for source, (_, needed) in known.items():
        graph[source] = set()
        for name in needed:
            own = {home for home in homes[name] if os.path.dirname(home) == os.path.dirname(source)}
            found = own or homes[name]
            if len(found) == 1:
                graph[source] |= found
    return graph


def inside_folders(graph):
    return {source: {target for target in targets
                     if os.path.dirname(target) == os.path.dirname(source)}
            for source, targets in graph.items()}


def between_folders(graph):
    folders = collections.defaultdict(set)
    for source, targets in graph.items():
        folders[os.path.dirname(source)] |= {os.path.dirname(target) for target in targets}
    return {folder: targets - {folder} for folder, targets in folders.items()}


def reachable(graph, start):
    seen, left = set(), [start]
    while left:
        for target in graph[left.pop()]:
            if target not in seen:
                seen.add(target)
                left.append(target)
    return seen


def circles(graph):
    """Sets of files of which each reaches the rest."""
    reach = {source: reachable(graph, source) for source in graph}
    found = {frozenset(other for other in reach[source] if source in reach[other])
             for source in graph if source in reach[source]}
    return sorted(sorted(circle) for circle in found)


def check(root, build, nm):
    graph = calls(nm, objects(root, build))
    problems = []
    for circle in circles(inside_folders(graph)):
        names = " ".join(os.path.basename(name) for name in circle)
        problems.append(f"{os.path.dirname(circle[0])}: {len(circle)} files call each other in a "
                        f"circle: {names}")
    for circle in circles(between_folders(graph)):
        problems.append(f"{circle[0]}: {len(circle)} folders call each other in a circle: "
                        f"{' '.join(circle)}")
    return problems


def self_test(cc, nm):
    """Each folder of a made-up tree: its files, what each calls, and whether they are a circle, or
    the first folder of one."""
    cases = {
        "down": ({"a": ["b", "c"], "b": ["c"], "c": []}, False),
        "pair": ({"a": ["b"], "b": ["a"]}, True),
        "long": ({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}, True),
        "far": ({"a": ["near/b"], "b": []}, True),
        "near": ({"a": ["far/b"], "b": []}, False),
        "top": ({"a": ["far/a", "near/a"]}, False),
    }
    with tempfile.TemporaryDirectory() as root:
        for folder, (files, _) in cases.items():
            out = os.path.join(root, "build", folder, "CMakeFiles", "x.dir")
            os.makedirs(out)
            os.mkdir(os.path.join(root, folder))
            for name, targets in files.items():
                source = os.path.join(root, folder, name + ".c")
                called = [t.replace("/", "_") if "/" in t else f"{folder}_{t}" for t in targets]
                text = "".join(f"void {t}(void);\n" for t in called)
                text += f"void {folder}_{name}(void)\n{{\n"
                text += "".join(f"    {t}();\n" for t in called) + "}\n"
                with open(source, "w", encoding="utf-8") as file:
                    file.write(text)
                subprocess.run([cc, "-c", source, "-o", os.path.join(out, name + ".c.o")],
                               check=True)
        found = {problem.split(":")[0] for problem in check(root, os.path.join(root, "build"), nm)}
    expected = {folder for folder, (_, broken) in cases.items() if broken}
    return [f"self-test: {name}: expected {'a' if name in expected else 'no'} violation"
            for name in sorted(found ^ expected)]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    problems = self_test(*sys.argv[2:]) if sys.argv[1] == "--self-test" else check(*sys.argv[1:])
    print("\n".join(problems) if problems else "calls: one-way")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
