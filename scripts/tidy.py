#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs clang-tidy over the files of a compilation database, several at a time.
Files without findings are cached by all inputs: their own text, the headers,
flags and checks. Prints the findings; the exit status shows whether there are
any."""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpunvme/tidy"
UNUSED_DAYS = 30
# The values of these options are not for clang: an output, or GCC's precompiled
# header.
DROPPED_WITH_VALUE = ("-o", "-c", "-include", "-MF", "-MT", "-MQ")
DROPPED = ("-Winvalid-pch", "-MD", "-MMD", "-fpch-preprocess")


def flags_of(entry):
    """Returns the flags of a database entry without compiler, source and output."""
    words = iter(entry.get("arguments") or shlex.split(entry["command"]))
    next(words)
    flags = []
    for word in words:
        if word in DROPPED_WITH_VALUE:
            next(words)
        elif word not in DROPPED:
            flags.append(word)
    return tuple(flags)


def sources(build, suffix):
    """Returns (file, flags, folder) of the database, each pair of file and flags once."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.suffix == suffix and path.is_relative_to(ROOT):
            found.setdefault((str(path), flags_of(entry)), entry["directory"])
    return [(path, flags, folder) for (path, flags), folder in sorted(found.items())]


@functools.lru_cache(maxsize=None)
def digest(path):
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def below_root(path):
    """Returns the path relative to the tree, which is the same in every clone."""
    return os.path.relpath(path, ROOT) if path.startswith(f"{ROOT}{os.sep}") else path


def headers(clang, path, flags, folder):
    """Returns all files that clang reads for this one, or None if it reports an error."""
    run = subprocess.run([clang, "-M", *flags, path], cwd=folder, capture_output=True, text=True)
    if run.returncode:
        return None
    names = run.stdout.split(":", 1)[1].replace("\\\n", " ").split()
    return sorted({below_root(os.path.realpath(os.path.join(folder, name))) for name in names})


class Tidy:
    def __init__(self, version, checks):
        self.tidy, self.clang = f"clang-tidy-{version}", f"clang-{version}"
        self.checks = [f"-checks={checks}"] if checks else []
        release = subprocess.run([self.tidy, "--version"], capture_output=True, check=True)
        self.base = [release.stdout.decode(), digest(ROOT / ".clang-tidy"), *self.checks]

    def record(self, path, flags):
        """Returns the path of the cache entry for this file, which is the same in every clone."""
        own = [word.replace(str(ROOT), "") for word in (path, *flags)]
        key = json.dumps([*self.base, *own, digest(path)])
        return CACHE / hashlib.sha256(key.encode()).hexdigest()

    def known_clean(self, record):
        try:
            read = json.loads(record.read_text())
        except (OSError, ValueError):
            return False
        if any(digest(ROOT / name) != was for name, was in read.items()):
            return False
        os.utime(record)
        return True

    def remember(self, record, names):
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = record.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({name: digest(ROOT / name) for name in names}))
        fresh.rename(record)

    def look(self, path, flags, folder):
        """Returns (whether the file was cached as clean, findings)."""
        record = self.record(path, flags)
        if self.known_clean(record):
            return True, ""
        names = headers(self.clang, path, flags, folder)
        run = subprocess.run([self.tidy, "--quiet", *self.checks, path, "--", *flags], cwd=folder,
                             capture_output=True, text=True)
        if run.returncode or run.stdout.strip():
            return False, run.stdout.strip() or run.stderr.strip() or f"{path}: clang-tidy failed"
        if names is not None:
            self.remember(record, names)
        return False, ""


def forget_unused():
    for record in CACHE.glob("*"):
        if record.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
            record.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder of the database")
    parser.add_argument("--suffix", required=True, help=".c or .cc")
    parser.add_argument("--checks", help="instead of those in .clang-tidy")
    parser.add_argument("--version", default="14", help="of the clang tools")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    tidy = Tidy(args.version, args.checks)
    files = sources(args.build, args.suffix)
    if not files:
        sys.exit(f"tidy.py: {args.build}: compiles no {args.suffix} files of this tree")
    known = found = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for was_known, findings in pool.map(lambda file: tidy.look(*file), files):
            known += was_known
            if findings:
                found += 1
                print(findings, flush=True)
    forget_unused()
    print(f"clang-tidy: {len(files)} {args.suffix} files, {known} unchanged since they were clean, "
          f"{found} with findings")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
