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
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gpunvme/tidy"
UNUSED_DAYS = 30
# The values of these options are not for clang: an output, or GCC's precompiled
# header.
DROPPED_WITH_VALUE = ("-o", "-c", "-include", "-MF", "-MT", "-MQ")
# The position of the code does not change what clang finds either, but a header
# precompiled with one of them would serve no file with another one.
DROPPED = ("-Winvalid-pch", "-MD", "-MMD", "-fpch-preprocess", "-fPIC", "-fPIE")
# In this mode the analyzer follows short functions only, and ends early where a
# function has very many paths. It takes a seventh of the time.
SHALLOW = ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")


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


def dialect(flags):
    """Returns the flags on which the precompiled header depends: all but those of folders of
    headers, and of macros that are not gtest's."""
    words, kept = iter(flags), []
    for word in words:
        if word in ("-I", "-isystem"):
            next(words)
        elif word.startswith("-DGTEST_") or not word.startswith(("-D", "-I")):
            kept.append(word)
    return tuple(kept)


class Precompiled:
    """gtest.h, precompiled once for each dialect, because it takes most of the time of a test."""

    def __init__(self, clang, work):
        self.clang, self.work = clang, pathlib.Path(work)
        self.lock, self.made = threading.Lock(), {}

    def make(self, number, flags):
        source, made = self.work / f"{number}.hxx", self.work / f"{number}.pch"
        source.write_text("#include <gtest/gtest.h>\n")
        run = subprocess.run([self.clang, *flags, "-fpch-instantiate-templates", "-x", "c++-header",
                              str(source), "-o", str(made)], capture_output=True, check=False)
        return ("-include-pch", str(made)) if run.returncode == 0 else ()

    def flags(self, path, flags):
        """Returns the flags with which a file uses the header, none if it does not."""
        if not path.endswith(".cc") or "<gtest/gtest.h>" not in pathlib.Path(path).read_text():
            return ()
        key = dialect(flags)
        with self.lock:
            if key not in self.made:
                self.made[key] = self.make(len(self.made), key)
        return self.made[key]


class Tidy:
    def __init__(self, version, checks, shallow, work):
        self.tidy, self.clang = f"clang-tidy-{version}", f"clang-{version}"
        self.checks = [f"-checks={checks}"] if checks else []
        self.shallow = SHALLOW if shallow else ()
        self.precompiled = Precompiled(self.clang, work)
        release = subprocess.run([self.tidy, "--version"], capture_output=True, check=True)
        self.base = [release.stdout.decode(), digest(ROOT / ".clang-tidy"), *self.checks]

    def record(self, path, flags):
        """Returns the path of the cache entry for this file, which is the same in every clone."""
        own = [word.replace(str(ROOT), "") for word in (path, *flags, *self.shallow)]
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
        more = (*self.shallow, *self.precompiled.flags(path, flags))
        run = subprocess.run([self.tidy, "--quiet", *self.checks, path, "--", *flags, *more],
                             cwd=folder, capture_output=True, text=True)
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
    parser.add_argument("--shallow", action="store_true",
                        help="clang's analyzer follows short functions only")
    parser.add_argument("--version", default="14", help="of the clang tools")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    files = sources(args.build, args.suffix)
    if not files:
        sys.exit(f"tidy.py: {args.build}: compiles no {args.suffix} files of this tree")
    known = found = 0
    with tempfile.TemporaryDirectory() as work, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tidy = Tidy(args.version, args.checks, args.shallow, work)
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
