#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plants the bugs of tests/mutants.txt, one at a time, in a copy of the tree,
and runs the tests that should notice them. The exit status is 1 if fewer than
95 % are noticed, or if the list no longer fits the tree.

usage: mutate.py [--list] [--check] [--only REGEX] [--sample N] [--seed N] [--minutes N] [--dir DIR]
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = os.path.join(ROOT, "tests", "mutants.txt")
WANTED = 0.95
TEST_SECONDS = 300
HANG_SECONDS = 10  # at least; a test hangs if it takes five times its usual time
HANG_FACTOR = 5
CRASH_STATES = "200"  # for storage_campaign_test, which has more in other runs


class Mutant:
    def __init__(self, number, file, tests):
        self.number, self.file, self.tests = number, file, tests
        self.old = self.new = self.why = None

    def __str__(self):
        return f"{self.file}:{self.number}: {self.old}"


def parse(text):
    """Returns the mutants of the list in order. `number` is the line of OLD."""
    groups, mutants, file, tests = {}, [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        kind, rest = line[:2], line[2:]
        if not line.strip() or line.startswith("#"):
            continue
        if kind == "- ":
            mutants.append(Mutant(number, file, tests))
            mutants[-1].old = rest
        elif kind == "+ ":
            mutants[-1].new = rest
        elif kind == "? ":
            mutants[-1].why = rest
        elif re.match(r"\w+ = ", line):
            name, names = line.split(" = ")
            groups[name] = names.split()
        else:
            file, names = line.split(": ")
            tests = [t for name in names.split() for t in groups.get(name, [name])]
    return mutants


def misfit(root, mutant):
    """Returns why the mutant cannot be planted, or None."""
    try:
        with open(os.path.join(root, mutant.file), encoding="utf-8") as f:
            found = f.read().count(mutant.old)
    except OSError as e:
        return e.strerror
    if mutant.new is None or mutant.new == mutant.old:
        return "changes nothing"
    return None if found == 1 else f"occurs {found} times"


def run(argv, seconds, **more):
    """Returns the exit status, or 124 if the command and its descendants were
    killed after the limit."""
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True, **more)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return 124


class Tree:
    """A copy of the tree, with its own build."""

    def __init__(self, folder):
        self.src, self.build = os.path.join(folder, "src"), os.path.join(folder, "build")
        self.limits = {}  # time limits of measured tests, in seconds
        shutil.rmtree(self.src, ignore_errors=True)
        names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True,
                               capture_output=True).stdout.decode().split("\0")
        for name in filter(None, names):
            target = os.path.join(self.src, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            # Copies get the present time, since an object of an earlier run may
            # be that of a mutant.
            shutil.copy(os.path.join(ROOT, name), target)
        subprocess.run(["bash", "-c", '. scripts/lib.sh && configure "$0" -DGPUNVME_CUDA=OFF '
                        "-DGPUNVME_BENCH=OFF", self.build], cwd=self.src, check=True,
                       stdout=subprocess.DEVNULL)

    def make(self, tests):
        argv = ["ninja", "-C", self.build, *dict.fromkeys(tests)]
        return run(argv, 3600, env={**os.environ, "CCACHE_BASEDIR": self.src,
                                    "CCACHE_NOHASHDIR": "1"})

    def passes(self, test):
        limit = self.limits.get(test, TEST_SECONDS)
        return run(["ctest", "--test-dir", self.build, "-R", f"^{test}$", "--no-tests=error",
                    "--timeout", str(limit)], limit + 60,
                   env={**os.environ, "CRASH_STATES": CRASH_STATES, "GTEST_FAIL_FAST": "1"}) == 0

    def measure(self, tests):
        """Runs the tests without a mutant and sets their limits. Returns the
        first that fails, or None."""
        for test in tests:
            start = time.monotonic()
            if not self.passes(test):
                return test
            took = time.monotonic() - start
            self.limits[test] = max(HANG_SECONDS, int(HANG_FACTOR * took))
        return None

    def notices(self, test):
        """Builds only this test. With the quickest test first, most mutants need no other one."""
        return None if self.make([test]) != 0 else not self.passes(test)

    def verdict(self, mutant):
        """Returns the test that noticed the mutant, 'unnoticed' or 'does not compile'."""
        path = os.path.join(self.src, mutant.file)
        with open(path, encoding="utf-8") as f:
            sound = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(sound.replace(mutant.old, mutant.new))
        try:
            for test in sorted(mutant.tests, key=self.limits.get):
                found = self.notices(test)
                if found is None:
                    return "does not compile"
                if found:
                    return test
            return "unnoticed"
        finally:
            with open(path, "w", encoding="utf-8") as f:
                f.write(sound)


def choose(mutants, args):
    chosen = [m for m in mutants if not m.why and re.search(args.only, str(m))]
    if args.sample:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    return chosen


def campaign(chosen, args):
    tree, end = Tree(args.dir), time.monotonic() + args.minutes * 60
    tests = sorted({t for m in chosen for t in m.tests})
    if tree.make(tests) != 0:
        sys.exit("mutate: the tree does not build without a mutant")
    if failed := tree.measure(tests):
        sys.exit(f"mutate: {failed} fails without a mutant")
    noticed, wrong = 0, []
    for done, mutant in enumerate(chosen):
        if time.monotonic() > end:
            print(f"mutate: out of time, {len(chosen) - done} left")
            break
        verdict = tree.verdict(mutant)
        print(f"{verdict:28} {mutant}", flush=True)
        if verdict in ("unnoticed", "does not compile"):
            wrong.append(mutant)
        else:
            noticed += 1
    total = noticed + len(wrong)
    print(f"mutate: {noticed} of {total} noticed")
    for mutant in wrong:
        print(f"  replay: scripts/mutate.py --only '{mutant.file}:{mutant.number}:'")
    return 0 if total and noticed / total >= WANTED else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--check", action="store_true", help="does the list fit the tree?")
    parser.add_argument("--only", default="", help="mutants whose FILE:LINE: TEXT matches")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--dir", default=os.path.join(ROOT, "build", "mutation"))
    args = parser.parse_args()
    with open(LIST, encoding="utf-8") as f:
        mutants = parse(f.read())
    if args.list:
        print("\n".join(str(m) for m in mutants))
        return 0
    fitting = [m for m in mutants if not (p := misfit(ROOT, m)) or print(f"{m}: {p}")]
    print(f"mutate: {len(fitting)} of {len(mutants)} mutants fit the tree")
    stale = len(fitting) < len(mutants)
    if args.check:
        return int(stale)
    return campaign(choose(fitting, args), args) or int(stale)


if __name__ == "__main__":
    sys.exit(main())
