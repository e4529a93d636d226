#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Prints results of the benchmarks as Markdown tables and SVG charts.

usage: report.py

Writes bench/RESULTS.md and bench/plots/*.svg from bench/results/*.json; tests/style/check_results.py
compares them. scripts/bench-report.py runs the benchmarks and uses the same tables and charts.

A file of bench/results is a section: {"title", "text", "runs"}. A run is the JSON output of a
benchmark, to which scripts/bench-report.py has added "command", "revision" and "date"; "note" and
"chart" (true, or the name of the chart) are added by hand. All figures of a run are of one machine
and one revision. A result is a line with "name", "unit" and "median", and may have "p5", "p95",
"p99", "ratio" to "against", and "remark". A point of a sweep has "sweep", "series" and "x" instead
of a name.
"""

import glob
import html
import json
import math
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REQUIRED = ("command", "date", "machine", "results", "revision")
MANY = 100  # the quotient of largest and smallest value from which an axis is logarithmic

HEAD = """# Results

`bench/report.py` generates this file from `bench/results/*.json`; edit those. Every run names its
machine, revision and command, which is that of the revision. GB/s = 10^9 bytes per second. All data
read was verified. Compare figures within one run only. A number in parentheses is the ratio to the
bound that the section names.

**No real drive has been measured.** Unless a run says otherwise, the drive is the simulated one, its
media is in memory (`/dev/shm`) without a latency model, and the GPU is an NVIDIA H200 on PCIe Gen5
x16 (driver 580.159.04, CUDA 13.0, 16 cores of an Intel Xeon, Linux 6.18). The drive fills GPU memory
for READ (tier 2); data of the direct path is staged (tier 1).

`python3 scripts/bench-report.py --build-dir build --out report [--quick] [--only NAME,...]` measures
what can run on the machine and writes one JSON file per benchmark; the CPU executor stands in for a
missing GPU. [tuning.md](../docs/tuning.md) explains the limits."""

STYLE = """<style>
text { font: 13px sans-serif; fill: #1f2328 }
.title { font-weight: bold }
.grid { stroke: #8c959f; stroke-opacity: 0.35 }
.c0 { fill: #0969da; stroke: #0969da } .c1 { fill: #bc4c00; stroke: #bc4c00 }
.c2 { fill: #1a7f37; stroke: #1a7f37 } .c3 { fill: #8250df; stroke: #8250df }
.other { fill: #8c959f } .line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""


def number(value):
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 \
        else f"{value:.2f}"


# --- Tables ------------------------------------------------------------------------------------


def table(header, rows):
    return ["| " + " | ".join(header) + " |", "|---" * len(header) + "|",
            *("| " + " | ".join(row) + " |" for row in rows)]


def shared(rows, key):
    """The value of key that all rows with one have, or None."""
    values = {row[key] for row in rows if key in row}
    return values.pop() if len(values) == 1 else None


def plain_table(report):
    """A line for each result that is no point of a sweep: its median, with the ratio in parentheses,
    and the quantiles that any result has. What all results share is in the header."""
    rows = [row for row in report["results"] if "sweep" not in row]
    if not rows:
        return []
    unit, against = shared(rows, "unit"), shared(rows, "against")
    quantiles = [key for key in ("p5", "p95", "p99") if any(key in row for row in rows)]
    lines = []
    for row in rows:
        middle = number(row["median"]) + ("" if unit else " " + row["unit"])
        if "ratio" in row:
            middle += f" ({row['ratio']:.2f}" + ("" if against else " of " + row["against"]) + ")"
        middle += "; " + row["remark"] if "remark" in row else ""
        lines.append([row["name"], middle,
                      *(number(row[key]) if key in row else "" for key in quantiles)])
    head = (unit or "median") + (f" (of {against})" if against else "")
    return table(["", head, *quantiles], lines)


def sweeps(report):
    """{sweep: {series: {x: row}}}, in the order of the rows."""
    found = {}
    for row in report.get("results", []):
        if "sweep" in row:
            found.setdefault(row["sweep"], {}).setdefault(row["series"], {})[row["x"]] = row
    return found


def sweep_cell(row):
    if not row:
        return ""
    return number(row["median"]) + (f" ({row['ratio']:.2f})" if "ratio" in row else "")


def sweep_table(sweep, by_series):
    """A line for each x: the median of each series, with its ratio in parentheses."""
    places = list(dict.fromkeys(x for points in by_series.values() for x in points))
    header = [sweep]
    for name, points in by_series.items():
        unit = next(iter(points.values()))["unit"]
        header.append(f"{name}, {unit}" if unit else name)
    return table(header, [[x if isinstance(x, str) else f"{x:,.0f}"]
                          + [sweep_cell(points.get(x)) for points in by_series.values()]
                          for x in places])


# --- Charts ------------------------------------------------------------------------------------


def svg(width, height, parts):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" role="img">', STYLE, *parts, "</svg>", ""])


def label(x, y, text, kind="", anchor="start"):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'


def bars(title, rows):
    """A horizontal bar for each result; those whose "own" is set have the first colour."""
    scale = 340 / max(row["median"] for row in rows)
    parts = [label(8, 20, title, "title")]
    for i, row in enumerate(rows):
        y, long = 34 + 26 * i, row["median"] * scale
        parts += [label(312, y + 14, row["name"], anchor="end"),
                  f'<rect class="{"c0" if row.get("own") else "other"}" x="320" y="{y}" '
                  f'width="{long:.1f}" height="18" stroke="none"/>',
                  label(326 + long, y + 14, f"{number(row['median'])} {row['unit']}")]
    return svg(760, 44 + 26 * len(rows), parts)


def axis(values, low, high):
    """A function from values to places between low and high, and the values of the grid."""
    least, most = min(values), max(values)
    if least > 0 and most > MANY * least:
        first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
        grid = [10 ** i for i in range(first, last + 1)]
        return (lambda v: low + (math.log10(v) - first) / (last - first) * (high - low)), grid
    step = 10 ** math.floor(math.log10(most))
    step = step / 2 if most / step < 3 else step
    top = math.ceil(most / step) * step
    return (lambda v: low + v / top * (high - low)), [step * i for i in range(round(top / step) + 1)]


def curves(title, by_series):
    """A line for each series of a sweep whose x are numbers."""
    points = [(x, row["median"]) for series in by_series.values() for x, row in series.items()]
    place_x, grid_x = axis([x for x, _ in points], 70, 560)
    place_y, grid_y = axis([y for _, y in points], 270, 40)
    unit = next(iter(next(iter(by_series.values())).values()))["unit"]
    parts = [label(8, 20, f"{title}: {unit}", "title")]
    for y in grid_y:
        parts += [f'<path class="grid" d="M70 {place_y(y):.0f}H560"/>',
                  label(64, place_y(y) + 4, f"{y:,g}", anchor="end")]
    parts += [label(place_x(x), 290, f"{x:,.0f}", anchor="middle") for x in grid_x]
    for i, (name, series) in enumerate(by_series.items()):
        line = " ".join(f"{place_x(x):.1f},{place_y(row['median']):.1f}"
                        for x, row in series.items())
        parts += [f'<polyline class="line c{i % 4}" style="fill:none" points="{line}"/>',
                  f'<rect class="c{i % 4}" x="575" y="{44 + 22 * i}" width="10" height="10"/>',
                  label(592, 54 + 22 * i, name)]
    return svg(760, 305, parts)


def file_name(text):
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") + ".svg"


def charts(name, report):
    """{name of a file: its text}: bars of the results in GB/s, and a chart of each sweep."""
    rows = [row for row in report["results"] if "sweep" not in row and row["unit"] == "GB/s"]
    made = {file_name(name): bars(name, rows)} if len(rows) > 3 else {}
    for sweep, by_series in sweeps(report).items():
        places = [x for series in by_series.values() for x in series]
        if len(set(places)) > 2 and not any(isinstance(x, str) for x in places):
            made[file_name(f"{name} {sweep}")] = curves(f"{name}, by {sweep}", by_series)
    return made


# --- bench/RESULTS.md --------------------------------------------------------------------------


def hardware(machine):
    return f"{machine.get('gpu') or machine['cpu']}, {machine['cores']} cores"


def origin(run):
    note = f" {run['note']}" if run.get("note") else ""
    return f"{hardware(run['machine'])}; {run['revision']}, {run['date']}; `{run['command']}`.{note}"


def run_lines(run, plots):
    """The lines of a run. Adds its charts to plots."""
    lines = ["", origin(run), "", *plain_table(run)]
    for sweep, by_series in sweeps(run).items():
        lines += ["" if lines[-1] else None, *sweep_table(sweep, by_series)]
    if run.get("chart"):
        made = charts(run["chart"], run)
        plots.update(made)
        lines += ["", *(f"![{run['chart']}](plots/{name})" for name in made)]
    return [line for line in lines if line is not None]


def results_of(root):
    """{path below root: text} of RESULTS.md and the charts."""
    lines, plots = [HEAD], {}
    for path in sorted(glob.glob(os.path.join(root, "bench/results/*.json"))):
        with open(path, encoding="utf-8") as file:
            section = json.load(file)
        lines += ["", f"## {section['title']}"]
        lines += ["", section["text"]] if section.get("text") else []
        for run in section["runs"]:
            missing = [key for key in REQUIRED if key not in run]
            if missing:
                sys.exit(f"report.py: {path}: a run without {', '.join(missing)}")
            lines += run_lines(run, plots)
    made = {"bench/plots/" + name: text for name, text in plots.items()}
    return {"bench/RESULTS.md": "\n".join(lines) + "\n", **made}


def differing(root):
    """Files that are not as they would be written, and charts that would not be."""
    wanted = results_of(root)
    found = {os.path.relpath(path, root): path
             for path in [os.path.join(root, "bench/RESULTS.md"),
                          *glob.glob(os.path.join(root, "bench/plots/*"))] if os.path.exists(path)}
    for name in sorted(wanted.keys() | found.keys()):
        text = None
        if name in found:
            with open(found[name], encoding="utf-8", errors="replace") as file:
                text = file.read()
        if text != wanted.get(name):
            yield name


def write(root):
    os.makedirs(os.path.join(root, "bench/plots"), exist_ok=True)
    for name, text in results_of(root).items():
        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    write(ROOT)
