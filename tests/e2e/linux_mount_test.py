#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Remounts, and options of a mount that the kernel shows.

usage: linux_mount_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import contextlib
import errno
import os
import subprocess
import sys
import time
import unittest

from rig import DAEMON, Image, error_of, needs_mounts, output

NOSYMFOLLOW = 0x2000


@contextlib.contextmanager
def write_protected(image):
    """The image as a device without the right to write, for root as well."""
    subprocess.run(["mount", "--bind", image, image], check=True, timeout=60)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", image], check=True, timeout=60)
        yield
    finally:
        subprocess.run(["umount", image], check=True, timeout=60)


@needs_mounts
class Remount(unittest.TestCase):
    def setUp(self):
        self.image = Image()
        self.addCleanup(self.image.close)

    def mount(self, options=""):
        self.assertTrue(self.image.mount(options), self.image.log())

    def remount(self, options, status=0):
        """What the second gpunvmefs says, which is nothing if it succeeds."""
        text = output(DAEMON, self.image.device, self.image.point, "-o", "remount," + options,
                      status=status)
        self.assertEqual(text == "", status == 0, text)
        return text

    def expect_flags(self, on=0, off=0):
        flags = os.statvfs(self.image.point).f_flag
        self.assertEqual((flags & on, flags & off), (on, 0), hex(flags))

    def make(self, name, content=""):
        with open(self.image.path(name), "w", encoding="ascii") as f:
            f.write(content)

    def a_read_counts(self, name):
        before = os.stat(self.image.path(name)).st_atime_ns
        time.sleep(0.002)
        with open(self.image.path(name), "rb") as f:
            f.read(1)
        return os.stat(self.image.path(name)).st_atime_ns > before

    def test_switches_to_read_only_and_back(self):
        self.mount("noexec,strictatime,nodiratime")
        self.expect_flags(os.ST_NODIRATIME, os.ST_RELATIME)
        with open(self.image.path("f"), "w", encoding="ascii") as f:
            f.write("text")
            self.assertIn("open for writing", self.remount("ro", 32))
        self.assertTrue(self.a_read_counts("f"))
        self.remount("ro")
        self.expect_flags(os.ST_RDONLY | os.ST_NOEXEC)  # flags that are not named stay
        self.assertEqual(error_of(self.make, "g"), errno.EROFS)
        self.assertFalse(self.a_read_counts("f"))
        self.remount("rw,exec")
        self.expect_flags(0, os.ST_RDONLY | os.ST_NOEXEC | os.ST_RELATIME)
        self.make("g")
        self.assertTrue(self.a_read_counts("f"))

    def test_accepts_the_complete_list_of_the_mount_helper(self):
        """mount(8) hands over its whole list, in which exec and async are what is left out."""
        self.mount("noexec,sync")
        self.remount("rw,noexec,relatime,dev,suid")
        self.expect_flags(os.ST_NOEXEC, os.ST_SYNCHRONOUS)
        self.remount("rw,relatime,nodev,nosuid")
        self.expect_flags(os.ST_NODEV, os.ST_NOEXEC)

    def test_accepts_the_options_of_mount(self):
        """util-linux 2.38: what /proc/mounts says, of a mount with these flags."""
        self.mount()
        self.remount("nosymfollow")
        self.expect_flags(NOSYMFOLLOW)
        self.remount("ro")
        self.expect_flags(NOSYMFOLLOW)  # flags that are not named stay
        self.remount("rw,nosuid,nodev,noatime,nodiratime,nosymfollow,lazytime,seclabel,user_id=0,"
                     "group_id=0,default_permissions,allow_other,max_read=1048576,blksize=4096,"
                     "gpu=off,nofail")
        self.expect_flags(NOSYMFOLLOW | os.ST_NOATIME)
        self.remount("symfollow")
        self.expect_flags(0, NOSYMFOLLOW)

    def test_a_mount_follows_no_symbolic_links(self):
        """On either type of mount, where libfuse 3.14 does not know the option."""
        for options in "nosymfollow", "nosymfollow,noblkdev":
            self.mount(options)
            link = self.image.path("link")
            self.make("file")
            os.symlink("file", link)
            self.assertEqual(error_of(open, link), errno.ELOOP, options)
            os.unlink(link)
            self.image.unmount()

    def test_a_write_protected_device_is_mounted_read_only(self):
        self.mount()
        self.make("file")
        self.image.unmount()
        for options in "rw", "rw,noblkdev":
            with write_protected(self.image.device):
                self.mount(options)
                self.expect_flags(os.ST_RDONLY)
                self.assertTrue(os.path.exists(self.image.path("file")))
                self.assertIn("write-protected, mounting read-only", self.image.log())
                self.image.unmount()

    def test_unknown_options_are_refused(self):
        self.mount()
        for options in "ro,bogus", "bogus=1,ro", "user_id=0,ro,uid=5":
            text = self.remount(options, 1)
            self.assertIn("unknown option", text)
            self.assertEqual(text.count("\n"), 1, text)
            self.expect_flags(0, os.ST_RDONLY)

    def test_read_only_makes_everything_durable(self):
        self.mount("commit=3600")
        self.make("f")
        self.remount("ro")
        self.image.kill()
        self.mount()
        self.assertTrue(os.path.exists(self.image.path("f")))

    def test_a_too_small_cache_loses_no_file(self):
        # 375 blocks of inodes, and their names, in 256 blocks.
        names = [str(i) for i in range(3000)]
        self.mount("cache=1")
        for name in names:
            self.make(name)
        self.image.unmount()
        self.mount("cache=1")
        for name in names:
            os.stat(self.image.path(name))
        self.image.unmount()
        self.assertFalse(self.image.mount("cache=0"))

    def test_access_times_and_commits_change(self):
        self.mount("commit=3600")
        self.make("f", "text")
        self.remount("noatime")
        self.expect_flags(os.ST_NOATIME)
        self.assertFalse(self.a_read_counts("f"))
        self.remount("strictatime")
        self.expect_flags(0, os.ST_NOATIME)
        self.assertTrue(self.a_read_counts("f"))
        self.remount("commit=1")
        self.assertTrue(self.a_read_counts("f"), "options that are not named stay")
        self.make("committed")
        time.sleep(3)
        self.image.kill()
        self.mount()
        self.assertTrue(os.path.exists(self.image.path("committed")))

    def test_a_read_only_daemon_does_not_write(self):
        self.mount("ro")
        self.assertIn("was mounted read-only", self.remount("rw", 32))
        self.expect_flags(os.ST_RDONLY)
        self.remount("ro")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
