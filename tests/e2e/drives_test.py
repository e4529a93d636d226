#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A vfio-user drive: the file system and the drive share only the protocol and memory. Each may be
killed alone, and the drive may deviate from the specification, or be slow.

usage: drives_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import ctypes
import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from rig import (FSCK, MEMORY, MKFS, SECONDS, Image, Server, document, error_of, needs_mounts,
                 output, unmount)

LIBC = ctypes.CDLL(None, use_errno=True)
BLOCK, FILE, SIZE = 4096, 16 << 20, 384 << 20
CPU = "executor=cpu"
WRONG = "wrong data by commands of the processor: a read of "


def content(seed):
    return random.Random(seed).randbytes(FILE)


def read_as(user, fd, offset):
    """The bytes that this user reads past the page cache, or the negative errno."""
    LIBC.setfsuid(user)  # of this thread only
    try:
        return os.preadv(fd, [mmap.mmap(-1, BLOCK)], offset)
    except OSError as error:
        return -error.errno


class Started(threading.Thread):
    """A call in a thread, and its result."""

    def __init__(self, call, *arguments):
        super().__init__(daemon=True)
        self.call, self.arguments, self.result = call, arguments, None
        self.start()

    def run(self):
        self.result = self.call(*self.arguments)

    def ends(self, seconds=SECONDS):
        self.join(seconds)
        return not self.is_alive()


@needs_mounts
class Drive(unittest.TestCase):
    def setUp(self):
        self.top = self.enterContext(tempfile.TemporaryDirectory(prefix="gpunvme-drives-",
                                                                 dir=MEMORY))
        self.backing = os.path.join(self.top, "image")
        with open(self.backing, "wb") as f:
            f.truncate(SIZE)
        self.server = self.image = None
        self.addCleanup(self.end)

    def end(self):
        """The mount ends well, fsck finds nothing, and the driver has made no mistake."""
        if self.image:
            self.image.close()
        self.end_server()
        self.server.top.cleanup()

    def end_server(self):
        if self.server.process.returncode is None:
            self.assertEqual(self.server.stop(), 0, self.server.err())

    def serve(self, *options, strict=True):
        """A server in place of the one before, at the same socket."""
        if self.server:
            self.server.stop()
            self.server.top.cleanup()
        self.server = Server("--no-prp-chains", *(("--strict",) if strict else ()), *options, "-i",
                             self.backing, path=os.path.join(self.top, "socket"))
        return self.server

    def format(self, *options):
        """Serves and formats the drive."""
        self.serve(*options)
        self.image = Image(str(SIZE), self.server.device)

    def mount(self, options=CPU):
        self.assertTrue(self.image.mount(options), self.image.log())

    def write(self, name, seed):
        with open(self.image.path(name), "wb") as f:
            f.write(content(seed))
            os.fsync(f.fileno())

    def expect_file(self, name="file", seed=1):
        with open(self.image.path(name), "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.assertTrue(f.read() == content(seed), name)

    def continue_after(self, seconds):
        self.server.pause()
        return Started(lambda: (time.sleep(seconds), self.server.go_on()))


class Served(Drive):
    def test_mkfs_writes_the_same_bytes_by_each_driver(self):
        """By the file driver, and on the served drive by the NVMe driver."""
        uuid, file = "11111111-2222-3333-4444-555555555555", os.path.join(self.top, "file")
        self.serve("--lba=512")  # the LBA size of a file
        with open(file, "wb") as f:
            f.truncate(SIZE)
        for device in file, self.server.device:
            output(MKFS, "-qf", "-U", uuid, "-E", "hash_seed=" + uuid, device,
                   SOURCE_DATE_EPOCH="1")
        self.end_server()
        output("/usr/bin/cmp", file, self.backing)

    def test_the_server_reads_what_the_mount_wrote(self):
        self.format()
        self.mount()
        self.write("file", 1)
        self.image.unmount()
        self.end_server()
        output(FSCK, "-n", self.backing)
        self.serve()

    def test_a_write_protected_namespace_is_mounted_read_only(self):
        self.format()
        self.mount()
        self.write("file", 1)
        self.image.unmount()
        self.serve("--read-only")
        self.mount()
        self.assertIn("write-protected, mounting read-only", self.image.log())
        self.assertTrue(os.statvfs(self.image.point).f_flag & os.ST_RDONLY)
        self.assertEqual(error_of(os.open, self.image.path("file"), os.O_RDWR), errno.EROFS)
        self.expect_file()

    def test_a_server_that_is_stopped_and_continued_only_costs_time(self):
        """Longer than the deadline its registers do not answer, and it is not gone."""
        self.format()
        self.mount(CPU + ",deadline=500")
        self.write("file", 1)
        waker = self.continue_after(4)
        self.expect_file()
        waker.join()
        self.write("after", 2)
        self.expect_file("after", 2)

    def test_a_reply_after_six_seconds_is_accepted(self):
        self.format()
        self.mount()
        self.write("file", 1)
        waker = self.continue_after(6)
        self.expect_file()
        waker.join()
        stats = document("stats", self.image.point)["mounts"][0]
        self.assertEqual(stats["controller_resets"], 0)

    def test_a_killed_daemon_leaves_a_drive_that_can_be_mounted_at_once(self):
        self.format()
        self.mount()
        self.write("synced", 1)
        self.image.kill()
        self.mount()
        self.expect_file("synced")

    def test_mkfs_names_the_drive_and_refuses_what_it_holds(self):
        device = self.serve().device
        text = output(MKFS, "-n", device)
        for line in ("Model: ", "Serial: ", "Namespace: 1\n",
                     "Drive size: 402653184 bytes (402.65 MB)\n"):
            self.assertIn(line, text)
        self.end_server()
        with open(self.backing, "r+b") as f:
            f.seek(1024)
            f.write(b"\1\0\0\0\x64\0\0\0")
            f.seek(4096 - 10)
            f.write(b"SWAPSPACE2")
        self.serve()
        self.assertEqual(output(MKFS, "-q", device, status=1), f"mkfs.gpunvme: {device}: holds a "
                         "signature of swap, -f overwrites it\n")
        output(MKFS, "-q", "-f", device)
        output(MKFS, "-q", device, status=1)  # our own
        with open(self.backing, "rb") as f:
            self.assertNotIn(b"SWAPSPACE2", f.read(8192), "wiped on the drive")

    def test_tools_report_errors_in_one_line(self):
        device = self.serve().device
        text = output(MKFS, "-N", "7", device, status=1)
        self.assertIn(": cannot open: namespace 7: ", text)
        self.assertEqual(text.count("\n"), 1, text)
        self.assertIn("holds no gpunvmefs file system", output(FSCK, "-n", device, status=8))
        self.image = Image(str(SIZE), device)
        self.mount()
        for tool, status in (MKFS, 1), (FSCK, 8):  # the drive is in use
            self.assertEqual(output(tool, "-n", device, status=status).count("\n"), 1, tool)
        self.image.unmount()
        self.end_server()
        self.assertEqual(output(FSCK, "-n", device, status=8).count("\n"), 1)
        self.serve()

    def test_mkfs_outlasts_a_server_that_is_silent_for_six_seconds(self):
        self.serve()
        waker = self.continue_after(6)
        self.assertEqual(output(MKFS, "-q", self.server.device), "")
        waker.join()


class Blocked(Drive):
    """Requests that the drive does not answer do not stop others."""

    def open(self, name, flags=os.O_RDONLY | os.O_DIRECT):
        fd = os.open(self.image.path(name), flags, 0o644)
        self.addCleanup(os.close, fd)
        return fd

    def make_hole(self):
        """A file of a megabyte without data, for reads that bypass the page cache."""
        with open(self.image.path("hole"), "wb") as f:
            f.truncate(1 << 20)

    def await_requests(self, count):
        """Until the kernel waits for so many requests of the mount, for a while."""
        control = os.path.join(self.top, "control")
        os.mkdir(control)
        subprocess.run(["mount", "-t", "fusectl", "fusectl", control], check=True, timeout=60)
        device = os.stat(self.image.point).st_dev
        name = os.path.join(control, str(os.major(device) << 20 | os.minor(device)), "waiting")
        polls = 0  # in a row that found them
        for _ in range(30000):
            with open(name, encoding="ascii") as f:
                polls = polls + 1 if int(f.read()) >= count else 0
            if polls == 200:
                break
            time.sleep(0.001)
        unmount(control)
        self.assertEqual(polls, 200)

    def end_by_a_killed_server(self, blocked):
        self.server.stop(signal.SIGKILL)  # which ends the requests
        for thread in blocked:
            self.assertTrue(thread.ends())
        self.image.daemon.kill()
        self.image.daemon.wait(SECONDS)
        self.image.daemon = None
        subprocess.run(["umount", "-l", self.image.point], check=True, timeout=60)
        self.serve()

    def test_many_reads_of_a_user_do_not_stop_another(self):
        """The readers are more than there are session threads."""
        self.format()
        self.mount()
        self.write("data", 1)
        self.make_hole()
        with open(self.backing, "rb") as f, \
             mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as blocks:
            lba = blocks.find(content(1)[:BLOCK]) // BLOCK
        self.assertGreater(lba, 0)
        self.image.unmount()
        self.serve("--fault", f"late,op=read,ms=3600000,lba={lba}")
        self.mount(CPU + ",noatime,deadline=3600000")
        hole, data = self.open("hole"), self.open("data")
        self.assertEqual(read_as(0, hole, 0), BLOCK)
        blocked = [Started(read_as, 1000, data, 0) for _ in range(200)]
        self.await_requests(len(blocked))
        other = Started(read_as, 1001, hole, BLOCK)
        self.assertTrue(other.ends(30))
        self.end_by_a_killed_server(blocked)
        self.assertTrue(all(thread.result < 0 for thread in blocked))

    def test_a_silent_server_does_not_stop_requests_that_need_no_drive(self):
        """The server answers nothing, so it maps no memory for further session threads."""
        self.format()
        self.mount(CPU + ",noatime,deadline=60000")
        self.write("data", 1)
        self.make_hole()
        hole, data = self.open("hole"), self.open("data")
        self.assertEqual(read_as(0, hole, 0), BLOCK)
        os.fsync(data)
        self.server.pause()
        blocked = [Started(read_as, 1000, data, BLOCK * i) for i in range(30)]
        try:
            self.await_requests(len(blocked))
            for i in range(30):
                self.assertTrue(Started(read_as, 1001, hole, BLOCK).ends(10), i)
        finally:
            self.server.go_on()
        for thread in blocked:
            self.assertTrue(thread.ends())
            self.assertEqual(thread.result, BLOCK)

    def test_many_flushes_of_a_user_do_not_stop_its_reads(self):
        """A user waits for more flushes than session threads may."""
        self.format()
        self.serve("--fault", "late,op=flush,ms=3600000,skip=200")
        self.mount(CPU + ",noatime,nommp,deadline=3600000")
        self.make_hole()
        hole = self.open("hole")
        # The kernel sends one FSYNC for a file at a time.
        files = [self.open(str(i), os.O_CREAT | os.O_RDWR) for i in range(100)]
        for _ in range(100):
            os.fsync(files[0])
        self.assertEqual(read_as(0, hole, 0), BLOCK)

        def flush(fd):
            LIBC.setfsuid(1000)  # of this thread only
            while error_of(os.fsync, fd) == 0:
                pass
        blocked = [Started(flush, fd) for fd in files]
        self.await_requests(len(blocked))
        self.assertTrue(Started(read_as, 1000, hole, BLOCK).ends(30))
        self.end_by_a_killed_server(blocked)


class Deviating(Drive):
    """Drives that do not conform cost no data: mounts and mkfs refuse them."""

    def test_a_mount_finds_a_controller_that_deviates(self):
        for server, deviation, says in (
                ((), ("--swaps-prps",), WRONG),
                # No other read of a mount is shorter than a page.
                (("--lba", "512"), ("--wraps-short",),
                 "wrong data by commands of the executor: in a list of short reads "),
                ((), ("--no-mdts",), "commands of the processor: a read of "),
                # Its fifth queue pair is the first of the executor's.
                ((), ("--fault", "status,op=read,qid=5,status=0x002"),
                 "commands of the executor: a read of ")):
            with self.subTest(deviation):
                self.format(*server)
                self.mount()
                self.write("file", 1)
                self.image.unmount()
                self.serve(*server, *deviation)
                begin, before = time.monotonic(), self.image.log()
                self.assertFalse(self.image.mount(CPU + ",deadline=60000"))
                self.assertLess(time.monotonic() - begin, 60, "no command waits for its deadline")
                self.assertRegex(self.image.log().removeprefix(before),
                                 rf"\A.*{self.server.device}: {says}.*\n\Z")
                self.serve(*server)
                self.mount()
                self.expect_file()
                self.image.close()
                self.image = None

    def test_a_mount_of_a_new_file_system_finds_any_two_pages_that_change_places(self):
        """Of the pages that mkfs wrote, no two are alike."""
        self.format()
        for swaps in "1,read", "5", "30,read":
            self.serve("--swaps-prps=" + swaps)
            before = self.image.log()
            self.assertFalse(self.image.mount(CPU), swaps)
            self.assertIn(WRONG, self.image.log().removeprefix(before))
        self.serve()

    def test_mkfs_finds_writes_whose_pages_change_places(self):
        self.serve("--swaps-prps=5,write")
        self.assertIn("does not give back what was written",
                      output(MKFS, "-q", self.server.device, status=1))

    def test_mkfs_reports_a_controller_that_refuses_commands(self):
        """And not that the device is too small."""
        self.serve("--no-mdts", strict=False)
        self.assertIn("the device refuses a command",
                      output(MKFS, "-q", self.server.device, status=1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
