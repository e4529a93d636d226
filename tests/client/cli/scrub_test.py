#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""gpunvme scrub on a mounted file system with checksums of data.

usage: scrub_test.py GPUNVME MKFS FSCK DAEMON SIM
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from rig import (DAEMON, GPUNVME, MEMORY, MKFS, document, needs_mounts, run, serve, unmount)

OTHER_USER = 65534


def scrub(*arguments, status=0):
    return document("scrub", *arguments, status=status)


@needs_mounts
class Scrub(unittest.TestCase):
    features = ("-O", "data_csum")
    options = "executor=cpu,allow_other,commit=300"

    def setUp(self):
        self.top = tempfile.TemporaryDirectory(prefix="gpunvme-scrub-", dir=MEMORY)
        os.chmod(self.top.name, 0o755)
        self.image, self.mount = (os.path.join(self.top.name, n) for n in ("image", "mnt"))
        os.mkdir(self.mount)
        subprocess.run([MKFS, "-q", "-s", "128M", *self.features, self.image], check=True,
                       timeout=60)
        self.start()

    def start(self):
        self.daemon = serve(self.image, self.mount, self.options)
        os.chmod(self.mount, 0o755)

    def kill(self):
        """The daemon, and another serves the mount."""
        self.daemon.kill()
        self.daemon.wait(60)
        subprocess.run(["umount", self.mount], check=True, timeout=60)
        self.start()

    def tearDown(self):
        unmount(self.mount)
        self.daemon.wait(60)
        self.top.cleanup()

    def file(self, name, blocks):
        path = os.path.join(self.mount, name)
        with open(path, "wb") as f:
            f.write(os.urandom(blocks * 4096))
            os.fsync(f.fileno())
        return path

    def flip(self, path, block):
        """A bit of the block on the device; where that is."""
        extents = document("extents", path)["extents"]
        at = next(e["device_offset"] + block * 4096 - e["file_offset"] for e in extents
                  if e["file_offset"] <= block * 4096 < e["file_offset"] + e["length"])
        with open(self.image, "r+b") as image:
            image.seek(at)
            byte = image.read(1)
            image.seek(at)
            image.write(bytes([byte[0] ^ 1]))
        return at


class MetadataScrub(Scrub):
    name = "a-name-that-is-nowhere-else"

    def flip_each(self, text):
        """One bit of each place in the image that has the text; how many there are."""
        with open(self.image, "r+b") as image:
            data = image.read()
            at = places = 0
            while (at := data.find(text, at) + 1) > 0:
                image.seek(at)
                image.write(bytes([data[at] ^ 1]))
                places += 1
        return places

    def make_flipped(self):
        """A file system with a flipped bit, mounted."""
        self.file(self.name, 1)
        subprocess.run(["umount", self.mount], check=True, timeout=60)
        self.daemon.wait(60)
        self.assertGreater(self.flip_each(self.name.encode()), 0)
        self.start()

    def stats(self):
        return document("stats", self.mount)["mounts"][0]


class Finds(Scrub):
    def test_nothing_in_sound_files(self):
        os.mkdir(os.path.join(self.mount, "sub"))
        self.file("one", 300)
        self.file("sub/two", 20)
        os.symlink("one", os.path.join(self.mount, "link"))
        found = scrub(self.mount)
        self.assertEqual((found["files"], found["matching"], found["bad"]), (2, 320, 0))
        self.assertTrue(found["complete"])
        self.assertEqual(run("scrub", os.path.join(self.mount, "link"))[0],
                         "1 files: 300 blocks match, 0 bad, 0 without checksum, "
                         "0 checksums added\n")

    def test_each_bad_block_in_a_line(self):
        path, sound = self.file("file", 100), self.file("sound", 3)
        at = self.flip(path, 70)
        self.flip(path, 99)
        text, errors = run("scrub", self.mount, status=1)
        ino = os.stat(path).st_ino
        self.assertEqual(errors.splitlines()[0],
                         f"gpunvme: {path}: block 70 (inode {ino}, byte {at} of the device) does "
                         "not match its checksum")
        self.assertEqual(len(errors.splitlines()), 2)
        self.assertIn("2 files: 101 blocks match, 2 bad", text)
        found = scrub(path, "--add", status=1)
        self.assertEqual(found["blocks"][0],
                         {"file": path, "inode": ino, "file_offset": 70 * 4096,
                          "device_offset": at, "problem": "differs"})
        self.assertEqual(scrub(sound)["bad"], 0)
        with open(path, "rb") as f, self.assertRaises(OSError):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(f.fileno(), 1, 70 * 4096)

    def test_and_corrects_one_flipped_bit_on_request(self):
        path = self.file("file", 100)
        with open(path, "rb") as f:
            data = f.read()
        at = self.flip(path, 70)
        self.flip(path, 99)
        with open(self.image, "r+b") as image:
            image.seek(self.flip(path, 99) + 1)
            image.write(b"twobits!")
        text, errors = run("scrub", "--correct", self.mount, status=1)
        self.assertIn(f"byte {at} of the device) had one flipped bit, which was corrected", errors)
        self.assertIn("98 blocks match, 1 bad", text)
        self.assertTrue(text.endswith(", 1 corrected\n"), text)
        with open(path, "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.assertEqual(f.read(99 * 4096), data[:99 * 4096])
        found = scrub("-r", path, status=1)
        self.assertEqual((found["matching"], found["bad"], found["corrected"]), (99, 1, 0))
        self.flip(path, 3)
        other = self.file("other", 5)
        self.flip(other, 4)
        found = scrub("-r", other)
        self.assertEqual([b["problem"] for b in found["blocks"]], ["corrected"])
        self.assertEqual((found["bad"], found["corrected"]), (0, 1))

    def test_blocks_that_a_gpu_wrote_have_checksums(self):
        source = os.path.join(self.top.name, "source")
        with open(source, "wb") as f:
            f.write(os.urandom(1 << 20))
        path = os.path.join(self.mount, "file")
        run("write", "-q", "-p", "gpu", source, path)
        found = scrub(path)
        self.assertEqual((found["matching"], found["without"]), (256, 0))
        self.flip(path, 5)
        self.assertEqual(scrub(path, status=1)["bad"], 1)

    def test_blocks_overwritten_before_a_kill_have_none_until_they_are_added(self):
        path = self.file("file", 256)
        with open(path, "r+b") as f:
            f.write(os.urandom(1 << 20))
            os.fsync(f.fileno())
        self.kill()
        self.assertEqual(scrub(path)["without"], 256)
        found = scrub("-a", path)
        self.assertEqual((found["added"], found["without"]), (256, 0))
        self.assertEqual(scrub(path)["matching"], 256)
        self.flip(path, 5)
        self.assertEqual(scrub(path, status=1)["bad"], 1)


class Metadata(MetadataScrub):
    def test_of_one_flipped_bit_is_corrected_and_counted(self):
        self.make_flipped()
        self.assertEqual(os.listdir(self.mount), [self.name])
        found = self.stats()
        self.assertEqual((found["metadata_corrected"], found["metadata_damaged"]), (1, 0))
        lines = run("stats", "-o", "prometheus", self.mount)[0]
        self.assertIn(f'gpunvme_metadata_corrected_total{{mount="{self.mount}"}} 1\n', lines)

    def test_of_both_places_is_scrubbed_on_request(self):
        subprocess.run(["umount", self.mount], check=True, timeout=60)
        self.daemon.wait(60)
        subprocess.run([MKFS, "-q", "-f", "-s", "128M", "-O", "meta_copies", self.image],
                       check=True, timeout=60)
        self.start()
        self.file(self.name, 1)
        sound = scrub("-m", self.mount)["metadata"]
        self.assertGreater(sound["matching"], 10)
        self.assertEqual((sound["bad"], sound["corrected"], sound["copied"]), (0, 0, 0))
        self.damage_last_place(self.name.encode())
        text, errors = run("scrub", "--metadata", os.path.join(self.mount, self.name))
        self.assertIn(", 0 bad, 0 corrected, 1 written from the other place, ", text)
        self.assertEqual(len(text.splitlines()), 1)
        self.assertIn("of the device) was wrong, and has been written again from its other place",
                      errors)
        self.assertEqual(self.stats()["metadata_copied"], 1)
        self.damage_last_place(self.name.encode())
        found = scrub(self.mount, status=1)  # files have no checksums here
        self.assertEqual([p["problem"] for p in found["metadata"]["places"]], ["copied"])
        self.assertEqual(found["metadata"]["places"][0]["kind"], "inodes, trees or attributes")
        self.assertEqual(scrub("-m", self.mount)["metadata"]["copied"], 0)

    def damage_last_place(self, text):
        """More than a bit of the last place in the image that has the text; the log is before."""
        with open(self.image, "r+b") as image:
            image.seek(image.read().rfind(text))
            image.write(b"x" * len(text))

    def test_that_has_no_sound_place_is_bad(self):
        self.file(self.name, 1)
        found = scrub(self.mount)
        self.assertEqual((found["metadata"]["bad"], found["metadata"]["left_out"]), (0, 0))
        self.damage_last_place(self.name.encode())
        found = scrub(self.mount, status=1)
        self.assertEqual((found["bad"], found["metadata"]["bad"]), (0, 1))
        self.assertEqual(found["metadata"]["places"][0]["problem"], "differs")
        text, errors = run("scrub", "-m", self.mount, status=1)
        self.assertIn(", 1 bad, ", text)
        self.assertIn("is wrong, run fsck.gpunvme", errors)

    def test_is_scrubbed_by_root_and_not_with_single_files(self):
        path = self.file(self.name, 1)
        self.assertIsNone(scrub(path)["metadata"])
        done = subprocess.run([GPUNVME, "scrub", "-m", path], capture_output=True, text=True,
                              timeout=60, check=False, user=OTHER_USER)
        self.assertEqual(done.returncode, 1)
        self.assertIn("only root may scrub metadata", done.stderr)
        run("scrub", self.mount, user=OTHER_USER)
        self.assertIn("on no gpunvmefs mount", run("scrub", "-m", self.image, status=1)[1])


class Background(MetadataScrub):
    def remount(self, options):
        subprocess.run([DAEMON, self.image, self.mount, "-o", "remount," + options], check=True,
                       timeout=60)

    def wait_for(self, passes):
        for _ in range(600):
            if self.stats()["scrub_passes"] >= passes:
                return
            time.sleep(0.05)
        self.fail(self.stats())

    def test_of_one_flipped_bit_is_corrected_and_counted(self):
        self.options += ",scrub=1G"
        self.make_flipped()
        self.wait_for(1)
        found = self.stats()
        self.assertEqual((found["scrub_found"], found["scrub_corrected"]), (1, 1))
        self.assertLess(abs(time.time() - found["scrub_last_pass"]), 3600)
        lines = run("stats", "-o", "prometheus", self.mount)[0]
        self.assertIn(f'gpunvme_scrub_corrected_total{{mount="{self.mount}"}} 1\n', lines)

    def test_ends_with_the_mount_and_while_it_is_read_only(self):
        self.assertEqual(self.stats()["scrub_bytes"], 0)
        self.remount("ro,scrub=1G")
        self.assertEqual(self.stats()["scrub_bytes"], 0)
        self.remount("rw")
        self.wait_for(1)
        self.remount("scrub=0")
        self.remount("scrub=1")  # TearDown does not wait the hour of the first block
        self.assertEqual(self.stats()["scrub_passes"], 1)

    def test_refuses_what_is_no_rate(self):
        for rate in ("", "-1", "1T", "x", "1Kx", "1025G"):
            done = subprocess.run([DAEMON, self.image, self.mount, "-o", "scrub=" + rate],
                                  capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, rate)
            self.assertIn("must be bytes per second", done.stderr)


class Refuses(Scrub):
    def test_files_that_the_user_may_not_read_or_change(self):
        path = self.file("file", 10)
        os.chmod(path, 0o600)
        self.assertIn("Permission denied", run("scrub", path, status=1, user=OTHER_USER)[1])
        os.chmod(path, 0o644)
        run("scrub", path, user=OTHER_USER)
        self.assertIn("Permission denied", run("scrub", "-a", path, status=1, user=OTHER_USER)[1])

    def test_what_is_no_file_of_a_mount(self):
        fifo, link = (os.path.join(self.mount, name) for name in ("fifo", "link"))
        os.mkfifo(fifo)
        os.symlink("nothing", link)
        for path, said in ((self.image, "on no gpunvmefs mount"), ("/none", "No such file"),
                           ("/dev/null", "no file and no directory"),
                           (fifo, "no file and no directory"), (link, "is a link to nothing")):
            for options in ((), ("-m",)):
                errors = run("scrub", *options, path, status=1)[1]
                self.assertIn(said, errors)
                self.assertEqual(len(errors.splitlines()), 1)
        run("scrub", status=2)


def catches(pid, number):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        caught = next(line for line in f if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (number - 1) & 1 == 1


class Ends(Scrub):
    def test_by_a_signal(self):
        path = self.file("file", 8192)
        with subprocess.Popen([GPUNVME, "scrub", *[path] * 20000], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as long:
            for _ in range(1200):
                if catches(long.pid, signal.SIGINT):
                    break
                time.sleep(0.05)
            long.send_signal(signal.SIGINT)
            text, errors = long.communicate(timeout=60)
        self.assertEqual((long.returncode, errors), (1, ""))
        self.assertIn("(interrupted)", text)
        self.assertEqual(scrub(path)["matching"], 8192)


class WithoutChecksums(Scrub):
    features = ()

    def test_it_is_said_once(self):
        self.file("one", 1)
        self.file("two", 1)
        errors = run("scrub", self.mount, status=1)[1]
        self.assertEqual(len(errors.splitlines()), 1)
        self.assertIn("no checksums of data", errors)


del Scrub, MetadataScrub  # they have no tests of their own


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
