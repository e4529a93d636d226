#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs the benchmarks, or reads their output, and makes a report.

It writes to the folder given by --out: NAME.json (the results of each program,
with its command, the revision and the date), NAME.log (its standard error),
report.md and SVG charts, both by bench/report.py. It also prints the tables. A
program that fails, or for which no time is left, has a line that says so. A
NAME.json can become a run of a file in bench/results.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import report as results  # noqa: E402 pylint: disable=wrong-import-position

MIB_PER_FILE = {"gpu": 4096, "cpu": 256}


class Job:
    """A program to run. `needs` is the reason why it cannot run here, or None.
    `folder` is its last argument, and `limit` an ample time in seconds."""

    def __init__(self, name, command, needs=None, folder=None, limit=180):
        self.name, self.needs, self.limit = name, needs, limit
        self.command = command + ["-o", "json"] + ([folder] if folder else [])


def script(name):
    return os.path.join(ROOT, "bench", name)


DIRECT = ("direct=all",)
WITH_MPS = ("bash", script("with_mps.sh"))


def count_gpus():
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60, check=False)
        return done.stdout.count(b"GPU ") if done.returncode == 0 else 0
    except (OSError, subprocess.TimeoutExpired):
        return 0


def controller_threads(wanted):
    """Leaves a quarter of the processors to the program and the daemon."""
    return str(max(1, min(wanted, (os.cpu_count() or 1) * 3 // 4)))


def on_mount(mib, *options, threads=4):
    options = ",".join(options + (f"sim=threads:{controller_threads(threads)}",))
    return ["bash", script("on_mount.sh"), f"{2 * mib + 512}M", options]


class Jobs:
    """All benchmarks in the order in which they run, the most important first."""

    def __init__(self, build, quick, gpus):
        gpu = gpus > 0
        self.build, self.quick, self.gpus = build, quick, gpus
        self.mib = MIB_PER_FILE["gpu" if gpu else "cpu"] // (4 if quick else 1)
        self.few_mib = min(self.mib, 1024)
        self.repeats = "3" if quick else "5"
        self.served = ("gpu=require",) if gpu else ("executor=cpu",)
        self.no_gpu = None if gpu else "needs a GPU"
        self.no_mps = self.no_gpu or (None if shutil.which("nvidia-cuda-mps-control") else
                                      "nvidia-cuda-mps-control is not in PATH")

    def program(self, name):
        return os.path.join(self.build, "bench", name)

    def mounted(self, mib, name, *arguments, lends=()):
        return on_mount(mib, *self.served, *lends) + [self.program(name)] + list(arguments)

    def peers(self, *arguments):
        return on_mount(self.mib, *self.served, *DIRECT) + [
            sys.executable, script("peers.py"), "-s", str(self.mib), "-r", self.repeats, "-f",
            "/dev/shm", "-l", os.path.join(self.build, "client/libgpunvme.so"), *arguments]

    def files(self):
        sized = ["-s", str(self.mib), "-r", self.repeats]
        return [
            Job("file", self.mounted(self.mib, "file_bench", "-p", *sized)),
            Job("file-direct", self.mounted(self.mib, "file_bench", *sized, lends=DIRECT)),
            Job("kvikio", self.peers("--only", "KvikIO"), self.no_gpu, limit=120),
        ]

    def small_reads(self):
        calls = ["latency_bench", "-n", "500" if self.quick else "2000"]
        sized = ["-s", str(self.few_mib), "-r", self.repeats]
        return [
            Job("latency", self.mounted(256, *calls, lends=DIRECT), limit=60),
            Job("rows", on_mount(self.few_mib, *self.served, *DIRECT, threads=8)
                + [self.program("rows_bench"), *sized]),
            Job("small", on_mount(self.few_mib, *self.served, *DIRECT, threads=8)
                + [self.program("small_bench"), *sized]),
            Job("bare", on_mount(self.few_mib, *self.served, *DIRECT, threads=8)
                + [self.program("bare_bench"), *sized], self.no_gpu),
            Job("graph", on_mount(self.few_mib, *self.served, *DIRECT, threads=8)
                + [self.program("graph_bench"), "-k", "20", "-r", self.repeats], self.no_gpu),
        ]

    def several_gpus(self):
        """One GPU is used by two executors, for which two CPU executors stand without one."""
        executors = max(2, self.gpus)
        gpus = {0: ("gpus=0:1",), 1: ("gpus=0:0",)}.get(self.gpus, ())
        mount = on_mount((executors + 1) * self.mib // 2, *self.served, *DIRECT, *gpus,
                         threads=12 * executors)
        return [Job("gpus", mount + [self.program("gpus_bench"), "-s", str(self.mib),
                                     "-r", self.repeats])]

    def beside_computing(self):
        sized = ["-s", str(self.few_mib), "-r", self.repeats]
        file = self.mounted(self.few_mib, "file_bench", "-c", *sized, lends=DIRECT)
        calls = self.mounted(256, "latency_bench", "-c", "-n", "500", lends=DIRECT)
        return [
            Job("beside", file),
            Job("beside-latency", calls, limit=60),
            Job("beside-mps", [*WITH_MPS, *file], self.no_mps),
            Job("beside-latency-mps", [*WITH_MPS, *calls], self.no_mps, limit=60),
        ]

    def rest(self):
        few = ["-s", str(self.few_mib), "-r", self.repeats]
        return [
            Job("python-peers", self.peers(), self.no_gpu),
            Job("group", on_mount(
                self.mib, *self.served, *DIRECT, threads=8 * max(1, self.gpus)) + [
                    sys.executable, script("group_bench.py"), "-s", str(self.mib),
                    "-r", self.repeats, "-l",
                    os.path.join(self.build, "client/libgpunvme.so")]),
            Job("file-tmpfs", [self.program("file_bench"), "-p", *few], folder="/dev/shm"),
            Job("growth", [sys.executable, script("growth_peers.py"), "-n", "10000"]),
        ]

    def all(self):
        return (self.small_reads() + self.files() + self.several_gpus() + self.beside_computing()
                + self.rest())


def run_to_its_end(command, log, limit):
    """Like subprocess.run(), but lets a command that exceeds the limit clean up
    mounts, daemons and MPS."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                          start_new_session=True) as process:
        try:
            stdout, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout)


def run(job, out, limit):
    """Returns the report of one program, with "command", or with "failed" instead of results."""
    report = {"program": job.name, "command": shell_line(job.command)}
    missing = [w for w in job.command if "/bench/" in w and not os.path.exists(w)]
    if limit <= 0:
        return dict(report, failed="not run: no time left")
    needs = job.needs or (f"{missing[0]} is not built" if missing else None)
    if needs:
        return dict(report, failed="not run: " + needs)
    try:
        with open(os.path.join(out, job.name + ".log"), "w", encoding="utf-8") as log:
            done = run_to_its_end(job.command, log, limit)
        if done.returncode == 77:
            return dict(report, failed="not run: " + last_line(out, job.name))
        if done.returncode != 0:
            return dict(report, failed=f"FAILED, exit {done.returncode}: "
                        + last_line(out, job.name))
        return dict(json.loads(done.stdout), command=report["command"])
    except subprocess.TimeoutExpired:
        return dict(report, failed=f"FAILED: not done after {limit:.0f} s")
    except (OSError, ValueError) as error:
        return dict(report, failed=f"FAILED: {error}")


def last_line(out, name):
    with open(os.path.join(out, name + ".log"), encoding="utf-8", errors="replace") as log:
        lines = log.read().split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no message")


def shell_line(command):
    """Returns the command as a user would type it, without the folders of
    programs, scripts and libraries."""
    words = []
    for word in command:
        if word.startswith(ROOT + "/bench/"):
            word = os.path.relpath(word, ROOT)
        elif "/bench/" in word or word == sys.executable or word.endswith(".so"):
            word = os.path.basename(word)
        words.append(word)
    return " ".join(words).replace(" -o json", "")


def run_all(args):
    gpus = count_gpus()
    build = os.path.abspath(args.build_dir)
    for folder in ("mkfs", "fusefs/daemon", "bench"):
        os.environ["PATH"] = os.path.join(build, folder) + os.pathsep + os.environ["PATH"]
    reports = {}
    origin = {"revision": revision(), "date": str(datetime.date.today())}
    end = time.monotonic() + args.budget if args.budget else float("inf")
    for job in Jobs(build, args.quick, gpus).all():
        if args.only and job.name not in args.only:
            continue
        print(f"== {job.name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        reports[job.name] = run(job, args.out, min(args.limit, job.limit, end - started))
        reports[job.name].update(origin, seconds=round(time.monotonic() - started, 1))
        if "failed" in reports[job.name]:
            print(f"   {reports[job.name]['failed']}", file=sys.stderr, flush=True)
        with open(os.path.join(args.out, job.name + ".json"), "w", encoding="utf-8") as f:
            json.dump(reports[job.name], f, indent=2)
    return reports


def read_all(files):
    reports = {}
    for name in files:
        with open(name, encoding="utf-8") as f:
            report = json.load(f)
        if "program" not in report:
            sys.exit(f"bench-report.py: {name}: not a report of a benchmark")
        reports[os.path.splitext(os.path.basename(name))[0]] = report
    return reports


def revision():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def gpu_fields():
    """Returns name, link and driver of the first GPU."""
    fields = "name,pcie.link.gen.max,pcie.link.width.max,driver_version"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=60, check=False)
        name, generation, width, version = done.stdout.split("\n")[0].split(", ")
        return name, f"PCIe Gen{generation} x{width}", version
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return "unknown", "", ""


def machine_block(reports):
    machines = [r["machine"] for r in reports.values() if "machine" in r]
    if not machines:
        return ["Machine: unknown."]
    m = next((m for m in machines if m.get("gpu")), machines[0])
    gpu, link, version = gpu_fields() if m.get("gpu") else ("none", "", "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return ["| machine | |", "|---|---|", f"| GPU | {m.get('gpu') or gpu} |",
            f"| its link | {link or 'unknown'} |", f"| driver | {version or 'none'} |",
            f"| processor | {m['cpu']}, {m['cores']} cores, {memory:.0f} GiB |",
            f"| kernel | Linux {m['kernel']} |"]


# --- Kernels -------------------------------------------------------------------------------------

def demangled(name):
    """Returns the first name in a mangled one that is not an anonymous namespace."""
    while match := re.search(r"\d+(?=[A-Za-z_])", name):
        length = int(match.group())
        own, name = name[match.end():match.end() + length], name[match.end() + length:]
        if not own.startswith("_GLOBAL__"):
            return own
    return name


def kernel_table(build):
    """Returns registers and memory of each kernel, if cuobjdump is available."""
    program = os.path.join(build, "fusefs/daemon/gpunvmefs")
    tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    if not tool or not os.path.exists(program):
        return []
    done = subprocess.run([tool, "--dump-resource-usage", program], capture_output=True, text=True,
                          timeout=60, check=False)
    found = re.findall(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", done.stdout)
    if not found:
        return []
    lines = ["", "## Kernels", "", "`cuobjdump --dump-resource-usage gpunvmefs`", "",
             "| kernel | registers a thread | stack, bytes | shared memory a block, bytes |",
             "|---" * 4 + "|"]
    return lines + [f"| {demangled(name)} | {regs} | {stack} | {shared} |"
                    for name, regs, stack, shared in sorted(set(found))]


# --- The report ----------------------------------------------------------------------------------


def section(name, report, out):
    """Returns the lines of one program, and writes its charts to out."""
    lines = ["", f"## {name}", "", f"`{report.get('command', report['program'])}`", ""]
    if "failed" in report:
        return lines + [report["failed"]]
    described = [f"{key} {value}" for key, value in report.get("parameters", {}).items()]
    lines += [", ".join(described), ""] if described else []
    lines += results.plain_table(report)
    for sweep, by_series in results.sweeps(report).items():
        lines += ([""] if lines[-1] else []) + results.sweep_table(sweep, by_series)
    for file, text in results.charts(name, report).items():
        with open(os.path.join(out, file), "w", encoding="utf-8") as f:
            f.write(text)
        lines += ["", f"![{name}]({file})"]
    return lines


def write_report(reports, out, title, build):
    lines = [f"# {title}", ""] + machine_block(reports)
    lines += ["", "GB/s = 1e9 bytes a second; s/GB = seconds of CPU for 1e9 bytes, which is cores "
              "for each GB/s. All bytes were verified."]
    for name, report in reports.items():
        lines += section(name, report, out)
    lines += kernel_table(build)
    text = "\n".join(lines) + "\n"
    with open(os.path.join(out, "report.md"), "w", encoding="utf-8") as f:
        f.write(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build-dir", default=os.path.join(ROOT, "build"))
    parser.add_argument("--out", default="bench-report", help="folder for the report")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--only", type=lambda s: s.split(","), help="names, with commas between")
    parser.add_argument("--budget", type=int, help="seconds for all; the last may find none left")
    parser.add_argument("--limit", type=int, default=180, help="seconds for one program")
    parser.add_argument("json", nargs="*", help="read these instead of running anything")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    reports = read_all(args.json) if args.json else run_all(args)
    if not reports:
        sys.exit("bench-report.py: nothing to report, see --only")
    title = "Benchmarks" if args.json else f"Benchmarks of {revision()}, {datetime.date.today()}"
    print(write_report(reports, args.out, title, args.build_dir), end="")
    return 1 if any("FAILED" in r.get("failed", "") for r in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
