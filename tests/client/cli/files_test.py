#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""gpunvme read, write and info of files on a mount, and refusals of what is no file of one.

usage: files_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from rig import GPUNVME, document, mounted, needs_mounts, output, run

# Arguments, exit status and a part of the message. FILE is an ordinary file that no mount serves.
COMMAND_LINE = (
    ("raed FILE", 2, "raed: no such command"),
    ("info -o xml FILE", 2, "xml: no such output format"),
    ("read -b 12Q FILE", 2, "12Q: not a buffer size"),
    ("read -b 0 FILE", 2, "0: not a buffer size"),
    ("read -b -4K FILE", 2, "-4K: not a buffer size"),
    ("read -b 99999999999G FILE", 2, "not a buffer size"),
    ("read -p fast FILE", 2, "fast: no such path"),
    ("read", 2, "files are needed"),
    ("write FILE", 2, "a source and a file"),
    ("extents FILE FILE", 2, "one file is needed"),
    ("info", 2, "one path is needed"),
    ("check FILE FILE", 2, "one device at most"),
    ("identify", 2, "one device is needed"),
    ("regs FILE FILE", 2, "one device is needed"),
    ("bind", 2, "one PCI address is needed"),
    ("bind c1:00", 2, "c1:00: no PCI address"),
    ("unbind -f c1:00.0", 2, "option -f (--force) not understood"),
)
FILES = (
    ("read /nonexistent/file", 1, "No such file"),
    ("write /nonexistent/file FILE", 1, "No such file"),
    ("write FILE /nonexistent/file", 1, "No such file"),
    ("label FILE", 1, "not on a gpunvmefs mount"),
    ("label FILE x", 1, "not on a gpunvmefs mount"),
    ("extents /nonexistent/file", 1, "No such file"),
    ("info /nonexistent/file", 1, "No such file"),
    ("read FILE", 1, "not on a gpunvmefs mount"),
    ("write /dev/null FILE", 1, "not on a gpunvmefs mount"),
    ("write FILE FILE", 1, "the same file"),
    ("extents FILE", 1, "not a file of a gpunvmefs mount"),
    ("info FILE", 1, "not on a gpunvmefs mount"),
    ("info /dev/null", 1, "not on a gpunvmefs mount"),
)
# No machine has the device 0000:ff:1f.7, by a convention of chipsets.
DRIVES = (
    ("bind 0000:ff:1f.7", 1, "no such PCI device"),
    ("bind --force 0000:ff:1f.7", 1, "no such PCI device"),
    ("unbind 0000:ff:1f.7", 1, "no such PCI device"),
    ("identify 0000:ff:1f.7", 1, "no such PCI device"),
    ("identify vfio:0000:ff:1f.7", 1, "vfio:"),
    ("regs 0000:ff:1f.7", 1, "no such PCI device"),
    ("check 0000:ff:1f.7", 1, "no such PCI device"),
    ("identify FILE", 1, "no device"),
    ("identify /dev/null", 1, "not a whole drive"),
    ("identify vfio:c1", 1, "no PCI address"),
    ("identify vfio-user:/nonexistent", 1, "vfio-user"),
    ("regs /nonexistent/file", 1, "No such file"),
    ("check /nonexistent/file", 1, "No such file"),
)


class Refusals(unittest.TestCase):
    def test_are_one_line_with_the_object_and_lose_nothing(self):
        for arguments, status, said in (*COMMAND_LINE, *FILES, *DRIVES):
            with self.subTest(arguments), tempfile.NamedTemporaryFile() as file:
                file.write(b"precious")
                file.flush()
                words = [file.name if word == "FILE" else word for word in arguments.split()]
                text = output(GPUNVME, *words, status=status)
                self.assertRegex(text, r"\Agpunvme: .*\n\Z")
                self.assertIn(said, text)
                self.assertNotIn(f": {file.name}: {file.name}", text)
                with open(file.name, "rb") as f:
                    self.assertEqual(f.read(), b"precious")

    def test_a_drive_is_an_nvme_controller(self):
        other = None
        for number in range(32):  # a device of another class, if this machine has one
            bdf = f"0000:00:{number:02x}.0"
            folder = f"/sys/bus/pci/devices/{bdf}/class"
            if os.path.exists(folder):
                with open(folder, encoding="ascii") as f:
                    other = bdf if f.read().strip() != "0x010802" else other
        if not other:
            self.skipTest("no PCI device on this machine")
        for command in "bind", "unbind", "identify", "regs", "check":
            self.assertIn("not an NVMe controller", output(GPUNVME, command, other, status=1))

    def test_writing_elsewhere_leaves_no_new_file(self):
        with tempfile.TemporaryDirectory() as folder:
            run("write", __file__, os.path.join(folder, "new"), status=1)
            self.assertEqual(os.listdir(folder), [])

    def test_list_and_check_come_to_an_end_on_any_machine(self):
        run("list")
        document("list")
        done = subprocess.run([GPUNVME, "check"], capture_output=True, text=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 1 if re.search("^FAIL", done.stdout, re.M) else 0, done)

    def test_help_and_version_go_with_status_zero(self):
        for arguments, status, text in ((("--help",), 0, "usage: gpunvme COMMAND"),
                                        (("read", "--help"), 0, "usage: gpunvme read"),
                                        (("--version",), 0, "gpunvme "),
                                        ((), 2, "usage: gpunvme COMMAND")):
            self.assertTrue(output(GPUNVME, *arguments, status=status).startswith(text), arguments)


@needs_mounts
class OnMount(unittest.TestCase):
    CONTENT = (bytes(range(256)) * 11719)[:3_000_001]
    XXH3 = "88c207ca7fedec7d"

    @classmethod
    def setUpClass(cls):
        cls.mount = cls.enterClassContext(mounted("direct=all", "256M"))
        cls.file, cls.empty, cls.copy, cls.none, cls.sparse = (
            os.path.join(cls.mount, name) for name in ("a", "empty", "copy", "none", "sparse"))
        for name, content in (cls.file, cls.CONTENT), (cls.empty, b""), (cls.copy, cls.CONTENT * 2):
            with open(name, "wb") as f:
                f.write(content)

    def test_info_tells_who_serves_the_mount(self):
        found = document("info", self.mount)
        self.assertNotEqual(found["executor"], "none")
        self.assertEqual((found["transport"], found["block_size"], len(found["fs_uuid"])),
                         ("sim", 4096, 36))
        self.assertTrue(found["direct"])
        self.assertGreater(found["lease_queues"], 0)
        self.assertEqual(found["lease_tier"], 1)
        text = run("info", self.mount)[0]
        self.assertIn("Direct path for you:", text)
        self.assertIn("Queues to lease:", text)
        with mounted("") as plain:
            found = document("info", plain)
        self.assertEqual((found["direct"], found["lease_queues"], found["gpu_transfers"]),
                         (False, 0, 0))

    def test_read_tells_bytes_path_and_checksum_of_each_file(self):
        file, empty = document("read", "-q", "-c", "-b", "1M", self.file, self.empty)["files"]
        self.assertEqual((file["file"], file["bytes"], file["path"], file["xxh3"]),
                         (self.file, len(self.CONTENT), "gpu", self.XXH3))
        self.assertGreater(file["commands"], 0)
        self.assertEqual((empty["bytes"], empty["xxh3"]), (0, "2d06800538d394c2"))

    def test_the_path_asked_for_is_taken_and_said(self):
        for asked, path, why in (("bounce", "bounce", "asked for"), ("gpu", "gpu", ""),
                                 ("auto", "gpu", "")):
            found = document("read", "-q", "-c", "-p", asked, self.file)["files"][0]
            self.assertEqual((found["path"], found["why"], found["xxh3"]), (path, why, self.XXH3))

    def test_write_makes_the_file_what_the_source_is(self):
        found = document("write", "-c", "-b", "1M", self.file, self.copy)["files"][0]
        self.assertEqual((found["bytes"], found["xxh3"]), (len(self.CONTENT), self.XXH3))
        with open(self.copy, "rb") as f:
            self.assertEqual(f.read(), self.CONTENT, "nothing of the longer file stays")

    def test_a_missing_file_among_others_is_named_and_the_others_are_read(self):
        out, err = run("read", self.file, self.none, status=1)
        self.assertIn(f"{self.file}: {len(self.CONTENT)} bytes", out + err)
        self.assertIn(f"gpunvme: {self.none}: No such file", err)
        self.assertIn("not a regular file", run("read", self.mount, status=1)[1])

    def test_a_full_device_ends_a_write_with_one_line(self):
        with open(self.sparse, "wb") as f:
            f.truncate(1 << 30)
        big = os.path.join(self.mount, "big")
        self.assertRegex(run("write", self.sparse, big, status=1)[1],
                         r"\A.*big: .*No space left.*\n\Z")
        os.unlink(big)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
