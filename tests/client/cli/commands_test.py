#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The command gpunvme as a whole: help, JSON in every case, counters, rates, checksums, completion.

usage: commands_test.py GPUNVME MKFS FSCK DAEMON SIM COMPLETION TUNE DUMP RUN
"""

import contextlib
import errno
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request
import uuid

from rig import (ARGUMENTS, DAEMON, FSCK, GPUNVME, MEMORY, MKFS, SIM, document, mounted,
                 needs_mounts, run, serve, unmount)

COMPLETION, TUNE, DUMP, RUN = ARGUMENTS


def peak_memory(*arguments):
    """Bytes of memory of a command while it prints more than a pipe holds. Freed memory counts no
    longer."""
    environment = dict(os.environ, ASAN_OPTIONS="quarantine_size_mb=1:detect_leaks=0")
    peak = 0
    with subprocess.Popen([GPUNVME, *arguments, "-o", "json"], stdout=subprocess.PIPE,
                          env=environment) as command:
        while command.stdout.read1(65536):
            with open(f"/proc/{command.pid}/status", encoding="ascii") as status:
                found = re.search(r"^VmHWM:\s+(\d+) kB", status.read(), re.M)
            peak = max(peak, int(found[1]) * 1024 if found else 0)
    assert command.returncode == 0
    return peak


def commands():
    return re.findall(r"^  gpunvme (\w+)", run("--help")[0], re.M)


def options(command):
    """(letter, name, takes a value) of a command, as its help says."""
    return re.findall(r"^  -(.), --([a-z-]+)(=?)", run(command, "--help")[0], re.M)


class Help(unittest.TestCase):
    def test_every_command_has_its_own(self):
        self.assertEqual(len(commands()), 20)
        for command in commands():
            text = run(command, "--help")[0]
            self.assertTrue(text.startswith(f"usage: gpunvme {command} "), text)
            self.assertEqual(text, run(command, "-h")[0])

    def test_what_help_says_is_accepted_and_nothing_else(self):
        values = {"o": "json", "b": "1M", "p": "gpu", "i": "1", "C": "1", "w": "/none/file",
                  "l": "1G"}
        every = {letter for command in commands() for letter, _, _ in options(command)} - {"h"}
        for command in commands():
            known = {letter for letter, _, _ in options(command)}
            if command in ("bind", "unbind", "list", "check", "top", "cache"):
                continue  # would act, or take long
            for letter in every:
                arguments = [f"-{letter}"] + ([values[letter]] if letter in values else [])
                done = subprocess.run([GPUNVME, command, *arguments, "/none"], timeout=60,
                                      capture_output=True, text=True, check=False)
                refused = f"option -{letter} (--" in done.stderr and "understood" in done.stderr
                self.assertEqual(refused, letter not in known, (command, letter, done.stderr))

    def test_by_its_name(self):
        self.assertEqual(run("help")[0], run("--help")[0])
        self.assertEqual(run("help", "read")[0], run("read", "--help")[0])
        self.assertIn("nothing: no such command", run("help", "nothing", status=2)[1])

    def test_refusals_name_the_option(self):
        for arguments, text in ((["--bogus", "x"], "option --bogus not"), (["-Q"], "option -Q not"),
                                (["-qQ"], "option -Q not"), (["--limit=4"], "-l (--limit) not"),
                                (["-p"], "option -p (--path) needs a value"),
                                (["--path"], "option -p (--path) needs a value")):
            self.assertIn(text, run("read", *arguments, status=2)[1])

    def test_values_that_make_no_sense(self):
        for arguments in (("read", "-b", "4"), ("read", "-b", "4095"), ("read", "-b", "0"),
                          ("read", "-b", "9999999G"), ("read", "-b", "-1M"), ("top", "-i", "0"),
                          ("top", "-i", "x"), ("top", "-C", "-1"), ("read", "-p", "fast"),
                          ("read", "-o", "prometheus"), ("stats", "-o", "xml"), ("cache", "-l", "0"),
                          ("cache", "-l", "x"), ("cache", "-l", "-1")):
            _, text = run(*arguments, "/none", status=2)
            self.assertEqual(text.count("\n"), 1, text)


class Errors(unittest.TestCase):
    def test_json_of_a_command_that_fails(self):
        for arguments, status in ((("info", "/tmp"), 1), (("read", "/none"), 1), (("nonsense",), 2),
                                  (("read",), 2), (("stats", "/tmp"), 1), (("top", "/tmp"), 1),
                                  (("verify", "/none"), 1), (("identify", "1"), 1),
                                  (("list", "/none"), 1),
                                  (("extents", "/none"), 1), (("read", "-b", "1", "x"), 2)):
            errors = document(*arguments, status=status)["errors"]
            self.assertTrue(errors and all(set(e) == {"object", "message"} for e in errors))


class CheckCufile(unittest.TestCase):
    def test_every_part_is_told(self):
        found = document("check", "--cufile", "/dev/shm")["checks"]
        by_id = {entry["id"]: entry for entry in found}
        self.assertLessEqual({"nvidia-fs", "cufile.json", "udev", "libcufile", "file-system"},
                             set(by_id))
        self.assertIn("tmpfs", by_id["file-system"]["text"])
        self.assertTrue(all(entry["advice"] or entry["level"] == "ok" for entry in found))
        run("check", "--cufile", "/none", status=1)


@needs_mounts
class OnMount(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.TemporaryDirectory(prefix="gpunvme-commands-", dir=MEMORY)
        cls.mount, image = os.path.join(cls.top.name, "mnt"), os.path.join(cls.top.name, "image")
        cls.image = image
        os.mkdir(cls.mount)
        subprocess.run([MKFS, "-q", "-s", "128M", image], check=True, timeout=60)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            cls.port = free.getsockname()[1]
        cls.daemon = serve(image, cls.mount, f"executor=cpu,direct=root,metrics={cls.port}")
        cls.file = os.path.join(cls.mount, "file")
        with open(cls.file, "wb") as f:
            f.write(os.urandom(3_000_001))

    @classmethod
    def tearDownClass(cls):
        subprocess.run(["umount", cls.mount], check=True, timeout=60)
        cls.daemon.wait(60)
        cls.top.cleanup()

    def test_info_says_the_tier_and_why_it_is_no_better(self):
        found = document("info", self.file)
        self.assertEqual((found["executor"], found["tier"]), ("cpu", 1))
        self.assertIn("CPU executor are in host memory", found["tier_note"])
        with mounted("executor=cpu,doorbells=cpu") as mount:
            found = document("info", mount)
            self.assertEqual((found["executor"], found["tier"]), ("cpu", 0))
            self.assertRegex(found["tier_note"], "rings the doorbells.*; .*host memory")
        with mounted("gpu=off") as mount:
            found = document("info", mount)
            self.assertEqual((found["executor"], found["tier"]), ("none", None))
            self.assertIn("no executor", found["tier_note"])
            self.assertEqual(found["fallback"], "gpu=off")
            self.assertRegex(run("info", mount)[0], "(?m)^Tier: +none$")

    def test_info_lists_each_gpu(self):
        with mounted("executor=cpu,gpus=0:3") as mount:
            found = document("info", mount)["gpus"]
            self.assertEqual([g["uuid"][-2:] for g in found], ["00", "03"])
            self.assertEqual([g["state"] for g in found], ["open", "closed"])
            self.assertEqual(found[1]["queues"], 0)
            self.assertGreater(found[0]["queues"], 0)
            text = run("stats", "-o", "prometheus", mount)[0]
            for name, value in (("lost", "0"), ("tier", "1"), ("queues", "(0|23|43)"), ("info", "1")):
                self.assertEqual(len(re.findall(f"^gpunvme_device_{name}.*gpu=.* {value}$", text,
                                                re.M)), 2, name)
            self.assertEqual(text.count('name="CPU executor",numa="-1",distance="unknown"'), 1)
            self.assertEqual([(g["uuid"][-2:], g["numa_node"], g["distance"])
                              for g in document("stats", mount)["mounts"][0]["gpus"]],
                             [("00", None, "unknown"), ("03", None, "unknown")])
            self.assertRegex(run("info", mount)[0], "(?m)^GPU +NAME +EXECUTOR")

    def test_a_trace_has_each_step_of_a_write_in_its_order(self):
        self.assertIn("-o trace", run("trace", self.mount, status=1)[1])
        with mounted("executor=cpu,trace") as mount:
            with open(os.path.join(mount, "file"), "wb") as f:
                f.write(b"x" * 10000)
                f.flush()
                os.fsync(f.fileno())
                inode = os.fstat(f.fileno()).st_ino
            records = document("trace", mount)["records"]
            self.assertEqual(sorted(records, key=lambda r: r["ns"]), records)
            events = [(r["event"], r.get("what", "")) for r in records]
            begun = events.index(("op", "write"))
            self.assertEqual((records[begun]["inode"], records[begun]["offset"]), (inode, 0))
            for event in (("submit", ""), ("complete", ""), ("op done", "write"), ("commit", ""),
                          ("commit done", "")):
                self.assertIn(event, events[begun:], event)
            # Queue 0 is the admin queue, where a controller may refuse what it does not have.
            done = [r for r in records if r["event"] == "complete" and r["qid"]]
            self.assertTrue(done and all(r["status"] == 0 for r in done))
            submitted = {(r["qid"], r["cid"]) for r in records if r["event"] == "submit"}
            self.assertTrue(all((r["qid"], r["cid"]) in submitted for r in done))
            text = run("trace", mount)[0]
            self.assertRegex(text, r"(?m)^ *\d+\.\d{9} op done write inode \d+ commands")

    def test_label(self):
        self.assertEqual(run("label", self.file)[0], "\n")
        self.assertEqual(document("label", self.file, "new one")["label"], "new one")
        self.assertEqual(run("label", self.mount)[0], "new one\n")
        self.assertIn("63 bytes", run("label", self.mount, "x" * 64, status=1)[1])
        self.assertIn("63 bytes", run("label", self.mount, "x" * 300, status=1)[1])
        self.assertIn("not on a gpunvmefs mount", run("label", MEMORY, status=1)[1])
        run("label", status=2)

    def refusal_of(self, image):
        """The error of `gpunvme list` for an image; other mounts of this machine may have one."""
        errors = document("list", image, status=1)["errors"]
        return next(e["message"] for e in errors if e["object"] == image)

    def test_list_of_file_systems(self):
        image = os.path.join(self.top.name, "other")
        uuid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
        subprocess.run([MKFS, "-q", "-s", "64M", "-L", "other one", "-U", uuid, image], check=True,
                       timeout=60)
        found = {f["device"]: f for f in document("list", image)["file_systems"]}
        self.assertEqual(found[image], {"device": image, "label": "other one", "uuid": uuid,
                                        "bytes": 64 << 20, "mounted_on": None})
        mounted = [f for f in found.values() if f["mounted_on"] == self.mount]
        self.assertEqual(len(mounted), 1)
        self.assertRegex(mounted[0]["uuid"], "^[0-9a-f-]{36}$")
        again = document("list", mounted[0]["device"])["file_systems"]
        self.assertEqual([f for f in again if f["mounted_on"] == self.mount], mounted)
        self.assertIn(uuid, run("list", image)[0])
        for content, message in ((b"", "no file system"), (b"x" * 8192, "no file system")):
            with open(image, "wb") as f:
                f.write(content)
            self.assertIn(message, self.refusal_of(image))
        subprocess.run([MKFS, "-q", "-s", "64M", image], check=True, timeout=60)
        with open(image, "r+b") as f:
            f.seek(184)
            f.write(b"changed")
        self.assertIn("label damaged", self.refusal_of(image))

    def test_cp(self):
        outside, folder = (os.path.join(self.top.name, name) for name in ("outside", "folder"))
        copy, empty = (os.path.join(self.mount, name) for name in ("copy", "empty one"))
        with open(self.file, "rb") as f:
            content = f.read()
        found = document("cp", "-c", "-b", "1M", "-p", "gpu", self.file, copy)["files"][0]
        self.assertEqual((found["source"], found["file"], found["bytes"]),
                         (self.file, copy, len(content)))
        self.assertEqual(found["read_path"], "gpu")
        self.assertIn(found["write_path"], ("gpu", "mixed"))  # the last bytes are no whole block
        self.assertEqual(found["xxh3"], document("read", "-c", self.file)["files"][0]["xxh3"])
        run("cp", copy, outside)
        os.chmod(outside, 0o640)
        os.mkdir(folder)
        with open(empty, "wb"):
            pass
        run("cp", outside, empty, folder)
        run("cp", outside, copy)  # over a file that is there
        for name in (copy, outside, os.path.join(folder, "outside")):
            with open(name, "rb") as f:
                self.assertEqual(f.read(), content, name)
        self.assertEqual(os.stat(os.path.join(folder, "outside")).st_mode & 0o777, 0o640)
        self.assertEqual(os.path.getsize(os.path.join(folder, "empty one")), 0)
        for wrong, message in (((copy, copy), "same file"), (("/none", copy), "No such file"),
                               ((self.mount, outside), "not a regular file"),
                               ((outside, copy, outside), "not a directory")):
            errors = document("cp", *wrong, status=1)["errors"]
            self.assertIn(message, errors[0]["message"])
        with open(copy, "rb") as f:
            self.assertEqual(f.read(), content, "a refusal left it as it was")
        run("cp", copy, status=2)

    def test_extents(self):
        empty, few, many = (os.path.join(self.mount, name) for name in ("nothing", "few", "many"))
        for name, count in ((empty, 0), (few, 2000), (many, 12_000)):
            with open(name, "wb", buffering=0) as f:
                for i in range(count):
                    f.seek(i * 8192)
                    f.write(b"x" * 4096)
        self.assertEqual(document("extents", empty),
                         {"schema_version": 1, "file": empty, "extents": []})
        found = document("extents", many)
        self.assertEqual(found["file"], many)
        self.assertEqual([e["file_offset"] for e in found["extents"]],
                         [i * 8192 for i in range(12_000)])
        self.assertTrue(all(e.keys() == {"file_offset", "device_offset", "length", "unwritten"}
                            and e["length"] == 4096 for e in found["extents"]))
        # Not all of them at once: each takes a kilobyte as an object.
        self.assertLess(peak_memory("extents", many), peak_memory("extents", few) + (4 << 20))
        for name in (empty, few, many):
            os.unlink(name)

    def test_resize(self):
        self.assertIn("larger than that", run("resize", self.mount, "64M", status=1)[1])
        self.assertIn("no room for bitmaps", run("resize", self.mount, str((128 << 20) + 4096),
                                                 status=1)[1])
        # Bitmaps of 6 TB; a drive that has mapped less; more than the format can count.
        self.assertIn("no space for them", run("resize", self.mount, "200000T", status=1)[1])
        self.assertIn("cannot grow so far", run("resize", self.mount, "2T", status=1)[1])
        self.assertEqual(os.path.getsize(self.image), 128 << 20, "after each failure")
        with open(os.path.join(self.mount, "new"), "wb", buffering=0) as f:
            f.write(b"x")
            os.fsync(f.fileno())  # the drive misses nothing
        self.assertEqual(document("resize", self.file, "192M")["bytes"], 192 << 20)
        self.assertEqual(os.path.getsize(self.image), 192 << 20)
        os.truncate(self.image, 300 << 20)
        # The larger image ends as a member of an md array (version 1.0) does.
        member = (300 << 20) - 8192
        with open(self.image, "r+b") as f:
            f.seek(member)
            f.write(b"\xfc\x4e\x2b\xa9\1\0\0\0" + bytes(136) + (member >> 9).to_bytes(8, "little"))
        self.assertIn("another user", run("resize", self.mount, status=1)[1])
        os.truncate(self.image, member)
        os.truncate(self.image, 300 << 20)
        self.assertEqual(run("resize", self.mount)[0], f"{self.mount}: {300 << 20} bytes (314.57 MB)\n")
        found = os.statvfs(self.mount)
        self.assertEqual(found.f_blocks * found.f_frsize, 300 << 20)
        large = os.path.join(self.mount, "large")
        piece = os.urandom(1 << 20)
        with open(large, "wb") as f:
            for _ in range(200):
                f.write(piece)
        # The executor reads what lies past the old end, too.
        self.assertTrue(document("verify", large)["files"][0]["same"])
        os.unlink(large)
        os.truncate(self.image, 2 << 40)
        self.assertIn("before the next mount", run("resize", self.mount, status=1)[1])
        os.truncate(self.image, 300 << 20)
        self.assertIn("not on a gpunvmefs", run("resize", MEMORY, status=1)[1])
        self.assertIn("no size", run("resize", self.mount, "x", status=2)[1])

    @contextlib.contextmanager
    def silent_mount(self):
        """A mount whose daemon is stopped; the kernel asks for the attributes each time."""
        image, point = (os.path.join(self.top.name, name) for name in ("silent", "silent.mnt"))
        os.makedirs(point, exist_ok=True)
        subprocess.run([MKFS, "-q", "-f", "-s", "16M", image], check=True, timeout=60)
        with serve(image, point, "attr_timeout=0") as daemon:
            daemon.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)  # until its last thread has stopped
            try:
                yield point
            finally:
                daemon.send_signal(signal.SIGCONT)
                unmount(point)  # a process that was killed holds it until the daemon answers

    def test_resize_and_list_beside_a_mount_that_does_not_answer(self):
        with self.silent_mount() as point:
            self.assertEqual(document("resize", self.mount, "400M")["bytes"], 400 << 20)
            listed = document("list")
            found = {f["mounted_on"]: f for f in listed["file_systems"]}
            self.assertIsNone(found[point]["uuid"])
            self.assertIsNotNone(found[self.mount]["uuid"])
            self.assertIn(point, [e["object"] for e in listed["errors"]])

    def test_resize_beside_a_mount_below_one_that_does_not_answer(self):
        dead = os.path.join(self.top.name, "dead")
        os.makedirs(os.path.join(dead, "below"))
        script = """
            exec 3<>/dev/fuse 4<>/dev/fuse
            fuse=rootmode=40000,user_id=0,group_id=0
            mount -i -t fuse.gpunvmefs -o fd=3,$fuse /none "$1/below" &&
                mount -i -t fuse.dead -o fd=4,$fuse dead "$1" && exec "$2" resize "$3" 410M"""
        subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", dead, GPUNVME, self.mount],
                       check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.assertEqual(os.path.getsize(self.image), 410 << 20)

    def test_stats_beside_a_mount_that_does_not_answer(self):
        with self.silent_mount() as point:
            found = document("stats", point, self.mount, status=1)
            self.assertEqual([m["mount"] for m in found["mounts"]], [self.mount])
            self.assertIn("does not answer", found["errors"][0]["message"])

    def test_label_names_the_device(self):
        folder = os.path.join(self.top.name, "images")
        point = os.path.join(self.top.name, "tagged")
        os.mkdir(folder)
        os.mkdir(point)
        one, two = (os.path.join(folder, name) for name in ("one", "two"))
        for image in one, two:
            subprocess.run([MKFS, "-q", "-s", "16M", "-L", "twice is none", image], check=True,
                           timeout=60)

        def mount(tag):
            return subprocess.run([DAEMON, tag, point], capture_output=True, text=True, timeout=60,
                                  check=False, env={**os.environ, "GPUNVMEFS_IMAGES": folder})
        for tag, text in (("LABEL=twice is none", f"{folder}/"), ("LABEL=unknown", "found on no"),
                          ("LABEL=", "no label"), ("UUID=1", "no UUID")):
            refused = mount(tag)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(text, refused.stderr)
            self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
        os.unlink(two)
        with open(one, "r+b") as image:  # a flipped bit of the label, which its checksum corrects
            image.seek(184)
            image.write(bytes([ord("t") ^ 1]))
        done = mount("LABEL=twice is none")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open("/proc/self/mounts", encoding="utf-8") as table:
            self.assertRegex(table.read(), f"{one} {point} fuse(blk)?.gpunvmefs")
        subprocess.run(["umount", point], check=True, timeout=60)

    def loop_device(self, image):
        loop = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True,
                              timeout=60, check=False)
        if loop.returncode != 0:
            self.skipTest(f"no loop device can be had: {loop.stderr.strip()}")
        device = loop.stdout.strip()
        self.addCleanup(subprocess.run, ["losetup", "-d", device], check=True, timeout=60)
        return device

    def test_label_and_uuid_name_a_block_device(self):
        label, number = f"disk {os.getpid()}", str(uuid.uuid4())
        for tag, option, value in (("LABEL", "-L", label), ("UUID", "-U", number)):
            image, point = (os.path.join(self.top.name, tag + end) for end in (".disk", ".mnt"))
            os.mkdir(point)
            subprocess.run([MKFS, "-q", "-s", "16M", option, value, image], check=True, timeout=60)
            device = self.loop_device(image)
            subprocess.run([DAEMON, f"{tag}={value}", point], check=True, timeout=60)
            with open("/proc/self/mounts", encoding="utf-8") as table:
                self.assertRegex(table.read(), f"{device} {point} fuse(blk)?.gpunvmefs")
            subprocess.run(["umount", point], check=True, timeout=60)

    def test_verify(self):
        found = document("verify", self.file)["files"][0]
        self.assertTrue(found["same"])
        self.assertEqual([w["method"] for w in found["methods"]],
                         ["GPU path", "bounce pipeline", "read(2)"])
        self.assertEqual(len({w["xxh3"] for w in found["methods"]}), 1)
        self.assertEqual({w["bytes"] for w in found["methods"]}, {3_000_001})
        expected = subprocess.run(["xxhsum", "-H3", self.file], capture_output=True, text=True,
                                  check=False)
        if expected.returncode == 0:
            self.assertIn(found["methods"][0]["xxh3"], expected.stdout)
        empty = os.path.join(self.mount, "empty")
        with open(empty, "wb"):
            pass
        for command in ("verify", "bench"):  # a directory of files may have an empty one
            found = document(command, self.file, empty)["files"]
            self.assertEqual([w["bytes"] for w in found[1]["methods"]],
                             [0] * len(found[1]["methods"]))
            self.assertFalse([w for w in found[1]["methods"] if "bytes_per_s" in w])
            self.assertNotIn("errors", found)
        self.assertIn("not a regular file", run("verify", self.mount, status=1)[1])

    def test_bench(self):
        found = document("bench", self.file)["files"][0]
        self.assertEqual(found["methods"][0]["method"], "plain copy of the host's memory")
        self.assertTrue(all(w["bytes_per_s"] > 0 for w in found["methods"]))
        self.assertTrue(all(0 < w["of_limit"] <= 1 for w in found["methods"][1:]))
        run("bench", "-b", "8K", self.file)

    def test_bench_of_rows(self):
        with tempfile.NamedTemporaryFile(dir=MEMORY) as other:
            other.write(os.urandom(100_000))
            other.flush()
            mine, others = document("bench", "--rows", self.file, other.name)["files"]
            self.assertIn("has a row", run("bench", "-R", "-S", "1M", other.name, status=1)[1])
        for found, size in ((mine, 3_000_001), (others, 100_000)):
            self.assertEqual(found["row_bytes"], 256)
            ways = {run["way"] for run in found["runs"]}
            self.assertLessEqual({"table", "READV of each row", "16 threads, page cache"}, ways)
            tables = {run["rows"]: run for run in found["runs"] if run["way"] == "table"}
            self.assertGreater(tables[48]["rows_per_s"], 0)
            self.assertLessEqual(tables[12288]["ranges_read"], size // 512 + 1)
            self.assertEqual("table, again through a cache" in ways, found["table"] == "direct path")
        self.assertIn("not on a gpunvmefs mount", others["why"])
        self.assertIn("RANGES", run("bench", "-R", "-S", "100", self.file)[0])
        self.assertIn("neither a regular file", run("bench", "-R", COMPLETION, status=1)[1])
        self.assertIn("not a size of rows", run("bench", "-S", "2M", self.file, status=2)[1])
        self.assertIn("not understood", run("verify", "--rows", self.file, status=2)[1])

    def test_bench_shows_progress_on_a_terminal(self):
        for quiet, shown in (([], True), (["-q"], False)):
            terminal, end = pty.openpty()
            with subprocess.Popen([GPUNVME, "bench", "-b", "4K", *quiet, self.file], stderr=end,
                                  stdout=subprocess.DEVNULL):
                os.close(end)
                text = b""
                with contextlib.suppress(OSError):  # how a terminal ends
                    while part := os.read(terminal, 4096):
                        text += part
            os.close(terminal)
            self.assertEqual(b" %, " in text, shown, text)

    def test_check_cufile(self):
        found = {e["id"]: e for e in document("check", "-u", self.file)["checks"]}
        self.assertEqual(found["file-system"]["level"], "ok")
        self.assertIn("of gpunvmefs", found["file-system"]["text"])

    def test_stats(self):
        before = document("stats", self.mount)["mounts"][0]
        run("read", "-q", "-p", "gpu", self.file)
        after = document("stats", self.mount)["mounts"][0]
        self.assertEqual(after["mount"], self.mount)
        self.assertEqual(after["gpu_read_bytes"] - before["gpu_read_bytes"], 3_000_001)
        text = run("stats", self.mount)[0]
        self.assertRegex(text, r"CALL +PATH +BELOW US +COUNT")

    def test_latency_and_fallbacks(self):
        def calls(found, path):
            return sum(b["count"] for b in found["latency"]
                       if (b["op"], b["path"]) == ("read", path))
        before = document("stats", self.mount)["mounts"][0]
        run("read", "-q", "-b", "1M", "-p", "gpu", self.file)
        after = document("stats", self.mount)["mounts"][0]
        self.assertEqual(calls(after, "gpu") - calls(before, "gpu"), 3)
        self.assertEqual(calls(after, "bounce"), calls(before, "bounce"))
        for bucket in after["latency"]:
            self.assertGreater(bucket["count"], 0)
            self.assertEqual(bucket["below_us"] & (bucket["below_us"] - 1), 0)
        self.assertEqual(len(after["fallbacks"]), 8)
        self.assertEqual(after["fallbacks"], before["fallbacks"])

    def test_calls_of_programs(self):
        """What the library counts in a program is told while it runs, and after its end."""
        def told():
            found = document("stats", self.mount)["mounts"][0]
            by = {(c["op"], c["path"]): c for c in found["programs"]}
            none = {"count": 0, "bytes": 0}
            return found["programs_pipeline_read_bytes"], \
                by.get(("read", "gpu"), none), by.get(("read", "bounce"), none)
        before = told()
        run("read", "-q", "-b", "1M", "-p", "gpu", self.file)
        run("read", "-q", "-b", "1M", "-p", "bounce", self.file)
        after = told()
        self.assertEqual(after[0] - before[0], 3_000_001)
        for was, now in zip(before[1:], after[1:]):
            self.assertEqual(now["bytes"] - was["bytes"], 3_000_001)
            self.assertEqual(now["count"] - was["count"], 3)

    def test_prometheus(self):
        text = run("stats", "-o", "prometheus", self.mount)[0]
        sample = re.compile(r'^gpunvme_[a-z_]+\{mount="[^"]+"(,[a-z]+="[^"]+")*\} [\d.]+$')
        kinds = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.M)
        self.assertEqual(len(kinds), 46)
        for name, kind in kinds:
            self.assertEqual(name.endswith("_total"), kind == "counter")
        for line in text.splitlines():
            self.assertTrue(line.startswith("# ") or sample.match(line), line)
        self.check_histograms(text)
        name = os.path.join(self.top.name, "gpunvme.prom")
        self.assertEqual(run("stats", "-w", name, self.mount)[0], "")
        with open(name, encoding="utf-8") as f:
            self.assertEqual(len(f.readlines()), len(text.splitlines()))
        self.assertEqual([n for n in os.listdir(self.top.name) if "prom" in n], ["gpunvme.prom"])
        run("stats", "-w", "/none/gpunvme.prom", self.mount, status=1)

    def test_metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as reply:
            served = reply.read().decode()
        told = run("stats", "-o", "prometheus", self.mount)[0]
        names = re.compile(r"^(\S+\{.*?\}) ", re.M)
        self.assertEqual(names.findall(served), names.findall(told))
        for address in ("0.0.0.0:9567", "localhost:1", "0"):
            refused = subprocess.run([DAEMON, "/none", "/none", "-o", f"metrics={address}"],
                                     capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("use 127.0.0.1:PORT", refused.stderr)

    def check_histograms(self, text):
        """Buckets grow, and the last one is the count."""
        buckets = {}
        for name, labels, n in re.findall(r'(\w+)_bucket\{(.*),le="[^"]+"\} (\d+)', text):
            buckets.setdefault((name, labels), []).append(int(n))
        counts = {(name, labels): n
                  for name, labels, n in re.findall(r"(\w+)_count\{(.*)\} (\d+)", text)}
        self.assertEqual(len(buckets), 9 + 12)
        for labels, found in buckets.items():
            self.assertEqual(found, sorted(found))
            self.assertEqual((len(found), found[-1]), (24, int(counts[labels])))

    def read_until_end(self, process):
        while process.poll() is None:
            run("read", "-q", "-p", "gpu", self.file)
            run("read", "-q", "-p", "bounce", self.file)

    def test_top(self):
        with subprocess.Popen([GPUNVME, "top", "-C", "2", "-o", "json", self.mount],
                              stdout=subprocess.PIPE, text=True) as top:
            self.read_until_end(top)
            samples = json.loads(top.communicate(timeout=60)[0])["samples"]
        self.assertEqual(len(samples), 2)
        for path in ("gpu", "pipeline", "bounce"):  # the mount counts the pipeline's reads, too
            self.assertGreater(sum(s[f"{path}_read_gb_per_s"] for s in samples), 0)
        for idle in ("direct_read_gb_per_s", "leased_commands_per_s"):
            self.assertEqual(sum(s[idle] for s in samples), 0)
        self.assertIn("GPU READ", run("top", "-C", "1", self.mount)[0])

    def test_top_of_processes_files_and_queues(self):
        read = "import os, sys, time\n" \
            "fd = os.open(sys.argv[1], os.O_RDONLY)\n" \
            "while sys.stdin.readable():\n" \
            "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n" \
            "    os.pread(fd, 1 << 20, 0)\n" \
            "    time.sleep(0.02)\n"
        with subprocess.Popen([sys.executable, "-c", read, self.file],
                              stdin=subprocess.PIPE) as reader, \
             subprocess.Popen([GPUNVME, "top", "-i", "4", "-C", "1", "-o", "json", self.mount],
                              stdout=subprocess.PIPE, text=True) as top:
            self.read_until_end(top)
            sample = json.loads(top.communicate(timeout=60)[0])["samples"][0]
            reader.kill()
        processes = {p["process"]: p for p in sample["processes"]}
        self.assertIn("python", processes[reader.pid]["command"])
        self.assertGreater(processes[reader.pid]["kernel_read_gb_per_s"], 0)
        self.assertEqual(processes[reader.pid]["gpu_read_gb_per_s"], 0)
        for path in ("gpu", "bounce"):  # the latter in the process itself
            self.assertGreater(sum(p[f"{path}_read_gb_per_s"] for p in sample["processes"]), 0)
        self.assertEqual([f["path"] for f in sample["files"]], [self.file])
        self.assertGreater(sample["files"][0]["gpu_read_gb_per_s"], 0)
        self.assertEqual(sample["files"][0]["inode"], os.stat(self.file).st_ino)
        self.assertGreater(sum(q["commands_per_s"] for q in sample["queues"]), 0)
        self.assertEqual({q["use"] for q in sample["queues"]}, {"executor"})


    def top_on_a_terminal(self, end):
        """The exit status, and whether the terminal's modes are those of before."""
        fresh = pty.openpty()
        before = termios.tcgetattr(fresh[1])
        for fd in fresh:
            os.close(fd)
        child, terminal = pty.fork()
        if child == 0:
            os.execv(GPUNVME, [GPUNVME, "top", "-i", "60", self.mount])
        for _ in range(1000):
            if not termios.tcgetattr(terminal)[3] & termios.ICANON:
                break
            time.sleep(0.01)
        end(child, terminal)
        _, status = os.waitpid(child, 0)
        after = termios.tcgetattr(terminal)
        os.close(terminal)
        return status, after == before

    def test_top_ends_by_q_and_by_signals(self):
        began = time.monotonic()
        keys = self.top_on_a_terminal(lambda _, terminal: os.write(terminal, b"xq"))
        self.assertEqual(keys, (0, True))
        for number in (signal.SIGINT, signal.SIGTERM):
            ended = self.top_on_a_terminal(lambda child, _, n=number: os.kill(child, n))
            self.assertEqual(ended, (number, True))
        self.assertLess(time.monotonic() - began, 30)

    def fill(self, folder, files, age):
        """Files of a MiB, used ever later, the first one `age` seconds ago."""
        os.makedirs(os.path.join(folder, "sub"), exist_ok=True)
        for i in range(files):
            name = os.path.join(folder, "sub" if i % 2 else "", f"entry{i}")
            with open(name, "wb") as f:
                f.write(os.urandom(1 << 20))
            used = time.time() - age + i
            os.utime(name, (used, used))

    def left(self, folder):
        return sorted(int(name[5:]) for _, _, names in os.walk(folder) for name in names)

    def test_cache_removes_what_was_used_least_recently(self):
        for folder in (os.path.join(self.mount, "cache"), self.elsewhere("cache")):
            self.fill(folder, 20, 1000)
            run("cache", folder, status=1)
            found = document("cache", "-l", "12M", "-n", folder)
            self.assertEqual((found["removed_files"], found["limit"]), (10, 12 << 20))
            self.assertEqual(len(self.left(folder)), 20)
            run("cache", folder, status=1)  # a dry run sets no limit
            found = document("cache", "-l", "12M", folder)
            self.assertEqual((found["files"], found["removed_files"]), (10, 10))
            self.assertLessEqual(found["bytes"], 12 << 20)
            self.assertEqual(self.left(folder), list(range(10, 20)))
            found = document("cache", folder)  # the limit is the directory's
            self.assertEqual((found["limit"], found["files"]), (12 << 20, 10))
            self.assertEqual(self.left(folder), list(range(10, 20)))

    def elsewhere(self, name):
        """A directory of another file system: the command itself keeps its limit."""
        top = tempfile.mkdtemp(dir=".")
        self.addCleanup(shutil.rmtree, top)
        folder = os.path.join(top, name)
        os.mkdir(folder)
        return folder

    def test_cache_follows_no_link_that_takes_a_directorys_place(self):
        folder = self.elsewhere("swapped")
        other = self.elsewhere("other")
        sub, aside = os.path.join(folder, "sub"), os.path.join(folder, "aside")
        self.fill(other, 200, 100_000)  # with the names, and the ages, of files of the cache
        for _ in range(5):
            self.fill(folder, 200, 100_000)
            command = subprocess.Popen([GPUNVME, "cache", "-l", "1M", folder],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while command.poll() is None:
                os.rename(sub, aside)
                os.symlink(os.path.join(other, "sub"), sub)
                os.unlink(sub)
                os.rename(aside, sub)
            self.assertEqual(self.left(other), list(range(200)))

    def test_cache_says_what_keeps_the_limit(self):
        folder = os.path.join(self.mount, "kept")
        os.mkdir(folder)
        self.assertEqual(document("cache", "-l", "12M", folder)["kept_by"], "the mount")
        self.assertEqual(document("cache", "-l", "12M", self.elsewhere("kept"))["kept_by"],
                         "this command")

    def test_a_mount_keeps_the_limit_by_itself(self):
        folder = os.path.join(self.mount, "self")
        os.mkdir(folder)
        run("cache", "-l", "4M", folder)
        for i in range(20):
            self.publish(folder, i)
            self.assertLessEqual(self.taken(folder), 4 << 20)
        self.assertIn(19, self.left(folder))
        with open(os.path.join(folder, "entry19"), "rb") as held:
            for i in range(20, 30):
                self.publish(folder, i)
            self.assertIn(19, self.left(folder))  # it is open
            self.assertEqual(len(held.read()), 1 << 20)
        self.assertGreater(document("cache", folder)["removed_files"], 20)

    def publish(self, folder, i):
        with open(os.path.join(folder, f"tmp{i}"), "wb") as f:
            f.write(bytes(1 << 20))
        os.rename(f.name, os.path.join(folder, f"entry{i}"))

    def taken(self, folder):
        return sum(os.stat(os.path.join(folder, name)).st_blocks * 512
                   for name in os.listdir(folder))

    def test_a_removed_file_is_made_anew_at_once(self):
        folder = os.path.join(self.mount, "anew")
        self.fill(folder, 3, 1000)
        names = [os.path.join(folder, "sub" if i % 2 else "", f"entry{i}") for i in range(3)]
        for name in names:
            os.stat(name)  # the kernel knows it
        run("cache", "-l", "1M", folder)
        for name in names:
            with self.assertRaises(FileNotFoundError):
                open(name, "rb").close()
        with open(names[0], "wb") as f:
            f.write(b"new")
        with open(names[0], "rb") as f:
            self.assertEqual(f.read(), b"new")

    def test_what_does_not_fit_beside_open_files_is_refused(self):
        folder = os.path.join(self.mount, "refused")
        os.mkdir(folder)
        run("cache", "-l", "4M", folder)
        with open(os.path.join(folder, "large"), "wb", buffering=0) as f:
            with self.assertRaises(OSError) as caught:
                for _ in range(8):
                    f.write(bytes(1 << 20))
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertLessEqual(self.taken(folder), 4 << 20)

    def test_cache_limits_are_checked(self):
        folder = os.path.join(self.mount, "checked")
        os.mkdir(folder)
        for value in (b"", b"0", b"1k", b"-1"):
            with self.assertRaises(OSError):
                os.setxattr(folder, "user.gpunvme.cache_limit", value)
        with self.assertRaises(PermissionError):
            os.setxattr(folder, "user.gpunvme.cache_state", b"1")
        run("cache", "-l", "4M", folder)
        os.removexattr(folder, "user.gpunvme.cache_limit")
        run("cache", folder, status=1)

    def test_cache_spares_new_files_links_and_other_directories(self):
        folder, other = self.elsewhere("spared"), os.path.join(self.mount, "other")
        self.fill(folder, 4, 5)  # younger than ten seconds
        self.fill(other, 2, 1000)
        os.symlink(os.path.join(other, "entry0"), os.path.join(folder, "entry9"))
        os.symlink(other, os.path.join(folder, "folder"))
        found = document("cache", "--limit=1M", folder)
        self.assertEqual(found["removed_files"], 0)
        self.assertEqual((self.left(folder), self.left(other)), ([0, 1, 2, 3, 9], [0, 1]))

    def test_cache_has_the_rights_of_the_directorys_owner(self):
        folder = self.elsewhere("owned")
        self.fill(folder, 6, 1000)
        os.mkdir(os.path.join(folder, "private"))
        self.fill(os.path.join(folder, "private"), 4, 100_000)
        os.chown(folder, 4001, 4001)
        os.chown(os.path.join(folder, "sub"), 4001, 4001)
        os.chmod(os.path.join(folder, "private"), 0o700)
        found = document("cache", "-l", "1M", folder)
        self.assertEqual(found["removed_files"], 6)
        self.assertEqual(self.left(os.path.join(folder, "private")), [0, 1, 2, 3])

    def test_cache_takes_no_limit_of_others_and_no_link(self):
        folder = self.elsewhere("open")
        link = folder + ".link"
        os.symlink(folder, link)
        self.fill(folder, 3, 1000)
        run("cache", "-l", "1M", link, status=1)
        os.setxattr(folder, "user.gpunvme.cache_limit", b"4096")
        os.chmod(folder, 0o777)
        self.assertIn("chmod +t", run("cache", folder, status=1)[1])
        self.assertEqual(self.left(folder), [0, 1, 2])
        os.chmod(folder, 0o1777)
        run("cache", folder)
        self.assertEqual(self.left(folder), [])

    def test_cache_leaves_mounts_below_alone(self):
        folder, other = self.elsewhere("below"), self.elsewhere("other")
        self.fill(folder, 2, 1000)
        self.fill(other, 4, 100_000)
        at = os.path.join(folder, "mounted")
        os.mkdir(at)
        subprocess.run(["mount", "--bind", other, at], check=True, timeout=60)
        try:
            found = document("cache", "-l", "4096", folder)
        finally:
            subprocess.run(["umount", at], check=True, timeout=60)
        self.assertEqual((found["removed_files"], found["files"]), (2, 0))
        self.assertEqual(self.left(other), [0, 1, 2, 3])

    def test_the_mount_leaves_files_with_mounts_on_them(self):
        folder = os.path.join(self.mount, "mounted on")
        self.fill(folder, 3, 1000)
        at = os.path.join(folder, "entry0")
        subprocess.run(["mount", "--bind", __file__, at], check=True, timeout=60)
        try:
            run("cache", "-l", "4096", folder)
            self.assertEqual(self.left(folder), [0])
            self.assertTrue(os.path.samefile(at, __file__))
        finally:
            subprocess.run(["umount", at], check=True, timeout=60)
        run("cache", "-l", "4096", folder)
        self.assertEqual(self.left(folder), [])

    def test_cache_that_stays(self):
        folder = self.elsewhere("watched")
        self.fill(folder, 3, 1000)
        with subprocess.Popen([GPUNVME, "cache", folder, "-l", "4M", "-i", "1", "-C", "4"],
                              stdout=subprocess.PIPE, text=True) as cache:
            time.sleep(0.5)
            self.fill(folder, 10, 1000)
            cache.communicate(timeout=60)
        self.assertEqual((cache.returncode, self.left(folder)), (0, [7, 8, 9]))

    def test_cache_of_a_full_disk(self):
        folder = os.path.join(self.mount, "full")
        os.mkdir(folder)
        with self.assertRaises(OSError):
            for i in range(200):
                with open(os.path.join(folder, f"entry{i}"), "wb") as f:
                    f.write(bytes(1 << 20))
                os.utime(f.name, (1000 + i, 1000 + i))
        filled = len(self.left(folder))
        self.assertGreater(document("cache", "-l", "8M", folder)["removed_files"], filled - 10)
        with open(os.path.join(folder, "entry999"), "wb") as f:
            f.write(bytes(2 << 20))


class Completion(unittest.TestCase):
    """The scripts of the shells, over what the command itself prints."""

    ZSH = """
        _call_program() { shift; eval "$@"; }
        _describe() {
            while (( $# )); do
                case $1 in
                -t) shift 2 ;;
                -S) shift 2 ;;
                -- | words | word) shift ;;
                *) shown+=("${(P@)1}"); shift ;;
                esac
            done
        }
        _files() { shown+=(FILES); }
        compset() { return 1; }
        complete_it() { source "$1/_gpunvme"; }
        folder=$1; shift
        words=("$@"); CURRENT=$#; PREFIX=${words[-1]}; shown=()
        complete_it "$folder"
        print -l -- $shown
    """

    def in_bash(self, *words, breaks=" =:", program=None):
        script = f'. "{COMPLETION}/gpunvme.bash"; COMP_WORDBREAKS=$1; shift; COMP_LINE="$*"; ' \
            'COMP_POINT=${#COMP_LINE}; _gpunvme; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script, "bash", breaks, program or GPUNVME, *words], timeout=60,
                              capture_output=True, text=True, check=True)
        return done.stdout.split()

    def in_zsh(self, *words):
        done = subprocess.run(["zsh", "-f", "-c", self.ZSH, "zsh", COMPLETION, GPUNVME, *words],
                              timeout=60, capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def test_bash(self):
        self.assertEqual(set(self.in_bash("")), {*commands(), "help", "--help", "--version"})
        self.assertEqual(self.in_bash("ver"), ["verify"])
        self.assertEqual(self.in_bash("help", "ver"), ["verify"])
        for command in commands():
            self.assertEqual(set(self.in_bash(command, "-")),
                             {f"--{name}{value}" for _, name, value in options(command)})
        self.assertEqual(self.in_bash("stats", "-o", "p"), ["prometheus"])
        self.assertEqual(self.in_bash("read", "-o", "p"), [])
        self.assertEqual(self.in_bash("read", "-p", "b"), ["bounce"])
        self.assertEqual(self.in_bash("read", "file"), [])  # bash then completes files
        self.assertEqual(self.in_bash("nothing", "-"), [])

    def test_programs(self):
        """Every option of --help is offered, and every value is accepted."""
        with tempfile.TemporaryDirectory() as folder:
            image = os.path.join(folder, "image")
            for program in MKFS, FSCK, TUNE, DUMP, DAEMON, SIM, RUN:
                offered = self.in_bash("-", program=program)
                text = subprocess.run([program, "--help"], capture_output=True, text=True,
                                      timeout=60, check=True).stdout
                named = re.findall(r"^ {2,}(?:-\w, )*(--[a-z-]+)", text, re.M)
                named = {name for name in named if name != "--usage"}
                self.assertLessEqual(named - {"--help", "--version"},
                                     {word.rstrip("=") for word in offered}, program)
            for option in "--features=", "--block-size=":
                for value in self.in_bash(option, program=MKFS):
                    self.assertEqual(subprocess.run([MKFS, "-n", "-s", "64M", option + value, image],
                                                    capture_output=True, timeout=60,
                                                    check=False).returncode, 0, value)
            self.assertEqual(self.in_bash("-O", "data_csum,^m", program=MKFS),
                             ["data_csum,^meta_copies"])
            self.assertEqual(self.in_bash("--size=", program=TUNE), ["max"])
            self.assertEqual(self.in_bash("--output=j", program=DUMP), ["json"])

    def test_options_of_a_mount(self):
        self.assertEqual(self.in_bash("image", "-o", "ro,sandbox=f", program=DAEMON),
                         ["files", "full"])
        words = self.in_bash("image", "-o", "", program=DAEMON)
        self.assertEqual(len(words), len(set(words)))
        self.assertLessEqual({"gpu=require", "noatime", "nosuid", "sim=", "depth=", "ro"}, set(words))
        self.assertEqual(self.in_bash("--lba=", program=SIM), ["512", "4096"])
        self.assertEqual(self.in_bash("--log", "", program=RUN),
                         ["ERROR", "WARN", "INFO", "TRACE"])
        self.assertEqual(self.in_bash("python3", "-", program=RUN), [])

    def test_bash_behind_a_break_character(self):
        self.assertEqual(self.in_bash("read", "--path="), ["auto", "gpu", "bounce"])
        self.assertEqual(self.in_bash("read", "--path=b"), ["bounce"])
        self.assertEqual(self.in_bash("read", "--path=b", breaks=" "), ["--path=bounce"])
        self.assertEqual(self.in_bash("read", "--textfile="), [])

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh here")
        found = dict(line.split(":", 1) for line in self.in_zsh(""))
        self.assertEqual(set(found), {*commands(), "help", "--help", "--version"})
        for command in commands():
            usage = run(command, "--help")[0].splitlines()
            self.assertEqual(found[command], usage[1])
        self.assertEqual(self.in_zsh("read", "--pa"), ["--path=:auto (default), gpu or bounce"])
        self.assertEqual(self.in_zsh("read", "--path=b"), ["--path=bounce"])
        self.assertEqual(self.in_zsh("stats", "-o", "p"), ["prometheus"])
        self.assertEqual(self.in_zsh("read", "file"), ["FILES"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
