#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Two controllers of one namespace: two servers of one image. One mount may write.

usage: two_controllers_test.py GPUNVME MKFS FSCK DAEMON SIM TUNE
"""

import os
import random
import signal
import sys
import tempfile
import unittest

from rig import (ARGUMENTS, DAEMON, FSCK, MEMORY, MKFS, Image, Server, error_of, needs_mounts,
                 output, unmount)

TUNE, = ARGUMENTS
SIZE = 16 << 20


def content(seed):
    return random.Random(seed).randbytes(SIZE)


@needs_mounts
class Controllers(unittest.TestCase):
    reserves = False

    def setUp(self):
        top = self.enterContext(tempfile.TemporaryDirectory(prefix="gpunvme-two-", dir=MEMORY))
        backing, self.there = (os.path.join(top, name) for name in ("image", "there"))
        os.mkdir(self.there)
        with open(backing, "wb") as f:
            f.truncate(384 << 20)
        options = ["--shared", "--no-prp-chains", "--strict", "-i", backing]
        if self.reserves:
            options += ["--reservations", os.path.join(top, "reservations")]
        device, self.other = (self.enterContext(Server(*options)).device for _ in range(2))
        self.image = Image("384M", device)
        self.addCleanup(self.image.close)

    def mount(self, options="executor=cpu"):
        """A mount with a file, which is durable."""
        self.assertTrue(self.image.mount(options), self.image.log())
        self.write(self.image.path("file"), 1)

    def mount_other(self, options="executor=cpu", status=0):
        """Mounts the other controller in the background; what the program says."""
        return output(DAEMON, self.other, self.there, "-o", options, status=status)

    def write(self, path, seed):
        with open(path, "wb") as f:
            f.write(content(seed))
            os.fsync(f.fileno())

    def expect_there(self, name, seed):
        with open(os.path.join(self.there, name), "rb") as f:
            self.assertTrue(f.read() == content(seed), name)

    def overwrite(self):
        """Is refused at the latest when the byte is to be durable."""
        with open(self.image.path("file"), "r+b", buffering=0) as f:
            f.write(b"x")
            os.fsync(f.fileno())

    def expect_taken_over(self, why):
        """Unmounts both, of which the other one has taken over and has written the file "new"."""
        unmount(self.image.point)
        self.assertNotEqual(self.image.daemon.wait(120), 0)
        self.image.daemon = None
        self.assertIn(why, self.image.log())
        self.expect_there("new", 2)
        unmount(self.there)
        output(FSCK, "-n", self.image.device)
        self.mount_other("ro,executor=cpu")
        self.expect_there("file", 1)
        self.expect_there("new", 2)
        unmount(self.there)


class TwoControllers(Controllers):
    def test_the_second_writer_is_refused(self):
        self.mount()
        refused = self.mount_other(status=32)
        self.assertIn("in use by host ", refused)
        self.assertIn("unmount it there first", refused)
        for tool, status in (((MKFS, "-q", "-f"), 1), ((FSCK, "-y"), 8), ((TUNE, "-L", "name"), 1)):
            self.assertIn("in use by host ", output(*tool, self.other, status=status))
        self.mount_other("ro,executor=cpu")
        self.expect_there("file", 1)
        unmount(self.there)
        self.image.unmount()
        self.assertNotIn("waiting", self.mount_other())
        self.expect_there("file", 1)
        unmount(self.there)

    def test_a_stopped_writer_that_goes_on_writes_nothing(self):
        """As a host that hangs, and goes on when another one has taken over."""
        self.mount("executor=cpu,commit=1")
        self.image.daemon.send_signal(signal.SIGSTOP)
        self.addCleanup(self.image.daemon.send_signal, signal.SIGCONT)
        self.assertIn("waiting up to ", self.mount_other())
        self.write(os.path.join(self.there, "new"), 2)
        self.image.daemon.send_signal(signal.SIGCONT)
        self.assertNotEqual(error_of(self.overwrite), 0)
        self.expect_taken_over("multi-mount protection: now in use by host ")


class TwoHosts(Controllers):
    """The controllers have reservations, too."""

    reserves = True

    def test_the_second_host_is_refused_with_a_way_out(self):
        self.mount()
        refused = self.mount_other(status=32)
        self.assertIn("reserved by the host with the identifier ", refused)
        self.assertIn("reservation=preempt if that host is dead", refused)
        for tool, status in ((MKFS, "-q", "-f"), 1), ((FSCK, "-y"), 8):
            self.assertIn("reserved by the host ", output(*tool, self.other, status=status))
        # Without a reservation of its own it is stopped by its first write.
        self.mount_other("executor=cpu,nommp,reservation=off", status=32)
        # A reader is not stopped, since it flushes nothing either.
        self.mount_other("ro,executor=cpu")
        for name in "file", "":
            fd = os.open(os.path.join(self.there, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        self.expect_there("file", 1)
        unmount(self.there)
        self.image.unmount()
        self.mount_other("executor=cpu,reservation=require")
        self.expect_there("file", 1)
        unmount(self.there)

    def test_a_writer_whose_reservation_is_taken_writes_nothing(self):
        self.mount("executor=cpu,commit=1,nommp")
        self.mount_other("executor=cpu,nommp,reservation=preempt")
        self.write(os.path.join(self.there, "new"), 2)
        self.assertNotEqual(error_of(self.overwrite), 0)
        self.expect_taken_over("another host has reserved the namespace")

    def test_a_dead_daemons_reservation_is_its_successors(self):
        self.mount()
        self.image.kill()
        self.assertIn("reserved by the host ", self.mount_other(status=32))
        self.assertTrue(self.image.mount("executor=cpu"), self.image.log())
        with open(self.image.path("file"), "rb") as f:
            self.assertTrue(f.read() == content(1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
