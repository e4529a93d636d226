#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks that bench/RESULTS.md and the charts are what bench/report.py makes of bench/results.

usage: check_results.py ROOT | --self-test
"""

import json
import os
import sys
import tempfile

import tree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench"))
import report  # noqa: E402 pylint: disable=wrong-import-position

LINES = 300


def check(root):
    problems = [f"{name}: differs from what bench/results gives, run bench/report.py"
                for name in report.differing(root)]
    lines = tree.read(root, "bench/RESULTS.md").count("\n")
    if lines > LINES:
        problems.append(f"bench/RESULTS.md: has {lines} lines, more than {LINES}")
    return problems


def self_test():
    rows = [{"name": str(i), "unit": "GB/s", "median": i} for i in range(1, 5)]
    run = {"command": "x", "date": "2026-01-01", "revision": "1", "chart": "bars",
           "machine": {"cpu": "c", "cores": 2}, "results": rows}
    section = json.dumps({"title": "t", "runs": [run]})
    with tempfile.TemporaryDirectory() as root:
        tree.write(root, {"bench/results/a.json": section})
        report.write(root)
        sound = check(root)
        tree.write(root, {"bench/results/a.json": section.replace('"1"', '"2"'),
                          "bench/plots/old.svg": "", "bench/plots/bars.svg": ""})
        found = [problem.split(":")[0] for problem in check(root)]
    expected = ["bench/RESULTS.md", "bench/plots/bars.svg", "bench/plots/old.svg"]
    return ([f"self-test: {problem}" for problem in sound]
            + ([] if found == expected else [f"self-test: found {found}, not {expected}"]))


if __name__ == "__main__":
    tree.main(__doc__, check, self_test, "results")
