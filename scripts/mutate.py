#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plants random small bugs (mutants.py), one at a time, in a copy of the tree,
and runs the tests that cover the changed file (tests/mutants.txt). Prints a
line for each, and the command that repeats it; DIR/survivors has a patch for
each that no test noticed. Mutants that compile to the same code are not
counted. The exit status is 1 if fewer than 85 % are noticed.

usage: mutate.py [--check [BUILD]] [--only REGEX] [--sample N] [--since COMMIT] [--seed N]
                 [--minutes N] [--dir DIR] [--list]
"""

import argparse
import collections
import difflib
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import mutants

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = os.path.join(ROOT, "tests", "mutants.txt")
WANTED = 0.85
CHANGED_WEIGHT = 5  # of a mutant in a file that has changed since the commit
TEST_SECONDS = 200
HANG_SECONDS = 10  # at least; a test hangs if it takes five times its usual time
HANG_FACTOR = 5
BUILT_AT_ONCE = 4  # tests
QUICK = {"CRASH_STATES": "200", "GTEST_FAIL_FAST": "1", "PYTEST_ADDOPTS": "-x"}
NOTICED, SURVIVED = "noticed", "SURVIVED"


class Map:
    """Has the tests of each file, and the mutants that no test can notice."""

    def __init__(self, text):
        self.groups, self.tests, self.equivalent = {}, {}, []
        for line in text.splitlines():
            if line.startswith("= "):
                self.equivalent.append(tuple(line[2:].split(": ", 2)))
            elif found := re.match(r"(\w+) = (.*)", line):
                self.groups[found[1]] = found[2].split()
            elif found := re.match(r"([\w./]+): (.*)", line):
                self.tests[found[1]] = [t for name in found[2].split()
                                        for t in self.groups.get(name, [name])]

    def of(self, file):
        """Returns the tests of the longest beginning of the file's path, or None."""
        fitting = [key for key in self.tests if file.startswith(key)]
        return self.tests[max(fitting, key=len)] if fitting else None

    def excuses(self, mutant, lines):
        return any(mutant.file == file and mutant.operator == operator and code in lines
                   for file, operator, code in self.equivalent)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def git(*argv):
    return subprocess.run(["git", "-C", ROOT, *argv], check=True, capture_output=True,
                          text=True).stdout


def sources():
    return git("ls-files", "layout/*.c", "fusefs/*.c", "mkfs/*.c", "blockdev/*.c", "sim/*.c",
               "support/*.c", "client/*.c", "cuda/*.c", "client/device/*.h", "cuda/queue/*.h",
               "python/gpunvme/*.py").splitlines()


def name_of(mutant):
    return f"{mutant.file}:{mutant.line}:{mutant.column}: {mutant.operator}"


def shown(mutant):
    old, new = (re.sub(r"\s+", " ", s) for s in (mutant.old, mutant.new))
    return f"{name_of(mutant)}: `{old[:60]}` -> `{new[:60]}`"


def lines_of(text, mutant):
    """Returns the lines that the mutant changes, as one line without indentation."""
    start = text.rfind("\n", 0, mutant.start) + 1
    return " ".join(text[start:text.find("\n", mutant.end)].split())


def run(argv, seconds, **more):
    """Returns the exit status, or 124 if the command and its descendants were
    killed after the limit."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True, **more)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def paths_of_tests(build):
    """Returns the words of each test's command that are files of the build,
    built or not."""
    found = {}
    for folder, _, names in os.walk(build):
        if "CTestTestfile.cmake" not in names:
            continue
        for test, words in re.findall(r"^add_test\(\[=\[(\S+?)\]=\] (.*)\)$",
                                      read(os.path.join(folder, "CTestTestfile.cmake")), re.M):
            found[test] = [os.path.relpath(word, build) for word in re.findall(r'"([^"]*)"', words)
                           if word.startswith(build + "/")]
    return found


class Tree:
    """A copy of the tree, with its own build. A later run uses it again."""

    def __init__(self, folder):
        self.src, self.build = os.path.join(folder, "src"), os.path.join(folder, "src/build/test")
        self.limits, self.sound, self.objects = {}, set(), {}
        self.hits = collections.defaultdict(collections.Counter)  # by file, of each test
        for name in filter(None, git("ls-files", "-zco", "--exclude-standard").split("\0")):
            source, target = os.path.join(ROOT, name), os.path.join(self.src, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            # The copy gets the current time, since the object may be that of a mutant.
            if not os.path.exists(target) or open(source, "rb").read() != open(target, "rb").read():
                shutil.copy(source, target)
        subprocess.run(["bash", "-c", '. scripts/lib.sh && configure "$0" -DGPUNVME_CUDA=OFF '
                        "-DGPUNVME_BENCH=OFF", self.build], cwd=self.src, check=True,
                       stdout=subprocess.DEVNULL)
        self.env = {**os.environ, **QUICK, "CCACHE_BASEDIR": self.src, "CCACHE_NOHASHDIR": "1",
                    "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,"
                    "include_file_ctime"}
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], check=True,
                                capture_output=True, text=True).stdout
        targets = {line.rsplit(":", 1)[0] for line in listed.splitlines()}
        self.paths = {test: [path for path in paths if path in targets]
                      for test, paths in paths_of_tests(self.build).items()}
        self.commands = {os.path.relpath(entry["file"], self.src): entry["command"] for entry in
                         json.loads(read(os.path.join(self.build, "compile_commands.json")))}

    def make(self, tests):
        return run(["ninja", "-C", self.build, *sum((self.paths[t] for t in tests), [])], 3600,
                   env=self.env) == 0

    def passes(self, test):
        """Runs a test, and sets its limit when it passes for the first time."""
        limit, start = self.limits.get(test, TEST_SECONDS), time.monotonic()
        passed = run(["ctest", "--test-dir", self.build, "-R", f"^{test}$", "--no-tests=error",
                      "--timeout", str(limit)], limit + 60, env=self.env) == 0
        if passed and test not in self.limits:
            took = time.monotonic() - start
            self.limits[test] = max(HANG_SECONDS, int(HANG_FACTOR * took))
        return passed

    def check_sound(self, test):
        """Ends the program if a test fails without a mutant."""
        if test not in self.sound and not (self.make([test]) and
                                           (self.passes(test) or self.passes(test))):
            sys.exit(f"mutate: {test} fails without a mutant")
        self.sound.add(test)

    def object_of(self, file):
        """Returns a digest of the file's code without debug information, or None."""
        command = self.commands.get(file)
        if not command:
            return None
        target = os.path.join(self.build, "mutant.o")
        words = shlex.split(command)
        words[words.index("-o") + 1] = target
        if subprocess.run([*words, "-g0"], cwd=self.build, env=self.env, check=False,
                          capture_output=True).returncode:
            return "does not compile"
        with open(target, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()

    def noticing(self, file, tests):
        """Returns the first test that fails, None, or 'does not compile'."""
        # Tests that noticed other mutants of this file run first, then quick ones.
        hits = self.hits[file]
        order = sorted(tests, key=lambda test: (-hits[test], self.limits.get(test, HANG_SECONDS)))
        for i, test in enumerate(order):
            if i % BUILT_AT_ONCE == 0 and not self.make(order[i:i + BUILT_AT_ONCE]):
                return "does not compile"
            if not self.passes(test):
                hits[test] += 1
                return test
        return None

    def verdict(self, mutant, tests):
        """Returns the result of the mutant, and the test that noticed it."""
        path = os.path.join(self.src, mutant.file)
        text = read(path)
        if mutant.file not in self.objects:
            self.objects[mutant.file] = self.object_of(mutant.file)
        write(path, mutants.planted(text, mutant))
        try:
            found = self.object_of(mutant.file)
            if found and found == self.objects[mutant.file]:
                return "equivalent", ""
            if found != "does not compile":
                found = self.noticing(mutant.file, tests)
        finally:
            write(path, text)
        if found == "does not compile":
            return found, ""
        if found:
            self.check_sound(found)
        return (NOTICED, found) if found else (SURVIVED, "")


def weigh(found, since):
    """Returns the weights of mutants, by which each operator is drawn equally often."""
    changed = set(git("diff", "--name-only", since).splitlines()) if since else set()
    often = collections.Counter(m.operator for m in found)
    return [(CHANGED_WEIGHT if m.file in changed else 1) / often[m.operator] for m in found]


def choose(found, args):
    """Returns the mutants in the random order in which they are planted."""
    draw = random.Random(args.seed)
    keys = {m: draw.random() ** (1 / w) for m, w in zip(found, weigh(found, args.since))}
    chosen = [m for m in found if re.search(args.only, name_of(m))]
    return sorted(chosen, key=keys.get, reverse=True)[:args.sample]


def folder_of(file):
    words = file.split("/")
    return "/".join(words[:2]) if words[0] in ("fusefs", "client") else words[0]


def keep_patch(folder, mutant):
    text = read(os.path.join(ROOT, mutant.file))
    patch = difflib.unified_diff(text.splitlines(True),
                                 mutants.planted(text, mutant).splitlines(True),
                                 f"a/{mutant.file}", f"b/{mutant.file}")
    name = re.sub(r"[^\w.]+", "-", name_of(mutant))
    os.makedirs(os.path.join(folder, "survivors"), exist_ok=True)
    write(os.path.join(folder, "survivors", f"{name}.patch"), "".join(patch))


def campaign(chosen, tests, args):
    tree, end = Tree(args.dir), time.monotonic() + args.minutes * 60
    counts = collections.defaultdict(collections.Counter)
    survivors = []
    for done, mutant in enumerate(chosen):
        if time.monotonic() > end:
            print(f"mutate: out of time after {done} of {len(chosen)} mutants")
            break
        verdict, test = tree.verdict(mutant, tests.of(mutant.file))
        if verdict == SURVIVED and tests.excuses(
                mutant, lines_of(read(os.path.join(ROOT, mutant.file)), mutant)):
            verdict = "excused"
        print(f"{verdict:16} {test:28} {shown(mutant)}", flush=True)
        counts[folder_of(mutant.file)][verdict] += 1
        if verdict == SURVIVED:
            survivors.append(mutant)
            keep_patch(args.dir, mutant)
    return report(counts, survivors)


def report(counts, survivors):
    total = collections.Counter()
    for folder, count in sorted(counts.items()):
        total.update(count)
        print(f"mutate: {folder}: " + ", ".join(f"{n} {v}" for v, n in sorted(count.items())))
    for mutant in survivors:
        print(f"  repeat: scripts/mutate.py --only '^{re.escape(name_of(mutant))}$'")
    counted = total[NOTICED] + total[SURVIVED]
    print(f"mutate: {total[NOTICED]} of {counted} noticed")
    return 0 if counted and total[NOTICED] / counted >= WANTED else 1


def check(found, tests, build):
    """Reports entries that no longer fit the tree. Returns 1 if there are any."""
    wrong = [f"{file}: no tests in {LIST}" for file in sources() if tests.of(file) is None]
    wrong += [f"operator {name}: applies nowhere" for name in mutants.OPERATORS
              if all(m.operator != name for m in found)]
    wrong += [f"{key}: no such file" for key in tests.tests
              if not any(file.startswith(key) for file in sources())]
    texts = {file: read(os.path.join(ROOT, file)) for file in {e[0] for e in tests.equivalent}}
    for file, operator, code in tests.equivalent:
        if not any(m.file == file and m.operator == operator and code in lines_of(texts[file], m)
                   for m in found):
            wrong.append(f"{file}: {operator}: {code}: no such mutant")
    if build:
        known = paths_of_tests(os.path.abspath(build))
        wrong += [f"{test}: no such test" for test in {t for ts in tests.tests.values()
                                                       for t in ts} if test not in known]
    print("\n".join(f"mutate: {line}" for line in wrong) or f"mutate: {len(found)} mutants")
    return int(bool(wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--check", nargs="?", const="", metavar="BUILD",
                        help="end after a check that operators and tests fit the tree")
    parser.add_argument("--only", default="", help="mutants whose FILE:LINE:COLUMN: OPERATOR fits")
    parser.add_argument("--sample", type=int, help="so many of them")
    parser.add_argument("--since", help="prefers files that have changed since this commit")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--dir", default=os.path.join(ROOT, "build", "mutation"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tests = Map(read(LIST))
    found = [m for file in sources() if tests.of(file) != []
             for m in mutants.mutants_of(file, read(os.path.join(ROOT, file)))]
    if args.check is not None:
        return check(found, tests, args.check)
    chosen = choose(found, args)
    if args.list:
        print("\n".join(shown(m) for m in chosen))
        return 0
    print(f"mutate: seed {args.seed}, {len(chosen)} of {len(found)} mutants")
    return campaign(chosen, tests, args)


if __name__ == "__main__":
    sys.exit(main())
